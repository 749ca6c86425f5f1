"""Arrays against what they should be: the tolerance of a dtype, and the elements beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.numbers import TOLERANCES


@dataclass(frozen=True)
class Tolerance:
    """A result may differ by ``atol + rtol * |expected|``. ``dtype``: the one whose usual tolerance it is, or ""."""

    rtol: float
    atol: float
    dtype: str = ""

    def __str__(self) -> str:
        if self.dtype and not self.rtol and not self.atol:
            return f"none: {self.dtype} must be exact"
        origin = f"the default of {self.dtype}; rtol= and atol= set others" if self.dtype else "as the test says"
        return f"rtol {self.rtol:g}, atol {self.atol:g} ({origin})"


def choose_tolerance(dtype: DType, rtol: float | None, atol: float | None) -> Tolerance:
    """The tolerance of a result of this dtype; a given number replaces both of the dtype's, the other being 0.

    Whole numbers and booleans must be exact.
    """
    if rtol is not None or atol is not None:
        return Tolerance(rtol or 0.0, atol or 0.0)
    return Tolerance(*TOLERANCES.get(dtype.name, (0.0, 0.0)), dtype.name)


@dataclass(frozen=True)
class Wrong:
    """A wrong element: its index, what it is, what it should be, and how far off it may be."""

    index: tuple[int, ...]
    got: float
    expected: float
    allowed: float

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]"
        off = abs(self.got - self.expected)
        beyond = f", off by {off:.6g}, allowed {self.allowed:.3g}" if np.isfinite(off) else ""
        return f"{place} is {_number_text(self.got)}, expected {_number_text(self.expected)}{beyond}"


def _number_text(number: float) -> str:
    """All digits of a whole number of up to 32 bits, nine of another, which tell any float32 from the next."""
    whole = abs(number) < 2**33 and number == int(number)
    return str(int(number)) if whole else f"{number:.9g}"


@dataclass(frozen=True)
class Mismatch:
    """``count`` of ``size`` elements are wrong; the ``first`` in row-major order, and the ``worst``."""

    count: int
    size: int
    first: Wrong
    worst: Wrong


def find_mismatch(got: Array, expected: Array, tolerance: Tolerance) -> Mismatch | None:
    """The elements of ``got`` beyond the tolerance; None if there is none. NaN equals NaN.

    Raises:
        AssertionError: if the shapes differ.
    """
    assert got.shape == expected.shape, f"its shape is {got.shape}, expected {expected.shape}"
    mine, wanted = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        error, allowed = np.abs(mine - wanted), tolerance.atol + tolerance.rtol * np.abs(wanted)
        same = (mine == wanted) | (np.isnan(mine) & np.isnan(wanted))
        near = np.isfinite(wanted) & (error <= allowed)
        off = ~(same | near)
        excess = np.where(off, np.where(np.isfinite(error), error - allowed, np.inf), -np.inf)
    if not off.any():
        return None
    places = int(np.argmax(off)), int(np.argmax(excess))
    first, worst = (_wrong(place, mine, wanted, allowed) for place in places)
    return Mismatch(int(off.sum()), off.size, first, worst)


def _wrong(place: int, mine: Array, wanted: Array, allowed: Array) -> Wrong:
    index: tuple[Any, ...] = np.unravel_index(place, mine.shape)
    numbers = (float(array.reshape(-1)[place]) for array in (mine, wanted, allowed))
    return Wrong(tuple(map(int, index)), *numbers)
