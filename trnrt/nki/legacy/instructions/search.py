"""Searches, gathers and shuffles along and between partitions; dropout."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Mask, regions
from trnrt.nki.legacy.instructions.issuing import (
    Columns,
    Rows,
    index_format,
    instruction,
    issue_now,
    merge_free,
    parts_of,
    require_free_size,
    require_one_range,
    require_result,
    row_bounds,
)
from trnrt.nki.legacy.lang.common import require_operand, require_tile, result_format
from trnrt.nki.legacy.tiles import Pending, Tile
from trnrt.nki.sim import isa
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["dropout", "local_gather", "max8", "nc_find_index8", "nc_match_replace8", "nc_stream_shuffle"]

_FOUND = 8
_CORE = 16  # partitions that one GpSimd core is connected to


@instruction
def max8(*, src: Any, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """The 8 largest values of each partition, descending: ``[P, 8]``."""
    src = require_tile("nisa.max8", src, "src")
    made = Pending(
        (src.shape[0], _FOUND),
        result_format(dtype, src),
        lambda dst, a: isa.max8(dst, merge_free(a)),
        (src,),
        mask=mask,
        iteration=src.shape,
        bounds_of=row_bounds(_FOUND),
    )
    require_one_range("nisa.max8", parts_of(made))
    return made


@instruction
def nc_find_index8(*, data: Any, vals: Any, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """The places of 8 values in each partition, uint32 by default: ``[P, 8]``."""
    what = "nisa.nc_find_index8"
    data = require_tile(what, data, "data")
    vals = require_free_size(what, require_tile(what, vals, "vals"), _FOUND, "vals")

    def emit(dst: NkiTensor, a: NkiTensor, values: NkiTensor) -> None:
        isa.nc_find_index8(dst, merge_free(a), values)

    made = Pending(
        (data.shape[0], _FOUND),
        index_format(dtype, "uint32"),
        emit,
        (data, Rows(vals.window)),
        mask=mask,
        iteration=data.shape,
        bounds_of=row_bounds(_FOUND),
    )
    require_one_range(what, parts_of(made))
    return made


@instruction
def nc_match_replace8(
    *, data: Any, vals: Any, imm: Any, dst_idx: Any = None, mask: Any = None, dtype: Any = None, **_: Any
) -> Pending:
    """``data`` with the first element equal to each of 8 values replaced; ``dst_idx`` gets their places."""
    what = "nisa.nc_match_replace8"
    data, vals = require_tile(what, data, "data"), require_tile(what, vals, "vals")
    places = require_result(what, dst_idx, "dst_idx")

    def emit(dst: NkiTensor, a: NkiTensor, values: NkiTensor, found: NkiTensor | None) -> None:
        isa.nc_match_replace8(dst, a, values, float(imm), found)

    sources = (data, Rows(vals.window), None if places is None else Rows(places.window))
    made = Pending(data.shape, result_format(dtype, data), emit, sources, mask=mask)
    require_one_range(what, parts_of(made))
    return made


@instruction
def local_gather(
    src_buffer: Any, index: Any, num_elem_per_idx: int = 1, num_valid_indices: int | None = None, *, mask: Any = None
) -> Pending:
    """The elements of each partition at the indices of its GpSimd core: ``[P, indices, num_elem_per_idx]``."""
    what = "nisa.local_gather"
    data, places = require_tile(what, src_buffer, "src_buffer"), require_tile(what, index, "index")
    if isinstance(mask, Mask):
        raise KernelError(f"{what}: mask is a condition on index expressions; GpSimd cores gather as a whole")
    count = places.free_size * _CORE if num_valid_indices is None else int(num_valid_indices)
    each = int(num_elem_per_idx)

    def emit(dst: NkiTensor, a: NkiTensor, b: NkiTensor) -> None:
        isa.local_gather(dst, a, b, each, count)

    return Pending((data.shape[0], count, each), data.format, emit, (data, places), mask=mask)


@instruction
def nc_stream_shuffle(src: Any, dst: Any, shuffle_mask: Sequence[Any], *, mask: Any = None, **_: Any) -> None:
    """``dst[p] = src[shuffle_mask[p % 32]]`` in each quadrant of 32 partitions; 255 keeps a partition."""
    what = "nisa.nc_stream_shuffle"
    source, target = require_tile(what, src, "src"), require_tile(what, dst, "dst")
    chosen = [index(one) for one in shuffle_mask]
    _require_first_partition(what, mask, target)
    columns = Columns(source.window)
    issue_now(target, lambda made, a: isa.nc_stream_shuffle(made, a, chosen), (columns,), mask)


def _require_first_partition(what: str, mask: Any, target: Tile) -> None:
    """Refuse a mask that leaves out the first partition: the others' sources count from there."""
    for bounds in regions(mask, target.shape):
        if bounds is not None and bounds[0][0] != 0:
            raise KernelError(f"{what}: mask leaves out partitions 0 to {bounds[0][0] - 1}; it must start at 0")


@instruction
def dropout(data: Any, prob: Any, *, mask: Any = None, dtype: Any = None, **_: Any) -> Pending:
    """``data`` with elements set to 0, each with probability ``prob``: a number, or one for each partition."""
    data, prob = require_tile("nisa.dropout", data, "data"), require_operand("nisa.dropout", prob, "prob")
    return Pending(data.shape, result_format(dtype, data), isa.dropout, (data, prob), mask=mask)
