"""Element-wise operators: an error times the slope, and the operation's own rounding.

The slope is a difference quotient over the error itself, or, where that is smaller, over the step at which a quotient
in float32 is most exact: the square root of the unit roundoff, relative to the element.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from trnrt.operators.bounds.case import Array, Case, exact
from trnrt.operators.bounds.rounding import SUMS, of_function, of_operation

_STEP = float(np.sqrt(SUMS))


@exact
def piecewise(case: Case) -> list[Array]:
    """Elements as they are, negated, or a limit."""
    limits = sum(case.error(k).max(initial=0) for k in range(1, len(case.inputs)))
    return [_carried(case) + limits]


def arithmetic(case: Case) -> list[Array]:
    """A handful of operations that are rounded as arithmetic is."""
    return [_carried(case) + of_operation() * np.abs(case.y)]


def exponential(case: Case) -> list[Array]:
    """The argument is reduced first, and its rounding is a relative error of the result."""
    return [_carried(case) + (of_function() + of_operation() * np.abs(case.x)) * np.abs(case.y)]


def function(case: Case) -> list[Array]:
    """Functions whose error is relative to their result."""
    return [_carried(case) + of_function() * np.abs(case.y)]


def of_one(case: Case) -> list[Array]:
    """Functions that are made of numbers near 1, whose rounding stays where these cancel."""
    return [_carried(case) + of_function() * np.maximum(np.abs(case.y), 1)]


def gated(case: Case) -> list[Array]:
    """The argument times a number in [0, 1] that is as exact as 1."""
    return [_carried(case) + of_function() * np.abs(case.x)]


@exact
def step_function(case: Case) -> list[Array]:
    """Exact but for what lies within the error of a step."""
    up, down = (case.first(case.x + sign * case.e) for sign in (1, -1))
    return [np.maximum(np.abs(up - case.y), np.abs(down - case.y))]


def added(case: Case) -> list[Array]:
    """Sums of a few tensors."""
    terms = len(case.inputs)
    share = case.sums(terms)
    size = sum(np.abs(array) for array in case.inputs if array is not None)
    error = sum(case.error(k) for k in range(terms)) + share * size
    return [np.broadcast_to(error / terms if case.op == "Mean" else error, case.y.shape)]


def multiplied(case: Case) -> list[Array]:
    """Each factor's error times the other factor."""
    a, b, ea, eb = *_sides(case), case.error(0), case.error(1)
    return [np.abs(a) * eb + np.abs(b) * ea + ea * eb + of_operation() * np.abs(case.y)]


def divided(case: Case) -> list[Array]:
    """The dividend's error and the quotient's share of the divisor's, over the smallest that the divisor may be."""
    _, b = _sides(case)
    ea, eb = case.error(0), case.error(1)
    smallest = np.maximum(np.abs(b) - eb, np.abs(b) * _STEP)
    return [(ea + np.abs(case.y) * eb) / smallest + of_operation() * np.abs(case.y)]


def prelu(case: Case) -> list[Array]:
    """The slope counts where the number is negative, or may be."""
    x, slope = _sides(case)
    by_slope = np.where(x - case.error(0) < 0, case.size * case.error(1), 0)
    return [case.error(0) * np.maximum(1, np.abs(slope)) + by_slope + of_operation() * np.abs(case.y)]


@exact
def extreme(case: Case) -> list[Array]:
    """The largest of the errors."""
    errors = [np.broadcast_to(case.error(k), case.y.shape) for k in range(len(case.inputs))]
    return [np.max(errors, axis=0)]


def remainder(case: Case) -> list[Array]:
    """``a - n * b`` with a whole n; by one b more where the quotient may be on either side of a whole number."""
    a, b = _sides(case)
    ea, eb = case.error(0), case.error(1)
    quotient = a / b
    of_quotient = (ea + np.abs(quotient) * eb) / np.maximum(np.abs(b) - eb, np.abs(b) * _STEP)
    near = np.abs(quotient - np.round(quotient)) <= of_quotient + 2 * SUMS * np.abs(quotient)
    moved = ea + np.abs(quotient) * eb + of_operation() * np.abs(a)
    return [moved + np.where(near, np.abs(b) + eb, 0)]


def corners(case: Case) -> list[Array]:
    """The operator at the ends of what both sides may be."""
    size = np.abs(case.y) * (1 + np.abs(np.log(np.maximum(np.abs(case.y), np.float32(1e-30)))))
    return [_corners(case) + of_function() * size]


@exact
def compared(case: Case) -> list[Array]:
    """In doubt where the sides are closer than their errors."""
    a, b = _sides(case)
    doubt = case.error(0) + case.error(1)
    close = (doubt > 0) & (np.abs(a.astype(np.float32) - b.astype(np.float32)) <= doubt)
    return [np.where(close, np.float32(1), np.float32(0))]


@exact
def logical(case: Case) -> list[Array]:
    """In doubt where a side is."""
    sides = [np.broadcast_to(case.error(k), case.y.shape) for k in range(len(case.inputs))]
    return [np.max(sides, axis=0)]


def _sides(case: Case) -> tuple[Array, Array]:
    a, b = case.inputs[:2]
    assert a is not None and b is not None
    return a, b


def _carried(case: Case) -> Array:
    """The error of the first input times the slope there."""
    if not np.any(case.e):
        return np.zeros(case.y.shape, np.float32)
    width = np.maximum(case.e, np.float32(_STEP) * np.abs(case.x))
    up, down = (case.first(case.x + sign * width) for sign in (1, -1))
    apart: Array = np.maximum(np.abs(up - case.y), np.abs(down - case.y))
    share: Array = np.divide(case.e, width, out=np.zeros_like(width), where=width > 0)
    # Where a function ends within the error, nothing bounds it.
    return np.where(case.e == 0, np.float32(0), np.where(np.isnan(apart), np.float32(np.inf), apart * share))


def _corners(case: Case) -> Array:
    """The largest distance of the four corners from the result."""
    a, b = _sides(case)
    ea, eb = case.error(0), case.error(1)
    if not np.any(ea) and not np.any(eb):
        return np.zeros(case.y.shape, np.float32)
    apart = np.zeros(case.y.shape, np.float32)
    for up, left in product((1, -1), repeat=2):
        made = case.first((a + up * ea).astype(np.float32), (b + left * eb).astype(np.float32))
        apart = np.maximum(apart, np.abs(made - case.y))
    return apart
