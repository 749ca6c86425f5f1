"""Output: results go to stdout, notes and errors to stderr. For progress see ``trnrt.report.progress``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from trnrt.report.layout import Grid, plain_text
from trnrt.report.progress import quiet
from trnrt.text import escape_text, escaped_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

_WIDTH_OF_A_FILE = 200
"""Columns where stdout is no terminal: nobody can widen a pipe."""


def render(parts: Iterable[RenderableType]) -> str:
    """Tables and texts as one string: styled for a terminal, plain elsewhere.

    One string, so that only ``say`` meets a closed pipe (``| head``).
    """
    terminal, given = sys.stdout.isatty(), [*parts]
    if not terminal:
        columns = os.environ.get("COLUMNS", str(_WIDTH_OF_A_FILE))
        plain = plain_text(given, int(columns)) if columns.isdecimal() else None
        if plain is not None:
            return plain
    from rich.console import Console

    page = StringIO()
    width = None if terminal or "COLUMNS" in os.environ else _WIDTH_OF_A_FILE
    console = Console(file=page, force_terminal=terminal, width=width, markup=False, emoji=False, highlight=False)
    page_width = console.width
    for part in given:
        # On a narrower page, rich would leave out columns. The terminal breaks the lines.
        console.width = max(page_width, part.least_width) if isinstance(part, Grid) else page_width
        console.print(part, crop=False)  # a command line must be neither broken nor cut
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def say(text: str) -> None:
    """Print a result."""
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    sys.stdout.flush()


def note(*texts: str) -> None:
    """Print what a user should know beside the result, a line for each text; nothing with ``--quiet``."""
    for text in () if quiet.get() else texts:
        sys.stderr.write(f"note: {escape_text(text)}\n")


def complain(message: str, hint: str | None = None) -> None:
    """Print an error and its hint."""
    sys.stderr.write(f"error: {escaped_lines(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {escaped_lines(hint)}\n")


def write_error(text: str) -> None:
    """Print how a user's own script ended."""
    sys.stderr.write(f"{text}\n")
