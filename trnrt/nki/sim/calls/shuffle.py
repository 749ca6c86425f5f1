"""Shuffles, gathers and GpSimd searches of ``nki.isa``."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as as_integer

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.instructions import shuffle
from trnrt.nki.machine.program import Engine, Instruction
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.trace import active_tracer

_CORE = 16  # partitions of a GpSimd core


def _integer(function: str, argument: str, value: object) -> int:
    try:
        return as_integer(value)  # type: ignore[arg-type]
    except TypeError:
        raise KernelError(f"{function}: {argument} is {value!r}; it must be an integer known when tracing") from None


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: Sequence[int], name: str | None = None
) -> Instruction:
    """Partition i of each 32 partitions of dst takes partition ``shuffle_mask[i]`` of the same 32 of src.

    255 leaves a partition of dst as it is. dst may be src.
    """
    try:
        mask = tuple(map(as_integer, shuffle_mask))
    except TypeError:
        told = f"shuffle_mask={shuffle_mask!r}; it must be a list of 32 integers"
        raise KernelError(f"nc_stream_shuffle: {told}") from None
    args = {"dst": dst, "src": src, "shuffle_mask": mask}
    return active_tracer("nisa.nc_stream_shuffle").emit(shuffle.NC_STREAM_SHUFFLE, args, Engine.unknown, name)


def local_gather(
    dst: NkiTensor,
    src_buffer: NkiTensor,
    index: NkiTensor,
    num_elem_per_idx: int = 1,
    num_valid_indices: int | None = None,
    name: str | None = None,
) -> Instruction:
    """Each GpSimd core gathers from its 16 partitions, all at the same places: those that its 16 partitions of index
    name, partition first, ``num_elem_per_idx`` elements from each on."""
    count = num_valid_indices
    if count is None:
        count = index.free_size * _CORE if isinstance(index, NkiTensor) else 0
    args = {
        "dst": dst,
        "src_buffer": src_buffer,
        "index": index,
        "num_elem_per_idx": num_elem_per_idx,
        "num_valid_indices": _integer("local_gather", "num_valid_indices", count),
    }
    return active_tracer("nisa.local_gather").emit(shuffle.LOCAL_GATHER, args, Engine.unknown, name)


def nc_n_gather(dst: NkiTensor, data: NkiTensor, indices: NkiTensor, name: str | None = None) -> Instruction:
    """``dst[p, i] = data[p, indices[p, i]]``, free dimensions flattened."""
    args = {"dst": dst, "data": data, "indices": indices}
    return active_tracer("nisa.nc_n_gather").emit(shuffle.NC_N_GATHER, args, Engine.unknown, name)


def topk(val_dst: NkiTensor, idx_dst: NkiTensor, src: NkiTensor, n: int, name: str | None = None) -> Instruction:
    """The largest values, ascending, of each 16 partitions, and their places.

    The n elements of 16 partitions count along the partitions first, and so do the results: as many as ``val_dst``
    has elements a partition. The reference does not say what the columns behind them hold: they stay as they were.
    """
    args = {"val_dst": val_dst, "idx_dst": idx_dst, "src": src, "n": _integer("topk", "n", n)}
    return active_tracer("nisa.topk").emit(shuffle.TOPK, args, Engine.unknown, name)


def nonzero_with_count(
    dst: NkiTensor, src: NkiTensor, index_offset: int = 0, padding_val: int = -1, name: str | None = None
) -> Instruction:
    """Where src is not zero, padded to its size, and their count behind; in partitions 0, 16, 32 ... only."""
    args = {"dst": dst, "src": src, "index_offset": index_offset, "padding_val": padding_val}
    return active_tracer("nisa.nonzero_with_count").emit(shuffle.NONZERO_WITH_COUNT, args, Engine.unknown, name)
