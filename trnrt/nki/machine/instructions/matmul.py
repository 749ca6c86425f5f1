"""The tensor engine: matrix products and transposes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from trnrt.nki.machine import rules
from trnrt.nki.machine.binding import Arrays, in_shape, matrix, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation, View

_ACCESS_RULES = (rules.partition_limit, rules.start_partition, rules.dimensions, rules.pattern_range)


def _matmul(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T @ moving``, or ``dst += ...``, in float32.

    ``accumulates`` is True, False, or (element by element, as the hardware tracks it) a mask of the elements
    of ``dst`` that an earlier matmul wrote.
    """
    dst: View = instruction["dst"]
    target = arrays(dst)
    stationary, moving = matrix(arrays(instruction["stationary"])), matrix(arrays(instruction["moving"]))
    accumulates = instruction["accumulates"]
    scratch = np.empty((dst.partitions, dst.free_size), np.float32)
    product = partial(np.matmul, out=scratch)
    shaped = scratch.reshape(target.shape)
    write = writer(dst, target)

    def overwrite() -> None:
        product(stationary().T, moving())
        write(shaped)

    def overwrite_in_place() -> None:
        np.matmul(stationary().T, moving(), out=flat)

    def accumulate() -> None:
        product(stationary().T, moving())
        write(target + shaped)

    def accumulate_masked(written: Array) -> None:
        product(stationary().T, moving())
        write(np.where(written, target, np.float32(0)) + shaped)

    if isinstance(accumulates, np.ndarray):
        return partial(accumulate_masked, accumulates)
    if accumulates:
        return accumulate
    flat = target.reshape(scratch.shape)
    direct = dst.dtype.name == "float32" and np.shares_memory(flat, target)
    return overwrite_in_place if direct else overwrite


NC_MATMUL = Operation(
    name="nc_matmul",
    engines=(Engine.tensor,),
    writes=("dst",),
    reads=("stationary", "moving"),
    rules=(
        rules.matmul_memory,
        *_ACCESS_RULES,
        rules.matmul_contraction,
        rules.matmul_stationary,
        rules.matmul_moving,
        rules.matmul_result,
        rules.matmul_dtypes,
        rules.matmul_result_dtype,
        rules.psum_bank,
        rules.psum_accumulate,
    ),
    bind=_matmul,
)


def _transpose(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data.T`` with the free dimensions flattened; where the tensor engine multiplies with an identity
    (trn1), NaN and infinity spread over the row of the result as they do in hardware."""
    dst, data = instruction["dst"], instruction["data"]
    target = arrays(dst)
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    write = writer(dst, target)
    if instruction["bit_accurate"]:
        return lambda: write(take().T)
    identity = np.eye(data.partitions, dtype=np.float32)
    return lambda: write(take().T @ identity)


NC_TRANSPOSE = Operation(
    name="nc_transpose",
    engines=(Engine.tensor, Engine.vector),
    writes=("dst",),
    reads=("data",),
    rules=(
        rules.on_chip,
        *_ACCESS_RULES,
        rules.transpose_memory,
        rules.transpose_shape,
        rules.transpose_size,
        rules.transpose_dtype,
    ),
    bind=_transpose,
)
