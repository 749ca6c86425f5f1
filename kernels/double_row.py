"""Matrix products in 8 bits: two rows of the contraction per partition, at twice the rate of 16 bits.

The tensor engine of NeuronCore-v3 and later contracts 256 rows at a time if both operands are 8-bit floats: 128
partitions with two rows each. Precision is lost only when the operands are made; products are summed in float32.
"""

from typing import Any

from trnrt.kernels.common import ceil_div, item_bytes
from trnrt.kernels.operands import BANK, copy
from trnrt.nki import nisa, nki, nl

# Rows of the contraction in one product, two per partition.
PAIRS = 2
# Columns of dst in one block: four PSUM banks.
COLUMNS = 2048
# The longest contraction: the moving operand's part stays in SBUF.
MAX_DEPTH = 8192


def is_scaled(dtype: Any) -> bool:
    """True if tensors of this dtype carry scales: 8-bit floats."""
    return item_bytes(dtype) == 1


def as_pair(view: nl.NkiTensor, apart: int) -> nl.NkiTensor:
    """A view (P, ...) and the one ``apart`` elements behind it, as (P, 2, ...)."""
    pattern = view.get_pattern()
    return view.ap(pattern=[pattern[0], [apart, 2]] + pattern[1:])


@nki.jit
def matmul_double_row(lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> nl.NkiTensor:
    """lhs.T @ rhs in float32; see multiply_double_row."""
    dst = nl.ndarray((lhs.shape[1], rhs.shape[1]), dtype=nl.float32, buffer=nl.shared_hbm)
    multiply_double_row(dst, lhs, rhs)
    return dst


def multiply_double_row(dst: nl.NkiTensor, lhs: nl.NkiTensor, rhs: nl.NkiTensor) -> None:
    """dst = lhs.T @ rhs

    dst: HBM (M, N) float32, bfloat16 or float16
    lhs, rhs: HBM (K, M), (K, N), float8_e4m3 or float8_e5m2
    limits: K is a multiple of 256 and at most MAX_DEPTH; NeuronCore-v3 and later

    numpy: lhs.T @ rhs
    """
    depth, rows = lhs.shape
    columns = rhs.shape[1]
    step = PAIRS * nl.tile_size.pmax
    assert rhs.shape[0] == depth, f"matmul_double_row: lhs contracts {depth}, rhs {rhs.shape[0]}"
    fits = depth % step == 0 and depth <= MAX_DEPTH
    assert fits, f"matmul_double_row: a contraction of {depth}; it takes multiples of {step} up to {MAX_DEPTH}"
    for n0 in range(0, columns, COLUMNS):
        n1 = min(columns, n0 + COLUMNS)
        rhs_sb = _load_pairs(rhs[:, n0:n1], nisa.engine.scalar)
        for m0 in range(0, rows, nl.tile_size.pmax):
            m1 = min(rows, m0 + nl.tile_size.pmax)
            lhs_sb = _load_pairs(lhs[:, m0:m1], nisa.engine.sync)
            y_sb = nl.ndarray((m1 - m0, n1 - n0), dtype=dst.dtype, buffer=nl.sbuf)
            for i in range(ceil_div(n1 - n0, BANK)):
                c0, c1 = i * BANK, min(n1 - n0, (i + 1) * BANK)
                sum_psum = nl.ndarray((m1 - m0, c1 - c0), dtype=nl.float32, buffer=nl.psum)
                for k in range(depth // step):
                    nisa.nc_matmul(
                        dst=sum_psum,
                        stationary=lhs_sb[:, k],
                        moving=rhs_sb[:, k, :, c0:c1],
                        perf_mode=nisa.matmul_perf_mode.double_row,
                    )
                copy(y_sb[:, c0:c1], sum_psum, i)
            nisa.dma_copy(dst=dst[m0:m1, n0:n1], src=y_sb)


def _load_pairs(src: nl.NkiTensor, engine: nisa.engine) -> nl.NkiTensor:
    """SBUF (128, K/256, 2, F) of src, HBM (K, F): row (k * 2 + i) * 128 + p on partition p."""
    depth, size = src.shape
    steps = depth // (PAIRS * nl.tile_size.pmax)
    pairs_sb = nl.ndarray((nl.tile_size.pmax, steps, PAIRS, size), dtype=src.dtype, buffer=nl.sbuf)
    pieces = src.reshape((steps, PAIRS, nl.tile_size.pmax, size)).permute((2, 0, 1, 3))
    nisa.dma_copy(dst=pairs_sb, src=pieces, dge_mode=nisa.dge_mode.hwdge, engine=engine)
    return pairs_sb
