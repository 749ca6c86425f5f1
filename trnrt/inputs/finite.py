"""Inputs that hold NaN or infinite values: seldom meant, and every output that depends on them is one, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trnrt.text import count_text, quote

if TYPE_CHECKING:
    import numpy.typing as npt


def odd_rows(feeds: Mapping[str, npt.NDArray[Any]], rows: int) -> npt.NDArray[np.bool_]:
    """True for each row with a NaN or infinite value in an input."""
    odd = np.zeros(rows, np.bool_)
    for array in feeds.values():
        if (values := _odd_values(array)) is not None:
            odd |= values.any(axis=tuple(range(1, values.ndim)))
    return odd


def odd_notes(feeds: Mapping[str, npt.NDArray[Any]]) -> list[str]:
    """A line for each input that holds NaN or infinite values: how many, and the index of the first."""
    notes = []
    for name, array in feeds.items():
        odd = _odd_values(array)
        if odd is None:
            continue
        if count := int(np.count_nonzero(odd)):
            first = [int(index) for index in np.unravel_index(int(np.argmax(odd)), odd.shape)]
            values = f"{count_text(count, 'value')} that {'is' if count == 1 else 'are'} NaN or infinite"
            notes.append(f"input {quote(name)} has {values}; the first, {float(array[tuple(first)])}, is at {first}")
    return notes


def _odd_values(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    """True for each value that is NaN or infinite; None for a dtype that has no such values."""
    if array.dtype.kind not in "fV":  # V: bfloat16, which numpy has no isfinite for
        return None
    finite: npt.NDArray[np.bool_] = np.isfinite(array if array.dtype.kind == "f" else array.astype(np.float32))
    return ~finite
