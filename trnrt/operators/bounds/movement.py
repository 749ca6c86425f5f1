"""Operators that only move elements: their errors move along."""

from __future__ import annotations

import numpy as np

from trnrt.operators.bounds.case import Array, Case, exact
from trnrt.operators.bounds.rounding import unit_of


@exact
def move(case: Case) -> list[Array]:
    """What the node does to elements, done to their errors."""
    return _all(case, [case.e, *case.inputs[1:]])


@exact
def same(case: Case) -> list[Array]:
    """The same elements; a cast to whole numbers may go to either of two, and one to fewer bits rounds there."""
    if case.y.dtype.kind in "iub":
        return [np.ceil(case.e)]
    theirs = 0.0 if case.dtype is None or case.dtype == np.float32 else unit_of(case.dtype)
    return [case.e + theirs * np.abs(case.y)]


@exact
def concat(case: Case) -> list[Array]:
    """The errors of all inputs side by side."""
    return _all(case, list(case.errors))


@exact
def pad(case: Case) -> list[Array]:
    """What is padded is exact."""
    rest = [None if array is None else array for array in case.inputs[1:]]
    if len(rest) > 1 and rest[1] is not None:
        rest[1] = np.zeros_like(rest[1])
    made = case.run([case.e, *rest])[0]
    assert made is not None
    return [np.maximum(made, 0)]


@exact
def choose(case: Case) -> list[Array]:
    """Either side's error, and the distance of the sides where the condition is in doubt."""
    condition, x, y = case.inputs
    assert condition is not None and x is not None and y is not None
    kept = np.where(condition, case.error(1), case.error(2))
    return [kept + np.where(case.error(0) > 0, np.abs(x - y), 0)]


def _all(case: Case, inputs: list[Array | None]) -> list[Array]:
    made = case.run([None if array is None else np.ascontiguousarray(array) for array in inputs])
    return [np.zeros((), np.float32) if array is None else np.abs(array) for array in made]
