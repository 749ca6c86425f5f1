"""Matrix products, in the four stages of the SDK's tutorial and as fast as we know how.

Each stage removes the bottleneck of the one before: tiles reloaded for every product (DMA); loads hoisted out of the
loops that don't change them; several tiles per load, so that each is used for more products; the contraction cut as
well, so that loads stay small whatever its length. ``matmul`` is none of them: see product.py.
"""

from trnrt.kernels.common import ceil_div, item_bytes, transpose_is_exact
from trnrt.kernels.operands import BANK, COLUMNS, ROWS, is_turned_once, turn
from trnrt.kernels.product import product
from trnrt.nki import nisa, nki, nl

# The longest contraction of the stages that keep all of it on chip: two buffers of (128 + 512) and (256 + 1024)
# float32.
HOISTED_DEPTH = 4096
BLOCK_FREE_DEPTH = 2048
# Tiles of 128 rows and of 512 columns in a block of the third stage; of the fourth, tiles of the contraction too.
BLOCK = (2, 2)
FULL_BLOCK = (16, 2, 8)
# The least cycles of a product, however few its columns.
LEAST_COLUMNS = 64
# The approximate bytes that HBM delivers per cycle of the tensor engine: 330 GB/s at 2.4 GHz.
BYTES_A_CYCLE = 137


@nki.jit
def matmul(lhs: nl.NkiTensor, rhs: nl.NkiTensor, lhs_turned: bool = False) -> nl.NkiTensor:
    """lhs.T @ rhs, or lhs @ rhs if lhs_turned.

    lhs: HBM (K, M), or (M, K) if lhs_turned
    rhs: HBM (K, N), the dtype of lhs

    numpy: (lhs if lhs_turned else lhs.T) @ rhs
    """
    rows = lhs.shape[0 if lhs_turned else 1]
    dst = nl.ndarray((rows, rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    multiply(dst, lhs, rhs, lhs_turned)
    return dst


@nki.jit
def matmul_tiled(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs, the tutorial's first stage; see multiply_tiled."""
    dst = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    multiply_tiled(dst, lhs, rhs)
    return dst


@nki.jit
def matmul_hoisted(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs, the tutorial's second stage; see multiply_hoisted."""
    dst = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    multiply_hoisted(dst, lhs, rhs)
    return dst


@nki.jit
def matmul_block_free(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs, the tutorial's third stage; see multiply_block_free."""
    dst = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    multiply_block_free(dst, lhs, rhs)
    return dst


@nki.jit
def matmul_blocked(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs, the tutorial's fourth stage; see multiply_blocked."""
    dst = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=lhs.dtype, buffer=nl.shared_hbm)
    multiply_blocked(dst, lhs, rhs)
    return dst


def multiply(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor, lhs_turned: bool = False) -> None:
    """dst = lhs.T @ rhs; the stationary operand is the one that gives the tensor engine less work.

    dst: HBM (M, N)
    lhs: HBM (K, M), or (M, K) if lhs_turned: transposed while loading, or once before if it is loaded often
    rhs: HBM (K, N), the dtype of lhs

    numpy: (lhs if lhs_turned else lhs.T) @ rhs
    """
    rows, columns = dst.shape
    depth = rhs.shape[0]
    swapped = rhs_is_stationary(rows, depth, columns, item_bytes(lhs.dtype))
    if lhs_turned and is_turned_once(ceil_div(columns, ROWS if swapped else COLUMNS), lhs.dtype):
        lhs_t = nl.ndarray((depth, rows), dtype=lhs.dtype, buffer=nl.private_hbm)
        turn(lhs_t, lhs)
        lhs, lhs_turned = lhs_t, False
    if swapped:
        product(dst, rhs, lhs, b_turned=lhs_turned, dst_turned=True)
    else:
        product(dst, lhs, rhs, a_turned=lhs_turned)


def rhs_is_stationary(rows: int, depth: int, columns: int, item: int) -> bool:
    """True if the tensor engine has less work with rhs stationary, the transpose of the result included.

    Only if its work exceeds HBM's by a factor of 2: the blocks are made for a moving rhs. Never on trn1, where a
    transpose takes several times as long (see turn_rows in operands.py).

    item: bytes of an element
    """
    if not transpose_is_exact():
        return False
    passes = 4 if item == 4 else 1
    depth_tiles = ceil_div(depth, nl.tile_size.pmax)
    row_tiles, column_tiles = ceil_div(rows, nl.tile_size.pmax), ceil_div(columns, nl.tile_size.pmax)
    as_usual = depth_tiles * row_tiles * _cycles(columns)
    swapped = depth_tiles * column_tiles * _cycles(rows) + row_tiles * column_tiles * nl.tile_size.pmax
    return swapped < as_usual and passes * as_usual * BYTES_A_CYCLE > 2 * item * depth * (rows + columns)


def _cycles(columns: int) -> int:
    """Cycles that the tensor engine takes for this many moving columns."""
    rest = columns % BANK
    return columns - rest + (max(LEAST_COLUMNS, rest) if rest > 0 else 0)


def multiply_tiled(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> None:
    """dst = lhs.T @ rhs; both tiles are reloaded for every product.

    dst: HBM (M, N)
    lhs, rhs: HBM (K, M), (K, N), of one dtype

    numpy: lhs.T @ rhs
    """
    depth, rows = lhs.shape
    columns = rhs.shape[1]
    for m0 in range(0, rows, nl.tile_size.pmax):
        m1 = min(rows, m0 + nl.tile_size.pmax)
        for n0 in range(0, columns, BANK):
            n1 = min(columns, n0 + BANK)
            sum_psum = nl.ndarray((m1 - m0, n1 - n0), dtype=nl.float32, buffer=nl.psum)
            for k0 in range(0, depth, nl.tile_size.pmax):
                k1 = min(depth, k0 + nl.tile_size.pmax)
                lhs_tiles = _load_tiles(lhs[k0:k1, m0:m1])
                rhs_tiles = _load_tiles(rhs[k0:k1, n0:n1])
                nisa.nc_matmul(dst=sum_psum, stationary=lhs_tiles[0], moving=rhs_tiles[0], accumulate=k0 > 0)
            _store_sums(dst[m0:m1, n0:n1], sum_psum)


def multiply_hoisted(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> None:
    """dst = lhs.T @ rhs; lhs is loaded once, rhs once for each 128 rows.

    dst: HBM (M, N)
    lhs, rhs: HBM (K, M), (K, N), of one dtype
    limits: K <= HOISTED_DEPTH

    numpy: lhs.T @ rhs
    """
    depth = lhs.shape[0]
    assert depth <= HOISTED_DEPTH, f"matmul: a contraction of {depth}; the limit of this stage is {HOISTED_DEPTH}"
    _multiply_blocks(dst, lhs, rhs, (1, 1))


def multiply_block_free(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> None:
    """dst = lhs.T @ rhs; blocks of BLOCK tiles share their loads, so rhs is loaded once for 256 rows.

    dst: HBM (M, N)
    lhs, rhs: HBM (K, M), (K, N), of one dtype
    limits: K <= BLOCK_FREE_DEPTH

    numpy: lhs.T @ rhs
    """
    depth = lhs.shape[0]
    assert depth <= BLOCK_FREE_DEPTH, f"matmul: a contraction of {depth}; the limit of this stage is {BLOCK_FREE_DEPTH}"
    _multiply_blocks(dst, lhs, rhs, BLOCK)


def _multiply_blocks(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor, tiles: tuple[int, int]) -> None:
    """dst = lhs.T @ rhs in blocks of ``tiles`` (of rows, of columns), which share their loads."""
    rows = lhs.shape[1]
    block_m, block_n = tiles[0] * nl.tile_size.pmax, tiles[1] * BANK
    for m0 in range(0, rows, block_m):
        lhs_tiles = _load_tiles(lhs[:, m0 : min(rows, m0 + block_m)])
        for n0 in range(0, rhs.shape[1], block_n):
            rhs_tiles = _load_tiles(rhs[:, n0 : min(rhs.shape[1], n0 + block_n)])
            for m in range(0, lhs_tiles[0].shape[1], nl.tile_size.pmax):
                for n in range(0, rhs_tiles[0].shape[1], BANK):
                    sum_psum = _sum_of_products(lhs_tiles, rhs_tiles, m, n)
                    size_m, size_n = sum_psum.shape
                    _store_sums(dst[m0 + m : m0 + m + size_m, n0 + n : n0 + n + size_n], sum_psum)


def multiply_blocked(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> None:
    """dst = lhs.T @ rhs in blocks of FULL_BLOCK tiles; float32 sums of a block of dst stay in SBUF until it is done.

    dst: HBM (M, N)
    lhs, rhs: HBM (K, M), (K, N), of one dtype

    numpy: lhs.T @ rhs
    """
    depth, rows = lhs.shape
    columns = rhs.shape[1]
    block_m, block_n, block_k = (
        FULL_BLOCK[0] * nl.tile_size.pmax,
        FULL_BLOCK[1] * BANK,
        FULL_BLOCK[2] * nl.tile_size.pmax,
    )
    for n0 in range(0, columns, block_n):
        n_size = min(block_n, columns - n0)
        for m0 in range(0, rows, block_m):
            m_size = min(block_m, rows - m0)
            sums_sb = nl.ndarray((nl.tile_size.pmax, FULL_BLOCK[0], n_size), dtype=nl.float32, buffer=nl.sbuf)
            for k0 in range(0, depth, block_k):
                k1 = min(depth, k0 + block_k)
                lhs_tiles = _load_tiles(lhs[k0:k1, m0 : m0 + m_size])
                rhs_tiles = _load_tiles(rhs[k0:k1, n0 : n0 + n_size])
                _add_block(sums_sb, lhs_tiles, rhs_tiles, k0 == 0)
            for m in range(0, m_size, nl.tile_size.pmax):
                size = min(nl.tile_size.pmax, m_size - m)
                part = dst[m0 + m : m0 + m + size, n0 : n0 + n_size]
                _store_sums(part, sums_sb[0:size, m // nl.tile_size.pmax, :])


def _add_block(
    sums_sb: nl.NkiTensor, lhs_tiles: list[nl.NkiTensor], rhs_tiles: list[nl.NkiTensor], is_first: bool
) -> None:
    """sums_sb (P, M / 128, N) += the product of all tiles."""
    for m in range(0, lhs_tiles[0].shape[1], nl.tile_size.pmax):
        for n in range(0, rhs_tiles[0].shape[1], BANK):
            part_psum = _sum_of_products(lhs_tiles, rhs_tiles, m, n)
            rows, columns = part_psum.shape
            part_sb = sums_sb[0:rows, m // nl.tile_size.pmax, n : n + columns]
            if is_first:
                nisa.tensor_copy(dst=part_sb, src=part_psum)
            else:
                nisa.tensor_tensor(dst=part_sb, data1=part_psum, data2=part_sb, op=nl.add)


def _load_tiles(block: nl.NkiTensor) -> list[nl.NkiTensor]:
    """An SBUF tile for each 128 rows of block, HBM (K, F)."""
    tiles = []
    for k0 in range(0, block.shape[0], nl.tile_size.pmax):
        k1 = min(block.shape[0], k0 + nl.tile_size.pmax)
        tile = nl.ndarray((k1 - k0, block.shape[1]), dtype=block.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=block[k0:k1, :])
        tiles.append(tile)
    return tiles


def _sum_of_products(lhs_tiles: list[nl.NkiTensor], rhs_tiles: list[nl.NkiTensor], m0: int, n0: int) -> nl.NkiTensor:
    """A PSUM tile: columns ``m0``... of the lhs tiles and ``n0``... of the rhs tiles, multiplied and summed."""
    m1 = min(lhs_tiles[0].shape[1], m0 + nl.tile_size.pmax)
    n1 = min(rhs_tiles[0].shape[1], n0 + BANK)
    sum_psum = nl.ndarray((m1 - m0, n1 - n0), dtype=nl.float32, buffer=nl.psum)
    for k in range(len(lhs_tiles)):
        nisa.nc_matmul(dst=sum_psum, stationary=lhs_tiles[k][:, m0:m1], moving=rhs_tiles[k][:, n0:n1], accumulate=k > 0)
    return sum_psum


def _store_sums(dst: nl.NkiTensor, sums: nl.NkiTensor) -> None:
    """dst, HBM, = sums, in PSUM or SBUF."""
    sums_sb = nl.ndarray(sums.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=sums_sb, src=sums)
    nisa.dma_copy(dst=dst, src=sums_sb)
