"""The kernels whose published times the timing model is compared with, each written from its description.

``dge_mode`` says where the descriptors of their DMA transfers come from; unknown is the target's default. Loops
allocate their own tiles.
"""

from __future__ import annotations

from trnrt.calibration.tiles import MOVING, Mode, P, Tensor, load_rows, load_tile, store_sum, zero_tile
from trnrt.nki import nisa, nki, nl


@nki.jit
def add_chunks(a: Tensor, b: Tensor, chunk: int = 1, dge_mode: Mode = Mode.unknown) -> Tensor:
    """a + b, ``chunk`` elements at a time: two loads of [chunk, 1], an addition, a store.

    a, b: HBM (N, 1), N a multiple of chunk, which is at most 128
    """
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for i in range(0, a.shape[0], chunk):
        a_sb = load_tile(a[i : i + chunk, :], dge_mode)
        b_sb = load_tile(b[i : i + chunk, :], dge_mode)
        sum_sb = nl.ndarray((chunk, 1), dtype=a.dtype, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=sum_sb, data=a_sb, op0=nl.add, operand0=b_sb)
        nisa.dma_copy(dst=out[i : i + chunk, :], src=sum_sb, dge_mode=dge_mode)
    return out


@nki.jit
def add_columns(a: Tensor, b: Tensor, width: int, dge_mode: Mode = Mode.unknown) -> Tensor:
    """a + b in tiles of ``width`` columns.

    a, b: HBM (P, F), P at most 128, F a multiple of width
    """
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for c in range(0, a.shape[1], width):
        part = slice(c, c + width)
        a_sb = load_tile(a[:, part], dge_mode)
        b_sb = load_tile(b[:, part], dge_mode)
        _store_addition(out[:, part], a_sb, b_sb, dge_mode)
    return out


@nki.jit
def add_slabs(a: Tensor, b: Tensor, dge_mode: Mode = Mode.unknown) -> Tensor:
    """a + b in tiles that are contiguous in HBM.

    a, b: HBM (T, P, F), P at most 128
    """
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    for t in range(a.shape[0]):
        a_sb = load_tile(a[t], dge_mode)
        b_sb = load_tile(b[t], dge_mode)
        _store_addition(out[t], a_sb, b_sb, dge_mode)
    return out


def _store_addition(dst: Tensor, a_sb: Tensor, b_sb: Tensor, dge_mode: Mode) -> None:
    """dst, HBM (P, F) = a_sb + b_sb."""
    sum_sb = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=sum_sb, data1=a_sb, data2=b_sb, op=nl.add)
    nisa.dma_copy(dst=dst, src=sum_sb, dge_mode=dge_mode)


@nki.jit
def transpose_tiles(src: Tensor, by_vector: bool = False, dge_mode: Mode = Mode.unknown) -> Tensor:
    """src.T in tiles of 128 x 128: the tensor engine transposes, the scalar (or the vector) engine evacuates PSUM.

    src: HBM (R, C), multiples of 128
    """
    rows, columns = src.shape
    out = nl.ndarray((columns, rows), dtype=src.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, P):
        for c in range(0, columns, P):
            src_sb = load_tile(src[r : r + P, c : c + P], dge_mode)
            turned_psum = nl.ndarray((P, P), dtype=src.dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned_psum, data=src_sb)
            turned_sb = nl.ndarray((P, P), dtype=src.dtype, buffer=nl.sbuf)
            if by_vector:
                nisa.tensor_copy(dst=turned_sb, src=turned_psum, engine=nisa.engine.vector)
            else:
                nisa.activation(dst=turned_sb, op=nl.copy, data=turned_psum)
            nisa.dma_copy(dst=out[c : c + P, r : r + P], src=turned_sb, dge_mode=dge_mode)
    return out


@nki.jit
def matmul_tiled(lhs_t: Tensor, rhs: Tensor, dge_mode: Mode = Mode.unknown) -> Tensor:
    """lhs_t.T @ rhs; every product loads both of its tiles.

    lhs_t: HBM (K, M), rhs: HBM (K, N); K and M multiples of 128, N of 512
    """
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, P):
        for n in range(0, columns, MOVING):
            sum_psum = nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, P):
                lhs_sb = load_tile(lhs_t[k : k + P, m : m + P], dge_mode)
                rhs_sb = load_tile(rhs[k : k + P, n : n + MOVING], dge_mode)
                nisa.nc_matmul(dst=sum_psum, stationary=lhs_sb, moving=rhs_sb)
            store_sum(out[m : m + P, n : n + MOVING], sum_psum, dge_mode)
    return out


@nki.jit
def matmul_blocked(
    lhs_t: Tensor,
    rhs: Tensor,
    tiles_m: int = 16,
    tiles_n: int = 2,
    tiles_k: int = 8,
    dge_mode: Mode = Mode.unknown,
) -> Tensor:
    """lhs_t.T @ rhs in blocks of tiles_m * 128 rows, tiles_n * 512 columns and tiles_k * 128 of the contraction.

    The sums of all rows of a column block stay in SBUF, in the dtype of lhs_t, until its contraction is done.

    lhs_t: HBM (K, M), rhs: HBM (K, N); multiples of the blocks
    """
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    block_m, block_n, block_k = P * tiles_m, MOVING * tiles_n, P * tiles_k
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for n in range(0, columns, block_n):
        sums = [[zero_tile((P, MOVING), lhs_t.dtype) for _ in range(tiles_n)] for _ in range(rows // P)]
        for k in range(0, depth, block_k):
            rhs_tiles = load_rows(rhs[k : k + block_k, n : n + block_n], dge_mode)
            for m in range(0, rows, block_m):
                lhs_tiles = load_rows(lhs_t[k : k + block_k, m : m + block_m], dge_mode)
                _add_block(sums[m // P : (m + block_m) // P], lhs_tiles, rhs_tiles)
        _store_sums(out[:, n : n + block_n], sums, dge_mode)
    return out


def _add_block(sums: list[list[Tensor]], lhs_tiles: list[Tensor], rhs_tiles: list[Tensor]) -> None:
    """sums[m][n] += the product of column m of the lhs tiles and column n of the rhs tiles."""
    for n in range(len(sums[0])):
        for m in range(len(sums)):
            part_psum = nl.ndarray((P, MOVING), dtype=nl.float32, buffer=nl.psum)
            for k in range(len(lhs_tiles)):
                lhs_sb = lhs_tiles[k][:, m * P : (m + 1) * P]
                rhs_sb = rhs_tiles[k][:, n * MOVING : (n + 1) * MOVING]
                nisa.nc_matmul(dst=part_psum, stationary=lhs_sb, moving=rhs_sb)
            nisa.tensor_tensor(dst=sums[m][n], data1=sums[m][n], data2=part_psum, op=nl.add)


def _store_sums(dst: Tensor, sums: list[list[Tensor]], dge_mode: Mode) -> None:
    """dst, HBM (M, N): the tiles of a row are joined first, so that one transfer stores them all."""
    for m in range(len(sums)):
        row_sb = nl.ndarray((P, dst.shape[1]), dtype=dst.dtype, buffer=nl.sbuf)
        for n in range(len(sums[m])):
            nisa.tensor_copy(dst=row_sb[:, n * MOVING : (n + 1) * MOVING], src=sums[m][n])
        nisa.dma_copy(dst=dst[m * P : (m + 1) * P, :], src=row_sb, dge_mode=dge_mode)


@nki.jit
def silu(x: Tensor, chunk: int = 512, dge_mode: Mode = Mode.unknown) -> Tensor:
    """x / (1 + exp(-x)) in tiles of 128 rows and ``chunk`` columns: exp on the scalar engine, the rest on the vector
    engine.

    x: HBM (R, C), multiples of 128 and of chunk
    """
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for r in range(0, rows, P):
        for c in range(0, columns, chunk):
            x_sb = load_tile(x[r : r + P, c : c + chunk], dge_mode)
            exp_sb = nl.ndarray((P, chunk), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation(dst=exp_sb, op=nl.exp, data=x_sb, scale=-1.0)
            below_sb = nl.ndarray((P, chunk), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_scalar(dst=below_sb, data=exp_sb, op0=nl.add, operand0=1.0)
            sigmoid_sb = nl.ndarray((P, chunk), dtype=nl.float32, buffer=nl.sbuf)
            nisa.reciprocal(dst=sigmoid_sb, data=below_sb)
            y_sb = nl.ndarray((P, chunk), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_tensor(dst=y_sb, data1=x_sb, data2=sigmoid_sb, op=nl.multiply)
            nisa.dma_copy(dst=out[r : r + P, c : c + chunk], src=y_sb, dge_mode=dge_mode)
    return out


@nki.jit
def exponential(x: Tensor, dge_mode: Mode = Mode.unknown) -> Tensor:
    """exp(x) as one tile.

    x: HBM (P, F), P at most 128
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    x_sb = load_tile(x, dge_mode)
    y_sb = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.activation(dst=y_sb, op=nl.exp, data=x_sb)
    nisa.dma_copy(dst=out, src=y_sb, dge_mode=dge_mode)
    return out
