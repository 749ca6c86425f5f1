"""Two kernels that scale the rows of a matrix; the second forgets the last columns."""

import nki
import nki.isa as nisa
import nki.language as nl

CHUNK = 512


@nki.jit
def scale_rows(x, factor):
    """x * factor. x: HBM (128, N); factor: HBM (128, 1) float32, one for each row."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    factor_sb = nl.ndarray((rows, 1), dtype=factor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=factor_sb, src=factor)
    for start in range(0, columns, CHUNK):
        end = min(columns, start + CHUNK)
        x_sb = nl.ndarray((rows, end - start), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=x[:, start:end])
        nisa.tensor_scalar(dst=x_sb, data=x_sb, op0=nl.multiply, operand0=factor_sb)
        nisa.dma_copy(dst=out[:, start:end], src=x_sb)
    return out


@nki.jit
def scale_rows_badly(x, factor):
    """The same, but the factor is applied to whole chunks only."""
    rows, columns = x.shape
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    factor_sb = nl.ndarray((rows, 1), dtype=factor.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=factor_sb, src=factor)
    for start in range(0, columns, CHUNK):
        end = min(columns, start + CHUNK)
        x_sb = nl.ndarray((rows, end - start), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=x[:, start:end])
        if end - start == CHUNK:
            nisa.tensor_scalar(dst=x_sb, data=x_sb, op0=nl.multiply, operand0=factor_sb)
        nisa.dma_copy(dst=out[:, start:end], src=x_sb)
    return out
