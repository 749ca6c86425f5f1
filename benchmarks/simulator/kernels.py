"""The measured kernels, each as a person would first write it."""

from __future__ import annotations

from typing import Any

from trnrt.nki.sim import isa as nisa
from trnrt.nki.sim import language as nl
from trnrt.nki.sim.kernel import jit

Tensor = Any  # an NkiTensor inside a kernel, an array outside


@jit
def tiled_matmul(lhs_t: Tensor, rhs: Tensor, tile_n: int = 512) -> Tensor:
    """``lhs_t.T @ rhs`` in tiles, both operands reloaded for every product: the tutorial's second kernel.

    lhs_t: HBM (K, M), rhs: HBM (K, N); K and M multiples of 128, N of ``tile_n``
    """
    depth, rows = lhs_t.shape
    columns = rhs.shape[1]
    out = nl.ndarray((rows, columns), dtype=lhs_t.dtype, buffer=nl.shared_hbm)
    for m in range(0, rows, 128):
        for n in range(0, columns, tile_n):
            sum_psum = nl.ndarray((128, tile_n), dtype=nl.float32, buffer=nl.psum)
            for k in range(0, depth, 128):
                lhs_sb = nl.ndarray((128, 128), dtype=lhs_t.dtype, buffer=nl.sbuf)
                rhs_sb = nl.ndarray((128, tile_n), dtype=rhs.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=lhs_sb, src=lhs_t[k : k + 128, m : m + 128])
                nisa.dma_copy(dst=rhs_sb, src=rhs[k : k + 128, n : n + tile_n])
                nisa.nc_matmul(dst=sum_psum, stationary=lhs_sb, moving=rhs_sb)
            sum_sb = nl.ndarray((128, tile_n), dtype=out.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=sum_sb, src=sum_psum)
            nisa.dma_copy(dst=out[m : m + 128, n : n + tile_n], src=sum_sb)
    return out


@jit
def conv_by_rows(images: Tensor, weights: Tensor) -> Tensor:
    """relu of a 3x3 convolution without padding, one output row per matmul.

    images: HBM (128, N, H + 2, W + 2), weights: HBM (128, 9, 128); the result is (128, N, H, W)
    """
    channels, count, height, width = images.shape
    outputs, height, width = weights.shape[2], height - 2, width - 2
    out = nl.ndarray((outputs, count, height, width), dtype=images.dtype, buffer=nl.shared_hbm)
    w_sb = nl.ndarray(weights.shape, dtype=weights.dtype, buffer=nl.sbuf)
    for tap in range(9):
        nisa.dma_copy(dst=w_sb[:, tap], src=weights[:, tap])
    for n in range(count):
        x_sb = nl.ndarray((channels, height + 2, width + 2), dtype=images.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=x_sb, src=images[:, n])
        for row in range(height):
            sum_psum = nl.ndarray((outputs, width), dtype=nl.float32, buffer=nl.psum)
            for tap in range(9):
                x_row = x_sb[:, row + tap // 3, tap % 3 : tap % 3 + width]
                nisa.nc_matmul(dst=sum_psum, stationary=w_sb[:, tap], moving=x_row)
            y_sb = nl.ndarray((outputs, width), dtype=images.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=y_sb, src=sum_psum)
            nisa.activation(dst=y_sb, op=nl.relu, data=y_sb)
            nisa.dma_copy(dst=out[:, n, row], src=y_sb)
    return out


@jit
def small_steps(a: Tensor, b: Tensor, weights: Tensor, rounds: int) -> Tensor:
    """Eight instructions per round on small tiles: a kernel's cost when arithmetic is next to free.

    a, b: HBM (P, F), weights: HBM (P, P). ``numpy_small_steps`` in ``simulator`` does the same by hand.
    """
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray(b.shape, dtype=b.dtype, buffer=nl.sbuf)
    w = nl.ndarray(weights.shape, dtype=weights.dtype, buffer=nl.sbuf)
    column = nl.ndarray((a.shape[0], 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=w, src=weights)
    nisa.dma_copy(dst=x, src=a)
    for _ in range(rounds):
        product = nl.ndarray(a.shape, dtype=nl.float32, buffer=nl.psum)
        nisa.dma_copy(dst=y, src=b)
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=0.5)
        nisa.activation(dst=x, op=nl.relu, data=x)
        nisa.tensor_reduce(dst=column, op=nl.maximum, data=x, axis=1)
        nisa.nc_matmul(dst=product, stationary=w, moving=x)
        nisa.tensor_copy(dst=y, src=product)
        nisa.tensor_scalar(dst=x, data=y, op0=nl.subtract, operand0=column)
    nisa.dma_copy(dst=out, src=x)
    return out
