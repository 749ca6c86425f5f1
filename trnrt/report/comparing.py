"""Comparing predictions with a baseline file.

``--json-out`` writes a baseline. A prediction is a pure function of program and target. Any difference comes from the
program, or from another version of the timing model, so documents name their version.
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
from trnrt.text import list_text, name_text, quote, reason_text

LARGEST_BASELINE = 256 * 2**20
"""Bytes; a report of 100,000 steps has a tenth of them."""

_LINE = re.compile(r"^line \d+: ")
_DOCUMENTS = {"model": "trnrt profile", "calls": "trnrt nki profile"}


@dataclass(frozen=True)
class Change:
    """A time before and after, in microseconds; None if the step is new or gone."""

    name: str
    before_us: float | None
    after_us: float | None

    @property
    def difference(self) -> float:
        """The increase in microseconds."""
        return (self.after_us or 0.0) - (self.before_us or 0.0)

    @property
    def percent(self) -> float | None:
        """The increase in percent; None if there was no time before."""
        return 100 * self.difference / self.before_us if self.before_us and self.after_us is not None else None


@dataclass(frozen=True)
class Comparison:
    """A prediction before and after; ``steps`` are the changed ones, the largest change first.

    ``name`` is the model's, or the call's. ``limit`` is the accepted slowdown in percent.
    """

    name: str
    benchmark: Change
    profiler: Change
    steps: tuple[Change, ...]
    limit: float

    @property
    def regressed(self) -> bool:
        """The benchmark's figure grew by more than the limit."""
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
    """A file of ``--json-out``, and the accepted slowdown in percent."""

    path: Path
    document: Document
    limit: float

    @property
    def version(self) -> str:
        """The version of trnrt that wrote it."""
        return str(self.document.get("trnrt_version"))

    def comparison_document(self, comparisons: Sequence[Comparison]) -> Document:
        """The comparisons as JSON."""
        return {
            "baseline": str(self.path),
            "baseline_version": self.version,
            "max_regress_percent": self.limit,
            "regressed": any(comparison.regressed for comparison in comparisons),
            "changes": [comparison.document for comparison in comparisons],
        }

    def check_same(self, **now: Any) -> None:
        """OptionError unless the baseline's keys have the values in ``now``."""
        before = {key: self.document.get(key) for key in now}
        different = [key for key, value in now.items() if before[key] != value]
        if different:
            known, wanted = _settings_text(before, different), _settings_text(now, different)
            raise OptionError(
                f"{quote(str(self.path))} is a baseline for {known}; this is {wanted}",
                hint="profile the same again, or write a new baseline: replace --baseline with --json-out FILE",
            )

    def compare(self, document: Document) -> list[Comparison]:
        """Compare the prediction in ``document``, or each of its calls, with the baseline's.

        Raises:
            OptionError: if the two do not have the same calls.
        """
        if "calls" not in document:
            return [_compare_documents(str(document["model"]), self.document, document, self.limit)]
        before, after = _calls(self.document), _calls(document)
        if before.keys() != after.keys():
            raise OptionError(
                f"{quote(str(self.path))} is a baseline for the calls {_names(before)}; these are {_names(after)}",
                hint="give the same calls with --call, or write a new baseline with --json-out FILE",
            )
        return [_compare_documents(name, before[name], call, self.limit) for name, call in after.items()]


def read_baseline(path: Path, limit: float, kind: str) -> Baseline:
    """Read a baseline file; see ``read_document``."""
    return Baseline(path, read_document(path, kind), limit)


def read_document(path: Path, kind: str, noun: str = "baseline") -> Document:
    """The document in a ``--json-out`` file; ``kind`` is the key that it must have: "model" or "calls".

    Raises:
        OptionError: if the file can't be read, or another verb wrote it. ``noun`` is what it calls the file.
    """
    document = _read(path, noun)
    version = document.get("schema_version")
    if version is None or not any(key in document for key in _DOCUMENTS):
        raise _no_report(path, kind, "it has other keys", noun)
    if version != SCHEMA_VERSION:
        raise OptionError(
            f"{quote(str(path))} has schema_version {name_text(str(version))}; this trnrt reads {SCHEMA_VERSION}",
            hint=f"write a new {noun} with --json-out FILE, and this version",
        )
    if kind not in document:
        other = next(name for key, name in _DOCUMENTS.items() if key in document)
        raise _no_report(path, kind, f"it is one of `{other}`", noun)
    for entry in document["calls"] if kind == "calls" and isinstance(document["calls"], list) else [document]:
        wrong = _wrong(entry)
        if wrong:
            raise _no_report(path, kind, wrong, noun)
    return document


def _read(path: Path, noun: str) -> Document:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BASELINE + 1)
        if len(content) > LARGEST_BASELINE:
            raise ValueError("it is too large")
        document = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(
            f"can't read the {noun} {quote(str(path))}: {reason_text(error)}",
            hint=f"--json-out FILE writes a {noun}",
        ) from None
    return document if isinstance(document, dict) else {}


def _no_report(path: Path, kind: str, why: str, noun: str) -> OptionError:
    return OptionError(
        f"{quote(str(path))} is no report of `{_DOCUMENTS[kind]}`: {why}",
        hint=f"--json-out FILE of the same command writes a {noun}",
    )


def _wrong(entry: Any) -> str | None:
    """The problem with a prediction in a document; None if there is none."""
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
    return list_text(map(name_text, calls), 4) or "none"


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
    """Time by step; a line that only moved is the same step, and equal lines are added."""
    times: dict[str, float] = {}
    for step in document["steps"]:
        name = _LINE.sub("", step["name"]) or step["name"]
        times[name] = times.get(name, 0.0) + float(step["time_us"])
    return times
