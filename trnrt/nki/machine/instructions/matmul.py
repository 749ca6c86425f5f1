"""The tensor engine: matrix products and transposes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, exact, in_shape, matrix, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation, View
from trnrt.nki.machine.rules import operands, tensor


def _product(instruction: Instruction, arrays: Arrays) -> Callable[[Array], None]:
    """A function that puts ``stationary.T @ moving`` into an array (columns, columns)."""
    stationary_view, moving_view = instruction["stationary"], instruction["moving"]
    if instruction["double_row"]:
        halves = [
            (matrix(row(stationary_view, i), arrays, "stationary"), matrix(row(moving_view, i), arrays, "moving"))
            for i in (0, 1)
        ]

        def double_row(out: Array) -> None:
            (first, first_moving), (second, second_moving) = halves
            np.matmul(first().T, first_moving(), out=out)
            out += second().T @ second_moving()

        return double_row
    stationary = matrix(stationary_view, arrays, "stationary")
    moving = matrix(moving_view, arrays, "moving")

    def product(out: Array) -> None:
        np.matmul(stationary().T, moving(), out=out)

    return product


def row(view: View, position: int) -> View:
    """One of the two rows that a double row's first free dimension holds."""
    offset = view.offset + position * view.strides[1]
    shape, strides = (view.shape[0], *view.shape[2:]), (view.strides[0], *view.strides[2:])
    return replace(view, shape=shape, strides=strides, offset=offset)


def _pass_through(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T``, bit for bit: each column of ``moving`` names the partition that it passes.

    ``moving`` is an identity matrix, or part of one in any order; the reference knows no other.
    """
    target = arrays(instruction["dst"])
    stationary = matrix(instruction["stationary"], arrays, "stationary")
    moving = matrix(instruction["moving"], arrays, "moving")

    def transpose() -> None:
        chosen = moving()
        passed = chosen.argmax(axis=0)
        if not _is_selection(chosen, passed):
            raise KernelError(
                "nc_matmul: is_transpose=True with a moving operand that is no identity matrix; the reference does not "
                f"say what that does\n  at {instruction.source}"
            )
        target[...] = stationary().T[:, passed].reshape(target.shape)

    return transpose


def _is_selection(matrix: Array, ones: Array) -> bool:
    """Whether each column holds a single one, in the row that ``ones`` names, and zeros."""
    columns = np.arange(matrix.shape[1])
    return bool((matrix[ones, columns] == 1).all()) and np.count_nonzero(matrix) == columns.size


def _matmul(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = stationary.T @ moving``, or ``dst += ...``, in float32; a transpose moves data instead of multiplying.

    ``accumulates`` is True, False, or (element by element, as the hardware tracks it) a mask of the elements
    of ``dst`` that are added to.
    """
    dst: View = instruction["dst"]
    target = arrays(dst)
    if instruction["passes_through"]:
        return _pass_through(instruction, arrays)
    product = _product(instruction, arrays)
    accumulates = instruction["accumulates"]
    scratch = arrays.scratch("product", (dst.partitions, dst.free_size))
    shaped = scratch.reshape(target.shape)
    flat = target.reshape(scratch.shape)
    write = writer(dst, target)

    def overwrite() -> None:
        product(scratch)
        write(shaped)

    def overwrite_in_place() -> None:
        product(flat)

    def accumulate() -> None:
        product(scratch)
        write(np.add(target, shaped, out=shaped))

    def accumulate_in_place() -> None:
        product(scratch)
        np.add(target, shaped, out=target)

    def accumulate_masked() -> None:
        product(scratch)
        write(np.where(accumulates, target, np.float32(0)) + shaped)

    if isinstance(accumulates, np.ndarray):
        return accumulate_masked
    if accumulates:
        return accumulate_in_place if exact(dst) else accumulate
    return overwrite_in_place if exact(dst) and np.may_share_memory(flat, target) else overwrite


NC_MATMUL = Operation(
    name="nc_matmul",
    engines=(Engine.tensor,),
    writes=("dst",),
    reads=("stationary", "moving"),
    rules=(*tensor.MATMUL, operands.other_start_partition),
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
    cost=costs.transposition,
)
