"""Prefetch weights into SBUF ahead of the steps that use them."""

from trnrt.kernels.common import transfer
from trnrt.nki import nl


def prefetch(src: nl.NkiTensor, piece: int) -> nl.NkiTensor:
    """A copy of src in SBUF, loaded ``piece`` columns at a time: a product waits only for what it reads, not for all.

    src: HBM (P, K), P at most 128
    piece: columns per transfer; each transfer is contiguous on a partition

    numpy: src
    """
    copy_sb = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    columns = src.shape[1]
    for first in range(0, columns, piece):
        last = min(columns, first + piece)
        transfer(copy_sb[:, first:last], src[:, first:last])
    return copy_sb
