"""Published products, lhs_t.T @ rhs, with other tiles and blocks than those of ``kernels.py``.

lhs_t: HBM (K, M), rhs: HBM (K, N); K and M multiples of 128, N of 512, and of the kernel's blocks.
``dge_mode`` says where the descriptors of the transfers come from.
"""

from __future__ import annotations

from trnrt.calibration.tiles import MOVING, Mode, P, Tensor, load_rows, load_tile, store_sum, zero_tile
from trnrt.nki import nisa, nki, nl


@nki.jit
def matmul_paired(lhs_t: Tensor, rhs: Tensor, dge_mode: Mode = Mode.unknown) -> Tensor:
    """Two tiles of columns at a time: a tile of lhs_t is loaded once for both, each tile of rhs right before its
    product."""
    depth, rows = lhs_t.shape
    out = nl.ndarray((rows, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, P):
        for n in range(0, rhs.shape[1], 2 * MOVING):
            sums = [[nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]]
            for k in range(0, depth, P):
                lhs_sb = load_tile(lhs_t[k : k + P, m : m + P], dge_mode)
                for part, sum_psum in enumerate(sums[0]):
                    first = n + part * MOVING
                    rhs_sb = load_tile(rhs[k : k + P, first : first + MOVING], dge_mode)
                    nisa.nc_matmul(dst=sum_psum, stationary=lhs_sb, moving=rhs_sb)
            _store_sums(out[m : m + P, n : n + 2 * MOVING], sums, dge_mode)
    return out


@nki.jit
def matmul_grouped(
    lhs_t: Tensor,
    rhs: Tensor,
    tiles_m: int,
    tiles_n: int,
    lhs_load: int = 1,
    rhs_load: int = 1,
    dge_mode: Mode = Mode.unknown,
) -> Tensor:
    """tiles_m x tiles_n tiles at a time, all of their sums in PSUM; loads take lhs_load and rhs_load tiles at once.

    For each 128 of the contraction: all of rhs, then parts of lhs_t, each followed by its products.
    """
    depth, rows = lhs_t.shape
    out = nl.ndarray((rows, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, P * tiles_m):
        for n in range(0, rhs.shape[1], MOVING * tiles_n):
            sums = [
                [nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum) for _ in range(tiles_n)]
                for _ in range(tiles_m)
            ]
            for k in range(0, depth, P):
                rhs_tiles = []
                for part in range(0, tiles_n, rhs_load):
                    first = n + part * MOVING
                    rhs_sb = load_tile(rhs[k : k + P, first : first + MOVING * rhs_load], dge_mode)
                    rhs_tiles += [rhs_sb[:, c : c + MOVING] for c in range(0, MOVING * rhs_load, MOVING)]
                for part in range(0, tiles_m, lhs_load):
                    first = m + part * P
                    lhs_sb = load_tile(lhs_t[k : k + P, first : first + P * lhs_load], dge_mode)
                    for tile in range(lhs_load):
                        for sum_psum, moving in zip(sums[part + tile], rhs_tiles, strict=True):
                            stationary = lhs_sb[:, tile * P : (tile + 1) * P]
                            nisa.nc_matmul(dst=sum_psum, stationary=stationary, moving=moving)
            _store_sums(out[m : m + P * tiles_m, n : n + MOVING * tiles_n], sums, dge_mode)
    return out


@nki.jit
def matmul_hoisted(
    lhs_t: Tensor, rhs: Tensor, tiles_m: int = 1, tiles_n: int = 1, dge_mode: Mode = Mode.unknown
) -> Tensor:
    """Blocks of tiles_m x tiles_n tiles; whole columns of lhs_t stay for all of rhs, whole columns of rhs for a block.

    A tile is a transfer of its own.
    """
    rows = lhs_t.shape[1]
    out = nl.ndarray((rows, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, P * tiles_m):
        lhs_columns = [load_rows(lhs_t[:, m + tile * P : m + (tile + 1) * P], dge_mode) for tile in range(tiles_m)]
        for n in range(0, rhs.shape[1], MOVING * tiles_n):
            for first in range(n, n + MOVING * tiles_n, MOVING):
                rhs_tiles = load_rows(rhs[:, first : first + MOVING], dge_mode)
                for tile, lhs_tiles in enumerate(lhs_columns):
                    sum_psum = nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum)
                    for lhs_sb, rhs_sb in zip(lhs_tiles, rhs_tiles, strict=True):
                        nisa.nc_matmul(dst=sum_psum, stationary=lhs_sb, moving=rhs_sb)
                    row = m + tile * P
                    store_sum(out[row : row + P, first : first + MOVING], sum_psum, dge_mode)
    return out


@nki.jit
def matmul_tuned(lhs_t: Tensor, rhs: Tensor, dge_mode: Mode = Mode.unknown) -> Tensor:
    """Blocks of 512 x 512 of a contraction of 1024, the sums of a column of blocks in SBUF in the dtype of lhs_t.

    PSUM is cleared before each sum, and copied before it is added to the sums in SBUF. K a multiple of 1024, M of 512.
    """
    depth, rows = lhs_t.shape
    out = nl.ndarray((rows, rhs.shape[1]), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for n in range(0, rhs.shape[1], MOVING):
        sums = [zero_tile((P, MOVING), lhs_t.dtype) for _ in range(0, rows, P)]
        for first in range(0, depth, 8 * P):
            rhs_tiles = load_rows(rhs[first : first + 8 * P, n : n + MOVING], dge_mode)
            for m in range(0, rows, 4 * P):
                lhs_tiles = load_rows(lhs_t[first : first + 8 * P, m : m + 4 * P], dge_mode)
                for tile in range(4):
                    _add_product(sums[m // P + tile], lhs_tiles, rhs_tiles, tile)
        for m in range(len(sums)):
            nisa.dma_copy(dst=out[m * P : (m + 1) * P, n : n + MOVING], src=sums[m], dge_mode=dge_mode)
    return out


def _add_product(sum_sb: Tensor, lhs_tiles: list[Tensor], rhs_tiles: list[Tensor], tile: int) -> None:
    """sum_sb += the product of column ``tile`` of the lhs tiles and the rhs tiles."""
    part_psum = nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum)
    part_sb = nl.ndarray((P, MOVING), dtype=sum_sb.dtype, buffer=nl.sbuf)
    nisa.memset(dst=part_psum, value=0.0)
    for lhs_sb, rhs_sb in zip(lhs_tiles, rhs_tiles, strict=True):
        nisa.nc_matmul(dst=part_psum, stationary=lhs_sb[:, tile * P : (tile + 1) * P], moving=rhs_sb)
    nisa.tensor_copy(dst=part_sb, src=part_psum)
    nisa.tensor_tensor(dst=sum_sb, data1=sum_sb, data2=part_sb, op=nl.add)


def _store_sums(dst: Tensor, sums: list[list[Tensor]], dge_mode: Mode) -> None:
    """dst, HBM (M, N): the PSUM tiles, each copied and stored on its own."""
    for m, row in enumerate(sums):
        for n, sum_psum in enumerate(row):
            store_sum(dst[m * P : (m + 1) * P, n * MOVING : (n + 1) * MOVING], sum_psum, dge_mode)
