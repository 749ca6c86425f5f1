"""The tensor engine: matrix products and transposes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine.binding import Arrays, as_float32, exact, in_shape, matrix, writer
from trnrt.nki.machine.program import Engine, Instruction, Operation, View
from trnrt.nki.machine.rules import tensor


def _matmul(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T @ moving``, or ``dst += ...``, in float32.

    ``accumulates`` is True, False, or (element by element, as the hardware tracks it) a mask of the elements
    of ``dst`` that are added to.
    """
    dst: View = instruction["dst"]
    target = arrays(dst)
    stationary = matrix(instruction["stationary"], arrays, "stationary")
    moving = matrix(instruction["moving"], arrays, "moving")
    accumulates = instruction["accumulates"]
    scratch = arrays.scratch("product", (dst.partitions, dst.free_size))
    shaped = scratch.reshape(target.shape)
    flat = target.reshape(scratch.shape)
    in_place = exact(dst) and np.may_share_memory(flat, target)
    write = writer(dst, target)

    def overwrite() -> None:
        np.matmul(stationary().T, moving(), out=scratch)
        write(shaped)

    def overwrite_in_place() -> None:
        np.matmul(stationary().T, moving(), out=flat)

    def accumulate() -> None:
        np.matmul(stationary().T, moving(), out=scratch)
        write(np.add(target, shaped, out=shaped))

    def accumulate_masked() -> None:
        np.matmul(stationary().T, moving(), out=scratch)
        write(np.where(accumulates, target, np.float32(0)) + shaped)

    if isinstance(accumulates, np.ndarray):
        return accumulate_masked
    if accumulates:
        return accumulate
    return overwrite_in_place if in_place else overwrite


NC_MATMUL = Operation(
    name="nc_matmul",
    engines=(Engine.tensor,),
    writes=("dst",),
    reads=("stationary", "moving"),
    rules=tensor.MATMUL,
    bind=_matmul,
)


def _transpose(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data.T`` with the free dimensions flattened; where the tensor engine multiplies with an identity
    (trn1), NaN and infinity spread over the row of the result as they do in hardware."""
    dst, data = instruction["dst"], instruction["data"]
    target = arrays(dst)
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    if instruction["bit_accurate"]:

        def transpose() -> None:
            target[...] = take().T.reshape(target.shape)

        return transpose
    write = writer(dst, target)
    identity = np.eye(data.partitions, dtype=np.float32)
    return lambda: write(as_float32(take()).T @ identity)


NC_TRANSPOSE = Operation(
    name="nc_transpose",
    engines=(Engine.tensor, Engine.vector),
    writes=("dst",),
    reads=("data",),
    rules=tensor.TRANSPOSE,
    bind=_transpose,
)
