"""Move a tensor's elements within HBM by DMA access patterns; if those would be packets of one or few elements, go
through SBUF, where an engine reorders them."""

from dataclasses import dataclass
from typing import Any

from trnrt.kernels.common import ceil_div, count_elements, insert_item, item_bytes, transfer
from trnrt.kernels.rates import DMA_ENGINES, PACKET_NS
from trnrt.nki import nisa, nl

# Dimensions of a pattern, and elements of one.
MOST_DIMENSIONS = 5
# Elements per partition of the tile that a fill is written from.
FILL_COLUMNS = 4096
# Limits of a tile that is moved through SBUF: bytes per partition, and dimensions besides the partitions. Four tiles
# fit the planner's WORKING_BYTES: two before the move and two after it.
STAGED_BYTES = 32 * 1024
STAGED_DIMENSIONS = 4
# The most elements of a row on one partition for a transpose; more if the elements exceed all partitions.
ROW_RUN = 64
# Estimates in nanoseconds: a packet, spread over the DMA engines; an element of a partition that an engine copies; the
# latencies of a load, a copy and a store, about 2 us per transfer. Kept from when the way through SBUF was added;
# measure ShuffleNet and a transformer's attention when one changes.
SPREAD_NS = PACKET_NS / DMA_ENGINES
COPY_NS = 1.0
STAGED_NS = 5000.0


@dataclass
class Part(nl.NKIObject):
    """Elements of source number ``source`` that go to dst: access patterns of one shape on both dense tensors."""

    source: int
    offset: int
    strides: tuple[int, ...]
    put_offset: int
    put_strides: tuple[int, ...]
    shape: tuple[int, ...]


# One dimension of a part: (size, stride in the source, stride in the destination).
Dimension = tuple[int, int, int]


def move(
    dst: nl.NkiTensor,
    srcs: tuple[nl.NkiTensor, ...],
    parts: tuple[tuple[Any, ...], ...],
    fill: float | None = None,
) -> None:
    """Write parts of sources to places in dst.

    dst: HBM, of any shape
    srcs: HBM, of any shapes, of dst's dtype or of another, which is converted
    parts: the attributes of a Part each, in their order: a plan writes them as numbers. Any number of dimensions; a
        source stride of 0 repeats, a negative one goes backwards
    fill: a number that fills dst first; None if the parts cover it

    A part is one transfer, or a few if it has more than 5 dimensions. If ``staged_ns`` of the way through SBUF is less
    than the time of that transfer's packets, blocks are loaded in the source's order, reordered by an engine, and
    stored in dst's order. This needs strides of more than 0.

    limits: destination strides are not 0 where the shape is not 1, and no two parts share elements of dst

    numpy: dst.flat[...] = fill; for each part as_strided(dst, ...)[...] = as_strided(srcs[source], ...)
    """
    if fill is not None:
        _fill(dst, fill)
    for given in parts:
        part = Part(given[0], given[1], given[2], given[3], given[4], given[5])
        src = srcs[part.source]
        for i in range(len(part.shape)):
            assert part.shape[i] == 1 or part.put_strides[i] != 0, (
                f"move: destination stride 0 over {part.shape[i]} elements, part {given}"
            )
        dims = dimensions(part.strides, part.put_strides, part.shape)
        dims, outer = stage_dims(dims, max(item_bytes(dst.dtype), item_bytes(src.dtype)))
        if outer > 0:
            _stage(dst, src, part.put_offset, part.offset, dims[0:outer], dims[outer:])
        else:
            _move_part(dst, src, part.put_offset, part.offset, dims)


def dimensions(src_strides: tuple[int, ...], dst_strides: tuple[int, ...], shape: tuple[int, ...]) -> list[Dimension]:
    """The dimensions of a part with more than one element, in the order of dst, merged where both sides allow."""
    found: list[Dimension] = []
    for i in range(len(shape)):
        if shape[i] > 1:
            at = 0
            while at < len(found) and abs(found[at][2]) >= abs(dst_strides[i]):
                at = at + 1
            insert_item(found, at, (shape[i], src_strides[i], dst_strides[i]))
    joined: list[Dimension] = []
    for dim in found:
        size, src_stride, dst_stride = dim
        last = joined[len(joined) - 1] if len(joined) > 0 else (1, 0, 0)
        if len(joined) > 0 and last[1] == size * src_stride and last[2] == size * dst_stride:
            joined[len(joined) - 1] = (last[0] * size, src_stride, dst_stride)
        else:
            joined.append(dim)
    return joined


def by_source(dims: list[Dimension]) -> list[Dimension]:
    """The dimensions that do not repeat, in the order of the source."""
    found: list[Dimension] = []
    for dim in dims:
        if dim[1] != 0:
            at = 0
            while at < len(found) and found[at][1] >= dim[1]:
                at = at + 1
            insert_item(found, at, dim)
    return found


def pattern(dims: list[Dimension], side: int) -> list[list[int]]:
    """The access pattern of dimensions on a side, 1 the source and 2 the destination; contiguous neighbours are
    merged."""
    found: list[list[int]] = []
    for dim in dims:
        last = len(found) - 1
        if last >= 0 and found[last][0] == dim[0] * dim[side]:
            found[last] = [dim[side], found[last][1] * dim[0]]
        else:
            found.append([dim[side], dim[0]])
    return found


def elements(dims: list[Dimension]) -> int:
    """The number of elements in these dimensions."""
    size = 1
    for dim in dims:
        size = size * dim[0]
    return size


def run_of(access: list[list[int]]) -> int:
    """The number of contiguous elements in an access pattern."""
    last = len(access) - 1
    return access[last][1] if last >= 0 and access[last][0] == 1 else 1


def stage_dims(dims: list[Dimension], size: int) -> tuple[list[Dimension], int]:
    """The dimensions of the way through SBUF, and how many of them, from the first on, become partitions; unchanged,
    and 0, if that is not faster.

    size: bytes of an element
    """
    best, found = dims, 0
    for dim in dims:
        if dim[1] < 0 or dim[2] < 0:
            return best, found
    together = dims[len(dims) - 1] if len(dims) > 0 else (1, 1, 1)
    run = together[0] if together[1] == 1 and together[2] == 1 else 1
    least = SPREAD_NS * elements(dims) / run - STAGED_NS
    ways = [dims]
    at = 0
    while at < len(dims) and dims[at][1] != 1:
        at = at + 1
    if at < len(dims) - 1:
        # Transposed rows: pieces of the source's or of the destination's.
        ways.append(divide_dim(dims, at, at, size))
        ways.append(divide_dim(dims, len(dims) - 1, at, size))
    for way in ways:
        for outer in range(1, len(way)):
            cost = staged_ns(way, outer, size)
            if cost > 0.0 and cost < least:
                least, best, found = cost, way, outer
    return best, found


def staged_ns(dims: list[Dimension], outer: int, size: int) -> float:
    """About how long the way through SBUF takes with ``outer`` dimensions as partitions; 0 if it is impossible."""
    inner = dims[outer:]
    loaded, stored = by_source(inner), elements(inner)
    first, second = pattern(loaded, 1), pattern(inner, 2)
    most = max(len(first), len(second)) + outer
    if most > MOST_DIMENSIONS or len(inner) > STAGED_DIMENSIONS or stored * size > STAGED_BYTES:
        return 0.0
    rows = elements(dims[0:outer])
    packets = rows * (elements(loaded) / run_of(first) + stored / run_of(second))
    # Each DMA engine serves its own partitions.
    share = max(1.0, nl.tile_size.pmax / rows)
    return SPREAD_NS * packets * share + COPY_NS * stored * ceil_div(rows, nl.tile_size.pmax)


def divide_dim(dims: list[Dimension], split: int, at: int, size: int) -> list[Dimension]:
    """Dimension ``split`` in two, pieces of it and, at ``at``, their number.

    size: bytes of an element
    """
    whole, src_stride, dst_stride = dims[split]
    room = STAGED_BYTES // size
    for i in range(at, len(dims)):
        room = room // dims[i][0] if i != split else room
    for each in range(min(room, max(ROW_RUN, 2 * ceil_div(whole, nl.tile_size.pmax))), 1, -1):
        if whole % each == 0 and each < whole:
            pieces = [(whole // each, src_stride * each, dst_stride * each)]
            return dims[0:at] + pieces + dims[at:split] + [(each, src_stride, dst_stride)] + dims[split + 1 :]
    return dims


def _stage(
    dst: nl.NkiTensor, src: nl.NkiTensor, to: int, start: int, outer: list[Dimension], inner: list[Dimension]
) -> None:
    """Copy a part through SBUF, at most 128 positions of the outer dimensions at a time."""
    size, src_stride, dst_stride = outer[0]
    rest = outer[1:]
    at_once = min(size, nl.tile_size.pmax // elements(rest)) if elements(rest) <= nl.tile_size.pmax else 0
    if at_once == 0:
        for k in range(size):
            _stage(dst, src, to + k * dst_stride, start + k * src_stride, rest, inner)
    else:
        for k in range(0, size, at_once):
            rows = [(min(at_once, size - k), src_stride, dst_stride)] + rest
            _stage_rows(dst, src, to + k * dst_stride, start + k * src_stride, rows, inner)


def _stage_rows(
    dst: nl.NkiTensor, src: nl.NkiTensor, to: int, start: int, rows: list[Dimension], inner: list[Dimension]
) -> None:
    """Copy positions of ``rows``, one per partition: into SBUF in the source's order, and out in that of dst."""
    loaded = by_source(inner)
    shape = (elements(rows), elements(loaded))
    given_sb = nl.ndarray(shape, dtype=src.dtype, buffer=nl.sbuf)
    transfer(given_sb, src.ap(pattern=pattern(rows, 1) + pattern(loaded, 1), offset=start))
    access = [[shape[1], shape[0]]]
    for dim in inner:
        step = 0
        for i in range(len(loaded)):
            if dim[1] != 0 and loaded[i] == dim:
                step = elements(loaded[i + 1 :])
        access.append([step, dim[0]])
    ordered_sb = nl.ndarray((shape[0], elements(inner)), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=ordered_sb, src=given_sb.ap(pattern=access))
    transfer(dst.ap(pattern=pattern(rows, 2) + pattern(inner, 2), offset=to), ordered_sb)


def _move_part(dst: nl.NkiTensor, src: nl.NkiTensor, to: int, start: int, dims: list[Dimension]) -> None:
    """Copy a part whose first elements are ``to`` and ``start``; loop over the dimensions beyond MOST_DIMENSIONS, the
    shortest ones."""
    if len(dims) > MOST_DIMENSIONS:
        shortest = 0
        for i in range(len(dims) - 1):
            if dims[i][0] < dims[shortest][0]:
                shortest = i
        size, src_stride, dst_stride = dims[shortest]
        rest = dims[0:shortest] + dims[shortest + 1 :]
        for k in range(size):
            _move_part(dst, src, to + k * dst_stride, start + k * src_stride, rest)
    else:
        dst_pattern, src_pattern = [], []
        for dim in dims:
            src_pattern.append([dim[1], dim[0]])
            dst_pattern.append([dim[2], dim[0]])
        if len(dims) == 0:
            src_pattern.append([1, 1])
            dst_pattern.append([1, 1])
        transfer(dst.ap(pattern=dst_pattern, offset=to), src.ap(pattern=src_pattern, offset=start))


def _fill(dst: nl.NkiTensor, number: float) -> None:
    """Fill dst with a number, from rows of a tile that holds it."""
    size = count_elements(dst.shape)
    pmax = nl.tile_size.pmax
    columns = max(1, min(FILL_COLUMNS, size // pmax))
    tile_sb = nl.ndarray((pmax, columns), dtype=dst.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sb, value=number)
    first = 0
    while first < size:
        width = min(columns, (size - first) // pmax)
        rows = pmax if width > 0 else 1
        width = width if width > 0 else min(columns, size - first)
        part = dst.ap(pattern=[[width, rows], [1, width]], offset=first)
        transfer(part, tile_sb[0:rows, 0:width])
        first = first + rows * width
