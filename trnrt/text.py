"""Names and numbers as text. A model's or a file's names are data: they may hold control characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trnrt.nki.units import significant_text as significant_text
from trnrt.nki.units import size_text as size_text
from trnrt.nki.units import time_text as time_text

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range

_LONGEST_NAME = 120
_LONGEST_LINE = 400


def escape_text(text: str) -> str:
    """``text`` on one line, with unprintable characters escaped."""
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def name_text(name: str) -> str:
    """A name as a terminal may show it: one line, escaped, at most 120 characters."""
    return _shorten(escape_text(name), _LONGEST_NAME)


def quote(name: str | None) -> str:
    """``name_text`` in quotes, for the middle of a sentence; None is an empty name."""
    return f"'{name_text(name or '')}'"


def one_line(text: str) -> str:
    """A library's message, fit for one line of an error message: escaped, at most 400 characters."""
    return _shorten(escape_text(" ".join(text.split())), _LONGEST_LINE)


def reason_text(error: Exception) -> str:
    """An error's own words, for the middle of a sentence: ``permission denied``."""
    if isinstance(error, OSError) and error.strerror:
        return escape_text(error.strerror[0].lower() + error.strerror[1:])
    return escape_text(str(error) or type(error).__name__)


def escaped_lines(text: str) -> str:
    """``text`` of several lines, each escaped."""
    return "\n".join(escape_text(line) for line in text.split("\n"))


def shape_text(shape: Iterable[int | str | None]) -> str:
    """A shape as in messages: ``[batch, 1, 8, 8]``; an open dimension is ``?``."""
    return "[" + ", ".join("?" if dim is None else name_text(str(dim)) for dim in shape) + "]"


def list_text(items: Iterable[str], most: int = 8) -> str:
    """The items, comma-separated; of a long list, the first few and the number of the others."""
    items = list(items)
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def names_text(names: Iterable[str]) -> str:
    """``list_text`` of names that may hold anything."""
    return list_text(map(name_text, names))


def count_text(number: int, noun: str, plural: str | None = None) -> str:
    """``1 row``, ``10 rows``; ``plural`` is the noun's, where that isn't the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def number_text(value: float) -> str:
    """A number in a table: six significant digits."""
    return f"{value:.6g}"


def aligned_number(value: float) -> str:
    """A number in a column of its like: six decimals, so that the points stand under each other."""
    return f"{value:.6f}" if value == 0 or 1e-6 <= abs(value) < 1e9 else f"{value:.3e}"


def range_text(found: Range, unit: str = " us") -> str:
    """A prediction and its range: ``251 us (230 to 290)``; with a decimal below 100 us."""
    digits = _digits(found)
    return f"{found.us:,.{digits}f}{unit} ({ends_text(found)})"


def ends_text(found: Range) -> str:
    """The ends of a range alone: ``230 to 290``."""
    digits = _digits(found)
    return f"{found.least_us:,.{digits}f} to {found.most_us:,.{digits}f}"


def error_text(value: float) -> str:
    """An error or a tolerance in a table: two digits and a power of ten, 0 as it is."""
    return "0" if value == 0 else f"{value:.1e}"


def _digits(found: Range) -> int:
    """Decimals of a range's three figures: more would pretend to know more."""
    return 1 if found.us < 99.95 else 0


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _escape_char(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
