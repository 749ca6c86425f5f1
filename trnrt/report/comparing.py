"""Predictions before and after: a baseline file, whether it is of the same thing, and what changed.

A baseline is what ``--json-out`` wrote. A prediction is a pure function of program and target, so that any difference
comes from the program (or from another version of the model of the machine, which is why a document says its version).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trnrt.errors import OptionError
from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.text import escape_text, list_text, name_text, quote

LARGEST_BASELINE = 256 * 2**20
"""Bytes; a report of 100,000 steps has a tenth of that."""

_LINE = re.compile(r"^line \d+: ")
_DOCUMENTS = {"model": "trnrt profile", "calls": "trnrt nki profile"}


@dataclass(frozen=True)
class Change:
    """A time before and after, in microseconds; None where there was no such step, or is none any more."""

    name: str
    before_us: float | None
    after_us: float | None

    @property
    def difference(self) -> float:
        """Microseconds that it costs more than before."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def percent(self) -> float | None:
        """The difference over what it was before; None where it was nothing."""
        return 100 * self.difference / self.before_us if self.before_us and self.after_us is not None else None


@dataclass(frozen=True)
class Comparison:
    """A prediction before and after; ``steps`` are those whose time changed, the largest change first.

    ``name`` is the model's, or the call's. ``limit`` is how much slower is accepted, in percent.
    """

    name: str
    benchmark: Change
    profiler: Change
    steps: tuple[Change, ...]
    limit: float

    @property
    def regressed(self) -> bool:
        """Whether the benchmark's figure grew by more than the limit."""
        return self.benchmark.difference > (self.benchmark.before_us or 0.0) * self.limit / 100

    @property
    def document(self) -> Document:
        """The comparison as JSON."""
        return {
            "name": self.name,
            "regressed": self.regressed,
            "change_percent": self.benchmark.percent,
            "before_us": {"benchmark": self.benchmark.before_us, "profiler": self.profiler.before_us},
            "steps": [asdict(step) for step in self.steps],
        }


@dataclass(frozen=True)
class Baseline:
    """A file that ``--json-out`` wrote, and how much slower than that is accepted, in percent."""

    path: Path
    document: Document
    limit: float

    @property
    def version(self) -> str:
        """The version of trnrt that made it."""
        return str(self.document.get("trnrt_version"))

    def told(self, comparisons: Sequence[Comparison]) -> Document:
        """What came of the comparison, as JSON."""
        return {
            "baseline": str(self.path),
            "baseline_version": self.version,
            "max_regress_percent": self.limit,
            "regressed": any(comparison.regressed for comparison in comparisons),
            "changes": [comparison.document for comparison in comparisons],
        }

    def check_same(self, **now: Any) -> None:
        """OptionError if the baseline is of something else; ``now`` are the keys that must have these values."""
        before = {key: self.document.get(key) for key in now}
        different = [key for key, value in now.items() if before[key] != value]
        if different:
            known, wanted = _settings_text(before, different), _settings_text(now, different)
            raise OptionError(
                f"{quote(str(self.path))} is a baseline of {known}; this is {wanted}",
                hint="profile the same again, or write a new baseline: leave --baseline out, and add --json-out FILE",
            )

    def compare(self, document: Document) -> list[Comparison]:
        """The prediction of ``document`` against that of the baseline; of each call where it has calls.

        Raises:
            OptionError: if the two do not have the same calls.
        """
        if "calls" not in document:
            return [_compare_documents(str(document["model"]), self.document, document, self.limit)]
        before, after = _calls(self.document), _calls(document)
        if before.keys() != after.keys():
            raise OptionError(
                f"{quote(str(self.path))} is a baseline of the calls {_names(before)}; these are {_names(after)}",
                hint="name the same calls with --call, or write a new baseline with --json-out FILE",
            )
        return [_compare_documents(name, before[name], call, self.limit) for name, call in after.items()]


def read_baseline(path: Path, limit: float, kind: str) -> Baseline:
    """The baseline in a file; ``kind`` is the key that its document must have: "model" or "calls".

    Raises:
        OptionError: if the file can't be read, or is not what ``--json-out`` of this verb wrote.
    """
    document = _read(path)
    version = document.get("schema_version")
    if version is None or not any(key in document for key in _DOCUMENTS):
        raise _no_report(path, kind, "it has other keys")
    if version != SCHEMA_VERSION:
        raise OptionError(
            f"{quote(str(path))} has schema_version {name_text(str(version))}; this trnrt reads {SCHEMA_VERSION}",
            hint="write a new baseline with --json-out FILE, and this version",
        )
    if kind not in document:
        other = next(name for key, name in _DOCUMENTS.items() if key in document)
        raise _no_report(path, kind, f"it is one of `{other}`")
    for entry in document["calls"] if kind == "calls" and isinstance(document["calls"], list) else [document]:
        wrong = _wrong(entry)
        if wrong:
            raise _no_report(path, kind, wrong)
    return Baseline(path, document, limit)


def _read(path: Path) -> Document:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BASELINE + 1)
        if len(content) > LARGEST_BASELINE:
            raise ValueError("it is too large")
        document = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            f"can't read the baseline {quote(str(path))}: {escape_text(reason)}",
            hint="a baseline is what --json-out FILE writes",
        ) from None
    return document if isinstance(document, dict) else {}


def _no_report(path: Path, kind: str, why: str) -> OptionError:
    return OptionError(
        f"{quote(str(path))} is no report of `{_DOCUMENTS[kind]}`: {why}",
        hint="a baseline is what --json-out FILE of the same command writes",
    )


def _wrong(entry: Any) -> str | None:
    """What is wrong with a prediction in a document, if something is."""
    if not isinstance(entry, dict):
        return "a call in it is not an object"
    predicted = entry.get("predicted_us")
    if not isinstance(predicted, dict) or not all(_is_time(predicted.get(key)) for key in ("benchmark", "profiler")):
        return "predicted_us is not {benchmark, profiler}, two times"
    steps = entry.get("steps")
    named = isinstance(steps, list) and all(isinstance(s, dict) and isinstance(s.get("name"), str) for s in steps)
    if not named or not all(_is_time(step.get("time_us"), least=-math.inf) for step in entry["steps"]):
        return "steps is not a list of {name, time_us, ...}"
    if "calls" not in entry and "arguments" in entry and not isinstance(entry.get("kernel"), str):
        return "a call in it has no kernel"
    return None


def _is_time(value: Any, least: float = 0.0) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > least


def _settings_text(values: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key} {quote(str(values[key]))}" for key in keys)


def _calls(document: Document) -> dict[str, Document]:
    return {call_name(call): call for call in document["calls"]}


def call_name(call: Document) -> str:
    """A call of a document as text."""
    return f"{call.get('kernel')}({call.get('arguments')})"


def _names(calls: Mapping[str, Document]) -> str:
    return list_text([name_text(name) for name in calls], 4) or "of no kernel"


def _compare_documents(name: str, before: Document, after: Document, limit: float) -> Comparison:
    benchmark, profiler = (
        Change(key, float(before["predicted_us"][key]), float(after["predicted_us"][key]))
        for key in ("benchmark", "profiler")
    )
    old, new = _step_times(before), _step_times(after)
    steps = [Change(step, old.get(step), new.get(step)) for step in {**new, **old}]
    changed = sorted((s for s in steps if s.difference), key=lambda step: -abs(step.difference))
    return Comparison(name, benchmark, profiler, tuple(changed), limit)


def _step_times(document: Document) -> dict[str, float]:
    """Time by step; a line of a kernel that only moved is the same step, and equal lines are one."""
    times: dict[str, float] = {}
    for step in document["steps"]:
        name = _LINE.sub("", step["name"]) or step["name"]
        times[name] = times.get(name, 0.0) + float(step["time_us"])
    return times
