"""Softmax along rows."""

from trnrt.kernels.common import ceil_div, is_hbm_tensor, load
from trnrt.nki import nisa, nl

# A row and its exponentials are held in SBUF at once.
MAX_COLUMNS = 8192


def softmax(dst: nl.NkiTensor, src: nl.NkiTensor, rows: int) -> None:
    """dst = exp(src - max(src)) / sum(exp(src - max(src))) of each row.

    dst, src: rows, HBM (N, F) or SBUF (P, ceil(N/128), F)
    rows: N
    limits: F <= MAX_COLUMNS

    numpy: e = exp(src - src.max(axis=1, keepdims=True)); e / e.sum(axis=1, keepdims=True)
    """
    columns = src.shape[-1]
    assert columns <= MAX_COLUMNS, f"softmax: rows of {columns} elements; the limit is {MAX_COLUMNS}"
    for block in range(ceil_div(rows, nl.tile_size.pmax)):
        n = min(nl.tile_size.pmax, rows - block * nl.tile_size.pmax)
        x_sb = row_block(src, block, n)
        exp_sb = nl.ndarray((n, columns), dtype=nl.float32, buffer=nl.sbuf)
        negated_max_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        total_sb = nl.ndarray((n, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negated_max_sb, op=nl.maximum, data=x_sb, axis=(1,), negate=True)
        nisa.activation_reduce(
            dst=exp_sb, op=nl.exp, data=x_sb, reduce_op=nl.add, reduce_res=total_sb, bias=negated_max_sb
        )
        nisa.reciprocal(dst=total_sb, data=total_sb)
        if is_hbm_tensor(dst):
            y_sb = nl.ndarray((n, columns), dtype=dst.dtype, buffer=nl.sbuf)
        else:
            y_sb = dst[0:n, block, :]
        nisa.tensor_scalar(dst=y_sb, data=exp_sb, op0=nl.multiply, operand0=total_sb)
        if is_hbm_tensor(dst):
            r0 = block * nl.tile_size.pmax
            nisa.dma_copy(dst=dst[r0 : r0 + n, :], src=y_sb)


def row_block(src: nl.NkiTensor, block: int, n: int) -> nl.NkiTensor:
    """Rows of block number ``block`` of 128, in SBUF (n, F)."""
    if not is_hbm_tensor(src):
        return src[0:n, block, :]
    r0 = block * nl.tile_size.pmax
    return load(src[r0 : r0 + n, :])
