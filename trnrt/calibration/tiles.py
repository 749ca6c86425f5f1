"""Loads, transposes and stores of tiles, for all published kernels.

A kernel calls them on a line of its own for each tile, because tiles that one line allocates share places in SBUF.
"""

from __future__ import annotations

from typing import Any

from trnrt.nki import nisa, nl

Tensor = Any  # an NkiTensor inside a kernel, an array outside
Mode = nisa.dge_mode

P = 128  # partitions; also the columns of a stationary tile
MOVING = 512  # columns of a moving tile


def load_tile(src: Tensor, dge_mode: Mode) -> Tensor:
    """An SBUF tile of src, HBM (P, ...), P at most 128."""
    tile = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=src, dge_mode=dge_mode)
    return tile


def load_rows(src: Tensor, dge_mode: Mode) -> list[Tensor]:
    """An SBUF tile for each 128 rows of src, HBM (K, F)."""
    return [load_tile(src[k : k + P, :], dge_mode) for k in range(0, src.shape[0], P)]


def zero_tile(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """An SBUF tile of zeros."""
    tile = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    return tile


def transpose_tile(data: Tensor, dtype: Any) -> Tensor:
    """The transpose of data, SBUF (128, 128), as an SBUF tile of dtype."""
    turned_psum = nl.ndarray((P, P), dtype=data.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=data)
    turned_sb = nl.ndarray((P, P), dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=turned_sb, src=turned_psum)
    return turned_sb


def store_sum(dst: Tensor, sum_psum: Tensor, dge_mode: Mode) -> None:
    """dst, HBM (P, F): a PSUM tile, copied to SBUF and stored."""
    sum_sb = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=sum_sb, src=sum_psum)
    nisa.dma_copy(dst=dst, src=sum_sb, dge_mode=dge_mode)
