"""Two runs of a kernel over each other: the difference by engine and by line.

A run comes from a profile, from a call of a ``--json-out`` document, or from an HTML report; the last has a timeline.
Lines of two versions of a file are matched by their code, as a diff does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trnrt.errors import OptionError
from trnrt.nki.lines import match_lines
from trnrt.report.comparing import Change, call_name
from trnrt.report.layout import Line, plain_table
from trnrt.report.profiles import CHANGES_SHOWN, change_rows
from trnrt.text import count_text, escape_text, name_text, quote

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.report.documents import Document

Columns = dict[str, Any]

_LONGEST_CODE = 60


@dataclass(frozen=True, slots=True)
class RunLine:
    """A line's part of the critical path, in microseconds; ``code``: the line, stripped."""

    file: str
    line: int
    code: str
    path_us: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a kernel. ``name``: the call; ``file``: where it comes from. ``cores``: what a page draws of its
    timelines, one a core, with their ``texts`` (see ``page.columns``); none if only its numbers are known."""

    name: str
    file: str
    benchmark_us: float
    engines: Mapping[str, float]
    lines: tuple[RunLine, ...]
    cores: tuple[Columns, ...] = ()
    texts: tuple[str, ...] = ()


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
class Difference:
    """Two runs, the busy time of their engines, and their lines, the largest change first."""

    before: Run
    after: Run
    engines: tuple[Change, ...]
    lines: tuple[LineChange, ...]

    @property
    def benchmark(self) -> Change:
        """The benchmark's figures."""
        return Change("benchmark", self.before.benchmark_us, self.after.benchmark_us)

    @property
    def document(self) -> Document:
        """The difference as JSON."""
        return {
            "name": self.after.name,
            "against": self.before.name,
            "file": self.before.file,
            "before_us": self.before.benchmark_us,
            "after_us": self.after.benchmark_us,
            "engines": [asdict(change) for change in self.engines],
            "lines": [_line_document(line) for line in self.lines],
        }


def run_of(name: str, file: str, document: Document, page: Columns | None = None) -> Run:
    """The run of a call's document (see ``call_document``); ``page``: the data of its report, for its timelines."""
    lines = tuple(
        RunLine(str(use["file"]), int(use["line"]), str(use["code"]), float(use["path_us"]))
        for use in document.get("lines", ())
    )
    engines = {str(name): float(use["busy_us"]) for name, use in document["engines"].items()}
    drawn = {} if page is None else {"cores": tuple(page["cores"]), "texts": tuple(page["texts"])}
    return Run(name, file, float(document["predicted_us"]["benchmark"]), engines, lines, **drawn)


def compare_runs(before: Run, after: Run) -> Difference:
    """The difference of two runs."""
    names = dict.fromkeys((*after.engines, *before.engines))
    engines = tuple(Change(name, before.engines.get(name), after.engines.get(name)) for name in names)
    lines = sorted(pair_lines(before.lines, after.lines), key=lambda line: -abs(line.change.difference))
    return Difference(before, after, engines, tuple(lines))


def pair_lines(before: Sequence[RunLine], after: Sequence[RunLine]) -> list[LineChange]:
    """The lines of two runs side by side: equal code in the same order, whatever its number.

    Lines changed in place, as many as before, are matched, too.
    """
    old, new = [[line.code or _place(line) for line in lines] for lines in (before, after)]
    pairs = match_lines(old, new)
    return [LineChange(None if i is None else before[i], None if j is None else after[j]) for i, j in pairs]


def pair_runs(before: Sequence[Run], after: Sequence[Run]) -> list[Difference] | None:
    """Each run with the one of the same call before; if calls differ, in their order. None if they can't be paired."""
    names = [[run.name for run in runs] for runs in (before, after)]
    if Counter(names[0]) == Counter(names[1]) and len(set(names[0])) == len(names[0]):
        known = {run.name: run for run in before}
        return [compare_runs(known[run.name], run) for run in after]
    return [compare_runs(*pair) for pair in zip(before, after, strict=True)] if len(before) == len(after) else None


def runs_of_document(file: str, document: Document) -> list[Run]:
    """The runs of a ``--json-out`` document of ``nki profile``: numbers without timelines.

    Raises:
        OptionError: if a call has no such numbers.
    """
    try:
        return [run_of(call_name(call), file, call) for call in document["calls"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise OptionError(
            f"{quote(file)} has no engines and lines with their times", hint="write it again with --json-out FILE"
        ) from None


def difference_parts(differences: Iterable[Difference]) -> list[RenderableType]:
    """The differences as text: the totals, the engines, and the lines that changed most."""
    parts: list[RenderableType] = []
    for found in differences:
        lines = [line.change for line in found.lines if line.change.difference]
        rest = len(lines) - CHANGES_SHOWN
        engines = [change for change in found.engines if change.before_us or change.after_us]
        heads = ("", "before us", "after us", "change")
        parts += [
            Line(f"{name_text(found.after.name)} against {name_text(found.before.file)}", "bold"),
            plain_table(heads, change_rows([found.benchmark]), right=(1, 2, 3), whole=(1, 2, 3)),
            "",
            plain_table(("engine, busy", *heads[1:]), change_rows(engines), right=(1, 2, 3), whole=(1, 2, 3)),
            "",
        ]
        if lines:
            heads = ("line, on the path", *heads[1:])
            parts.append(plain_table(heads, change_rows(lines[:CHANGES_SHOWN]), right=(1, 2, 3), whole=(1, 2, 3)))
        parts += [Line(f"and {count_text(rest, 'more line')} that changed less")] if rest > 0 else []
        parts.append("")
    return parts[:-1]


def _place(line: RunLine) -> str:
    return f"{escape_text(PurePath(line.file).name)}:{line.line}"


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
