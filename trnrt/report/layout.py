"""The lines and tables of a report, laid out by rich on a terminal.

Elsewhere there are no styles, and what is narrow enough needs no wrapping but between words: ``plain_text`` writes it
without rich, whose import takes a good part of a short command's time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_GAP = 2
"""Spaces between columns."""
_LEAST = 8
"""Characters in a line of a column that wraps: with fewer, nobody can read a name."""


@dataclass(frozen=True)
class Line:
    """A text in a style of rich; "" for none."""

    text: str = ""
    style: str = ""

    def __str__(self) -> str:
        return self.text

    def __rich__(self) -> Text:
        from rich.text import Text

        # Text, not str: rich would read brackets in a name as markup.
        return Text(self.text, self.style)


@dataclass(frozen=True)
class Grid:
    """A table without lines. A cell is a string, a Line, or anything that rich can show.

    Columns in ``right`` are right-aligned, and those in ``whole`` never wrap; ``bold``: those in bold. Without
    ``columns`` of names it has no heading.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    right: Sequence[int] = ()
    whole: Sequence[int] = ()
    bold: Sequence[int] = ()

    def __rich__(self) -> Table:
        from rich.table import Table

        shown = any(self.columns)
        table = Table(box=None, show_header=shown, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for at, name in enumerate(self.columns):
            table.add_column(
                name,
                justify="right" if at in self.right else "left",
                overflow="fold",
                no_wrap=at in self.whole,
                style="bold" if at in self.bold else "",
            )
        for row in self.rows:
            table.add_row(*(Line(cell).__rich__() if isinstance(cell, str) else cell for cell in row))
        return table

    @property
    def least_width(self) -> int:
        """The columns of text that the table needs: numbers and whole columns uncut, a few characters of all others."""
        widths = [
            max(
                (len(str(row[at])) for row in [self.columns, *self.rows] if isinstance(row[at], (str, Line))), default=0
            )
            for at in range(len(self.columns))
        ]
        fixed = {*self.right, *self.whole}
        return sum(width if at in fixed else min(width, _LEAST) for at, width in enumerate(widths)) + _GAP * len(widths)

    def lines(self, width: int) -> list[str] | None:
        """The table as plain lines; None if it is wider than ``width``, or a cell needs rich."""
        rows = [[_plain(cell) for cell in row] for row in ([self.columns] if any(self.columns) else []) + [*self.rows]]
        if any(cell is None for row in rows for cell in row):
            return None
        cells = [[cell or "" for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        if sum(widths) + _GAP * len(widths) > width:
            return None
        gap = " " * _GAP
        return [gap.join(self._align(at, cell, widths[at]) for at, cell in enumerate(row)).rstrip() for row in cells]

    def _align(self, column: int, cell: str, width: int) -> str:
        return cell.rjust(width) if column in self.right else cell.ljust(width)


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int] = (), whole: Sequence[int] = ()
) -> Grid:
    """A table without lines; columns in ``right`` are right-aligned, and those in ``whole`` never wrap."""
    return Grid(columns, [*rows], right, whole)


def plain_text(parts: Iterable[object], width: int) -> str | None:
    """Lines, wrapped as rich does, and tables as text without styles; None if rich has to wrap a table or a word, or to
    measure something."""
    found: list[str] = []
    for part in parts:
        lines = part.lines(width) if isinstance(part, Grid) else _wrap(_plain(part), width)
        if lines is None:
            return None
        found += lines
    return "".join(f"{line}\n" for line in found)


def _wrap(line: str | None, width: int) -> list[str] | None:
    """A line in lines of whole words; None if one is wider than they are, or if it is indented."""
    if line is None:
        return None
    if len(line) <= width:
        return [line.rstrip()]
    if line.startswith(" ") or max(map(len, line.split(" "))) > width:
        return None
    return textwrap.wrap(line, width, break_on_hyphens=False) or [""]


def _plain(part: object) -> str | None:
    """The text of a part or cell; None if it is neither a string nor a Line of one line in ASCII."""
    text = str(part) if isinstance(part, (str, Line)) else None
    return text if text is not None and text.isascii() and text.isprintable() else None
