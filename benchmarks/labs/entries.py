"""The labs' kernels that take more than one call into ``kernels/``, with the outputs that they return."""

from __future__ import annotations

from typing import Any

from trnrt.calibration.kernels import transpose_tiles
from trnrt.kernels.addition import add_stream
from trnrt.kernels.feed_forward import predict
from trnrt.kernels.transpose import transpose_by_tensor
from trnrt.nki import nisa, nki, nl

Tensor = Any  # an NkiTensor inside a kernel, an array outside


@nki.jit
def streamed_addition(a: Tensor, b: Tensor) -> Tensor:
    """a + b as the lab teaches it last: tiles with a free dimension. a, b: HBM (N,)"""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    add_stream(out, a, b)
    return out


@nki.jit
def matrix_transpose(src: Tensor) -> Tensor:
    """src.T. src: HBM (M, N)"""
    out = nl.ndarray((src.shape[1], src.shape[0]), dtype=src.dtype, buffer=nl.shared_hbm)
    transpose_by_tensor(out, src)
    return out


@nki.jit
def transpose_by_tiles(src: Tensor) -> Tensor:
    """src.T as published: a load, a transpose, a copy and a store for each 128 x 128 tile. src: HBM (M, N)"""
    return transpose_tiles(src, dge_mode=nisa.dge_mode.none)


@nki.jit
def feed_forward_predict(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """The predicted classes. x: HBM (N, F); w1, w2: (F, H), (H, O); b1, b2: (1, H), (1, O), of the dtype of x"""
    return predict(x, w1, _as_float32(b1), w2, _as_float32(b2))


def _as_float32(row: Tensor) -> Tensor:
    """A row of HBM in float32."""
    if row.dtype == nl.float32:
        return row
    wide = nl.ndarray(row.shape, dtype=nl.float32, buffer=nl.private_hbm)
    nisa.dma_copy(dst=wide, src=row)
    return wide
