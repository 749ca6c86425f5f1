"""Rows as a source gives them, the bad ones apart, and values made to fit a model's input.

What fits: any number that the input's dtype can hold. Floats are rounded to a narrower float, and one that
would become infinite does not fit; NaN and infinity are values of floats. For whole numbers a float without
a fraction fits, for bool 0 and 1. A text that spells a number is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.text import name_text, quote, shape_text

if TYPE_CHECKING:
    from trnrt.importer import TensorInfo

Array = NDArray[Any]


@dataclass(frozen=True)
class Wanted:
    """One input of the model: ``shape`` is that of a row, without the batch; None where the model and --shape leave it.

    ``dtype`` is numpy's, object for strings.
    """

    info: TensorInfo
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The input's name."""
        return self.info.name

    def describe(self) -> str:
        """As messages name it."""
        return f"input {quote(self.name)} ({self.info.dtype}, a row is {shape_text(self.shape)})"


@dataclass(frozen=True)
class Bad:
    """A row that is set aside: its number in the input, its id, the input that it does not fit, and why.

    ``input`` is None where the model itself fails for the row."""

    row: int
    id: int | str | None
    input: str | None
    reason: str


@dataclass
class Columns:
    """What one reader found in some consecutive rows.

    ``values``: by input, (rows, *shape of a row) in the input's dtype, zeros in bad rows. ``bad``: row within these ->
    (input, reason), the first that was found. ``ids``: one a row (integers, or an object array of texts), None where
    the reader has none.
    """

    rows: int
    values: dict[str, Array] = field(default_factory=dict)
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    ids: Array | None = None

    def put(self, name: str, values: Array, bad: Mapping[int, str]) -> None:
        """An input's values, and why some rows have none."""
        self.values[name] = values
        for row, reason in bad.items():
            self.bad.setdefault(row, (name, reason))


class Reader(Protocol):
    """A file, or several, as rows. ``shapes``: of a row, by input. ``identity`` changes where the content may have.

    ``notes``: what a user should know about how the files are understood. ``id_dtype``: of its ids, integers or object
    for texts; None where it has none.
    """

    @property
    def rows(self) -> int: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def identity(self) -> str: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def id_dtype(self) -> np.dtype[Any] | None: ...

    def read(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` to ``stop``; quickest where the last ones ended. InputError for a broken file."""
        ...

    def check(self) -> None:
        """Read what has to be read whole to know whether it is broken, before anything is run. InputError if so."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of the input: ``feeds`` and ``ids`` of those that can be run, and those that can't."""

    rows: int
    numbers: Array
    ids: Array
    feeds: Mapping[str, Array]
    bad: tuple[Bad, ...]


def check_kind(kind: str, wanted: Wanted, place: str) -> None:
    """InputError where no value of a dtype of this kind (numpy's letter) could fit the input."""
    text = kind in "USO"
    if kind == "c" or (wanted.info.dtype == "str" and not text):
        found = "complex numbers" if kind == "c" else "numbers"
        raise InputError(f"{place} holds {found}, and {wanted.describe()} takes {_accepted_text(wanted)}")


def fit(values: Array, wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """Values (rows, ...) in the input's dtype, zeros where they don't fit; and for each such row, why."""
    if wanted.info.dtype == "str":
        texts = np.char.decode(values, "utf-8", "replace") if values.dtype.kind == "S" else values
        return texts.astype(object), {}
    if values.dtype.kind in "USO":
        return _parse_texts(values, wanted)
    if values.dtype == wanted.dtype:
        return values, {}
    with np.errstate(all="ignore"):
        made = values.astype(wanted.dtype)
        lost = _lost_mask(values, made, wanted)
    if not lost.any():
        return made, {}
    made[lost] = 0
    return made, _reasons(values, lost, wanted)


def _lost_mask(values: Array, made: Array, wanted: Wanted) -> NDArray[np.bool_]:
    """Where a value did not survive: (rows, ...)."""
    kind = _kind(wanted)
    if kind == "f":
        # isfinite on the way back: numpy has no such function for every dtype of ml_dtypes.
        lost: NDArray[np.bool_] = np.isfinite(values.astype(np.float64)) & ~np.isfinite(made.astype(np.float64))
        return lost
    if kind == "b":
        return np.asarray((values != 0) & (values != 1))
    if values.dtype.kind == "b":
        return np.zeros(values.shape, bool)
    limits = np.iinfo(wanted.dtype)
    if values.dtype.kind in "iu":
        # Compared as Python's integers would be: no common dtype of int64 and uint64 holds both.
        own = np.iinfo(values.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        return np.asarray((values < low) | (values > high))
    # The first float above the largest value: the largest itself may be no float (2**63 - 1).
    inside = (values >= float(limits.min)) & (values < float(limits.max) + 1)
    return np.asarray(~inside | (np.trunc(values) != values))


def _parse_texts(values: Array, wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """Texts that spell numbers, as numbers."""
    made = np.zeros(values.shape, wanted.dtype)
    bad: dict[int, str] = {}
    rows = values.reshape(len(values), -1)
    flat = made.reshape(len(values), -1)
    for row, texts in enumerate(rows):
        try:
            numbers = [_number(text, wanted) for text in texts]
        except ValueError as error:
            bad[row] = str(error)
            continue
        # Whole numbers are in range, and no float may come between: not every int64 is one.
        exact = np.array([numbers], np.float64 if _kind(wanted) == "f" else wanted.dtype)
        fitted, reasons = fit(exact, wanted)
        flat[row] = fitted
        if reasons:
            bad[row] = reasons[0]
    return made, bad


def _number(text: object, wanted: Wanted) -> int | float:
    """The number that a text spells: for whole numbers one that the dtype holds; ValueError, with the reason."""
    spelled = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    plain = spelled.strip()
    try:
        if "_" in plain:  # Python's own digit separator, which no other program writes
            raise ValueError
        number = float(plain)
    except ValueError:
        raise ValueError(f"{quote(spelled)} is no number") from None
    if _kind(wanted) != "f":
        low, high = (0, 1) if _kind(wanted) == "b" else (np.iinfo(wanted.dtype).min, np.iinfo(wanted.dtype).max)
        # Bounded before it becomes an integer: that of 1e999999999 has a billion digits.
        with suppress(InvalidOperation):  # an exponent that even a Decimal does not hold, as in 1e-9999999999999999999
            if low <= number <= high + 1 and (whole := int(exact := Decimal(plain))) == exact and low <= whole <= high:
                return whole
    elif math.isfinite(number) or not any(map(str.isdigit, plain)):
        return number
    raise ValueError(f"{quote(spelled)} does not fit {wanted.info.dtype}")


def _reasons(values: Array, lost: NDArray[np.bool_], wanted: Wanted) -> dict[int, str]:
    places = lost.reshape(len(lost), -1)
    flat = values.reshape(len(values), -1)
    reasons = {}
    for row in np.flatnonzero(places.any(axis=1)):
        first = int(places[row].argmax())
        place = np.unravel_index(first, values.shape[1:]) if values.ndim > 1 else ()
        where = f" at {shape_text(map(int, place))}" if flat.shape[1] > 1 else ""
        reasons[int(row)] = f"{name_text(str(flat[row, first]))}{where} does not fit {wanted.info.dtype}"
    return reasons


def _kind(wanted: Wanted) -> str:
    """What the input takes, as "f", "b" or "i"; ml_dtypes' floats have a kind of their own in numpy."""
    return wanted.dtype.kind if wanted.dtype.kind in "bf" else "i" if wanted.dtype.kind in "iu" else "f"


def _accepted_text(wanted: Wanted) -> str:
    return "texts" if wanted.info.dtype == "str" else "real numbers"
