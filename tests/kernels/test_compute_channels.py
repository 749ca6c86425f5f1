"""Programs of element-wise operators on channels in SBUF, beside one number a channel, or an image and channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st
from test_compute import Ops, one_by_one, programs

from trnrt.kernels.elementwise import compute
from trnrt.nki import Spec, nisa, nl, trace


def gated(srcs: list[Array], ops: Ops, shape: tuple[int, ...], target: str = "trn2") -> Array:
    """The program on channels in SBUF, those of one pixel too; (P, B) stay in HBM."""

    def body(*srcs: Tensor) -> Tensor:
        tiles = []
        for src in srcs:
            tile = nl.ndarray(src.shape, src.dtype, nl.sbuf)
            if len(src.shape) == 5:
                nisa.dma_copy(dst=tile, src=src)
            tiles.append(tile if len(src.shape) == 5 else src)
        dst = nl.ndarray(shape, srcs[0].dtype, nl.sbuf)
        compute(dst, tuple(tiles), ops)
        result = hbm(shape, dst.dtype)
        nisa.dma_copy(dst=result, src=dst)
        return result

    return call(body, *srcs, target=target)


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), target=st.sampled_from(TARGETS))
def test_any_program_with_gates(data: Any, dtype: str, target: str) -> None:
    """Besides tiles, one number a channel and image, and one a channel."""
    shape = data.draw(
        st.sampled_from([(7, 1, 1, 3, 4), (128, 2, 3, 4, 5), (33, 3, 1, 9, 9), (5, 2, 2, 60, 70), (6, 2, 1, 1, 1)])
    )
    kinds = ["tile", *data.draw(st.lists(st.sampled_from(["tile", "gate", "column"]), min_size=1, max_size=2))]
    sizes = {"tile": shape, "gate": (*shape[:3], 1, 1), "column": shape[:2]}
    srcs = [drawn(sizes[kind], i, "float32" if kind == "column" else dtype) for i, kind in enumerate(kinds)]
    ops = data.draw(programs(len(srcs)))
    spread = [src.reshape(*shape[:2], 1, 1, 1) if src.ndim == 2 else src for src in srcs]
    expected = np.broadcast_to(one_by_one(spread, ops), shape).astype(NUMPY[dtype]).astype(np.float64)
    np.testing.assert_array_equal(gated(srcs, ops, shape, target), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_a_function_of_a_tile_times_a_column_plus_a_column(target: str) -> None:
    """One instruction of the scalar engine for each block."""
    shape = (128, 2, 1, 6, 7)
    ops: Ops = (("multiply", 0, 1), ("add", 3, 2), ("relu", 4))
    srcs = [drawn(shape, 0), drawn(shape[:2], 1), drawn(shape[:2], 2)]
    columns = [src.reshape(128, 2, 1, 1, 1).astype(np.float64) for src in srcs[1:]]
    expected = np.maximum(srcs[0].astype(np.float64) * columns[0] + columns[1], 0)
    np.testing.assert_allclose(gated(srcs, ops, shape, target), expected, rtol=1e-6, atol=1e-6)

    def body(*srcs: Tensor) -> Tensor:
        tile, dst = nl.ndarray(shape, srcs[0].dtype, nl.sbuf), nl.ndarray(shape, srcs[0].dtype, nl.sbuf)
        nisa.dma_copy(dst=tile, src=srcs[0])
        compute(dst, (tile, srcs[1], srcs[2]), ops)
        result = hbm(shape, dst.dtype)
        nisa.dma_copy(dst=result, src=dst)
        return result

    program = trace(body, *(Spec(src.shape, "float32") for src in srcs), target=target)
    names = [one.operation.name for one in program.instructions if one.operation.name != "dma_copy"]
    assert names == ["activation"] * 2
