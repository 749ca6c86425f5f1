"""The host's share of AWS's end-to-end latencies: a least-squares line through their own batch-1 table.

Time that doesn't grow with a model's weights or products is neither DMA nor tensor engine. It counts as the host's part
(PyTorch, the runtime, PCIe), although it includes any fixed cost of the device. No figure of ours enters the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Latency:
    """One row of the table: end to end, microseconds, and the model's size (``megabytes`` of 16-bit weights)."""

    model: str
    us: float
    megabytes: float
    gflop: float


@dataclass(frozen=True)
class HostFit:
    """us = ``constant_us`` + ``us_per_mb`` * megabytes + ``us_per_gflop`` * gflop.

    ``error_us`` is the constant's standard error, ``residuals`` are published less fitted, by model.
    """

    constant_us: float
    us_per_mb: float
    us_per_gflop: float
    error_us: float
    residuals: dict[str, float]


def fit_host(rows: Sequence[Latency]) -> HostFit:
    """Fit the line; there must be more rows than its three numbers."""
    sizes = np.array([(1.0, row.megabytes, row.gflop) for row in rows])
    times = np.array([row.us for row in rows])
    numbers = np.linalg.lstsq(sizes, times, rcond=None)[0]
    left = times - sizes @ numbers
    variance = float(left @ left) / (len(rows) - len(numbers))
    error = float(np.sqrt(variance * np.linalg.inv(sizes.T @ sizes)[0, 0]))
    constant, per_mb, per_gflop = map(float, numbers)
    residuals = {row.model: float(one) for row, one in zip(rows, left, strict=True)}
    return HostFit(constant, per_mb, per_gflop, error, residuals)
