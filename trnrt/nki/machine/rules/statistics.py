"""Rules of bn_stats, bn_aggr, tensor_partition_reduce and sequence_bounds."""

from __future__ import annotations

from trnrt.nki.machine.operators import Operator
from trnrt.nki.machine.program import Instruction
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

STATISTICS_MAX = 512  # nl.tile_size.bn_stats_fmax
_STATISTICS, _TUPLE, _AGGREGATED = 6, 3, 2
_PARTITION_REDUCTIONS = ("add", "average", "maximum", "bitwise_or", "bitwise_and")


@rule("statistics-size", "bn_stats reads up to 512 elements a partition and writes 6", "nki.isa bn_stats")
def statistics_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    if data.free_size > STATISTICS_MAX:
        return f"data holds {data.free_size} elements a partition; the limit is {STATISTICS_MAX}"
    if dst.free_size != _STATISTICS:
        return f"dst holds {dst.free_size} elements a partition; it must hold {_STATISTICS}"
    return None


@rule("aggregated-size", "bn_aggr reads triples of count, mean and variance, and writes 2 elements", "nki.isa bn_aggr")
def aggregated_size(instruction: Instruction, target: Target) -> str | None:
    data, dst = instruction["data"], instruction["dst"]
    if data.free_size % _TUPLE:
        return f"data holds {data.free_size} elements a partition; it must be a multiple of {_TUPLE}"
    if dst.free_size != _AGGREGATED:
        return f"dst holds {dst.free_size} elements a partition; it must hold {_AGGREGATED}"
    return None


@rule(
    "partition-reduce-operator",
    "tensor_partition_reduce adds, averages, finds the maximum, or does bitwise or and and",
    "nki.isa tensor_partition_reduce, op",
)
def partition_reduce_operator(instruction: Instruction, target: Target) -> str | None:
    op = instruction["op"]
    if isinstance(op, Operator) and op.name in _PARTITION_REDUCTIONS:
        return None
    return f"op={op!r}; it must be {' or '.join(f'nl.{name}' for name in _PARTITION_REDUCTIONS)}"


@rule(
    "partition-reduce-size",
    "tensor_partition_reduce leaves one partition with the elements of each",
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
    "sequence_bounds reads one partition and writes two values an element",
    "nki.isa sequence_bounds",
)
def sequence_shape(instruction: Instruction, target: Target) -> str | None:
    ids, dst = instruction["segment_ids"], instruction["dst"]
    for arg, view in instruction.operands:
        if view.partitions != 1:
            return f"{arg} spans {view.partitions} partitions; it must span 1"
    if dst.free_size != 2 * ids.free_size:
        return f"dst holds {dst.free_size} elements, segment_ids {ids.free_size}; dst must hold {2 * ids.free_size}"
    return None


@rule("sequence-dtype", "sequence_bounds works on float32 and int32", "nki.isa sequence_bounds")
def sequence_dtype(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.dtype.name not in ("float32", "int32"):
            return f"{arg} is {view.dtype}; it must be float32 or int32"
    return None
