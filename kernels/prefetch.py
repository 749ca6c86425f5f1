"""Prefetch weights into SBUF ahead of the steps that use them."""

from trnrt.kernels.common import transfer
from trnrt.nki import nisa, nl


def prefetch(src: nl.NkiTensor, piece: int, place: nl.NkiTensor | None = None, last: int = 0) -> nl.NkiTensor:
    """A copy of src in SBUF, loaded ``piece`` columns at a time: a product waits only for what it reads, not for all.

    src: HBM (P, K), P at most 128
    piece: columns per transfer; each transfer is contiguous on a partition
    place: the tile of ``reserve`` to load it into; by default a new one
    last: columns of each of the transfers that load the last ``piece`` columns; 0 means ``piece``

    numpy: src
    """
    copy_sb = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf) if place is None else place
    columns = src.shape[1]
    whole = max(0, columns - piece) if last > 0 else columns
    for first in range(0, whole, piece):
        end = min(whole, first + piece)
        transfer(copy_sb[:, first:end], src[:, first:end])
    if last > 0:
        for first in range(whole, columns, last):
            end = min(columns, first + last)
            transfer(copy_sb[:, first:end], src[:, first:end])
    return copy_sb


def reserve(src: nl.NkiTensor) -> nl.NkiTensor:
    """A tile in SBUF for a later ``prefetch`` of src, in use from here on: no tile of the steps in between takes its
    address, so that the load needn't wait for their end.

    src: HBM (P, K), P at most 128

    numpy: np.zeros_like(src) in the first column, nothing in the others
    """
    tile_sb = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sb[:, 0:1], value=0.0, engine=nisa.engine.gpsimd)
    return tile_sb
