"""Moves between and along partitions: the vector engine's shuffle, and what the GpSimd engine gathers and finds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, in_shape
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation, View
from trnrt.nki.machine.rules import operands, shuffle

_CORE = shuffle.CORE


def _stream_shuffle(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Each partition of dst takes the one of src's same quadrant that the mask names for it."""
    target, source = arrays(instruction["dst"]), arrays(instruction["src"])
    take = in_shape(source, (source.shape[0], *target.shape[1:]))
    pairs = shuffle.shuffled(instruction)
    written, taken = np.array([p for p, _ in pairs], np.intp), np.array([p for _, p in pairs], np.intp)
    whole = len(pairs) == target.shape[0]

    def move() -> None:
        target[slice(None) if whole else written] = take()[taken]  # indexing copies: dst may be src

    return move


NC_STREAM_SHUFFLE = Operation(
    name="nc_stream_shuffle",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src", "dst"),  # a mask may leave partitions of dst as they are
    rules=shuffle.SHUFFLE,
    bind=_stream_shuffle,
    partly=frozenset({"dst"}),
    indexed=frozenset({"src"}),
    cost=costs.streaming,
)


def _flat(view: View, arrays: Arrays) -> Callable[[], Array]:
    """A view as (partitions, free elements)."""
    return in_shape(arrays(view), (view.partitions, view.free_size))


def _checked(instruction: Instruction, indices: Array, last: int, size: int) -> Array | None:
    """Which of the indices are misses (all ones), None where there are none; KernelError where others are too large.

    The reference leaves an index out of bounds undefined. All ones is what nc_find_index8 gives for a value that is
    not there: gathering it reads as memory that nothing wrote.
    """
    if indices.size == 0 or int(indices.max()) <= last:
        return None
    misses: Array = indices == np.iinfo(indices.dtype).max
    wrong = indices[(indices > last) & ~misses]
    if wrong.size:
        raise KernelError(
            f"{instruction.operation.name}: index {int(wrong[0])} is out of the {size} elements that a partition holds"
            f"\n  at {instruction.source}"
        )
    return misses


def _unwritten(view: View) -> float:
    return np.nan if view.dtype.is_float else 4


def _local_gather(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """Each core's 16 partitions of dst take the elements that the core's own indices name, in the indices' order."""
    dst, src = instruction["dst"], instruction["src_buffer"]
    target = arrays(dst)
    take, indices = _flat(src, arrays), _flat(instruction["index"], arrays)
    count, each = instruction["num_valid_indices"], instruction["num_elem_per_idx"]
    steps = np.arange(each)
    cores, size, rest = dst.partitions // _CORE, src.free_size, target.shape[1:]
    unwritten = _unwritten(dst)

    def gather() -> None:
        data = take()
        # A core flattens its indices along the partitions first.
        per_core = indices().reshape(cores, _CORE, -1).transpose(0, 2, 1).reshape(cores, -1)[:, :count]
        misses = _checked(instruction, per_core, size - each, size)
        places = per_core if misses is None else np.where(misses, 0, per_core)
        flat = (places[:, :, None].astype(np.intp) + steps).reshape(cores, count * each)
        for core in range(cores):
            rows = slice(core * _CORE, (core + 1) * _CORE)
            values = data[rows][:, flat[core]]
            if misses is not None:
                values[:, np.repeat(misses[core], each)] = unwritten
            target[rows] = values.reshape(_CORE, *rest)

    return gather


LOCAL_GATHER = Operation(
    name="local_gather",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("src_buffer", "index"),
    rules=(*shuffle.LOCAL_GATHER, operands.other_start_partition),
    bind=_local_gather,
    partly=frozenset({"index"}),  # `num_valid_indices` may be fewer
    indexed=frozenset({"src_buffer"}),
    cost=costs.local_gather,
)


def _n_gather(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst[p, i] = data[p, indices[p, i]]``, free dimensions flattened."""
    dst, data = instruction["dst"], instruction["data"]
    target = arrays(dst)
    take, indices = _flat(data, arrays), _flat(instruction["indices"], arrays)
    size, unwritten = data.free_size, _unwritten(dst)

    def gather() -> None:
        wanted = indices()
        misses = _checked(instruction, wanted, size - 1, size)
        places = wanted if misses is None else np.where(misses, 0, wanted)
        values = np.take_along_axis(take(), places.astype(np.intp), axis=1)
        if misses is not None:
            values[misses] = unwritten
        target[...] = values.reshape(target.shape)

    return gather


NC_N_GATHER = Operation(
    name="nc_n_gather",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("data", "indices"),
    rules=(*shuffle.GATHER, operands.other_start_partition),
    bind=_n_gather,
    indexed=frozenset({"data"}),
    cost=costs.gather,
)


def largest(values: Array, k: int) -> Array:
    """(rows, n) -> (rows, k): where the k largest of each row stand, smallest first.

    Of equal values the first ones are the larger; NaN is larger than all.
    """
    return np.argsort(-values, axis=1, kind="stable")[:, :k][:, ::-1]


def _topk(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """The k largest of the n elements that 16 partitions hold, element i in partition ``i % 16``, column ``i // 16``.

    The results lie likewise, in ascending order: rank j in partition ``j % 16``, column ``j // 16``; the columns of
    dst behind them stay as they were.
    """
    src, n, k = instruction["src"], instruction["n"], instruction["val_dst"].free_size
    take, groups = _flat(src, arrays), src.partitions // _CORE
    rank = np.arange(k)
    rows, columns = np.arange(groups)[:, None] * _CORE + rank % _CORE, rank // _CORE
    outs = [(arrays(instruction[arg]), instruction[arg].shape) for arg in ("val_dst", "idx_dst")]
    places = [(rows, *np.unravel_index(columns, shape[1:])) for _, shape in outs]

    def find() -> None:
        snakes = take().reshape(groups, _CORE, -1).transpose(0, 2, 1).reshape(groups, -1)[:, :n]
        # NaN sorts last among negated values: as the smallest. Infinity in its place is the largest again.
        found = largest(np.where(np.isnan(snakes), np.inf, snakes), k)
        outs[0][0][places[0]] = np.take_along_axis(snakes, found, axis=1)
        outs[1][0][places[1]] = found

    return find


TOPK = Operation(
    name="topk",
    engines=(Engine.gpsimd,),
    writes=("val_dst", "idx_dst"),
    reads=("src", "val_dst", "idx_dst"),  # only the first ceil(k / 16) columns of the destinations are written
    rules=shuffle.TOPK,
    bind=_topk,
    partly=frozenset({"val_dst", "idx_dst"}),
    cost=costs.topk,
)


def _nonzero_with_count(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """In the first partition of each 16: where src is not zero, plus the offset; padding; and how many they are."""
    src, dst = instruction["src"], instruction["dst"]
    take, target = arrays(src)[::_CORE], arrays(dst)[::_CORE]
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


NONZERO_WITH_COUNT = Operation(
    name="nonzero_with_count",
    engines=(Engine.gpsimd,),
    writes=("dst",),
    reads=("src", "dst"),  # partitions other than the first of each 16 stay as they are
    rules=shuffle.NONZERO,
    bind=_nonzero_with_count,
    partly=frozenset({"src", "dst"}),
    cost=costs.gpsimd_kernel,
)
