"""Exact sums of products of whole numbers: convolutions and matrix products by float64, below 2^53."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_EXACT = 2**53


def multiply(a: Array, b: Array) -> Array:
    """a @ b of int64, by float64's BLAS where every partial sum is exact."""
    largest = int(np.abs(a).max(initial=0)) * int(np.abs(b).max(initial=0)) * a.shape[-1]
    if largest >= _EXACT:
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)


def convolve(x: Array, w: Array, settings: Mapping[str, Any]) -> Array:
    """ONNX's Conv of int64 (N, C, ...) with (M, C / groups, ...), without a bias."""
    dims, kernel = x.ndim - 2, w.shape[2:]
    strides, dilations = (settings.get(name) or [1] * dims for name in ("strides", "dilations"))
    groups = settings.get("group", 1)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *_find_pads(x.shape[2:], spans, strides, settings)])
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axis=tuple(range(2, x.ndim)))
    outer, inner = (tuple(slice(None, None, step) for step in steps) for steps in (strides, dilations))
    windows = windows[(slice(None), slice(None), *outer, *inner)]
    sizes = windows.shape[2 : 2 + dims]
    # (N, C, sizes..., kernel...) -> (N, sizes..., C, kernel...)
    windows = windows.transpose(0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims))
    channels, features = w.shape[1], w.shape[0] // groups
    parts = []
    for g in range(groups):
        columns = windows[(slice(None),) * (1 + dims) + (slice(g * channels, (g + 1) * channels),)]
        matrix = w[g * features : (g + 1) * features].reshape(features, -1).T
        parts.append(multiply(columns.reshape(-1, matrix.shape[0]), matrix))
    sums = np.concatenate(parts, axis=1).reshape(len(x), *sizes, -1)
    return np.moveaxis(sums, -1, 1)


def _find_pads(
    shape: Sequence[int], spans: Sequence[int], strides: Sequence[int], settings: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """The padding before and after each dimension."""
    mode = settings.get("auto_pad", b"NOTSET").decode()
    dims = len(shape)
    if mode == "NOTSET":
        pads = settings.get("pads") or [0] * (2 * dims)
        return [(pads[k], pads[k + dims]) for k in range(dims)]
    if mode == "VALID":
        return [(0, 0)] * dims
    totals = [max((-(-n // s) - 1) * s + span - n, 0) for n, span, s in zip(shape, spans, strides, strict=True)]
    halves = [(total // 2, total - total // 2) for total in totals]
    return halves if mode == "SAME_UPPER" else [(after, before) for before, after in halves]
