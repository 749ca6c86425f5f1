"""Moves between and along partitions: shuffles, gathers, and the GpSimd engine's searches."""

from __future__ import annotations

from trnrt.nki.machine.program import Instruction, View
from trnrt.nki.machine.rules.access import (
    ENGINE_ACCESS,
    dimensions,
    on_chip,
    partition_stride,
    pattern_range,
)
from trnrt.nki.machine.rules.operands import same_free_size, same_partitions
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target

QUADRANT = 32  # partitions among which the vector engine shuffles
CORE = 16  # partitions that one GpSimd core is connected to
UNMODIFIED = 255  # the mask element that leaves a partition of dst as it was

# Where an access may start, by the partitions that a shuffle is active on.
_SHUFFLE_STARTS = {32: (0, 32, 64, 96), 64: (0, 64), 96: (0,), 128: (0,)}
_ELEMENTS_PER_INDEX = (1, 2, 4, 8, 16, 32)
_MAX_INDICES = 4096
_MASK_ELEMENTS = frozenset((*range(QUADRANT), UNMODIFIED))
_INT32 = (-(2**31), 2**31 - 1)


def active_partitions(instruction: Instruction) -> int:
    """The partitions that a shuffle works on: whole quadrants."""
    most: int = max(instruction["src"].partitions, instruction["dst"].partitions)
    return -(-most // QUADRANT) * QUADRANT


def shuffled(instruction: Instruction) -> list[tuple[int, int]]:
    """(partition of dst, partition of src) of each partition that a shuffle writes."""
    mask = instruction["shuffle_mask"]
    places = range(instruction["dst"].partitions)
    pairs = [(p, mask[p % QUADRANT]) for p in places]
    return [(p, p // QUADRANT * QUADRANT + source) for p, source in pairs if source != UNMODIFIED]


@rule("kept-dtype", "what moves data keeps its dtype", "nki.isa nc_stream_shuffle, local_gather, nc_n_gather, dropout")
def kept_dtype(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    for arg in ("src", "src_buffer", "data"):
        moved = instruction.args.get(arg)
        if isinstance(moved, View) and moved.dtype != dst.dtype:
            return f"{arg} is {moved.dtype}, dst {dst.dtype}; they must be equal"
    return None


@rule(
    "shuffle-mask",
    "a shuffle's mask is 32 numbers: a partition of the quadrant, or 255 to leave one as it is",
    "nki.isa nc_stream_shuffle",
)
def shuffle_mask(instruction: Instruction, target: Target) -> str | None:
    mask = instruction["shuffle_mask"]
    if len(mask) != QUADRANT:
        return f"shuffle_mask has {len(mask)} elements; it must have {QUADRANT}"
    if _MASK_ELEMENTS.issuperset(mask):
        return None
    for position, source in enumerate(mask):
        if source != UNMODIFIED and not 0 <= source < QUADRANT:
            return f"shuffle_mask[{position}] is {source}; it must be 0 to {QUADRANT - 1}, or {UNMODIFIED}"
    return None


@rule(
    "shuffle-start-partition",
    "a shuffle starts at partition 0, on up to 64 partitions at 0 or 64, on up to 32 at 0, 32, 64 or 96",
    "nki.isa nc_stream_shuffle, constraint 3",
)
def shuffle_start_partition(instruction: Instruction, target: Target) -> str | None:
    active = active_partitions(instruction)
    starts = _SHUFFLE_STARTS[active]
    for arg, view in instruction.operands:
        address = view.storage.address
        start = view.start_partition + (address[0] if address else 0)
        if start not in starts:
            return f"{arg} starts at partition {start}; on {active} active partitions it must be {_one_of(starts)}"
    return None


@rule("shuffle-source", "a shuffle reads partitions of src", "nki.isa nc_stream_shuffle")
def shuffle_source(instruction: Instruction, target: Target) -> str | None:
    src = instruction["src"]
    if src.partitions >= active_partitions(instruction):
        return None
    for place, source in shuffled(instruction):
        if source >= src.partitions:
            return f"partition {place} of dst takes partition {source} of src, which has {src.partitions}"
    return None


SHUFFLE = (
    on_chip,
    partition_stride,
    dimensions,
    pattern_range,
    kept_dtype,
    same_free_size,
    shuffle_mask,
    shuffle_start_partition,
    shuffle_source,
)


@rule(
    "gpsimd-cores",
    "a GpSimd core works on 16 partitions: their number is a multiple of it",
    "nki.isa local_gather, tile size 1; topk, Constraints",
)
def gpsimd_cores(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.partitions % CORE:
            return f"{arg} spans {view.partitions} partitions; it must be a multiple of {CORE}"
    return None


@rule(
    "gather-index-dtype", "local_gather takes uint16 indices, nc_n_gather uint32", "nki.isa local_gather, nc_n_gather"
)
def gather_index_dtype(instruction: Instruction, target: Target) -> str | None:
    for arg, wanted in (("index", "uint16"), ("indices", "uint32")):
        view = instruction.args.get(arg)
        if isinstance(view, View) and view.dtype.name != wanted:
            return f"{arg} is {view.dtype}; it must be {wanted}"
    return None


@rule("gather-elements", "1, 2, 4, 8, 16 or 32 elements an index", "nki.isa local_gather, tile size 2")
def gather_elements(instruction: Instruction, target: Target) -> str | None:
    count = instruction["num_elem_per_idx"]
    if count in _ELEMENTS_PER_INDEX:
        return None
    return f"num_elem_per_idx={count!r}; it must be {_one_of(_ELEMENTS_PER_INDEX)}"


@rule(
    "gather-indices", "at most 4096 indices a core, and no more than it is given", "nki.isa local_gather, tile size 3"
)
def gather_indices(instruction: Instruction, target: Target) -> str | None:
    count, given = instruction["num_valid_indices"], instruction["index"].free_size * CORE
    if not 1 <= count <= min(given, _MAX_INDICES):
        return f"num_valid_indices={count}; index gives a core {given}, and the limit is {_MAX_INDICES}"
    return None


@rule(
    "gather-size",
    "a gather's destination holds what is gathered",
    "nki.isa local_gather; release notes 2.32, Known Issues; nki.isa nc_n_gather, Tile size",
)
def gather_size(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    if "indices" in instruction.args:
        wanted = instruction["indices"].free_size
        told = f"indices holds {wanted}"
    else:
        count, each = instruction["num_valid_indices"], instruction["num_elem_per_idx"]
        wanted, told = count * each, f"{count} indices of {each} elements give {count * each}"
    if dst.free_size != wanted:
        return f"dst holds {dst.free_size} elements a partition; {told}"
    return None


GATHER = (*ENGINE_ACCESS, same_partitions, kept_dtype, gather_index_dtype, gather_size)
LOCAL_GATHER = (
    *ENGINE_ACCESS,
    same_partitions,
    gpsimd_cores,
    kept_dtype,
    gather_index_dtype,
    gather_elements,
    gather_indices,
    gather_size,
)


@rule("topk-dtypes", "topk takes and gives bfloat16 values, and gives uint32 indices", "nki.isa topk, Constraints")
def topk_dtypes(instruction: Instruction, target: Target) -> str | None:
    for arg, wanted in (("val_dst", "bfloat16"), ("idx_dst", "uint32"), ("src", "bfloat16")):
        dtype = instruction[arg].dtype
        if dtype.name != wanted:
            return f"{arg} is {dtype}; it must be {wanted}"
    return None


@rule(
    "topk-size",
    "topk takes 8 to 65,535 elements of 16 partitions and gives at most 32,767 of them, to tiles of one size",
    "nki.isa topk, Constraints",
)
def topk_size(instruction: Instruction, target: Target) -> str | None:
    src, n, k = instruction["src"], instruction["n"], instruction["val_dst"].free_size
    if not 8 <= n < 65536:
        return f"n={n}; it must be 8 to 65535"
    if src.free_size < -(-n // CORE):
        return f"src holds {src.free_size} elements a partition; n={n} takes {-(-n // CORE)}"
    if not k <= min(n, 32767):
        return f"val_dst asks for {k} elements; of n={n} it can be at most {min(n, 32767)}"
    if instruction["idx_dst"].free_size != k:
        return f"idx_dst holds {instruction['idx_dst'].free_size} elements a partition, val_dst {k}; they must be equal"
    return None


TOPK = (*ENGINE_ACCESS, same_partitions, gpsimd_cores, topk_dtypes, topk_size)


@rule("nonzero-target", "nonzero_with_count exists from NeuronCore-v3 on", "nki.isa nonzero_with_count")
def nonzero_target(instruction: Instruction, target: Target) -> str | None:
    return f"{target.name} has no such instruction; NeuronCore-v3 and newer have" if target.generation < 3 else None


@rule("nonzero-dtypes", "nonzero_with_count takes float32 or int32 and gives int32", "nki.isa nonzero_with_count")
def nonzero_dtypes(instruction: Instruction, target: Target) -> str | None:
    src, dst = instruction["src"].dtype, instruction["dst"].dtype
    if src.name not in ("float32", "int32"):
        return f"src is {src}; it must be float32 or int32"
    return None if dst.name == "int32" else f"dst is {dst}; it must be int32"


@rule("nonzero-size", "dst holds one element more than src: the count", "nki.isa nonzero_with_count, Constraints")
def nonzero_size(instruction: Instruction, target: Target) -> str | None:
    src, dst = instruction["src"].free_size, instruction["dst"].free_size
    return None if dst == src + 1 else f"src holds {src} elements a partition, dst {dst}; it must be {src + 1}"


@rule("nonzero-numbers", "index_offset and padding_val are int32", "nki.isa nonzero_with_count, Constraints")
def nonzero_numbers(instruction: Instruction, target: Target) -> str | None:
    for arg in ("index_offset", "padding_val"):
        number = instruction[arg]
        if not isinstance(number, int) or not _INT32[0] <= number <= _INT32[1]:
            return f"{arg}={number!r}; it must be an int32"
    return None


NONZERO = (nonzero_target, *ENGINE_ACCESS, same_partitions, nonzero_dtypes, nonzero_size, nonzero_numbers)


def _one_of(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
