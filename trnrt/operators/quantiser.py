"""The numbers by which a kernel finds rint(x / scale) between whole limits, exactly as a division would.

``quantise`` in ``compute_math.py`` has the derivation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.kernels.compute_math import HALVER, ROUNDER

Floats = NDArray[Any]

# Bits of the larger part of a scale: its product with a quotient of 9 bits is exact.
_LEADING = 15
# Floats on either side of a tie at which a quotient is tested; both roundings are off by 3 at most.
_NEIGHBOURS = 8


@dataclass(frozen=True)
class Quantiser:
    """The numbers by which ``compute_math.quantise`` finds rint(x / scale) within limits."""

    low: float
    high: float
    inverse: float
    leading: float
    rest: float
    correction: float

    @property
    def numbers(self) -> tuple[float, ...]:
        return self.low, self.high, self.inverse, self.leading, self.rest, self.correction

    def apply(self, x: Floats) -> Floats:
        """The kernel's result, in float32."""
        low, high, inverse, leading, rest, correction = (np.float32(n) for n in self.numbers)
        x = np.minimum(np.maximum(x, low), high)
        near = (x * inverse + np.float32(HALVER)) - np.float32(HALVER)
        left = near * rest + (near * leading + x)
        made: Floats = ((left * correction + near) + np.float32(ROUNDER)) - np.float32(ROUNDER)
        return made


@lru_cache(maxsize=4096)
def find_quantiser(scale: float, low: float, high: float) -> Quantiser | None:
    """The quantiser of a scale that is right on both sides of every tie; None if there is none.

    Far from a tie any quotient is right, and the sides of all ties are few floats: trying them is a proof.
    """
    by = np.float32(scale)
    mask = np.uint32((0xFFFFFFFF << (24 - _LEADING)) & 0xFFFFFFFF)
    leading = (by.view(np.uint32) & mask).view(np.float32)
    inverse = np.float32(1.0 / np.float64(by))
    ends = (float(np.float32(limit * np.float64(by))) for limit in (low, high))
    first, last = ends
    x = _floats_near_ties(by, low, high)
    true = np.clip(np.rint(x / by), low, high)
    for correction in (inverse, np.nextafter(inverse, np.float32(np.inf)), np.nextafter(inverse, np.float32(0))):
        parts = -float(leading), -float(by - leading)
        found = Quantiser(first, last, float(inverse), *parts, float(correction))
        if np.array_equal(found.apply(x), true):
            return found
    return None


def _floats_near_ties(scale: np.float32, low: float, high: float) -> Floats:
    """All floats next to the ties between the limits, and next to the limits themselves."""
    quotients = np.concatenate([np.arange(low - 1, high + 1) + 0.5, [low, high]])
    floats = (quotients * np.float64(scale)).astype(np.float32)
    found = [floats]
    for towards in (-np.inf, np.inf):
        beside = floats
        for _ in range(_NEIGHBOURS):
            beside = np.nextafter(beside, np.float32(towards))
            found.append(beside)
    return np.concatenate(found)
