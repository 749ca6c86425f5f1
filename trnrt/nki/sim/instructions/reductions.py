"""Reductions along the free dimensions and across partitions, means and variances, bounds of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import index

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs, spreading
from trnrt.nki.machine.binding import Arrays, as_float32, exact, in_shape, writer
from trnrt.nki.machine.bits import low_bits, pattern
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import AVERAGE, OPERATORS, Operator, reduction
from trnrt.nki.machine.program import Engine, Instruction, Marks, View
from trnrt.nki.machine.rules import access, operands, operators
from trnrt.nki.machine.rules.checks import check_size, check_size_limit, dtype_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["bn_aggr", "bn_stats", "sequence_bounds", "tensor_partition_reduce", "tensor_reduce"]

STATISTICS_MAX = 512  # nl.tile_size.bn_stats_fmax
_STATISTICS, _TUPLE, _AGGREGATED = 6, 3, 2
_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


@rule("reduce-operator", "a reduction takes only reduction operators", "API reference, Legal Reduction op")
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


@rule(
    "reduced-size", "a reduction's destination has as many elements as its result", "nki.isa tensor_reduce, Tile size"
)
def reduced_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    left = prod(data.shape[1 : data.ndim - len(instruction["axis"])])
    if dst.free_size != left:
        return f"dst holds {dst.free_size} elements a partition; reducing {data.shape} leaves {left}"
    return None


@rule("bitvec-negate", "only arithmetic reductions can be negated", "nki.isa tensor_reduce, negate")
def bitvec_negate(instruction: Instruction, target: Target) -> str | None:
    if instruction["negate"] and operators.is_bitvec(instruction["op"]):
        return f"negate=True with op={instruction['op']!r}; a bitvec operator's result can't be negated"
    return None


def _store_reduction(
    instruction: Instruction, arrays: Arrays, take: Callable[[], Array], reduce: Callable[[Array], Array]
) -> Callable[[], None]:
    """``dst = reduce(take())`` in float32; with a bitvec operator on bit patterns."""
    dst = instruction["dst"]
    target = arrays(dst)
    if instruction["op"].bitvec:
        return lambda: np.copyto(target, low_bits(reduce(pattern(take())), target.dtype).reshape(target.shape))
    write = writer(dst, target)
    return lambda: write(reduce(as_float32(take())))


def _tensor_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis)``; times -1 with ``negate``."""
    if _has_small_windows(instruction):
        return _reduce_windows(instruction, arrays)
    data, reduce = instruction["data"], reduction(instruction["op"])
    kept = data.shape[: data.ndim - len(instruction["axis"])]
    take = in_shape(arrays(data), (*kept, -1))
    if instruction["negate"]:
        return _store_reduction(instruction, arrays, take, lambda values: -reduce(values))
    return _store_reduction(instruction, arrays, take, reduce)


def _has_small_windows(instruction: Instruction) -> bool:
    """True for a reduction of floats, as pooling's, with no fewer results a partition than elements in each window.

    numpy reduces such windows slowly: it copies each, then begins a loop for each.
    """
    data, op, left = instruction["data"], instruction["op"], instruction["dst"].free_size
    plain = isinstance(op.binary, np.ufunc) and not op.bitvec and not op.comparison
    return bool(plain and data.dtype.is_float and 2 * left <= data.free_size <= left * left)


def _reduce_windows(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``tensor_reduce``, one element of all windows after the other."""
    dst, data, reduced = instruction["dst"], instruction["data"], len(instruction["axis"])
    window, target, combine = arrays(data), arrays(dst), instruction["op"].binary
    first, *others, last = [window[..., *place] for place in np.ndindex(data.shape[-reduced:])]
    # Not in place: dst may overlap data. numpy itself takes care of the last operation.
    results = arrays.scratch("reduction", first.shape)
    direct = exact(dst) and not instruction["negate"] and target.shape == results.shape
    out, write = target if direct else results, writer(dst, target)

    def reduce() -> None:
        reduced = first
        for elements in others:
            reduced = combine(reduced, elements, out=results)
        combine(reduced, last, out=out)
        if not direct:
            write(-results if instruction["negate"] else results)

    return reduce


def _marks_reduced(instruction: Instruction, marks: Marks) -> dict[str, Array]:
    """Marks for each element of dst from the elements of data that it reduces."""
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


@rule("statistics-size", "bn_stats reads up to 512 elements a partition and writes 6", "nki.isa bn_stats")
def statistics_size(instruction: Instruction, target: Target) -> str | None:
    return check_size_limit(instruction, STATISTICS_MAX, "data") or check_size(instruction, _STATISTICS, "dst")


@rule("aggregated-size", "bn_aggr reads triples of count, mean and variance, and writes 2 elements", "nki.isa bn_aggr")
def aggregated_size(instruction: Instruction, target: Target) -> str | None:
    size = instruction["data"].free_size
    if size % _TUPLE:
        return f"data holds {size} elements a partition; it must be a multiple of {_TUPLE}"
    return check_size(instruction, _AGGREGATED, "dst")


@rule(
    "partition-reduce-operator",
    "tensor_partition_reduce takes add, average, maximum, bitwise_or and bitwise_and",
    "nki.isa tensor_partition_reduce, op",
)
def partition_reduce_operator(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.name in _PARTITION_REDUCTIONS:
        return None
    return f"op={op!r}; it must be {' or '.join(f'nl.{name}' for name in _PARTITION_REDUCTIONS)}"


@rule(
    "partition-reduce-size",
    "tensor_partition_reduce writes one partition, with as many elements as each partition of data",
    "nki.isa tensor_partition_reduce; its examples (SDK 2.26)",
)
def partition_reduce_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    if dst.partitions == 1 and dst.free_size == data.free_size:
        return None
    return (
        f"dst is {dst.partitions} x {dst.free_size}; reducing {data.partitions} x {data.free_size} leaves 1 x "
        + str(data.free_size)
    )


@rule(
    "sequence-shape",
    "sequence_bounds reads one partition, and writes two values for each element",
    "nki.isa sequence_bounds",
)
def sequence_shape(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.partitions != 1:
            return f"{arg} spans {view.partitions} partitions; it must span 1"
    return check_size(instruction, 2 * instruction["segment_ids"].free_size, "dst")


sequence_dtype = dtype_rule(
    "sequence-dtype",
    "sequence_bounds works on float32 and int32",
    "nki.isa sequence_bounds",
    dst=("float32", "int32"),
    segment_ids=("float32", "int32"),
)


def _moments(rows: Array) -> list[Array]:
    """(P, N) -> count, mean and variance * count of each row; zeros where a row is empty."""
    partitions, count = rows.shape
    if count == 0:
        return [np.zeros(partitions, np.float32)] * 3
    mean = rows.mean(axis=1, dtype=np.float32)
    deviations = rows - mean[:, None]
    return [np.full(partitions, count, np.float32), mean, np.square(deviations).sum(axis=1, dtype=np.float32)]


def _bn_stats(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = count, mean, variance * count of the elements at even places, then of those at odd places."""
    dst, data = instruction["dst"], instruction["data"]
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    write = writer(dst, arrays(dst))

    def compute() -> None:
        rows = as_float32(take())
        write(np.stack(_moments(rows[:, 0::2]) + _moments(rows[:, 1::2]), axis=1))

    return compute


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(*access.ENGINE_ACCESS, operands.same_partitions, statistics_size),
    meaning=_bn_stats,
    cycles=costs.streaming,
    spreads=spreading.rows,
)
def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Args:
    """``dst`` ``[P, 6]`` = count, mean, variance * count of the elements at even places, then at odd places."""
    return locals()


def _bn_aggr(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = the mean and the variance of several (count, mean, variance * count) combined."""
    dst, data = instruction["dst"], instruction["data"]
    take = in_shape(arrays(data), (data.partitions, data.free_size // 3, 3))
    write = writer(dst, arrays(dst))

    def compute() -> None:
        tuples = as_float32(take())
        counts, means, spreads = tuples[..., 0], tuples[..., 1], tuples[..., 2]
        total = counts.sum(axis=1, keepdims=True)
        mean = (counts * means).sum(axis=1, keepdims=True) / total
        spread = (spreads + counts * np.square(means - mean)).sum(axis=1, keepdims=True)
        write(np.concatenate([mean, spread / total], axis=1))

    return compute


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(*access.ENGINE_ACCESS, operands.same_partitions, aggregated_size),
    meaning=_bn_aggr,
    cycles=costs.aggregation,
    spreads=spreading.rows,
)
def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Args:
    """``dst`` ``[P, 2]`` = mean and variance of all that the ``bn_stats`` results in ``data`` describe."""
    return locals()


def _tensor_partition_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis=0)``: across partitions."""
    data, op = instruction["data"], instruction["op"]
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    if op is AVERAGE:
        return _store_reduction(instruction, arrays, take, lambda values: values.mean(axis=0, dtype=np.float32))
    fold = op.binary.reduce
    return _store_reduction(instruction, arrays, take, lambda values: fold(values, axis=0))


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("data",),
    rules=(
        *access.ENGINE_ACCESS,
        partition_reduce_operator,
        partition_reduce_size,
        operators.bitvec_dtypes,
    ),
    meaning=_tensor_partition_reduce,
    cycles=costs.gpsimd_kernel,
    spreads=None,
)
def tensor_partition_reduce(dst: NkiTensor, op: Operator, data: NkiTensor, name: str | None = None) -> Args:
    """``dst`` ``[1, ...]`` = ``op`` over the partitions of ``data``, on the GpSimd engine."""
    return locals()


def segment_bounds(ids: Array) -> Array:
    """(N,) -> (2, N): the start and the end (exclusive) of the run of equal ids around each element.

    Elements of id 0 are padding: they begin at N and end at -1.
    """
    count = ids.size
    places = np.arange(count)
    begins = np.r_[True, ids[1:] != ids[:-1]]
    ends = np.r_[begins[1:], True]
    first = np.maximum.accumulate(np.where(begins, places, 0))
    last = np.minimum.accumulate(np.where(ends, places + 1, count)[::-1])[::-1]
    padding = ids == 0
    return np.stack([np.where(padding, count, first), np.where(padding, -1, last)]).astype(np.float32)


def _sequence_bounds(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    dst, ids = instruction["dst"], instruction["segment_ids"]
    take = in_shape(arrays(ids), (ids.free_size,))
    write = writer(dst, arrays(dst))
    return lambda: write(segment_bounds(take()))


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("segment_ids",),
    rules=(*access.ENGINE_ACCESS, sequence_shape, sequence_dtype),
    meaning=_sequence_bounds,
    cycles=costs.gpsimd_kernel,
    spreads=None,
)
def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Args:
    """``dst`` ``[1, 2, n]``: the start and the end (exclusive) of the segment of each of n elements.

    Elements of segment 0 are padding: they begin at n and end at -1.
    """
    return locals()
