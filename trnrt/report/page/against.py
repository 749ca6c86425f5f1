"""Another run in a kernel's report: its timeline under the kernel's own, and the differences as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trnrt.nki.profiling import Profile
from trnrt.report.comparing import Change
from trnrt.report.page.parts import table
from trnrt.report.page.texts import Texts
from trnrt.report.timeline import NO_STEP, step_finder
from trnrt.text import escape_text, name_text, time_text

if TYPE_CHECKING:
    from trnrt.report.against import Difference, LineChange, Run

_LINES_SHOWN = 60


def against_data(found: Difference, profile: Profile, texts: Texts) -> dict[str, Any]:
    """``against``: what the page draws of the other run, with this report's ``texts`` and steps."""
    before = found.before
    steps = _steps_of_lines(found, profile)
    numbers = [texts.number(text) for text in before.texts]
    return {
        "name": name_text(before.name),
        "file": name_text(PurePath(before.file).name),
        "benchmark": round(before.benchmark_us * 1e6),
        "cores": [_core(core, numbers, steps) for core in before.cores],
    }


def paths_before(found: Difference) -> dict[tuple[str, int], float]:
    """(file, line) of this run -> its microseconds on the other's critical path; lines that are new are left out."""
    return {
        (line.after.file, line.after.line): line.before.path_us
        for line in found.lines
        if line.before is not None and line.after is not None
    }


def _steps_of_lines(found: Difference, profile: Profile) -> dict[int, int]:
    """A line of the other kernel's function -> the step here that has the same line."""
    find, entries = step_finder(profile.steps), (_entry(found.before), _entry(found.after))
    return {
        line.before.line: find(line.after.line)
        for line in found.lines
        if line.before is not None and line.after is not None and (line.before.file, line.after.file) == entries
    }


def _entry(run: Run) -> str:
    """The file of a kernel's function: that of its first line."""
    return run.lines[0].file if run.lines else ""


def _core(core: Mapping[str, Any], numbers: list[int], steps: Mapping[int, int]) -> dict[str, Any]:
    instructions = core["instructions"]
    renamed = {key: [numbers[text] for text in instructions[key]] for key in ("operation", "name", "source")}
    operands = [[numbers[text] for text in found] for found in instructions["operands"]]
    step = [steps.get(line, NO_STEP) for line in instructions["line"]]
    return {**core, "instructions": {**instructions, **renamed, "operands": operands, "step": step}, "memories": []}


def against_section(found: Difference | None) -> str:
    """The section of the differences; "" without another run."""
    if found is None:
        return ""
    lines = [line for line in found.lines if line.change.difference]
    engines = table("Engines", ("Engine", "Before", "After", "Change"), _rows(found.engines), numeric=(1, 2, 3))
    heads = ("Line", "Code", "Before", "After", "Change")
    by_line = table("Lines", heads, map(_line_row, lines[:_LINES_SHOWN]), numeric=(2, 3, 4))
    rest = len(lines) - _LINES_SHOWN
    more = f"<p>And {rest:,} more that changed less.</p>" if rest > 0 else ""
    whole = found.benchmark
    percent = f" ({whole.percent:+.1f} %)" if whole.percent is not None else ""
    total = (
        f"{time_text(found.before.benchmark_us)} before, {time_text(found.after.benchmark_us)} after: "
        f"{_signed_text(whole.difference)}{percent}."
    )
    drawn = (
        "" if found.before.cores else " A JSON document has no timeline to draw: name the HTML report or the script."
    )
    same = "" if lines else "<p>No line's part of the critical path changed.</p>"
    return (
        '<section class="card" id="against" aria-labelledby="against-title">'
        f'<h2 id="against-title">Against {_text(name_text(PurePath(found.before.file).name))}</h2>'
        f"<p><strong>{_text(total)}</strong> Before is {_text(name_text(found.before.name))}.{drawn}</p>"
        '<div class="pair"><div><h3>On the critical path, by line</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Lines">{by_line if lines else same}</div>{more}'
        "</div><div><h3>Busy time, by engine</h3>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Engines">{engines}</div></div></div></section>'
    )


def _rows(changes: Iterable[Change]) -> list[list[str]]:
    return [[_text(change.name), *_times(change)] for change in changes]


def _line_row(line: LineChange) -> list[str]:
    known = line.after or line.before
    assert known is not None
    numbers = [None if one is None else one.line for one in (line.before, line.after)]
    moved = [str(number) for number in dict.fromkeys(numbers) if number is not None]
    name = f"{PurePath(known.file).name}:{' → '.join(moved)}"
    return [_text(name), f"<code>{_text(known.code)}</code>", *_times(line.change)]


def _times(change: Change) -> list[str]:
    before, after = ("-" if one is None else time_text(one) for one in (change.before_us, change.after_us))
    kind = "worse" if change.difference > 0 else "better" if change.difference < 0 else ""
    note = " new" if change.before_us is None else " gone" if change.after_us is None else ""
    return [_text(before), _text(after), f'<span class="{kind}">{_text(_signed_text(change.difference) + note)}</span>']


def _signed_text(us: float) -> str:
    return f"{'+' if us > 0 else '-' if us < 0 else ''}{time_text(abs(us))}"


def _text(text: str) -> str:
    return escape(escape_text(text))
