"""Families of kernels, with random shapes to try them on.

A share is the hardware's least time over the program's own time, without the fixed start and end. The least time is the
larger of two: the tensor engine's at its peak, and the memory's for moving every operand once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.kernels import entries
from trnrt.kernels.matmul import matmul
from trnrt.nki import Spec, profile
from trnrt.nki.machine.targets import get_target

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Trial:
    """One random shape: the kernel's arguments, its useful FLOP of matrix products, the bytes it must move at least."""

    shapes: Shapes
    options: dict[str, Any]
    flops: float
    hbm_bytes: int

    def __str__(self) -> str:
        return ", ".join("x".join(map(str, shape)) for shape in self.shapes)


@dataclass(frozen=True)
class Family:
    """A kernel, and a generator of its shapes."""

    name: str
    dtype: str
    kernel: Callable[..., Any]
    draw: Callable[[np.random.Generator, int], Trial]  # (generator, bytes of an element)


@dataclass(frozen=True)
class Share:
    """The shares that a family reaches: quantiles over its trials, and the trial with the smallest share."""

    family: str
    target: str
    dtype: str
    trials: int
    p10: float
    median: float
    p90: float
    least: float
    least_shape: str


def _log_uniform(generator: np.random.Generator, low: int, high: int) -> int:
    """A whole number, log-uniform: as likely between 10 and 100 as between 100 and 1000."""
    return int(np.exp(generator.uniform(np.log(low), np.log(high + 1))))


def _addition(generator: np.random.Generator, item: int) -> Trial:
    size = _log_uniform(generator, 10_000, 4_000_000)
    return Trial(((size,), (size,)), {}, 0.0, 3 * size * item)


def _transpose(generator: np.random.Generator, item: int) -> Trial:
    rows, columns = _log_uniform(generator, 64, 4096), _log_uniform(generator, 64, 4096)
    return Trial(((rows, columns),), {}, 0.0, 2 * rows * columns * item)


def _softmax(generator: np.random.Generator, item: int) -> Trial:
    rows, columns = _log_uniform(generator, 64, 4096), _log_uniform(generator, 64, 8192)
    return Trial(((rows, columns),), {}, 0.0, 2 * rows * columns * item)


def _matmul(generator: np.random.Generator, item: int) -> Trial:
    rows, depth, columns = (_log_uniform(generator, 64, 4096) for _ in range(3))
    moved = (rows * depth + depth * columns + rows * columns) * item
    return Trial(((depth, rows), (depth, columns)), {}, 2.0 * rows * depth * columns, moved)


def _argmax(generator: np.random.Generator, item: int) -> Trial:
    rows, columns = _log_uniform(generator, 64, 4096), _log_uniform(generator, 8, 32_000)
    return Trial(((rows, columns),), {}, 0.0, rows * (columns * item + 4))


def _linear(generator: np.random.Generator, item: int) -> Trial:
    rows, features, outputs = (_log_uniform(generator, 64, 4096) for _ in range(3))
    blocks = -(-features // 128)
    moved = (rows * features + features * outputs + rows * outputs) * item
    shapes = ((rows, features), (128, blocks * outputs))
    return Trial(shapes, {"features": features}, 2.0 * rows * features * outputs, moved)


def _conv(generator: np.random.Generator, item: int) -> Trial:
    images, side = int(generator.integers(1, 9)), int(generator.integers(7, 113))
    channels, outputs = _log_uniform(generator, 16, 512), _log_uniform(generator, 16, 512)
    taps = int(generator.choice([1, 3, 5]))
    result = side - taps + 1
    flops = 2.0 * images * outputs * channels * taps * taps * result * result
    moved = (images * (channels * side * side + outputs * result * result) + outputs * channels * taps * taps) * item
    shapes = ((images, channels, side, side), (128, -(-channels // 128), taps * taps, outputs))
    return Trial(shapes, {"taps": taps}, flops, moved)


FAMILIES: tuple[Family, ...] = (
    Family("addition", "float32", entries.addition, _addition),
    Family("transpose", "float32", entries.transpose, _transpose),
    Family("softmax", "float32", entries.softmax_rows, _softmax),
    Family("argmax", "float32", entries.largest_columns, _argmax),
    Family("matmul", "bfloat16", matmul, _matmul),
    Family("matmul", "float32", matmul, _matmul),
    Family("linear", "bfloat16", entries.linear, _linear),
    Family("linear", "float32", entries.linear, _linear),
    Family("conv2d", "bfloat16", entries.convolution, _conv),
    Family("conv2d", "float32", entries.convolution, _conv),
)


def share_of(family: Family, trial: Trial, target: str) -> float:
    """The share of peak of one trial."""
    timing = get_target(target).timing
    found = profile(family.kernel, *(Spec(s, family.dtype) for s in trial.shapes), target=target, **trial.options)
    own_us = found.benchmark_us - timing.benchmark_ns / 1000
    rate = 2 * 128 * 128 * timing.tensor.clock_ghz * 1e3 / (4 if family.dtype == "float32" else 1)
    return max(trial.flops / rate, trial.hbm_bytes / timing.dma.total_gbps / 1000) / own_us


def measure(family: Family, target: str, trials: int, seed: int = 0) -> Share:
    """The family's shares over seeded random shapes."""
    generator = np.random.default_rng(seed)
    drawn = [family.draw(generator, 4 if family.dtype == "float32" else 2) for _ in range(trials)]
    shares = [share_of(family, trial, target) for trial in drawn]
    p10, median, p90 = np.quantile(shares, (0.1, 0.5, 0.9))
    least = int(np.argmin(shares))
    return Share(
        family.name,
        target,
        family.dtype,
        trials,
        float(p10),
        float(median),
        float(p90),
        shares[least],
        str(drawn[least]),
    )
