"""Show the verdicts of a benchmark's bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.nki.machine.targets import get_target
from trnrt.text import count_text

if TYPE_CHECKING:
    from benchmarks.comparing import Verdict

_STYLES = {"pass": "green", "missed": "bold red"}


def verdict_text(verdict: Verdict | None) -> Text:
    """The verdict as a cell of a table."""
    if verdict is None:
        return Text("-")
    return Text("MISS" if verdict == "missed" else verdict, _STYLES[verdict])


def passed(verdict: Verdict | None) -> bool | None:
    """True if all bars are met; None without bars."""
    return None if verdict is None else verdict == "pass"


def all_passed(verdicts: Sequence[Verdict | None]) -> bool:
    """True if every row meets its bars."""
    return "missed" not in verdicts


def target_notes(targets: Iterable[str]) -> list[str]:
    """The notes for readers of predictions, of those targets that have one, each once."""
    notes = (get_target(target).note for target in dict.fromkeys(targets))
    return [found for found in notes if found]


def bars_text(verdicts: Sequence[Verdict | None], what: str) -> str:
    """The number of rows with a bar, and of those that miss it."""
    held = [one for one in verdicts if one is not None]
    missed = held.count("missed")
    return f"{count_text(len(held), what)} with a bar, {f'{missed} missed' if missed else 'all reached'}"
