"""What the kernel tests share: running a kernel body on numpy arrays, tensors in every layout, and tolerances.

The bound of a float32 sum of ``length`` products, in any order, is ``length * 2**-24`` times the sum of their
magnitudes; the roundings of the result to its dtype and of one activation function come on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from trnrt.nki import nisa, nl, simulate

Array = NDArray[Any]
Tensor = nl.NkiTensor
Kernel = Callable[..., Any]

TARGETS = ("trn1", "trn2", "trn3")
NUMPY = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
DTYPES = tuple(NUMPY)
# Half the distance between neighbours, relative to them, and the smallest distance of all.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
TINY = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}
# What a pooling window gives that sees padding only: the largest float32, negated, rounded to the dtype.
LOWEST = {"float32": float(np.finfo(np.float32).min), "bfloat16": -np.inf, "float16": -np.inf}
# float32 evaluations of sigmoid, tanh and exp are a few roundings off.
FUNCTION = 8 * 2.0**-24

_erf = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.where(np.isnan(x), x, np.maximum(x, 0)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "gelu_sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
}
# Those of convolutions.
IMAGE_ACTIVATIONS: dict[str, Callable[[Array], Array]] = ACTIVATIONS | {
    "relu6": lambda x: np.where(np.isnan(x), x, np.clip(x, 0, 6))
}


def drawn(shape: tuple[int, ...], seed: int, dtype: str = "float32") -> Array:
    """Normally distributed numbers that ``dtype`` holds exactly."""
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])


def call(body: Kernel, *arrays: Array, target: str = "trn2") -> Array:
    """The result of a kernel body, run on the simulated ``target``, as float64."""
    result: Array = simulate(body, target)(*arrays)
    return result.astype(np.float64)


def check(got: Array, expected: Array, magnitude: Array | float, length: int, dtype: str = "float32") -> None:
    """Compare with what float64 gives: ``magnitude`` sums the absolute values of the ``length`` terms of a result."""
    assert got.shape == expected.shape
    bound = (length + 2) * 2.0**-24 * magnitude + FUNCTION + 1.01 * ROUNDING[dtype] * np.abs(expected) + TINY[dtype]
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        off = ~(same | (np.isfinite(expected) & (np.abs(got - expected) <= bound)))
    assert not off.any(), f"{off.sum()} of {off.size} are off, the first at {np.argwhere(off)[0]}"


def blocks_of(total: int) -> int:
    """How many blocks of 128 hold ``total``."""
    return -(-total // 128)


def _parts(total: int) -> list[tuple[int, int, int]]:
    """(block, first, size) of each block of 128."""
    return [(b, b * 128, min(128, total - b * 128)) for b in range(blocks_of(total))]


def hbm(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A result in HBM."""
    return nl.ndarray(shape, dtype, nl.shared_hbm)


def sbuf_rows(rows: int, columns: int, dtype: Any) -> Tensor:
    """A ``rows`` tile (P, B, F)."""
    return nl.ndarray((min(rows, 128), blocks_of(rows), columns), dtype, nl.sbuf)


def sbuf_features(rows: int, features: int, dtype: Any) -> Tensor:
    """A ``features`` tile (P, B, N)."""
    return nl.ndarray((min(features, 128), blocks_of(features), rows), dtype, nl.sbuf)


def sbuf_channels(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """A ``channels`` tile (P, B, N, H, W) for images (N, C, H, W)."""
    images, channels, height, width = shape
    return nl.ndarray((min(channels, 128), blocks_of(channels), images, height, width), dtype, nl.sbuf)


def rows_in_sbuf(src: Tensor) -> Tensor:
    """(N, F) in the ``rows`` layout."""
    tile = sbuf_rows(src.shape[0], src.shape[1], src.dtype)
    for block, first, size in _parts(src.shape[0]):
        nisa.dma_copy(dst=tile[0:size, block], src=src[first : first + size])
    return tile


def features_in_sbuf(src: Tensor) -> Tensor:
    """(N, F) in the ``features`` layout."""
    tile = sbuf_features(src.shape[0], src.shape[1], src.dtype)
    for block, first, size in _parts(src.shape[1]):
        nisa.dma_copy(dst=tile[0:size, block], src=src[:, first : first + size].permute((1, 0)))
    return tile


def channels_in_sbuf(src: Tensor) -> Tensor:
    """Images (N, C, H, W) in the ``channels`` layout."""
    tile = sbuf_channels(src.shape, src.dtype)
    for block, first, size in _parts(src.shape[1]):
        nisa.dma_copy(dst=tile[0:size, block], src=src[:, first : first + size].permute((1, 0, 2, 3)))
    return tile


def rows_to_hbm(tile: Tensor, rows: int) -> Tensor:
    """A ``rows`` tile as (N, F) in HBM."""
    result = hbm((rows, tile.shape[2]), tile.dtype)
    for block, first, size in _parts(rows):
        nisa.dma_copy(dst=result[first : first + size], src=tile[0:size, block])
    return result


def features_to_hbm(tile: Tensor, features: int) -> Tensor:
    """A ``features`` tile as (N, F) in HBM."""
    result = hbm((tile.shape[2], features), tile.dtype)
    for block, first, size in _parts(features):
        nisa.dma_copy(dst=result[:, first : first + size].permute((1, 0)), src=tile[0:size, block])
    return result


def channels_to_hbm(tile: Tensor, channels: int) -> Tensor:
    """A ``channels`` tile as images (N, C, H, W) in HBM."""
    _, _, images, height, width = tile.shape
    result = hbm((images, channels, height, width), tile.dtype)
    for block, first, size in _parts(channels):
        nisa.dma_copy(dst=result[:, first : first + size].permute((1, 0, 2, 3)), src=tile[0:size, block])
    return result


def prepared_linear(weight: Array, positions: int = 1) -> Array:
    """(F, O) as the linear kernels want it: feature c * S + s at [c % 128, c // 128 * S + s] of each 512 outputs."""
    features, outputs = weight.shape
    channels = features // positions
    result = np.zeros((min(channels, 128), blocks_of(channels) * positions, outputs), weight.dtype)
    for feature in range(features):
        channel, position = divmod(feature, positions)
        result[channel % 128, channel // 128 * positions + position] = weight[feature]
    parts = [result[:, :, o : o + 512].reshape(result.shape[0], -1) for o in range(0, outputs, 512)]
    return np.concatenate(parts, axis=1)


def prepared_conv(weight: Array) -> Array:
    """(O, C, KH, KW) as conv2d wants it: input channel c at [c % 128, c // 128]."""
    outputs, channels, rows, columns = weight.shape
    result = np.zeros((min(channels, 128), blocks_of(channels), rows * columns, outputs), weight.dtype)
    for channel in range(channels):
        result[channel % 128, channel // 128] = weight[:, channel].reshape(outputs, -1).T
    return result


def prepared_columns(bias: Array) -> Array:
    """(O,) float32 as one number an output channel: output o at [o % 128, o // 128]."""
    result = np.zeros((min(bias.size, 128), blocks_of(bias.size)), np.float32)
    for output, value in enumerate(bias):
        result[output % 128, output // 128] = value
    return result


Pair = tuple[int, int]
Pads = tuple[int, int, int, int]


def result_size(image: Pair, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair) -> Pair:
    """(rows, columns) that a window gives over a padded image; ``pads`` are (top, left, bottom, right)."""
    return (
        (image[0] + pads[0] + pads[2] - (kernel[0] - 1) * dilation[0] - 1) // stride[0] + 1,
        (image[1] + pads[1] + pads[3] - (kernel[1] - 1) * dilation[1] - 1) // stride[1] + 1,
    )


def windows(images: Array, kernel: Pair, stride: Pair, pads: Pads, dilation: Pair, fill: float) -> Array:
    """(N, C, H, W) -> (N, C, rows, columns, kernel rows, kernel columns): every window of the padded images."""
    padded = np.pad(
        images, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), mode="constant", constant_values=fill
    )
    span = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
    dense = np.lib.stride_tricks.sliding_window_view(padded, span, axis=(2, 3))
    return dense[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
