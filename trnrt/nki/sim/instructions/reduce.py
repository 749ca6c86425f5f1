"""Reductions along the free dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.bits import low_bits, pattern
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import OPERATORS, Operator, reduction
from trnrt.nki.machine.program import Engine, Instruction, Marks, View
from trnrt.nki.machine.rules import access, operands, operators
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["tensor_reduce"]


@rule("reduce-operator", "a reduction's operator is one that reduces", "API reference, Legal Reduction op")
def reduce_operator(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.reduces:
        return None
    legal = ", ".join(repr(o) for o in OPERATORS.values() if o.reduces)
    return f"op={op!r} is not a reduction; legal are {legal}"


@rule("trailing-axes", "tensor_reduce reduces the last free axes", "nki.isa tensor_reduce")
def trailing_axes(instruction: Instruction, target: Target) -> str | None:
    data: View = instruction["data"]
    axes = instruction["axis"]
    if axes and 0 not in axes and sorted(axes) == list(range(data.ndim - len(axes), data.ndim)):
        return None
    return f"axis={axes} of data of {data.ndim} dimensions; only its last free axes can be reduced"


@rule("reduced-size", "a reduction's destination holds what is left", "nki.isa tensor_reduce, Tile size")
def reduced_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    left = 1
    for size in data.shape[1 : data.ndim - len(instruction["axis"])]:
        left *= size
    if dst.free_size != left:
        return f"dst holds {dst.free_size} elements a partition; reducing {data.shape} leaves {left}"
    return None


@rule("bitvec-negate", "only arithmetic reductions can be negated", "nki.isa tensor_reduce, negate")
def bitvec_negate(instruction: Instruction, target: Target) -> str | None:
    if instruction["negate"] and operators.is_bitvec(instruction["op"]):
        return f"negate=True with op={instruction['op']!r}; a bitvec operator's result can't be negated"
    return None


def _tensor_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis)`` in float32, times -1 with ``negate``; bitvec operators on bit patterns."""
    dst, data = instruction["dst"], instruction["data"]
    kept = data.shape[: data.ndim - len(instruction["axis"])]
    take = in_shape(arrays(data), (*kept, -1))
    reduce, target = reduction(instruction["op"]), arrays(dst)
    if instruction["op"].bitvec:
        return lambda: np.copyto(target, low_bits(reduce(pattern(take())), target.dtype).reshape(target.shape))
    write = writer(dst, target)
    if instruction["negate"]:
        return lambda: write(-reduce(as_float32(take())))
    return lambda: write(reduce(as_float32(take())))


def _marks_reduced(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Each element of dst from those of data that it reduces."""
    data = instruction["data"]
    kept = data.ndim - len(instruction["axis"])
    reduced = marks["data"].reshape(*data.shape[:kept], -1).max(axis=-1)
    return {"dst": reduced.reshape(instruction["dst"].shape)}


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        reduce_operator,
        trailing_axes,
        reduced_size,
        *operators.BITVEC,
        bitvec_negate,
    ),
    meaning=_tensor_reduce,
    cycles=costs.reduction,
    spreads=_marks_reduced,
)
def tensor_reduce(
    dst: NkiTensor,
    op: Operator,
    data: NkiTensor,
    axis: int | Sequence[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> Args:
    """``dst = op.reduce(data, axis)`` over the last free axes; times -1 with ``negate``."""
    try:
        axes = tuple(index(a) for a in (axis if isinstance(axis, Sequence) else (axis,)))
    except TypeError:
        raise KernelError(f"tensor_reduce: axis={axis!r}; it must be an integer or a sequence of integers") from None
    if isinstance(data, NkiTensor):
        axes = tuple(a + data.ndim if a < 0 else a for a in axes)
    return {"dst": dst, "data": data, "op": op, "axis": axes, "negate": negate, "name": name}
