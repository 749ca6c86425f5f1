"""Another run in a report: its timeline under the report's own, its fusion graph, and the differences as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trnrt.nki.profiling import Profile
from trnrt.report.against import total_text
from trnrt.report.comparing import Change
from trnrt.report.page.parts import table
from trnrt.report.page.texts import Texts
from trnrt.report.timeline import NO_STEP, step_finder
from trnrt.text import escape_text, name_text, time_text

if TYPE_CHECKING:
    from trnrt.report.against import Difference, LineChange, StepChange
    from trnrt.report.runs import Run, RunStep

_ROWS_SHOWN = 60
# As the page's CHANGE_NAMES.
_LONGER, _SHORTER, _SAME, _NEW = range(4)


def against_data(found: Difference, profile: Profile, texts: Texts) -> dict[str, Any]:
    """``against``: what the page draws of the other run, with this report's ``texts`` and steps.

    ``changes``: by step of this report, the kind of its change; null for a kernel, whose lines tell it. ``steps``: the
    other run's, each with its time, and in ``now`` the number of the step here, or NO_STEP. Both have in ``other`` the
    time in the other run of all steps with the same nodes, null if there are none; ``shared`` if not this step's alone.
    """
    before = found.before
    steps, steps_before = _steps_of_lines(found, profile), _steps_before(found)
    now = [step["now"] for step in steps_before] if before.steps else None
    numbers = [texts.number(text) for text in before.texts]
    return {
        "name": name_text(before.name),
        "file": name_text(PurePath(before.file).name),
        "benchmark": round(before.benchmark_us * 1e6),
        "cores": [_core(core, numbers, now, steps) for core in before.cores],
        "lines": bool(before.lines),
        "changes": _step_changes(found) if found.steps else None,
        "steps": steps_before,
        "graph": before.graph,
    }


def _step_changes(found: Difference) -> list[dict[str, Any]]:
    """The change of each step of this report."""
    changes: dict[int, dict[str, Any]] = {}
    for row in found.steps:
        by = row.change.difference
        kind = _NEW if not row.before else _LONGER if by > 0 else _SHORTER if by < 0 else _SAME
        told = {"kind": kind} | _describe_other(row.change.before_us, row.after)
        changes |= {step.number: told for step in row.after}
    return [changes[number] for number in range(len(changes))]


def _steps_before(found: Difference) -> list[dict[str, Any]]:
    """The steps of the other run, in their order."""
    steps: dict[int, dict[str, Any]] = {}
    for row in found.steps:
        told = {"now": row.after[0].number if row.after else NO_STEP} | _describe_other(row.change.after_us, row.before)
        steps |= {step.number: {"name": step.name, "time": step.time_us} | told for step in row.before}
    return [steps[number] for number in range(len(steps))]


def _describe_other(us: float | None, steps: Sequence[RunStep]) -> dict[str, Any]:
    return {"other": us, "shared": len(steps) > 1}


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


def _core(
    core: Mapping[str, Any], numbers: list[int], now: Sequence[int] | None, steps: Mapping[int, int]
) -> dict[str, Any]:
    """A core of the other run. ``now``: its steps -> those here; None for a kernel, whose lines ``steps`` has."""
    instructions = core["instructions"]
    renamed = {key: [numbers[text] for text in instructions[key]] for key in ("operation", "name", "source")}
    operands = [[numbers[text] for text in found] for found in instructions["operands"]]
    if now is None:
        step = [steps.get(line, NO_STEP) for line in instructions["line"]]
    else:
        step = [NO_STEP if number == NO_STEP else now[number] for number in instructions["step"]]
    return {**core, "instructions": {**instructions, **renamed, "operands": operands, "step": step}, "memories": []}


def against_section(found: Difference | None) -> str:
    """The section of the differences; "" without another run."""
    if found is None:
        return ""
    noun, by_row = ("step", _steps_table(found)) if found.steps else ("line", _lines_table(found))
    engines = table("Engines", ("Engine", "Before", "After", "Change"), _rows(found.engines), numeric=(1, 2, 3))
    whole = found.benchmark
    percent = f" ({whole.percent:+.1f} %)" if whole.percent is not None else ""
    change = f"{_signed_text(whole.difference)}{percent}"
    total = f"{total_text(found.before)} before, {total_text(found.after)} after: {change}."
    remarks = "".join(f'<p class="mark warning">{_text(remark)}</p>' for remark in found.remarks)
    return (
        '<section class="card" id="against" aria-labelledby="against-title">'
        f'<h2 id="against-title">Against {_text(name_text(PurePath(found.before.file).name))}</h2>'
        f"<p><strong>{_text(total)}</strong>{_per_row_text(found)} Before is {_text(name_text(found.before.name))}."
        f"{_undrawn_text(found)}</p>{remarks}"
        f'<div class="pair"><div><h3>On the critical path, by {noun}</h3>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{noun.title()}s">{by_row}</div>'
        "</div><div><h3>Busy time, by engine</h3>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="Engines">{engines}</div></div></div></section>'
    )


def _per_row_text(found: Difference) -> str:
    change = found.per_row
    if change is None or change.before_us is None or change.after_us is None:
        return ""
    return f" Per row: {_text(time_text(change.before_us))} before, {_text(time_text(change.after_us))} after."


def _undrawn_text(found: Difference) -> str:
    """The reason that the other run has no timeline; "" if it has one."""
    if found.before.cores:
        return ""
    source = "ONNX file" if found.steps else "script"
    return f" A JSON document has no timeline to draw: name the HTML report or the {source}."


def _lines_table(found: Difference) -> str:
    heads = ("Line", "Code", "Before", "After", "Change")
    rows = [_line_row(line) for line in found.lines if line.change.difference]
    return _rows_table("line", heads, rows, (2, 3, 4))


def _steps_table(found: Difference) -> str:
    heads = ("Step", "Before", "After", "Change")
    rows = [[_step_cell(step), *_times(step.change)] for step in found.steps if step.change.difference]
    return _rows_table("step", heads, rows, (1, 2, 3))


def _rows_table(noun: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> str:
    """The rows that changed most, and how many more did."""
    if not rows:
        return f"<p>No {noun}'s part of the critical path changed.</p>"
    rest = len(rows) - _ROWS_SHOWN
    more = f"<p>And {rest:,} more that changed less.</p>" if rest > 0 else ""
    return table(f"{noun.title()}s", heads, rows[:_ROWS_SHOWN], numeric=numeric) + more


def _step_cell(step: StepChange) -> str:
    """The step's name; below it the names before, if the nodes are fused otherwise."""
    if not step.after:
        return _text(step.name)
    name = ", ".join(
        f'<button type="button" class="link" data-step="{one.number}">{_text(one.name)}</button>' for one in step.after
    )
    others = [one.name for one in step.before]
    same = not others or len(others) == len(step.after) == 1
    return (
        f'<span class="step"><i class="swatch" data-swatch="{step.after[0].number}"></i><span>{name}'
        + ("" if same else f"<small>before: {_text(', '.join(others))}</small>")
        + "</span></span>"
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
