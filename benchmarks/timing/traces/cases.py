"""The kernels to compare traces with, and the search for a trace's kernel: by name, or by its work.

The search ignores file names. It compares the amount of work of each kind: elements copied, reduced and so on, columns
of products by dtype, bytes loaded and stored. Merging instructions doesn't change these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import Any

from benchmarks.timing.traces.ours import run_of
from benchmarks.timing.traces.record import HELPERS, Run
from trnrt.calibration import attention
from trnrt.errors import InputError, OptionError
from trnrt.nki import Spec, trace
from trnrt.nki.machine.timing import Timeline, schedule_freely

LEAST_LIKENESS = 0.8
"""A guess with less likeness is refused. The attention cases have 0.95 to 1.00 with their own traces, else at most
0.78."""


@dataclass(frozen=True)
class TraceCase:
    """A kernel with the structure of a traced one, and its arguments."""

    name: str
    kernel: Callable[..., Any]
    arguments: tuple[Any, ...]
    target: str = "trn2"


def _attention(fused: bool, dtype: str, short: str, length: int) -> TraceCase:
    kernel = attention.attention_fused if fused else attention.attention_unfused
    name = f"attention-{'fused' if fused else 'unfused'}-{short}-{length}"
    return TraceCase(name, kernel, (Spec((128, length), dtype),) * 3)


CASES = tuple(
    _attention(fused, dtype, short, length)
    for length in (512, 1024)
    for fused in (False, True)
    for dtype, short in (("float32", "fp32"), ("bfloat16", "bf16"))
)


@dataclass(frozen=True)
class Match:
    """The case of a trace, its likeness (0 to 1), and whether it was guessed."""

    case: TraceCase
    likeness: float
    guessed: bool


def find_case(measured: Run, name: str | None = None) -> Match:
    """The case called ``name``, or the one most like the run. Raises OptionError or InputError if there is none."""
    names = ", ".join(case.name for case in CASES)
    if name is not None:
        named = next((case for case in CASES if case.name == name), None)
        if named is None:
            raise OptionError(f"no kernel is called {name!r} here; there are {names}")
        match = Match(named, likeness(measured, predicted(named)), False)
    else:
        match = max((Match(case, likeness(measured, predicted(case)), True) for case in CASES), key=_likeness)
        if match.likeness < LEAST_LIKENESS:
            raise InputError(
                f"{measured.name} is like no known kernel: its work is {match.likeness * 100:.0f} % that "
                f"of {match.case.name}, {LEAST_LIKENESS * 100:.0f} % are asked for",
                hint=f"name the kernel with --kernel; there are {names}",
            )
    instance = measured.facts.get("instance_type", "")
    if instance and not instance.startswith(match.case.target):
        raise InputError(f"{measured.name} is of {instance}, but {match.case.name} is compared on {match.case.target}")
    return match


def _likeness(match: Match) -> float:
    return match.likeness


@cache
def timeline(case: TraceCase) -> Timeline:
    """The case's predicted timeline, computed once per process."""
    return schedule_freely(trace(case.kernel, *case.arguments, target=case.target))


@cache
def predicted(case: TraceCase) -> Run:
    """The case's timeline as a run."""
    return run_of(timeline(case))


def likeness(one: Run, other: Run) -> float:
    """The likeness of two amounts of work: the mean, over the kinds that either has, of the smaller over the larger."""
    mine, theirs = _work(one), _work(other)
    kinds = mine.keys() | theirs.keys()
    return mean(min(mine[kind], theirs[kind]) / max(mine[kind], theirs[kind]) for kind in kinds) if kinds else 0.0


def _work(run: Run) -> Counter[tuple[str, str]]:
    """Kind -> its events' sizes together: elements per partition, or bytes. A product's dtype is a part of its kind."""
    work = Counter[tuple[str, str]]()
    for event in run.events:
        if event.kind not in HELPERS and event.size:
            work[event.kind, event.place if event.kind in ("product", "transpose") else ""] += event.size
    return work
