"""The two published convolutions: a row of the output at a time, and two rows at a time; each with or without pooling.

x: HBM (C, H, W), weights: HBM (O, C, 3, 3), bias: HBM (O, 1); C and O multiples of 128, a row of the output at most a
PSUM bank's. ``pool`` 2 takes the largest of 2 x 2 results, and needs an even number of rows and columns; 1 keeps all.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.calibration.tiles import Mode, P, Tensor, load_tile, transpose_tile, zero_tile
from trnrt.nki import nisa, nki, nl

TAPS = [(i, j) for i in range(3) for j in range(3)]


def convolution(x: NDArray[Any], weights: NDArray[Any], bias: NDArray[Any], pool: int) -> NDArray[np.float32]:
    """The result of both kernels: (O, H - 2, W - 2), or half of both with ``pool`` 2."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    out = np.zeros((weights.shape[0], height, width), np.float32)
    for i, j in TAPS:
        window = x[:, i : i + height, j : j + width].astype(np.float32)
        out += np.einsum("oc,chw->ohw", weights[:, :, i, j].astype(np.float32), window)
    pooled: NDArray[np.float32] = out.reshape(len(out), height // pool, pool, width // pool, pool).max(axis=(2, 4))
    return pooled + bias.astype(np.float32)[:, :, None]


@nki.jit
def convolve_rows(x: Tensor, weights: Tensor, bias: Tensor, pool: int = 1, dge_mode: Mode = Mode.unknown) -> Tensor:
    """A row of the output at a time; each row of x is reloaded for each product of a row of taps, and for each 128
    output channels.

    All weights are in one tile: the columns of a stationary tile are as many elements apart as there are tiles and
    taps. The published kernel names one place for a row of x; its time shows that the compiler used several.
    """
    channels, height, width = x.shape[0], x.shape[1] - 2, x.shape[2] - 2
    outputs = weights.shape[0]
    out = nl.ndarray((outputs, height // pool, width // pool), dtype=x.dtype, buffer=nl.shared_hbm)
    weights_sb = _strided_weights(weights, dge_mode)
    for o in range(outputs // P):
        for row in range(0, height, pool):
            rows_sb = nl.ndarray((P, pool, width), dtype=x.dtype, buffer=nl.sbuf)
            for p in range(pool):
                sum_psum = nl.ndarray((P, width), dtype=nl.float32, buffer=nl.psum)
                for c in range(channels // P):
                    for i in range(3):
                        x_sb = load_tile(x[c * P : (c + 1) * P, row + p + i, :], dge_mode)
                        for j in range(3):
                            stationary = weights_sb[:, :, o, c, i, j]
                            nisa.nc_matmul(dst=sum_psum, stationary=stationary, moving=x_sb[:, j : j + width])
                nisa.tensor_copy(dst=rows_sb[:, p, :], src=sum_psum)
            pooled_sb = nl.ndarray((P, width // pool), dtype=x.dtype, buffer=nl.sbuf)
            windows = rows_sb.reshape((P, pool, width // pool, pool)).permute((0, 2, 1, 3))
            nisa.tensor_reduce(dst=pooled_sb, op=nl.maximum, data=windows, axis=(2, 3))
            _add_bias(pooled_sb, load_tile(bias[o * P : (o + 1) * P, :], dge_mode))
            nisa.dma_copy(dst=out[o * P : (o + 1) * P, row // pool, :], src=pooled_sb, dge_mode=dge_mode)
    return out


@nki.jit
def convolve_blocks(x: Tensor, weights: Tensor, bias: Tensor, pool: int = 1, dge_mode: Mode = Mode.unknown) -> Tensor:
    """Two rows of the output at a time: the input of their products is loaded once, as one copy for each row of taps.

    Weights are transposed once, each tile contiguous. The tile for x is cleared before it is loaded. The height is
    even.
    """
    channels, height, width = x.shape[0], x.shape[1] - 2, x.shape[2] - 2
    outputs = weights.shape[0]
    out = nl.ndarray((outputs, height // pool, width // pool), dtype=x.dtype, buffer=nl.shared_hbm)
    turned = _turned_weights(weights, dge_mode)
    biases_sb = nl.ndarray((P, outputs // P), dtype=bias.dtype, buffer=nl.sbuf)
    for o in range(outputs // P):
        nisa.dma_copy(dst=biases_sb[:, o : o + 1], src=bias[o * P : (o + 1) * P, :], dge_mode=dge_mode)
    for row in range(0, height, 2):
        tiles = [zero_tile((P, 3, 2, x.shape[2]), x.dtype) for _ in range(channels // P)]
        for p in range(2):
            for c, x_sb in enumerate(tiles):
                rows = x[c * P : (c + 1) * P, row + p : row + p + 3, :]
                nisa.dma_copy(dst=x_sb[:, :, p, :], src=rows, dge_mode=dge_mode)
        for o in range(outputs // P):
            sum_psum = nl.ndarray((P, 2, width), dtype=nl.float32, buffer=nl.psum)
            for i, j in TAPS:
                for c, x_sb in enumerate(tiles):
                    moving = x_sb[:, i, :, j : j + width]
                    nisa.nc_matmul(dst=sum_psum, stationary=turned[o, c, i, j], moving=moving)
            rows_sb = nl.ndarray((P, 2, width), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=rows_sb, src=sum_psum)
            _add_bias(rows_sb, biases_sb[:, o : o + 1])
            part = out[o * P : (o + 1) * P, row // pool : (row + 2) // pool, :]
            nisa.dma_copy(dst=part, src=rows_sb if pool == 1 else _pool_rows(rows_sb), dge_mode=dge_mode)
    return out


def _strided_weights(weights: Tensor, dge_mode: Mode) -> Tensor:
    """SBUF (128, 128, O / 128, C / 128, 3, 3): [input, output] channel of each tile and tap, turned in place."""
    outputs, channels = weights.shape[0], weights.shape[1]
    tile = nl.ndarray((P, P, outputs // P, channels // P, 3, 3), dtype=weights.dtype, buffer=nl.sbuf)
    for o in range(outputs // P):
        for c in range(channels // P):
            part = weights[o * P : (o + 1) * P, c * P : (c + 1) * P, :, :]
            nisa.dma_copy(dst=tile[:, :, o, c, :, :], src=part, dge_mode=dge_mode)
            for i, j in TAPS:
                turned_sb = transpose_tile(tile[:, :, o, c, i, j], weights.dtype)
                nisa.tensor_copy(dst=tile[:, :, o, c, i, j], src=turned_sb)
    return tile


def _turned_weights(weights: Tensor, dge_mode: Mode) -> dict[tuple[int, int, int, int], Tensor]:
    """(output tile, input tile, tap) -> SBUF (128, 128), [input, output] channel."""
    outputs, channels = weights.shape[0], weights.shape[1]
    turned = {}
    for o in range(outputs // P):
        whole_sb = load_tile(weights[o * P : (o + 1) * P, :, :, :], dge_mode)
        for c in range(channels // P):
            for i, j in TAPS:
                turned[o, c, i, j] = transpose_tile(whole_sb[:, c * P : (c + 1) * P, i, j], weights.dtype)
    return turned


def _add_bias(data_sb: Tensor, bias_sb: Tensor) -> None:
    """data_sb += bias_sb, SBUF (128, 1), in every column."""
    columns = prod(data_sb.shape[1:])
    flat = data_sb.reshape((P, columns))
    nisa.tensor_tensor(dst=flat, data1=flat, data2=bias_sb.broadcast(1, columns), op=nl.add)


def _pool_rows(rows_sb: Tensor) -> Tensor:
    """SBUF (128, 1, W / 2): the largest of two rows, then of two columns."""
    width = rows_sb.shape[2]
    row_sb = nl.ndarray((P, width), dtype=rows_sb.dtype, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=row_sb, op=nl.maximum, data=rows_sb.permute((0, 2, 1)), axis=2)
    pooled_sb = nl.ndarray((P, 1, width // 2), dtype=rows_sb.dtype, buffer=nl.sbuf)
    pairs = row_sb.reshape((P, 1, width // 2, 2))
    nisa.tensor_reduce(dst=pooled_sb, op=nl.maximum, data=pairs, axis=3)
    return pooled_sb
