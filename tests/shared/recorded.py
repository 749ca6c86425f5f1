"""Predictions as golden files: a group (a network, or the labs) has lines, each with the range in microseconds.

``tests/golden/NAME.json`` is ``{group: {line: [lower end, headline, upper end]}}``. A line that is more than 2 % off in
any of the three is stale. One that got slower by that at both ends is recorded only with a reason: ``SLOWER="why"``
beside ``UPDATE_GOLDEN=1``. Reasons are kept in ``slower.json`` until the line gets faster again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnrt.nki.machine.timing import Range

GOLDEN = Path(__file__).parents[1] / "golden"
REASONS = "slower"
ACCEPTED = 0.02
"""The share by which a number may change unseen."""

Ends = Sequence[float]
Lines = Mapping[str, Ends]


def is_updating() -> bool:
    """True if the golden files are to be written."""
    return os.environ.get("UPDATE_GOLDEN") == "1"


def round_range(predicted: Range) -> list[float]:
    """The lower end, the headline and the upper end, microseconds."""
    return [round(us, 1) for us in (predicted.least_us, predicted.us, predicted.most_us)]


def is_slower(now: Ends, before: Ends) -> bool:
    """True if both ends are more than 2 % later."""
    return all(now[end] > before[end] * (1 + ACCEPTED) for end in (0, -1))


def compare_lines(found: Lines, golden: Lines) -> list[str]:
    """The differences between predictions and the recorded ones, in words."""
    told = [f"{name}: recorded, but no longer predicted" for name in sorted(golden.keys() - found.keys())]
    for name, now in found.items():
        before = golden.get(name)
        if before is None:
            told.append(f"{name}: {_ends_text(now)}, not recorded yet")
        elif is_slower(now, before):
            told.append(f"{name}: {_change(now, before)}: make it as fast again, or say why")
        elif any(abs(one / other - 1) > ACCEPTED for one, other in zip(now, before, strict=True)):
            told.append(f"{name}: {_change(now, before)}: record it, or it may be lost unseen")
    return told


def check_lines(file: str, group: str, found: Lines) -> None:
    """Compare the predictions of a group with ``tests/golden/FILE.json``; record them first if asked to.

    AssertionError for each line that differs, or that would be recorded slower without a reason.
    """
    if is_updating():
        _record(file, group, found, os.environ.get("SLOWER", ""))
    told = [f"{group}, {text}" for text in compare_lines(found, load_golden(file).get(group, {}))]
    update = "UPDATE_GOLDEN=1 pytest tests/benchmarks/test_golden_predictions.py"
    assert not told, "\n".join(
        [*told, f'{update} records the new numbers, with SLOWER="why" before it where both ends got slower']
    )


def load_golden(file: str) -> dict[str, Any]:
    """The document of ``tests/golden/FILE.json``; empty if there is none."""
    path = GOLDEN / f"{file}.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return document


def record_group(file: str, group: str, content: Mapping[str, Any]) -> None:
    """Write one group of ``tests/golden/FILE.json``; other processes may write other groups at the same time."""
    with _opened(file) as document:
        document[group] = dict(content)


def _record(file: str, group: str, found: Lines, why: str) -> None:
    before = load_golden(file).get(group, {})
    slower = {line for line, now in found.items() if line in before and is_slower(now, before[line])}
    kept = {line: before[line] if line in slower and not why else list(now) for line, now in found.items()}
    record_group(file, group, kept)
    with _opened(REASONS) as reasons:
        for line, now in found.items():
            name = f"{file}: {group}, {line}"
            if line in slower and why:
                reasons[name] = {"was": before[line], "now": list(now), "why": why}
            elif name in reasons and not is_slower(now, reasons[name]["was"]):
                del reasons[name]


@contextmanager
def _opened(file: str) -> Iterator[dict[str, Any]]:
    """A document of ``tests/golden``, written at the end in the order of its keys."""
    path = GOLDEN / f"{file}.json"
    path.touch()
    with path.open("r+", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        document: dict[str, Any] = json.loads(held.read() or "{}")
        yield document
        held.seek(0)
        held.truncate()
        held.write(_text(document))
        held.flush()


def _text(document: Mapping[str, Any]) -> str:
    """JSON with a line for each number list, so that a diff shows one line a prediction."""
    groups = []
    for group in sorted(document):
        lines = [f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in document[group].items()]
        inner = ",\n".join(lines)
        groups.append(f"  {json.dumps(group)}: {{\n{inner}\n  }}" if lines else f"  {json.dumps(group)}: {{}}")
    return "{\n" + ",\n".join(groups) + "\n}\n" if groups else "{}\n"


def _change(now: Ends, before: Ends) -> str:
    shares = " ".join(f"{one / other - 1:+.1%}" for one, other in zip(now, before, strict=True))
    return f"{shares}, from {_ends_text(before)} to {_ends_text(now)}"


def _ends_text(ends: Ends) -> str:
    least, us, most = ends
    return f"{us} ({least} to {most}) us"
