"""Means and variances on the vector engine; sums across partitions and bounds of sequences on the GpSimd engine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.bits import pattern, stored
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.operators import AVERAGE
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import access, operands, operators, statistics


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


BN_STATS = Operation(
    name="bn_stats",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(*access.ENGINE_ACCESS, operands.same_partitions, statistics.statistics_size),
    bind=_bn_stats,
    cost=costs.streaming,
)


def _bn_aggr(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst`` = the mean and the variance of what several (count, mean, variance * count) describe together."""
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


BN_AGGR = Operation(
    name="bn_aggr",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data",),
    rules=(*access.ENGINE_ACCESS, operands.same_partitions, statistics.aggregated_size),
    bind=_bn_aggr,
    cost=costs.aggregation,
)


def _tensor_partition_reduce(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = op.reduce(data, axis=0)``: across partitions."""
    dst, data, op = instruction["dst"], instruction["data"], instruction["op"]
    target = arrays(dst)
    take = in_shape(arrays(data), (data.partitions, data.free_size))
    if op.bitvec:
        fold = op.binary.reduce

        def combine() -> None:
            target[...] = stored(fold(pattern(take()), axis=0), target.dtype).reshape(target.shape)

        return combine
    write = writer(dst, target)
    if op is AVERAGE:
        return lambda: write(as_float32(take()).mean(axis=0, dtype=np.float32))
    reduce = op.binary.reduce
    return lambda: write(reduce(as_float32(take()), axis=0))


TENSOR_PARTITION_REDUCE = Operation(
    name="tensor_partition_reduce",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("data",),
    rules=(
        *access.ENGINE_ACCESS,
        statistics.partition_reduce_operator,
        statistics.partition_reduce_size,
        operators.bitvec_dtypes,
    ),
    bind=_tensor_partition_reduce,
    cost=costs.gpsimd_kernel,
)


def sequence_bounds(ids: Array) -> Array:
    """(N,) -> (2, N): where the run of equal ids that an element is in begins, and where it ends (exclusive).

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
    return lambda: write(sequence_bounds(take()))


SEQUENCE_BOUNDS = Operation(
    name="sequence_bounds",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("segment_ids",),
    rules=(*access.ENGINE_ACCESS, statistics.sequence_shape, statistics.sequence_dtype),
    bind=_sequence_bounds,
    cost=costs.gpsimd_kernel,
)
