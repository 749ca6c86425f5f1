"""The published whole kernels: a case for each figure, in the order of ``measurements.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trnrt.calibration import attention, convolutions, kernels, products
from trnrt.calibration.cases import Case, Length
from trnrt.nki import Spec

Arguments = tuple[Any, ...]


def line(near: int, far: int, whole: int) -> Mapping[Length, float]:
    """The weights of two lengths for a third: ``near`` units, plus multiples of the difference between the two."""
    slope = (whole - near) / (far - near)
    return {(near,): 1 - slope, (far,): slope}


def plane(near: Length, whole: Length) -> Mapping[Length, float]:
    """The weights of three small numbers of units, in rows and columns, for large ones.

    Each row takes a fixed time, and each of its columns another: a column and a row more than ``near`` give both.
    """
    rows, columns = near
    column = (whole[0] * whole[1] - rows * columns - (whole[0] - rows) * columns) / rows
    row = float(whole[0] - rows)
    return {near: 1 - row - column, (rows, columns + 1): column, (rows + 1, columns): row}


def groups(whole: Length) -> Mapping[Length, float]:
    """The weights of 2 x 2 and 2 x 4 groups of tiles for many: each takes the same time."""
    slope = (whole[0] * whole[1] - 4) / 4
    return {(2, 2): 1 - slope, (2, 4): slope}


def _pair(*shape: int, dtype: str = "float32") -> Arguments:
    return Spec(shape, dtype), Spec(shape, dtype)


def _elements(count: int) -> Arguments:
    return _pair(count, 1)


def _rows(columns: int, rows: int) -> Arguments:
    return _pair(rows, columns)


def _slabs(columns: int, count: int) -> Arguments:
    return _pair(count, 128, columns)


def _tiles(dtype: str, count: int) -> Arguments:
    """A product of ``count`` tiles of 128 x 512, at least 256 rows of them; 512 are 4096 x 8192."""
    rows = max(256, count * 8)
    return Spec((8192, rows), dtype), Spec((8192, count * 128 * 512 // rows), dtype)


def _groups(tiles_m: int, tiles_n: int, dtype: str, rows: int, columns: int) -> Arguments:
    """A product of ``rows`` x ``columns`` groups of tiles of 128 x 512, a contraction of 8192."""
    return Spec((8192, rows * tiles_m * 128), dtype), Spec((8192, columns * tiles_n * 512), dtype)


def _blocks(dtype: str, columns: int, depth: int) -> Arguments:
    """A product of 4096 rows, ``columns`` * 1024 columns and a contraction of ``depth`` * 1024."""
    return Spec((depth * 1024, 4096), dtype), Spec((depth * 1024, columns * 1024), dtype)


def _image(dtype: str, rows: int) -> Arguments:
    """A convolution with ``rows`` rows of output, 222 columns, 256 channels to 256."""
    return Spec((256, rows + 2, 224), dtype), Spec((256, 256, 3, 3), dtype), Spec((256, 1), dtype)


def _matrix(rows: int, columns: int, dtype: str = "float32") -> Arguments:
    return (Spec((rows, columns), dtype),)


# 8 x 8 blocks from 2 x 2: 6 more columns of blocks, each of a depth of 2; then 6 deeper ones in all 8 columns, from the
# times of 2 columns.
_COLUMNS, _DEPTH = 8 - 2, (8 - 2) * 8 / 2
BLOCKS: Mapping[Length, float] = {(2, 2): 1 - _COLUMNS - _DEPTH, (3, 2): _COLUMNS, (2, 3): _DEPTH}
# From 3 x 3, because the clock at 2 x 2 is not yet that of the whole kernel.
_MORE_DEPTH = (8 - 3) * 8 / 3
LARGE_BLOCKS: Mapping[Length, float] = {(3, 3): 1 - (8 - 3) - _MORE_DEPTH, (4, 3): 8 - 3, (3, 4): _MORE_DEPTH}

# The guide's blocks of 16 tiles fill all 224 KiB of a partition in float32, of which 208 are a kernel's: these are the
# largest that fit.
_BLOCK_ROWS = {"tiles_m": 8}

_ONE_BY_ONE = line(200, 400, 25600)


def _additions() -> list[Case]:
    by_128, columns, slabs = {"chunk": 128}, kernels.add_columns, kernels.add_slabs
    return [
        Case("add-rows-1", kernels.add_chunks, _elements, (25600,), _ONE_BY_ONE),
        Case("add-rows-128", kernels.add_chunks, _elements, (25600,), options=by_128),
        Case("add-stream-2", columns, partial(_rows, 200), (128,), options={"width": 2}),
        Case("add-stream-200", columns, partial(_rows, 200), (128,), options={"width": 200}),
        Case("add-stream-2000", columns, partial(_rows, 2000), (128,), options={"width": 2000}),
        Case("add-stream-1000", columns, partial(_rows, 2000), (128,), options={"width": 1000}),
        Case("add-rows-1-trn1", kernels.add_chunks, _elements, (25600,), _ONE_BY_ONE),
        Case("add-rows-128-trn1", kernels.add_chunks, _elements, (25600,), options=by_128),
        Case("add-stream-2-trn1", slabs, partial(_slabs, 2), (100,)),
        Case("add-stream-200-trn1", slabs, partial(_slabs, 200), (1,)),
        Case("add-stream-2000-trn1", slabs, partial(_slabs, 2000), (1,)),
        Case("add-stream-1000-trn1", slabs, partial(_slabs, 1000), (2,)),
        Case("add-stream-1000-trn1-benchmark", slabs, partial(_slabs, 1000), (2,)),
    ]


def _transposes() -> list[Case]:
    return [
        Case("transpose-1024", kernels.transpose_tiles, _matrix, (1024, 1024)),
        Case("transpose-1024-vector", kernels.transpose_tiles, _matrix, (1024, 1024), options={"by_vector": True}),
    ]


def _convolution(name: str, kernel: Callable[..., Any], dtype: str, pool: int) -> Case:
    return Case(name, kernel, partial(_image, dtype), (222,), line(16, 32, 222), {"pool": pool})


def _convolutions() -> list[Case]:
    rows, blocks = convolutions.convolve_rows, convolutions.convolve_blocks
    return [
        _convolution("conv-rows-fp32", rows, "float32", 1),
        _convolution("conv-rows-fp16", rows, "float16", 1),
        _convolution("conv-rows-fp32-pool", rows, "float32", 2),
        _convolution("conv-rows-fp16-pool", rows, "float16", 2),
        _convolution("conv-blocks-fp16", blocks, "float16", 1),
        _convolution("conv-blocks-fp16-pool", blocks, "float16", 2),
    ]


def _ladder_case(step: int, height: int, kernel: Callable[..., Any], **options: int) -> Case:
    """A step of the ladder on trn1: ``height`` x 2 tiles at a time."""
    whole = (32 // height, 8)
    return Case(
        f"matmul-ladder-{step}-trn1", kernel, partial(_groups, height, 2, "bfloat16"), whole, groups(whole), options
    )


def _products() -> list[Case]:
    tiled, blocked, hoisted = kernels.matmul_tiled, kernels.matmul_blocked, products.matmul_hoisted
    grouped = products.matmul_grouped
    wide = {"tiles_m": 4, "tiles_n": 2}
    two = {"tiles_m": 2, "tiles_n": 2}
    return [
        Case("matmul-best-trn1", blocked, partial(_blocks, "bfloat16"), (8, 8), BLOCKS),
        Case("matmul-ladder-1-trn1", tiled, partial(_tiles, "bfloat16"), (512,), line(4, 8, 512)),
        _ladder_case(2, 1, products.matmul_paired),
        _ladder_case(3, 2, grouped, **two),
        _ladder_case(4, 4, grouped, **wide),
        _ladder_case(5, 4, grouped, **wide, lhs_load=2),
        _ladder_case(6, 4, grouped, **wide, lhs_load=4, rhs_load=2),
        Case("matmul-tiled-trn2", tiled, partial(_tiles, "float32"), (512,), line(4, 8, 512)),
        Case("matmul-hoisted-trn2", hoisted, partial(_groups, 1, 1, "float32"), (32, 16), plane((2, 3), (32, 16))),
        Case("matmul-columns-trn2", hoisted, partial(_groups, 2, 2, "float32"), (16, 8), plane((2, 2), (16, 8)), two),
        Case("matmul-blocked-trn2", blocked, partial(_blocks, "float32"), (8, 8), LARGE_BLOCKS, _BLOCK_ROWS),
        Case("matmul-2048-trn2", products.matmul_tuned, lambda n: _pair(n, n, dtype="bfloat16"), (2048,)),
    ]


def _others() -> list[Case]:
    heads = partial(_attention, 128)
    return [
        Case("attention-unfused-fp32-512", attention.attention_unfused, heads, (512,), mode_argument="io"),
        Case("attention-fused-fp32-512", attention.attention_fused, heads, (512,), mode_argument="io"),
        Case("silu-trn1", kernels.silu, lambda n: _matrix(n * 128, 7168), (32,), line(4, 8, 32)),
        Case("exp-4x4096", kernels.exponential, lambda n: _matrix(n, 4096, "bfloat16"), (4,)),
    ]


def _attention(depth: int, length: int) -> Arguments:
    return (Spec((depth, length), "float32"),) * 3


CASES: tuple[Case, ...] = tuple(_additions() + _transposes() + _convolutions() + _products() + _others())
