"""Rows as a source gives them, bad rows apart, and values converted to a model input's dtype.

Any number fits that the dtype can hold. Floats are rounded to a narrower float, unless they would become infinite; NaN
and infinity fit any float. A float without a fraction fits an integer, 0 and 1 fit bool. A text that spells a number
counts as that number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trnrt.errors import InputError
from trnrt.text import name_text, quote, shape_text

if TYPE_CHECKING:
    from trnrt.importer import TensorInfo

Array = NDArray[Any]


@dataclass(frozen=True)
class Wanted:
    """One input of the model. ``shape``: of a row, without the batch; None for sizes that model and --shape leave open.

    ``dtype`` is numpy's; object for strings.
    """

    info: TensorInfo
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]

    @property
    def name(self) -> str:
        """The input's name."""
        return self.info.name

    def describe(self) -> str:
        """The input's name, dtype and shape, for messages."""
        return f"input {quote(self.name)} ({self.info.dtype}, a row is {shape_text(self.shape)})"


@dataclass(frozen=True)
class Bad:
    """A row that is set aside: its number, its id, the input that it does not fit, and why.

    ``input`` is None if the model itself fails for the row."""

    row: int
    id: int | str | None
    input: str | None
    reason: str


@dataclass
class Columns:
    """Consecutive rows from one reader.

    ``values``: by input, (rows, *shape of a row) in the input's dtype, zeros in bad rows. ``bad``: row within these ->
    (input, reason), the first one found. ``ids``: one for each row (integers, or an object array of texts), None if
    the reader has none.
    """

    rows: int
    values: dict[str, Array] = field(default_factory=dict)
    bad: dict[int, tuple[str, str]] = field(default_factory=dict)
    ids: Array | None = None

    def put(self, name: str, values: Array, bad: Mapping[int, str]) -> None:
        """Add an input's values, and why some rows have none."""
        self.values[name] = values
        for row, reason in bad.items():
            self.bad.setdefault(row, (name, reason))


@dataclass(kw_only=True)
class Reader:
    """One or more files as rows, in consecutive order.

    ``shapes``: of a row, by input. ``identity`` changes when the content may have. ``notes``: how the files are
    understood, for the user. ``id_dtype``: of the ids, integers or object for texts; None without ids.
    """

    rows: int
    shapes: Mapping[str, tuple[int, ...]]
    identity: str
    notes: Sequence[str]
    id_dtype: np.dtype[Any] | None

    def read(self, start: int, stop: int) -> Columns:
        """The rows from ``start`` to ``stop``; fastest where the last ones ended. InputError for a broken file."""
        raise NotImplementedError

    def check(self) -> None:
        """InputError for a file that can be seen to be broken only by reading all of it."""

    def close(self) -> None:
        """Close the files."""


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of the input: ``numbers``, ``ids`` and ``feeds`` of those that can be run, and ``bad`` ones."""

    rows: int
    numbers: Array
    ids: Array
    feeds: Mapping[str, Array]
    bad: tuple[Bad, ...]


def check_kind(kind: str, wanted: Wanted, place: str) -> None:
    """InputError if no value of a dtype of this kind (numpy's letter) can fit the input."""
    takes_text = wanted.info.dtype == "str"
    if kind == "c" or (takes_text and kind not in "USO"):
        found = "complex numbers" if kind == "c" else "numbers"
        takes = "texts" if takes_text else "real numbers"
        raise InputError(f"{place} holds {found}, and {wanted.describe()} takes {takes}")


def fit(values: Array, wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """Values (rows, ...) in the input's dtype, zeros where they don't fit; and the reason for each such row."""
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
    """True where a value does not fit: (rows, ...)."""
    kind = _kind(wanted)
    if kind == "f":
        # As float64: numpy has no isfinite for some dtypes of ml_dtypes.
        lost: NDArray[np.bool_] = np.isfinite(values.astype(np.float64)) & ~np.isfinite(made.astype(np.float64))
        return lost
    if kind == "b":
        return np.asarray((values != 0) & (values != 1))
    if values.dtype.kind == "b":
        return np.zeros(values.shape, bool)
    limits = np.iinfo(wanted.dtype)
    if values.dtype.kind in "iu":
        # Limits that the values' own dtype holds: int64 and uint64 have no common dtype to compare in.
        own = np.iinfo(values.dtype)
        low, high = max(limits.min, own.min), min(limits.max, own.max)
        return np.asarray((values < low) | (values > high))
    # Below the limit plus 1, as a float may not hold the limit itself (2**63 - 1).
    inside = (values >= float(limits.min)) & (values < float(limits.max) + 1)
    return np.asarray(~inside | (np.trunc(values) != values))


def _parse_texts(values: Array, wanted: Wanted) -> tuple[Array, dict[int, str]]:
    """Convert texts that spell numbers."""
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
        # Integers are in range already. They must not pass through floats, which don't hold every int64.
        exact = np.array([numbers], np.float64 if _kind(wanted) == "f" else wanted.dtype)
        fitted, reasons = fit(exact, wanted)
        flat[row] = fitted
        if reasons:
            bad[row] = reasons[0]
    return made, bad


def _number(text: object, wanted: Wanted) -> int | float:
    """The number that a text spells, in the range of an integer dtype. ValueError with the reason if there is none."""
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
        # Check the range before the conversion to an integer: 1e999999999 has a billion digits.
        with suppress(InvalidOperation):  # an exponent too large even for a Decimal, as in 1e-9999999999999999999
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
    """The input's kind of number: "b", "i", or "f", which numpy does not say of ml_dtypes' floats."""
    return {"b": "b", "i": "i", "u": "i"}.get(wanted.dtype.kind, "f")
