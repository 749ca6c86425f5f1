"""Two runs over each other: the difference by engine, and by line (of kernels) or by step (of models).

Lines of two versions of a file are matched by their code, as a diff does; steps by their ONNX nodes, else their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from trnrt.nki.lines import match_lines
from trnrt.nki.machine.timing import Range
from trnrt.report.comparing import Change
from trnrt.report.layout import Grid, Line, plain_table
from trnrt.report.profiles import CHANGES_SHOWN, change_rows
from trnrt.report.runs import SETTINGS, Run, RunLine, RunStep
from trnrt.text import count_text, escape_text, list_text, name_text, range_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.report.documents import Document

_LONGEST_CODE = 60
_STEPS_NAMED = 3
_HEADS = ("before us", "after us", "change")


@dataclass(frozen=True, slots=True)
class LineChange:
    """A line in two runs; None where it is not in one of them. Lines moved if only their numbers differ."""

    before: RunLine | None
    after: RunLine | None

    @property
    def change(self) -> Change:
        """Its part of the critical path before and after."""
        before, after = (None if one is None else one.path_us for one in (self.before, self.after))
        known = self.after or self.before
        assert known is not None
        code = known.code if len(known.code) <= _LONGEST_CODE else f"{known.code[: _LONGEST_CODE - 3]}..."
        return Change(f"{_place(known)} {code}".strip(), before, after)


@dataclass(frozen=True, slots=True)
class StepChange:
    """The steps of two runs that compute the same nodes: one in each, or several where they are fused otherwise."""

    before: tuple[RunStep, ...]
    after: tuple[RunStep, ...]

    @property
    def name(self) -> str:
        """Its name now, or else before."""
        return list_text([step.name for step in self.after or self.before], _STEPS_NAMED)

    @property
    def change(self) -> Change:
        """Their part of the critical path before and after."""
        before, after = (sum(step.time_us for step in steps) if steps else None for steps in (self.before, self.after))
        return Change(self.name, before, after)


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs, the busy time of their engines, their lines and their steps, the largest change first."""

    before: Run
    after: Run
    engines: tuple[Change, ...]
    lines: tuple[LineChange, ...]
    steps: tuple[StepChange, ...] = ()

    @property
    def benchmark(self) -> Change:
        """The benchmark's figures."""
        return Change("benchmark", self.before.benchmark_us, self.after.benchmark_us)

    @property
    def per_row(self) -> Change | None:
        """The benchmark's figures for a row of each batch; None if the batches are equal, or one is unknown."""
        before, after = self.before.rows, self.after.rows
        if before is None or after is None or before == after:
            return None
        return Change("benchmark, per row", self.before.benchmark_us / before, self.after.benchmark_us / after)

    @property
    def settings(self) -> list[tuple[str, str, str]]:
        """The settings that differ: each with its value before and after."""
        before, after = self.before.settings, self.after.settings
        values = [(key, before.get(key), after.get(key)) for key in SETTINGS if key in before and key in after]
        return [(key, _setting_text(old), _setting_text(new)) for key, old, new in values if old != new]

    @property
    def remarks(self) -> list[str]:
        """Warnings on the comparison: the settings that differ, and if no step could be matched."""
        told = [f"{key} {old} before, {new} now" for key, old, new in self.settings]
        remarks = [f"Not the same: {'; '.join(told)}."] if told else []
        if self.steps and not any(step.before and step.after for step in self.steps):
            remarks.append("No step has the nodes or the name of one before: compare the totals and the engines.")
        return remarks

    @property
    def document(self) -> Document:
        """The difference as JSON. A model's lines are generated: it has steps instead."""
        return {
            "name": self.after.name,
            "against": self.before.name,
            "file": self.before.file,
            "settings": [{"name": key, "before": old, "after": new} for key, old, new in self.settings],
            "before_us": self.before.benchmark_us,
            "before_range_us": self.before.ends and list(self.before.ends),
            "after_us": self.after.benchmark_us,
            "after_range_us": self.after.ends and list(self.after.ends),
            "engines": [asdict(change) for change in self.engines],
            "lines": [] if self.steps else [_line_document(line) for line in self.lines],
            "steps": [_step_document(step) for step in self.steps],
        }


def compare_runs(before: Run, after: Run) -> Difference:
    """The difference of two runs."""
    names = dict.fromkeys((*after.engines, *before.engines))
    engines = tuple(Change(name, before.engines.get(name), after.engines.get(name)) for name in names)
    lines = sorted(pair_lines(before.lines, after.lines), key=lambda line: -abs(line.change.difference))
    steps = sorted(pair_steps(before.steps, after.steps), key=lambda step: -abs(step.change.difference))
    return Difference(before, after, engines, tuple(lines), tuple(steps))


def pair_lines(before: Sequence[RunLine], after: Sequence[RunLine]) -> list[LineChange]:
    """The lines of two runs side by side: equal code in the same order, whatever its number.

    Lines changed in place, as many as before, are matched, too.
    """
    old, new = [[line.code or _place(line) for line in lines] for lines in (before, after)]
    pairs = match_lines(old, new)
    return [LineChange(None if i is None else before[i], None if j is None else after[j]) for i, j in pairs]


def pair_steps(before: Sequence[RunStep], after: Sequence[RunStep]) -> list[StepChange]:
    """The steps of two runs side by side, in the order of ``after``, then those that are gone.

    Steps that share an ONNX node form a group; groups with a step in common are one. A step whose nodes the other run
    doesn't have is matched by its name.
    """
    common = {node for step in before for node in step.nodes} & {node for step in after for node in step.nodes}
    parents: dict[str, str] = {}

    def find_root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    def list_keys(step: RunStep) -> list[str]:
        return [f"node {node}" for node in step.nodes if node in common] or [f"step {step.name}"]

    for step in (*before, *after):
        first, *rest = list_keys(step)
        for key in rest:
            parents[find_root(key)] = find_root(first)
    groups: dict[str, tuple[list[RunStep], list[RunStep]]] = {}
    for side, steps in ((1, after), (0, before)):
        for step in steps:
            groups.setdefault(find_root(list_keys(step)[0]), ([], []))[side].append(step)
    return [StepChange(tuple(old), tuple(new)) for old, new in groups.values()]


def pair_runs(before: Sequence[Run], after: Sequence[Run]) -> list[Difference] | None:
    """Each run with the one of the same name before; if names differ, in their order. None if they can't be paired."""
    names = [[run.name for run in runs] for runs in (before, after)]
    if Counter(names[0]) == Counter(names[1]) and len(set(names[0])) == len(names[0]):
        known = {run.name: run for run in before}
        return [compare_runs(known[run.name], run) for run in after]
    return [compare_runs(*pair) for pair in zip(before, after, strict=True)] if len(before) == len(after) else None


def difference_parts(differences: Iterable[Difference]) -> list[RenderableType]:
    """The differences as text: the totals, the engines, and the lines or steps that changed most."""
    parts: list[RenderableType] = []
    for found in differences:
        engines = [change for change in found.engines if change.before_us or change.after_us]
        parts += [
            Line(f"{name_text(found.after.name)} against {name_text(found.before.file)}", "bold"),
            *(Line(text, "bold yellow") for text in found.remarks),
            _totals_table(found),
            "",
            _changes_table("engine, busy", engines),
            "",
            *_rows_parts(found),
            "",
        ]
    return parts[:-1]


def total_text(run: Run) -> str:
    """The benchmark's figure with its range, if that is known."""
    if run.ends is None:
        return f"{run.benchmark_us:,.2f} us"
    return range_text(Range(run.ends[0], run.benchmark_us, run.ends[1]))


def _totals_table(found: Difference) -> Grid:
    per_row = found.per_row
    ((name, *_, change), *rest) = change_rows([found.benchmark, *([] if per_row is None else [per_row])])
    first = (name, total_text(found.before), total_text(found.after), change)
    return plain_table(("", "before", "after", "change"), [first, *rest], right=(1, 2, 3), whole=(1, 2, 3))


def _rows_parts(found: Difference) -> list[RenderableType]:
    """The table of the lines or steps that changed most, and how many more did."""
    noun, rows = ("step", found.steps) if found.steps else ("line", found.lines)
    changes = [row.change for row in rows if row.change.difference]
    rest = len(changes) - CHANGES_SHOWN
    if not changes:
        return [Line(f"No {noun}'s part of the critical path changed.")]
    table = _changes_table(f"{noun}, on the path", changes[:CHANGES_SHOWN])
    return [table, *([Line(f"and {count_text(rest, f'more {noun}')} that changed less")] if rest > 0 else [])]


def _changes_table(name: str, changes: Iterable[Change]) -> Grid:
    return plain_table((name, *_HEADS), change_rows(changes), right=(1, 2, 3), whole=(1, 2, 3))


def _setting_text(value: str | int | None) -> str:
    return "none" if value is None else name_text(str(value))


def _place(line: RunLine) -> str:
    return f"{escape_text(PurePath(line.file).name)}:{line.line}"


def _step_document(step: StepChange) -> Document:
    return {
        "name": step.name,
        "before": [one.name for one in step.before],
        "after": [one.name for one in step.after],
        "before_us": step.change.before_us,
        "after_us": step.change.after_us,
    }


def _line_document(line: LineChange) -> Document:
    known = line.after or line.before
    assert known is not None
    return {
        "file": known.file,
        "code": known.code,
        "before_line": None if line.before is None else line.before.line,
        "after_line": None if line.after is None else line.after.line,
        "before_us": line.change.before_us,
        "after_us": line.change.after_us,
    }
