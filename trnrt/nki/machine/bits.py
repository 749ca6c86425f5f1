"""Bitvec operators: integers as bit patterns, without any conversion of their values.

A pattern is the element's bits with zeros above them. The engine computes on 32 bits, and the destination keeps as many
low bits as it has. A shift by 32 or more gives 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnrt.nki.machine.dtypes import Array

_WIDTH = np.uint32(32)


def pattern(array: Array) -> Array:
    """Integers as unsigned 32-bit patterns."""
    unsigned: Array = array.view(f"u{array.itemsize}")
    return unsigned.astype(np.uint32, copy=False)


def number_pattern(value: int) -> Array:
    """An immediate as a 32-bit pattern, negative ones in two's complement."""
    return np.array(int(value) & 0xFFFFFFFF, np.uint32)


def low_bits(bits: Array, dtype: np.dtype[Any]) -> Array:
    """The low bits of patterns, as many as ``dtype`` has."""
    kept: Array = bits != 0 if dtype == np.bool_ else bits.astype(f"u{dtype.itemsize}")
    return kept.view(dtype)


def left_shift(bits: Array, places: Array) -> Array:
    return np.where(places < _WIDTH, np.left_shift(bits, places & np.uint32(31)), np.uint32(0))


def right_shift(bits: Array, places: Array) -> Array:
    """Shift zeros in from above: the engine has no arithmetic shift."""
    return np.where(places < _WIDTH, np.right_shift(bits, places & np.uint32(31)), np.uint32(0))
