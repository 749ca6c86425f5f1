"""How the verdicts of a benchmark's bars are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.bench.comparing import worst
from trnrt.report.text import counted

if TYPE_CHECKING:
    from trnrt.bench.comparing import Verdict

_STYLES = {"pass": "green", "missed": "bold red", "depends on model": "yellow"}


def verdict_text(verdict: Verdict | None) -> Text:
    """The verdict as a cell of a table."""
    if verdict is None:
        return Text("-")
    return Text("MISS" if verdict == "missed" else verdict, _STYLES[verdict])


def passed(verdict: Verdict | None) -> bool | None:
    """Whether all bars are reached; None where there is none, or where that depends on the timing model."""
    return {"pass": True, "missed": False}.get(verdict or "")


def all_passed(verdicts: Sequence[Verdict | None]) -> bool | None:
    """Whether no row misses a bar; None where none does, but some depend on the timing model."""
    return passed(worst(one for one in verdicts if one is not None) or "pass")


def bars_text(verdicts: Sequence[Verdict | None], what: str) -> str:
    """How many rows are held to a bar, and how many of them miss it."""
    held = [one for one in verdicts if one is not None]
    missed, open_ = held.count("missed"), held.count("depends on model")
    if not missed and not open_:
        return f"{counted(len(held), what)} with a bar, all reached"
    return f"{counted(len(held), what)} with a bar, {missed} missed, {open_} that depend on the timing model"
