"""Two helpers of ``linear.py``: an operand with its rows and columns exchanged, and the end of a product."""

from trnrt.nki import nisa, nl


def load_transposed(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst[k, m] = src[m, k], for a block of 128 x 128: the tensor engine turns it, by way of PSUM."""
    block_sb = nl.ndarray((128, 128), dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=block_sb, src=src)
    turned_psum = nl.ndarray((128, 128), dtype=src.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=block_sb)
    nisa.tensor_copy(dst=dst, src=turned_psum)


def store_gelu(dst: nl.NkiTensor, sums: nl.NkiTensor, scale: float) -> None:
    """dst = gelu(scale * sums)."""
    result_sb = nl.ndarray(sums.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.activation(dst=result_sb, op=nl.gelu, data=sums, scale=scale)
    nisa.dma_copy(dst=dst, src=result_sb)
