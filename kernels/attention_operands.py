"""Load what attention reads, and store its results.

Queries and keys come with the elements of a head on the partitions, values and masks as rows.
"""

from typing import Any

from trnrt.kernels.common import ceil_div, is_hbm_tensor, item_bytes, load
from trnrt.kernels.operands import BANK_BYTES, copy, turn_blocks
from trnrt.nki import nisa, nl

# The heads that the ``features`` layout has whole on partitions from which the tensor engine can read.
READABLE_HEADS = (32, 64, 128)


def evacuate_psum(dst: nl.NkiTensor, src: nl.NkiTensor, number: int) -> None:
    """Copy PSUM tile ``number``: by two engines in turn, or on trn1, where they can't work at once, by the faster."""
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        copy(dst, src, number)
    else:
        nisa.activation(dst=dst, op=nl.copy, data=src)


def count_head_rows(tensor: nl.NkiTensor) -> int:
    return tensor.shape[0] if is_hbm_tensor(tensor) else tensor.shape[2]


def take_columns_from(tensor: nl.NkiTensor, first: int, by_rows: bool = False) -> nl.NkiTensor:
    """A tensor without the columns before ``first``."""
    if first == 0:
        return tensor
    if by_rows:
        return tensor[:, :, first : tensor.shape[2]]
    if is_hbm_tensor(tensor):
        return tensor[:, first : tensor.shape[1]]
    return tensor[:, first // nl.tile_size.pmax : tensor.shape[1], :]


def turn_heads(src: nl.NkiTensor, r0: int, rows: int, width: int, h0: int, h1: int) -> list[nl.NkiTensor]:
    """Heads ``h0`` to ``h1`` of ``rows`` rows of queries or keys: a view (width, rows) of each."""
    found = []
    if not is_hbm_tensor(src):
        for h in range(h0, h1):
            first, block = h * width % nl.tile_size.pmax, h * width // nl.tile_size.pmax
            found.append(src[first : first + width, block, r0 : r0 + rows])
        return found
    columns = (h1 - h0) * width
    are_readable = width in READABLE_HEADS
    group = nl.tile_size.pmax if are_readable else width
    blocks = ceil_div(columns, group)
    turned_sb = nl.ndarray((min(columns, group), blocks, rows), dtype=src.dtype, buffer=nl.sbuf)
    for m0 in range(0, rows, nl.tile_size.pmax):
        m1 = min(rows, m0 + nl.tile_size.pmax)
        rows_sb = load(src[r0 + m0 : r0 + m1, h0 * width : h1 * width])
        turn_blocks(turned_sb[:, :, m0:m1], rows_sb, group)
    for h in range(h1 - h0):
        first, block = h * width % group, h * width // group
        found.append(turned_sb[first : first + width, block, :])
    return found


def load_value_rows(v: nl.NkiTensor, r0: int, keys: int, size: int, h0: int, h1: int, by_rows: bool) -> nl.NkiTensor:
    """Heads ``h0`` to ``h1`` of the values (P, T/128, heads, size): key t*128 + p on partition p of tile t."""
    heads = h1 - h0
    tiles = ceil_div(keys, nl.tile_size.pmax)
    if by_rows:
        t0 = r0 // nl.tile_size.pmax
        return v[:, t0 : t0 + tiles, h0 * size : h1 * size].reshape_dim(2, (heads, size))
    v_sb = nl.ndarray((min(keys, nl.tile_size.pmax), tiles, heads, size), dtype=v.dtype, buffer=nl.sbuf)
    flat_sb = v_sb.flatten_dims(2, 3)
    if is_hbm_tensor(v):
        full = keys // nl.tile_size.pmax
        part = v[r0 : r0 + keys, h0 * size : h1 * size]
        if full > 0:
            whole = part[0 : full * nl.tile_size.pmax].reshape_dim(0, (full, nl.tile_size.pmax)).permute((1, 0, 2))
            nisa.dma_copy(dst=flat_sb[:, 0:full, :], src=whole)
        if full < tiles:
            rest = keys - full * nl.tile_size.pmax
            nisa.dma_copy(dst=flat_sb[0:rest, full, :], src=part[full * nl.tile_size.pmax : keys])
        return v_sb
    first, last = h0 * size // nl.tile_size.pmax, ceil_div(h1 * size, nl.tile_size.pmax)
    slots = max(1, BANK_BYTES // (nl.tile_size.pmax * item_bytes(v.dtype)))
    for t in range(tiles):
        k0, k1 = t * nl.tile_size.pmax, min(keys, (t + 1) * nl.tile_size.pmax)
        for b0 in range(first, last, slots):
            b1 = min(last, b0 + slots)
            c0 = b0 * nl.tile_size.pmax
            columns = min(h1 * size, b1 * nl.tile_size.pmax) - c0
            turned_psum = nl.ndarray((k1 - k0, columns), dtype=v.dtype, buffer=nl.psum)
            for b in range(b0, b1):
                d0 = b * nl.tile_size.pmax - c0
                d1 = min(columns, d0 + nl.tile_size.pmax)
                part_sb = v[0 : d1 - d0, b, r0 + k0 : r0 + k1]
                nisa.nc_transpose(dst=turned_psum[:, d0:d1], data=part_sb, engine=nisa.engine.tensor)
            o0 = c0 - h0 * size
            evacuate_psum(flat_sb[0 : k1 - k0, t, o0 : o0 + columns], turned_psum, t + 1)
    return v_sb


def load_masks(mask: Any, n: int, h0: int, h1: int, q0: int, q1: int) -> Any:
    """Load the mask of item ``n``, heads ``h0`` to ``h1`` and queries ``q0`` to ``q1``: (queries, heads or 1, keys);
    None without a mask."""
    if mask is None:
        return None
    matrices, groups, rows = mask.shape[0], mask.shape[1], mask.shape[2]
    group0, group1 = (0, 1) if groups == 1 else (h0, h1)
    part = mask[n % matrices, group0:group1]
    if rows == 1:
        return load(part.permute((1, 0, 2)).broadcast(0, q1 - q0))
    return load(part[:, q0:q1].permute((1, 0, 2)))


def store_heads(dst: nl.NkiTensor, y_sb: nl.NkiTensor, r0: int, c0: int) -> None:
    """Store rows ``r0``..., columns ``c0``... of the result."""
    rows, columns = y_sb.shape
    if is_hbm_tensor(dst):
        nisa.dma_copy(dst=dst[r0 : r0 + rows, c0 : c0 + columns], src=y_sb)
        return
    first = c0 // nl.tile_size.pmax
    turn_blocks(dst[:, first : first + ceil_div(columns, nl.tile_size.pmax), r0 : r0 + rows], y_sb, nl.tile_size.pmax)
