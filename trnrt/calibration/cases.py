"""The predictions for published whole-kernel measurements: a kernel, its arguments, and the figure to compare.

A benchmark's latency is compared with ``benchmark_us``, a profiler's total with ``profiler_us``. For exp-4x4096 the
durations of the parts were published; their sum is compared with the sum of the same parts, which do not overlap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from math import log
from typing import Any, Literal

from trnrt.nki import nisa, trace
from trnrt.nki.machine.memory import allocate
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import (
    PS_PER_US,
    WIDEST,
    Range,
    Timeline,
    benchmark_us,
    predict,
    profiler_us,
    schedule_freely,
)

Clock = Literal["benchmark", "profiler", "parts"]
Length = tuple[int, ...]
Document = dict[str, Any]

MODES = {
    "hardware": nisa.dge_mode.hwdge,
    "static": nisa.dge_mode.none,
    "software": nisa.dge_mode.swdge,
}
"""A measurement's name for the source of descriptors -> the kernel's argument."""


@cache
def published_facts() -> Document:
    """The published facts behind the model: ``parameters``, ``instructions``, ``measurements``."""
    text = (files(__package__) / "measurements.json").read_text(encoding="utf-8")
    document: Document = json.loads(text)
    return document


@cache
def measurements() -> Mapping[str, Document]:
    """The published whole-kernel measurements by their id."""
    return {entry["id"]: entry for entry in published_facts()["measurements"]}


@dataclass(frozen=True)
class Case:
    """The prediction of a published measurement.

    ``arguments`` returns the kernel's arguments for a number of repeated units (elements, tiles, blocks ...); the
    published kernel has ``length`` of them. ``short``: shorter kernels and the weights of their times, whose sum is the
    time of a long kernel: after the first few units each takes as long as the one before. ``mode_argument``: the
    kernel's argument for the published mode of descriptors.
    """

    id: str
    kernel: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]]
    length: Length
    short: Mapping[Length, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    mode_argument: str = "dge_mode"

    @property
    def facts(self) -> Document:
        """The published facts: author, mode, clock, source ..."""
        return measurements()[self.id]

    @property
    def target(self) -> str:
        return str(self.facts["target"])

    @property
    def clock(self) -> Clock:
        """The kind of figure: a profiler's total, a benchmark's latency, or the parts of a profile."""
        clock: Clock = self.facts["clock"]
        return clock

    @property
    def author(self) -> str:
        return str(self.facts["author"])

    @property
    def values_us(self) -> tuple[float, ...]:
        """The published figures, ascending: one, or those of several authors or runs."""
        value = self.facts["value"]
        given = value if isinstance(value, list) else [value]
        return tuple(sorted(float(v) / (1000 if self.facts["unit"] == "ns" else 1) for v in given))

    def nearest_us(self, predicted_us: float) -> float:
        """The published figure that a prediction is nearest to."""
        return min(self.values_us, key=lambda value: abs(log(predicted_us / value)))

    def trace(self, length: Length, places: int | None = None) -> Program:
        """The program for numbers of units, with the published mode of descriptors.

        ``places``: other than the target's.
        """
        options = {**self.options, self.mode_argument: MODES[self.facts["mode"]]}
        traced = trace(self.kernel, *self.arguments(*length), target=self.target, **options)
        if places is not None and places != traced.target.timing.places:
            traced = _retarget(traced, replace(traced.target.timing, places=places))
            allocate(traced)
        return traced


@cache
def _program(case_id: str, length: Length, places: int) -> Program:
    from trnrt.calibration.published import CASES

    return next(case for case in CASES if case.id == case_id).trace(length, places)


def program(case: Case, length: Length, timing: Timing | None = None) -> Program:
    """The traced program of a case for numbers of units, with the target's own numbers or with ``timing``.

    Traced once in a process for each number of places; a fit keeps about 1 GB of them.
    """
    places = (timing or get_target(case.target).timing).places
    return _retarget(_program(case.id, length, places), timing)


def timeline(case: Case, length: Length, timing: Timing | None = None) -> Timeline:
    """The case's timeline, with the target's own numbers or with ``timing``."""
    return schedule_freely(program(case, length, timing))


def _retarget(traced: Program, timing: Timing | None) -> Program:
    return traced if timing is None else replace(traced, target=replace(traced.target, timing=timing))


def predicted_us(case: Case, timing: Timing | None = None, *, short: bool = False) -> float:
    """The model's prediction for the case. ``short``: from shorter kernels if the case has some."""
    return sum(
        weight * figure_us(case.clock, timeline(case, length, timing)) for length, weight in lengths(case, short)
    )


def predicted_range(case: Case, timing: Timing | None = None, *, short: bool = False) -> Range:
    """The same as a range."""
    least = us = most = 0.0
    for length, weight in lengths(case, short):
        found = predict(program(case, length, timing))
        at = [figure_us(case.clock, line) for line in (found.least, found.timeline, found.most)]
        least, us, most = least + weight * at[0], us + weight * at[1], most + weight * at[2]
    return Range(min(least, us), us, max(most, us))


def lengths(case: Case, short: bool) -> Iterable[tuple[Length, float]]:
    """The lengths that are timed, and the weight of each one's time."""
    return (case.short if short and case.short else {case.length: 1.0}).items()


def figure_us(clock: Clock, line: Timeline) -> float:
    """The figure of a timeline to compare with a published one, in microseconds."""
    if clock == "parts":
        return sum(parts_us(line).values())
    return benchmark_us(line) if clock == "benchmark" else profiler_us(line)


def parts_us(line: Timeline) -> dict[str, float]:
    """The bars of a profiler for a kernel that loads, activates and stores: their durations in microseconds.

    The table is loaded before the activation starts.
    """
    spans = [(line.end[n] - line.start[n]) / PS_PER_US for n in range(len(line.start))]
    load, activation, store = spans
    table = line.timing.table_load_ns / 1000
    return {"load": load, "table load": table, "activation": activation, "store": store}


@dataclass(frozen=True)
class Row:
    """A case and its prediction, from ``low_us`` to ``high_us``."""

    case: Case
    predicted_us: float
    low_us: float
    high_us: float

    @property
    def measured_us(self) -> float:
        """The published figure, the nearest of several."""
        return self.case.nearest_us(self.predicted_us)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_us / self.measured_us - 1

    @property
    def inside(self) -> bool:
        """True if the range has one of the published figures, and is no wider than ``WIDEST``."""
        within = any(self.low_us <= value <= self.high_us for value in self.case.values_us)
        return within and self.ratio <= WIDEST

    @property
    def ratio(self) -> float:
        """The most over the least."""
        return self.high_us / self.low_us


def row(case: Case, predicted: Range) -> Row:
    """The case's row of a table."""
    return Row(case, predicted.us, predicted.least_us, predicted.most_us)
