"""Statistics of `nisa`: means and variances, reductions across partitions, bounds of sequences."""

from __future__ import annotations

from trnrt.nki.machine.instructions import statistics
from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """``dst`` ``[P, 6]`` = count, mean, variance * count of the elements at even places, then at odd places."""
    return active_tracer("nisa.bn_stats").emit(statistics.BN_STATS, {"dst": dst, "data": data}, Engine.unknown, name)


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """``dst`` ``[P, 2]`` = mean and variance of all that the ``bn_stats`` results in ``data`` describe."""
    return active_tracer("nisa.bn_aggr").emit(statistics.BN_AGGR, {"dst": dst, "data": data}, Engine.unknown, name)


def tensor_partition_reduce(dst: NkiTensor, op: Operator, data: NkiTensor, name: str | None = None) -> Instruction:
    """``dst`` ``[1, ...]`` = ``op`` over the partitions of ``data``, on the GpSimd engine."""
    args = {"dst": dst, "op": op, "data": data}
    tracer = active_tracer("nisa.tensor_partition_reduce")
    return tracer.emit(statistics.TENSOR_PARTITION_REDUCE, args, Engine.unknown, name)


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instruction:
    """``dst`` ``[1, 2, n]``: where the segment that each of n elements is in begins, and where it ends (exclusive).

    Elements of segment 0 are padding: they begin at n and end at -1.
    """
    args = {"dst": dst, "segment_ids": segment_ids}
    return active_tracer("nisa.sequence_bounds").emit(statistics.SEQUENCE_BOUNDS, args, Engine.unknown, name)
