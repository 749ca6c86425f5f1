"""What rounding can do: unit roundoffs, and the bound of a sum of products by its length and its dtype.

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
"""The unit roundoff of what accumulates: float32, whatever the dtype."""

# The bound of sums is one of probability: one tensor in so many may leave it by chance.
ONE_IN = 1_000_000
# Of one rounded operation, and of the functions that OpenCL lets be least exact (pow, erf): in units in the last place.
ARITHMETIC_ULPS = 1
FUNCTION_ULPS = 16
# Two results are compared, ours and onnxruntime's, and each has its own errors.
BOTH = 2


@dataclass(frozen=True)
class Rounding:
    """The dtype of a session."""

    dtype: str

    @property
    def is_short(self) -> bool:
        """Whether tensors between nodes are rounded to less than float32."""
        return self.dtype != "float32"

    @property
    def unit(self) -> float:
        """What storing a number in the dtype does to it, relative to it."""
        return _UNITS[self.dtype][0]

    @property
    def weights(self) -> float:
        """What the dtype does to weights, relative to them; float32 holds them as they are."""
        return self.unit if self.is_short else 0.0

    def magnitude(self, array: Array) -> Array:
        """Absolute values, but at least the smallest normal number: below it, roundings don't get smaller."""
        return np.maximum(np.abs(array), np.float32(_UNITS[self.dtype][1]))

    def stored(self, array: Array) -> Array:
        """What storing may do to each number; nothing in float32."""
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
    """How many standard deviations of so many roundings are left by chance in one tensor of ``ONE_IN``."""
    return sqrt(2 * log(2 * max(sums, 1) * ONE_IN))


def of_sum(length: int, results: int) -> float:
    """How far two float32 sums of ``length`` products may be apart, relative to the sum of the products' magnitudes.

    ``results`` is how many such sums there are. Each of the two is within min(n, lambda * sqrt(n)) * u, by Higham's
    bound for any order of summation, and by that of Higham and Mary but for a chance of
    2 * n * exp(-lambda**2 / 2) for each sum, which sets lambda.
    """
    length = max(length, 1)
    return BOTH * min(length, confidence(BOTH * float(length) * max(results, 1)) * sqrt(length)) * SUMS


def of_operation() -> float:
    """How far two roundings of one arithmetic operation may be apart, relative to its result."""
    return BOTH * 2 * ARITHMETIC_ULPS * SUMS


def of_function() -> float:
    """How far two implementations of a function may be apart, relative to its result."""
    return BOTH * 2 * FUNCTION_ULPS * SUMS
