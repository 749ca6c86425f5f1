"""Bounds of rounding errors: unit roundoffs, and the bound of a sum of products by its length and dtype.

The sources are in docs/validation.md: Higham's "Accuracy and Stability of Numerical Algorithms" for the model of
rounding, Higham and Mary (2019) for the bound of long sums, the OpenCL standard for functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Unit roundoff (half the distance from 1 to the next number), and the smallest normal number.
_UNITS = {
    "float32": (2.0**-24, 2.0**-126),
    "bfloat16": (2.0**-8, 2.0**-126),
    "float16": (2.0**-11, 2.0**-14),
    "float64": (2.0**-53, 2.0**-1022),
}
SUMS = _UNITS["float32"][0]
"""The unit roundoff of sums, which are float32 for any dtype."""

ENDLESS = 2.0**100
"""Finite numbers of this size stand for infinity, in the masks that exporters write: no computed number is as large."""

# The bound of sums is probabilistic: by chance, one tensor in this many exceeds it.
ONE_IN = 1_000_000
# Units in the last place: one rounded operation, and the least exact functions that OpenCL allows (pow, erf).
ARITHMETIC_ULPS = 1
FUNCTION_ULPS = 16
# Two results are compared, trnrt's and onnxruntime's, and each has its own errors.
BOTH = 2


@dataclass(frozen=True)
class Rounding:
    """The dtype of a session."""

    dtype: str

    @property
    def is_short(self) -> bool:
        """True if tensors between nodes are rounded to less than float32."""
        return self.dtype != "float32"

    @property
    def unit(self) -> float:
        """The relative error of storing a number in the dtype."""
        return _UNITS[self.dtype][0]

    @property
    def weights(self) -> float:
        """The relative error of weights in the dtype: 0 in float32."""
        return self.unit if self.is_short else 0.0

    def magnitude(self, array: Array) -> Array:
        """Absolute values, but at least the smallest normal number: below it, rounding errors don't get smaller."""
        return np.maximum(np.abs(array), np.float32(_UNITS[self.dtype][1]))

    def storage_error(self, array: Array) -> Array:
        """The error of storing each number: 0 in float32."""
        return self.unit * self.magnitude(array) if self.is_short else np.zeros(array.shape, np.float32)


def unit_of(dtype: np.dtype[Any]) -> float:
    """The unit roundoff of the dtype that the model itself computes in."""
    return _UNITS.get(dtype.name, (0.0, 0.0))[0]


def unit_roundoff(dtype: str) -> float:
    """The unit roundoff of a dtype of floats."""
    return _UNITS[dtype][0]


def smallest_normal(dtype: str) -> float:
    """The smallest normal number of a dtype of floats."""
    return _UNITS[dtype][1]


def confidence(sums: float) -> float:
    """Standard deviations that ``sums`` roundings exceed by chance in one tensor of ``ONE_IN``."""
    return sqrt(2 * log(2 * max(sums, 1) * ONE_IN))


def sum_bound(length: int, results: int) -> float:
    """The difference between two float32 sums of ``length`` products, relative to the sum of the products' magnitudes.

    ``results`` is the number of such sums. Each of the two is within min(n, lambda * sqrt(n)) * u: n * u is Higham's
    bound for any order of summation; Higham and Mary's fails with a probability of 2 * n * exp(-lambda**2 / 2) for each
    sum, which sets lambda.
    """
    length = max(length, 1)
    return BOTH * min(length, confidence(BOTH * float(length) * max(results, 1)) * sqrt(length)) * SUMS


def operation_bound() -> float:
    """The largest difference between two roundings of one arithmetic operation, relative to its result."""
    return BOTH * 2 * ARITHMETIC_ULPS * SUMS


def function_bound() -> float:
    """The largest difference between two implementations of a function, relative to its result."""
    return BOTH * 2 * FUNCTION_ULPS * SUMS
