"""Drivers of the reference kernels but attention."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.courses.samples.cases import Array, Pairs, draw, sample

FOLDER = "src/nki_samples/reference"


@sample(f"{FOLDER}/tutorial.py", "add_kernel_nx8x128x512", precision="exact")
def drive_addition(kernel: Any, rng: np.random.Generator) -> Pairs:
    """A launch grid of two."""
    a, b = draw(rng, (2, 2, 8, 128, 512))
    yield kernel[2](a, b, a.size), a + b


@sample(f"{FOLDER}/allocated_fused_linear.py", "allocated_fused_rms_norm_qkv", precision="bfloat16")
def drive_norm_and_product(kernel: Any, rng: np.random.Generator) -> Pairs:
    """256 rows of 1024, by 1024 x 384, in bfloat16."""
    hidden = draw(rng, (1, 256, 1024), ml_dtypes.bfloat16)
    weights = (draw(rng, (1024, 384)) / 32).astype(ml_dtypes.bfloat16)
    wide = hidden.astype(np.float64)
    normal = wide / np.sqrt((wide**2).mean(-1, keepdims=True))
    yield kernel(hidden, weights), normal @ weights.astype(np.float64)


@sample(f"{FOLDER}/double_row_matmul.py", "quantized_double_row_matmul", precision="float8")
def drive_double_rows(kernel: Any, rng: np.random.Generator) -> Pairs:
    """256 x 512 by 512 x 1024: the right side is quantised by the host, the left side by the kernel."""
    lhs, rhs = rng.random((256, 512)), rng.random((512, 1024))
    scale = np.abs(rhs).max(0, keepdims=True) / 240
    small = (rhs / scale).astype(ml_dtypes.float8_e4m3)
    # Each pair of 128-row tiles lies side by side, in columns of 512.
    paired = small.reshape(2, 2, 128, 2, 512).transpose(0, 2, 3, 1, 4).reshape(256, 2048)
    lhs16, scale16 = lhs.astype(ml_dtypes.bfloat16), np.broadcast_to(scale, (128, 1024)).astype(ml_dtypes.bfloat16)
    found = kernel(lhs16, paired, scale16, TILES_IN_BLOCK_M=2, TILES_IN_BLOCK_N=2, TILES_IN_BLOCK_K=4)
    yield found, lhs @ rhs


@sample(f"{FOLDER}/rmsnorm_quant/rmsnorm_quant.py", "rmsnorm_quant_kernel", precision="float8")
def drive_quantised_norm(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Rows that don't fill the last tile; the four last numbers of each row are its scale, as bytes of a float32."""
    arguments = sys.modules[kernel.function.__module__].RmsNormQuantKernelArgs
    hidden, gamma = draw(rng, (2, 100, 1024), ml_dtypes.bfloat16), draw(rng, (1024,), ml_dtypes.bfloat16)
    normal = rms_norm(hidden, gamma)
    yield read_quantised(kernel(hidden, gamma, arguments(lower_bound=0.0))), normal


def rms_norm(x: Array, gamma: Array) -> Array:
    """``x / rms(x) * gamma`` along the last axis."""
    wide = x.astype(np.float64)
    normal: Array = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * gamma.astype(np.float64)
    return normal


def read_quantised(rows: Any) -> Array:
    """The numbers of quantised rows (..., n + 4). The last four bytes of a row are its scale."""
    rows = np.asarray(rows)
    scale = np.ascontiguousarray(rows[..., -4:]).view(np.uint8).view(np.float32)
    found: Array = rows[..., :-4].astype(np.float64) * scale
    return found


@sample(f"{FOLDER}/vision.py", "select_and_scatter_kernel")
def drive_select_and_scatter(kernel: Any, rng: np.random.Generator) -> Pairs:
    """The gradient of a max pool of 3 x 3, stride 2, padding 1."""
    x, upstream = draw(rng, (2, 64, 12, 12)), draw(rng, (2, 64, 6, 6))
    padded, expected = np.full((2, 64, 14, 14), -np.inf), np.zeros((2, 64, 14, 14))
    padded[:, :, 1:-1, 1:-1] = x
    for row, column in np.ndindex(6, 6):
        window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3].reshape(2, 64, 9)
        for b, c in np.ndindex(2, 64):
            i, j = divmod(int(window[b, c].argmax()), 3)
            expected[b, c, 2 * row + i, 2 * column + j] += upstream[b, c, row, column]
    yield kernel(x, upstream), expected[:, :, 1:-1, 1:-1]


@sample(f"{FOLDER}/vision.py", "resize_nearest_fixed_dma_kernel", precision="exact")
def drive_resize(kernel: Any, rng: np.random.Generator) -> Pairs:
    """30 x 20 to 59 x 38."""
    x, shape = draw(rng, (2, 30, 20, 16)), (2, 59, 38, 16)
    rows = np.floor(np.arange(59) * np.float32(30 / 59)).astype(int)
    columns = np.floor(np.arange(38) * np.float32(20 / 38)).astype(int)
    yield kernel(x, shape), x[:, rows][:, :, columns]


@sample(f"{FOLDER}/vision.py", "adaptive_avg_pool2d_kernel")
def drive_adaptive_pool(kernel: Any, rng: np.random.Generator) -> Pairs:
    """Windows of unequal sizes."""
    x, (height, width) = draw(rng, (2, 80, 10, 9)), (4, 5)
    expected = np.empty((2, 80, height, width))
    for i, j in np.ndindex(height, width):
        rows, columns = _window(i, 10, height), _window(j, 9, width)
        expected[:, :, i, j] = x[:, :, rows, columns].mean((2, 3), dtype=np.float64)
    yield kernel(x, (height, width)), expected


def _window(at: int, size: int, count: int) -> slice:
    """The elements of window ``at`` of ``count`` that cover ``size``."""
    return slice(at * size // count, -(-(at + 1) * size // count))
