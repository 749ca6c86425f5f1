"""Load what attention reads, and store its results.

Queries and keys come with the elements of a head on the partitions, values and masks as rows.
"""

from typing import Any

from trnrt.kernels.common import Pair, ceil_div, is_hbm_tensor, item_bytes, load, transfer
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
    if has_heads_apart(tensor):
        return tensor.shape[0] * tensor.shape[2]
    return tensor.shape[0] if is_hbm_tensor(tensor) else tensor.shape[2]


def has_heads_apart(tensor: nl.NkiTensor) -> bool:
    """True if a tensor has each head's rows one after the other: HBM (N, H, S, D)."""
    return is_hbm_tensor(tensor) and len(tensor.shape) == 4


def load_head_rows(dst: nl.NkiTensor, src: nl.NkiTensor, r0: int, h0: int) -> None:
    """dst (rows, heads, size) = heads ``h0``... of rows ``r0``... of one item, from HBM."""
    rows, heads, size = dst.shape
    if has_heads_apart(src):
        n, s0 = r0 // src.shape[2], r0 % src.shape[2]
        part = src[n, h0 : h0 + heads, s0 : s0 + rows, :].permute((1, 0, 2))
    else:
        part = src[r0 : r0 + rows, h0 * size : (h0 + heads) * size].reshape_dim(1, (heads, size))
    transfer(dst, part)


def take_columns_from(tensor: nl.NkiTensor, first: int, by_rows: bool = False) -> nl.NkiTensor:
    """A tensor without the columns before ``first``."""
    if first == 0:
        return tensor
    if by_rows:
        return tensor[:, :, first : tensor.shape[2]]
    if is_hbm_tensor(tensor):
        return tensor[:, first : tensor.shape[1]]
    return tensor[:, first // nl.tile_size.pmax : tensor.shape[1], :]


def turn_heads(
    src: nl.NkiTensor, r0: int, rows: int, width: int, h0: int, h1: int, shared: int = 1
) -> list[nl.NkiTensor]:
    """Heads ``h0`` to ``h1`` of ``rows`` rows of queries or keys: a view (width, rows) of each.

    If heads are ``shared``, those from HBM start at partition 0: the tensor engine wants both sides at the same one."""
    found = []
    if not is_hbm_tensor(src):
        for h in range(h0, h1):
            first, block = h * width % nl.tile_size.pmax, h * width // nl.tile_size.pmax
            found.append(src[first : first + width, block, r0 : r0 + rows])
        return found
    columns = (h1 - h0) * width
    are_readable = width in READABLE_HEADS and shared == 1
    group = nl.tile_size.pmax if are_readable else width
    blocks = ceil_div(columns, group)
    turned_sb = nl.ndarray((min(columns, group), blocks, rows), dtype=src.dtype, buffer=nl.sbuf)
    for m0 in range(0, rows, nl.tile_size.pmax):
        m1 = min(rows, m0 + nl.tile_size.pmax)
        rows_sb = nl.ndarray((m1 - m0, h1 - h0, width), dtype=src.dtype, buffer=nl.sbuf)
        load_head_rows(rows_sb, src, r0 + m0, h0)
        turn_blocks(turned_sb[:, :, m0:m1], rows_sb.flatten_dims(1, 2), group)
    for h in range(h1 - h0):
        first, block = h * width % group, h * width // group
        found.append(turned_sb[first : first + width, block, :])
    return found


def take_keys(k_sb: list[nl.NkiTensor], heads: int, shared: int, end: int) -> list[nl.NkiTensor]:
    """The first ``end`` keys (width, end) of each head of queries; ``shared`` of them use one of ``k_sb``."""
    if shared == 1 and end == k_sb[0].shape[1]:
        return k_sb
    taken = []
    for h in range(heads):
        taken.append(k_sb[h // shared][:, 0:end])
    return taken


def load_value_rows(v: nl.NkiTensor, r0: int, keys: int, size: int, h0: int, h1: int, by_rows: bool) -> nl.NkiTensor:
    """Heads ``h0`` to ``h1`` of the values (P, T/128, heads, size): key t*128 + p on partition p of tile t."""
    heads = h1 - h0
    tiles = ceil_div(keys, nl.tile_size.pmax)
    if by_rows:
        t0 = r0 // nl.tile_size.pmax
        return v[:, t0 : t0 + tiles, h0 * size : h1 * size].reshape_dim(2, (heads, size))
    v_sb = nl.ndarray((min(keys, nl.tile_size.pmax), tiles, heads, size), dtype=v.dtype, buffer=nl.sbuf)
    flat_sb = v_sb.flatten_dims(2, 3)
    if has_heads_apart(v):
        for t in range(tiles):
            k0, k1 = t * nl.tile_size.pmax, min(keys, (t + 1) * nl.tile_size.pmax)
            load_head_rows(v_sb[0 : k1 - k0, t], v, r0 + k0, h0)
        return v_sb
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


def load_masks(masks: tuple[Any, Any], n: int, heads: Pair, queries: Pair, keys: int) -> Any:
    """The sum of the masks of item ``n`` for heads and queries (first, end) and the first ``keys`` keys: (queries,
    heads or 1, keys); None without masks."""
    total_sb: Any = None
    for mask in masks:
        if mask is None:
            continue
        matrices, groups, rows = mask.shape[0], mask.shape[1], mask.shape[2]
        group0, group1 = (0, 1) if groups == 1 else heads
        part = mask[n % matrices, group0:group1, :, 0:keys]
        if rows == 1:
            mask_sb = load(part.permute((1, 0, 2)).broadcast(0, queries[1] - queries[0]))
        else:
            mask_sb = load(part[:, queries[0] : queries[1]].permute((1, 0, 2)))
        total_sb = mask_sb if total_sb is None else _add_masks(total_sb, mask_sb)
    return total_sb


def _add_masks(a_sb: nl.NkiTensor, b_sb: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of two masks (queries, heads or 1, keys)."""
    rows, keys = a_sb.shape[0], a_sb.shape[2]
    groups = max(a_sb.shape[1], b_sb.shape[1])
    sum_sb = nl.ndarray((rows, groups, keys), dtype=nl.float32, buffer=nl.sbuf)
    a = a_sb if a_sb.shape[1] == groups else a_sb.broadcast(1, groups)
    b = b_sb if b_sb.shape[1] == groups else b_sb.broadcast(1, groups)
    nisa.tensor_tensor(dst=sum_sb, data1=a, data2=b, op=nl.add)
    return sum_sb


def store_heads(dst: nl.NkiTensor, y_sb: nl.NkiTensor, r0: int, c0: int) -> None:
    """Store rows ``r0``..., columns ``c0``... of the result."""
    rows, columns = y_sb.shape
    if is_hbm_tensor(dst):
        nisa.dma_copy(dst=dst[r0 : r0 + rows, c0 : c0 + columns], src=y_sb)
        return
    first = c0 // nl.tile_size.pmax
    turn_blocks(dst[:, first : first + ceil_div(columns, nl.tile_size.pmax), r0 : r0 + rows], y_sb, nl.tile_size.pmax)
