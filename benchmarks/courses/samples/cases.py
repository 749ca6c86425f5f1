"""A driver of a kernel: it makes inputs, calls the kernel, and says what numpy expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pairs = Iterable[tuple[Any, Any]]
"""Results of a kernel, each beside numpy's."""
Driver = Callable[[Any, np.random.Generator], Pairs]


@dataclass(frozen=True)
class Sample:
    """A kernel of a file, and how to run it. ``rtol``, ``atol``: the allowed difference from the reference;
    ``because``: its reason."""

    file: str
    kernel: str
    drive: Driver
    rtol: float
    atol: float
    because: str


SAMPLES: dict[tuple[str, str], Sample] = {}

TOLERANCES = {
    "float32": (1e-4, 1e-5, "sums of float32 in another order"),
    "float16": (2e-3, 2e-3, "float16 has 11 bits"),
    "bfloat16": (2e-2, 2e-2, "operands of products are bfloat16, 8 bits"),
    "float8": (7e-2, 7e-2, "float8_e4m3 has 4 bits"),
    "exact": (0.0, 0.0, "nothing is rounded"),
}


def sample(file: str, *kernels: str, precision: str = "float32") -> Callable[[Driver], Driver]:
    """Register a driver of one or more kernels of a file; ``precision`` names a tolerance."""

    def register(drive: Driver) -> Driver:
        for kernel in kernels:
            if (file, kernel) in SAMPLES:
                raise ValueError(f"{kernel} of {file} has a driver already")
            SAMPLES[file, kernel] = Sample(file, kernel, drive, *TOLERANCES[precision])
        return drive

    return register


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """Numbers in [-1, 1)."""
    return rng.uniform(-1, 1, tuple(shape)).astype(dtype)


def softmax(x: Array) -> Array:
    """Along the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    shares: Array = raised / raised.sum(-1, keepdims=True)
    return shares


def upsample(x: Array, axis: int) -> Array:
    """Twice as many elements along ``axis``, by linear interpolation between the centres of the given ones."""
    x = np.moveaxis(x, axis, -1)
    before, after = np.concatenate([x[..., :1], x[..., :-1]], -1), np.concatenate([x[..., 1:], x[..., -1:]], -1)
    twice = np.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], -1)
    return np.moveaxis(twice.reshape(*x.shape[:-1], -1), -1, axis)
