"""trnrt's convolution as a stand-alone kernel, with its weights as the planner prepares them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.kernels.conv.conv2d import conv2d
from trnrt.nki.sim import language as nl
from trnrt.nki.sim.kernel import jit

Array = NDArray[Any]


@jit
def conv_kernel(image: Any, weights: Any, bias: Any) -> Any:
    """A 3x3 convolution of an image in HBM with bias, padded so that the result has the image's size."""
    channels, height, width = image.shape[1:]
    out = nl.ndarray((1, weights.shape[3], height, width), dtype=image.dtype, buffer=nl.shared_hbm)
    conv2d(out, image, weights, bias, channels, (height, width), (3, 3), pads=(1, 1))
    return out


def prepared(weights: Array, bias: Array) -> tuple[Array, Array]:
    """Weights (O, C, 3, 3) as (P, B, T, O), and the bias as (P, B); O and C are at most 128, or multiples of it."""
    outputs, channels = weights.shape[:2]
    parts = min(channels, 128)
    taps = weights.reshape(outputs, channels // parts, parts, 9).transpose(2, 1, 3, 0)
    columns = bias.reshape(-1, min(outputs, 128)).T
    return np.ascontiguousarray(taps), np.ascontiguousarray(columns)
