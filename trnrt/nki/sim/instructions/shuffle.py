"""Moves between and along partitions: the vector engine's shuffle, the GpSimd engine's gathers and searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index as as_integer

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, in_shape
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.rules import access, operands
from trnrt.nki.machine.rules.checks import check_size, dtype_rule, generation_rule, join_choices
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["local_gather", "nc_n_gather", "nc_stream_shuffle", "nonzero_with_count", "topk"]

QUADRANT = 32  # partitions among which the vector engine shuffles
CORE = 16  # partitions that one GpSimd core is connected to
UNMODIFIED = 255  # the mask element that keeps a partition of dst
# The allowed first partitions of an access, by the number of partitions in a shuffle.
_SHUFFLE_STARTS = {32: (0, 32, 64, 96), 64: (0, 64), 96: (0,), 128: (0,)}
_ELEMENTS_PER_INDEX = (1, 2, 4, 8, 16, 32)
_MAX_INDICES = 4096
_MASK_ELEMENTS = frozenset((*range(QUADRANT), UNMODIFIED))
_INT32 = (-(2**31), 2**31 - 1)


def active_partitions(instruction: Instruction) -> int:
    """The partitions that a shuffle works on: whole quadrants."""
    most: int = max(instruction["src"].partitions, instruction["dst"].partitions)
    return -(-most // QUADRANT) * QUADRANT


def partition_pairs(instruction: Instruction) -> list[tuple[int, int]]:
    """(partition of dst, partition of src) of each partition that a shuffle writes."""
    mask = instruction["shuffle_mask"]
    places = range(instruction["dst"].partitions)
    pairs = [(p, mask[p % QUADRANT]) for p in places]
    return [(p, p // QUADRANT * QUADRANT + source) for p, source in pairs if source != UNMODIFIED]


@rule(
    "shuffle-mask",
    "a shuffle's mask has 32 numbers: a partition of the quadrant, or 255 to keep the partition of dst",
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
    "a shuffle starts at partition 0; with up to 64 partitions also at 64, with up to 32 also at 32 or 96",
    "nki.isa nc_stream_shuffle, constraint 3",
)
def shuffle_start_partition(instruction: Instruction, target: Target) -> str | None:
    active = active_partitions(instruction)
    starts = _SHUFFLE_STARTS[active]
    for arg, view in instruction.operands:
        address = view.storage.address
        start = view.start_partition + (address[0] if address else 0)
        if start not in starts:
            return f"{arg} starts at partition {start}; on {active} active partitions it must be {join_choices(starts)}"
    return None


@rule("shuffle-source", "a shuffle's mask names only partitions that src has", "nki.isa nc_stream_shuffle")
def shuffle_source(instruction: Instruction, target: Target) -> str | None:
    src = instruction["src"]
    if src.partitions >= active_partitions(instruction):
        return None
    for place, source in partition_pairs(instruction):
        if source >= src.partitions:
            return f"partition {place} of dst takes partition {source} of src, which has {src.partitions}"
    return None


@rule(
    "gpsimd-cores",
    "a GpSimd core works on 16 partitions, so a tile spans a multiple of 16",
    "nki.isa local_gather, tile size 1; topk, Constraints",
)
def gpsimd_cores(instruction: Instruction, target: Target) -> str | None:
    for arg, view in instruction.operands:
        if view.partitions % CORE:
            return f"{arg} spans {view.partitions} partitions; it must be a multiple of {CORE}"
    return None


gather_index_dtype = dtype_rule(
    "gather-index-dtype",
    "local_gather takes uint16 indices, nc_n_gather uint32",
    "nki.isa local_gather, nc_n_gather",
    index=("uint16",),
    indices=("uint32",),
)


@rule(
    "gather-elements",
    "local_gather copies 1, 2, 4, 8, 16 or 32 elements for each index",
    "nki.isa local_gather, tile size 2",
)
def gather_elements(instruction: Instruction, target: Target) -> str | None:
    count = instruction["num_elem_per_idx"]
    if count in _ELEMENTS_PER_INDEX:
        return None
    return f"num_elem_per_idx={count!r}; it must be {join_choices(_ELEMENTS_PER_INDEX)}"


@rule(
    "gather-indices",
    "a GpSimd core takes at most 4096 indices, and no more than its partitions of index hold",
    "nki.isa local_gather, tile size 3",
)
def gather_indices(instruction: Instruction, target: Target) -> str | None:
    count, given = instruction["num_valid_indices"], instruction["index"].free_size * CORE
    if not 1 <= count <= min(given, _MAX_INDICES):
        return f"num_valid_indices={count}; index gives a core {given}, and the limit is {_MAX_INDICES}"
    return None


@rule(
    "gather-size",
    "a gather's destination has room for the gathered elements",
    "nki.isa local_gather; release notes 2.32, Known Issues; nki.isa nc_n_gather, Tile size",
)
def gather_size(instruction: Instruction, target: Target) -> str | None:
    dst = instruction["dst"]
    if "indices" in instruction.args:
        wanted = instruction["indices"].free_size
        reason = f"indices holds {wanted}"
    else:
        count, each = instruction["num_valid_indices"], instruction["num_elem_per_idx"]
        wanted, reason = count * each, f"{count} indices of {each} elements give {count * each}"
    if dst.free_size != wanted:
        return f"dst holds {dst.free_size} elements a partition; {reason}"
    return None


topk_dtypes = dtype_rule(
    "topk-dtypes",
    "topk takes and gives bfloat16 values, and gives uint32 indices",
    "nki.isa topk, Constraints",
    val_dst=("bfloat16",),
    idx_dst=("uint32",),
    src=("bfloat16",),
)


@rule(
    "topk-size",
    "topk reads 8 to 65,535 elements from 16 partitions, and writes at most 32,767 to two tiles of equal size",
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


nonzero_target = generation_rule(
    "nonzero-target", "nonzero_with_count exists from NeuronCore-v3 on", "nki.isa nonzero_with_count", 3
)


nonzero_dtypes = dtype_rule(
    "nonzero-dtypes",
    "nonzero_with_count takes float32 or int32 and gives int32",
    "nki.isa nonzero_with_count",
    src=("float32", "int32"),
    dst=("int32",),
)


@rule("nonzero-size", "dst holds one element more than src: the count", "nki.isa nonzero_with_count, Constraints")
def nonzero_size(instruction: Instruction, target: Target) -> str | None:
    return check_size(instruction, instruction["src"].free_size + 1, "dst")


@rule("nonzero-numbers", "index_offset and padding_val are int32", "nki.isa nonzero_with_count, Constraints")
def nonzero_numbers(instruction: Instruction, target: Target) -> str | None:
    for arg in ("index_offset", "padding_val"):
        number = instruction[arg]
        if not isinstance(number, int) or not _INT32[0] <= number <= _INT32[1]:
            return f"{arg}={number!r}; it must be an int32"
    return None


def _integer(function: str, argument: str, value: object) -> int:
    try:
        return as_integer(value)  # type: ignore[arg-type]
    except TypeError:
        raise KernelError(f"{function}: {argument} is {value!r}; it must be an integer known when tracing") from None


def _stream_shuffle(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Copy to each partition of dst the partition of src, in the same quadrant, that the mask selects."""
    target, source = arrays(instruction["dst"]), arrays(instruction["src"])
    take = in_shape(source, (source.shape[0], *target.shape[1:]))
    pairs = partition_pairs(instruction)
    written, taken = np.array([p for p, _ in pairs], np.intp), np.array([p for _, p in pairs], np.intp)
    whole = len(pairs) == target.shape[0]

    def move() -> None:
        target[slice(None) if whole else written] = take()[taken]  # indexing copies: dst may be src

    return move


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src", "dst"),  # a mask may keep partitions of dst
    partly=frozenset({"dst"}),
    indexed=frozenset({"src"}),
    rules=(
        access.on_chip,
        access.partition_stride,
        access.dimensions,
        access.pattern_range,
        operands.kept_dtype,
        operands.same_free_size,
        shuffle_mask,
        shuffle_start_partition,
        shuffle_source,
    ),
    meaning=_stream_shuffle,
    cycles=costs.streaming,
    spreads=None,
)
def nc_stream_shuffle(dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None) -> Args:
    """Partition i of each 32 partitions of dst takes partition ``shuffle_mask[i]`` of the same 32 of src.

    255 keeps a partition of dst. dst may be src.
    """
    try:
        shuffle_mask = tuple(map(as_integer, shuffle_mask))
    except TypeError:
        problem = f"shuffle_mask={shuffle_mask!r}; it must be a list of 32 integers"
        raise KernelError(f"nc_stream_shuffle: {problem}") from None
    return locals()


def _flat(view: View, arrays: Arrays) -> Callable[[], Array]:
    """A view as (partitions, free elements)."""
    return in_shape(arrays(view), (view.partitions, view.free_size))


def _resolve_misses(instruction: Instruction, indices: Array, last: int, size: int) -> tuple[Array, Array | None]:
    """The places to read, and which indices are misses (all ones; None: none). KernelError if others are too large.

    The reference leaves indices out of bounds undefined. nc_find_index8 gives all ones for a value that it does not
    find: such an index gathers unwritten memory.
    """
    if indices.size == 0 or int(indices.max()) <= last:
        return indices, None
    misses: Array = indices == np.iinfo(indices.dtype).max
    wrong = indices[(indices > last) & ~misses]
    if wrong.size:
        raise KernelError(
            f"{instruction.operation.name}: index {int(wrong[0])} is out of the {size} elements that a partition holds"
            f"\n  at {instruction.source}"
        )
    return np.where(misses, 0, indices), misses


def _unwritten(view: View) -> float:
    return np.nan if view.dtype.is_float else 4


def _local_gather(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Each core's 16 partitions of dst take the elements that the core's own indices name, in the indices' order."""
    dst, src = instruction["dst"], instruction["src_buffer"]
    target = arrays(dst)
    take, indices = _flat(src, arrays), _flat(instruction["index"], arrays)
    count, each = instruction["num_valid_indices"], instruction["num_elem_per_idx"]
    steps = np.arange(each)
    cores, size, rest = dst.partitions // CORE, src.free_size, target.shape[1:]
    unwritten = _unwritten(dst)

    def gather() -> None:
        data = take()
        # A core flattens its indices along the partitions first.
        per_core = indices().reshape(cores, CORE, -1).transpose(0, 2, 1).reshape(cores, -1)[:, :count]
        places, misses = _resolve_misses(instruction, per_core, size - each, size)
        flat = (places[:, :, None].astype(np.intp) + steps).reshape(cores, count * each)
        for core in range(cores):
            rows = slice(core * CORE, (core + 1) * CORE)
            values = data[rows][:, flat[core]]
            if misses is not None:
                values[:, np.repeat(misses[core], each)] = unwritten
            target[rows] = values.reshape(CORE, *rest)

    return gather


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("src_buffer", "index"),
    partly=frozenset({"index"}),  # `num_valid_indices` may be fewer
    indexed=frozenset({"src_buffer"}),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        gpsimd_cores,
        operands.kept_dtype,
        gather_index_dtype,
        gather_elements,
        gather_indices,
        gather_size,
    ),
    meaning=_local_gather,
    cycles=costs.local_gather,
    spreads=None,
)
def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Args:
    """Each GpSimd core gathers from its 16 partitions. All use the same places: those in its 16 partitions of index,
    partition first, with ``num_elem_per_idx`` elements from each on."""
    if num_valid_indices is None:
        num_valid_indices = index.free_size * CORE if isinstance(index, NkiTensor) else 0
    num_valid_indices = _integer("local_gather", "num_valid_indices", num_valid_indices)
    return locals()


def _n_gather(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst[p, i] = data[p, indices[p, i]]``, free dimensions flattened."""
    dst, data = instruction["dst"], instruction["data"]
    target = arrays(dst)
    take, indices = _flat(data, arrays), _flat(instruction["indices"], arrays)
    size, unwritten = data.free_size, _unwritten(dst)

    def gather() -> None:
        places, misses = _resolve_misses(instruction, indices(), size - 1, size)
        values = np.take_along_axis(take(), places.astype(np.intp), axis=1)
        if misses is not None:
            values[misses] = unwritten
        target[...] = values.reshape(target.shape)

    return gather


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("data", "indices"),
    indexed=frozenset({"data"}),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        operands.kept_dtype,
        gather_index_dtype,
        gather_size,
    ),
    meaning=_n_gather,
    cycles=costs.gather,
    spreads=None,
)
def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Args:
    """``dst[p, i] = data[p, indices[p, i]]``, free dimensions flattened."""
    return locals()


def largest(values: Array, k: int) -> Array:
    """(rows, n) -> (rows, k): the places of the k largest of each row, smallest first.

    Of equal values the first ones are the larger; NaN is larger than all.
    """
    return np.argsort(-values, axis=1, kind="stable")[:, :k][:, ::-1]


def _topk(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The k largest of the n elements that 16 partitions hold, element i in partition ``i % 16``, column ``i // 16``.

    The results are laid out likewise, in ascending order: rank j in partition ``j % 16``, column ``j // 16``; further
    columns of dst stay unchanged.
    """
    src, n, k = instruction["src"], instruction["n"], instruction["val_dst"].free_size
    take, groups = _flat(src, arrays), src.partitions // CORE
    rank = np.arange(k)
    rows, columns = np.arange(groups)[:, None] * CORE + rank % CORE, rank // CORE
    outs = [(arrays(instruction[arg]), instruction[arg].shape) for arg in ("val_dst", "idx_dst")]
    places = [(rows, *np.unravel_index(columns, shape[1:])) for _, shape in outs]

    def find() -> None:
        snakes = take().reshape(groups, CORE, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
        # NaN sorts last among negated values, like the smallest. In its place, infinity is the largest again.
        found = largest(np.where(np.isnan(snakes), np.inf, snakes), k)
        outs[0][0][places[0]] = np.take_along_axis(snakes, found, axis=1)
        outs[1][0][places[1]] = found

    return find


@declare(
    engines=(Engine.gpsimd,),
    writes=("val_dst", "idx_dst"),
    reads=("src", "val_dst", "idx_dst"),  # only the first ceil(k / 16) columns of the destinations are written
    partly=frozenset({"val_dst", "idx_dst"}),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        gpsimd_cores,
        topk_dtypes,
        topk_size,
    ),
    meaning=_topk,
    cycles=costs.topk,
    spreads=None,
)
def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Args:
    """The largest values, ascending, of each 16 partitions, and their places.

    The n elements of 16 partitions count along the partitions first, and so do the results: as many as ``val_dst`` has
    elements per partition. The reference does not define further columns: they stay unchanged.
    """
    n = _integer("topk", "n", n)
    return locals()


def _nonzero_with_count(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """In the first partition of each 16: the places where src is not zero, plus the offset; padding; their count."""
    src, dst = instruction["src"], instruction["dst"]
    take, target = arrays(src)[::CORE], arrays(dst)[::CORE]
    rows, size = target.shape[0], src.free_size
    offset, padding = instruction["index_offset"], instruction["padding_val"]

    def find() -> None:
        found = np.full((rows, size + 1), padding, np.int32)
        for row, values in enumerate(take.reshape(rows, size)):
            places = np.flatnonzero(values)
            found[row, : places.size] = places + offset
            found[row, size] = places.size
        target[...] = found.reshape(target.shape)

    return find


@declare(
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("src", "dst"),  # all partitions but the first of each 16 stay unchanged
    partly=frozenset({"src", "dst"}),
    rules=(
        nonzero_target,
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        nonzero_dtypes,
        nonzero_size,
        nonzero_numbers,
    ),
    meaning=_nonzero_with_count,
    cycles=costs.gpsimd_kernel,
    spreads=None,
)
def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Args:
    """The places where src is not zero, padded to its size, then their count; in partitions 0, 16, 32 ... only."""
    return locals()
