"""The prediction: a timeline, the range of the time, and the causes of that range's width.

The headline is the program as a compiler may issue it, with fewer copies (``rewriting.py``) and in a list scheduler's
order, with the numbers of the target's file. The least is the same with all uncertain numbers as favourable as their
sources allow; the most is the program as written, with all of them as unfavourable. So each end has a cause: what the
compiler does, or a published interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from trnrt.nki.machine.collecting import without_collection
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.list_scheduling import ListSchedule
from trnrt.nki.machine.timing.meetings import run_together
from trnrt.nki.machine.timing.rewriting import rewrite_copies
from trnrt.nki.machine.timing.simulation import Schedule
from trnrt.nki.machine.timing.timeline import PS_PER_US, Timeline

ORDER = "order of instructions, and copies"

WIDEST = 1.6
"""The largest useful ratio of the most to the least: a wider range is no basis for plans or comparisons."""


@dataclass(frozen=True)
class Range:
    """A time, and the least and the most that it may be, in microseconds."""

    least_us: float
    us: float
    most_us: float

    @property
    def ratio(self) -> float:
        """The most over the least."""
        return self.most_us / self.least_us

    @property
    def too_wide(self) -> bool:
        """True if the range is too wide for plans."""
        return self.ratio > WIDEST


@dataclass(frozen=True)
class Cause:
    """The prediction if a single cause had other values. ``pin``: what to write in a kernel to eliminate it, "" if
    nothing helps."""

    name: str
    range: Range
    source: str
    pin: str


@dataclass(frozen=True)
class Prediction:
    """The predicted times of a program's instructions: ``timeline`` is the headline's, ``least`` and ``most`` are the
    ends'.

    ``issues`` are the program's, ``compiled`` those after the compiler's rewrites; ``order`` is the headline's.
    ``beside``: both of the other cores that it meets.
    """

    issues: Issues
    compiled: Issues
    order: type[Schedule]
    timeline: Timeline
    least: Timeline
    most: Timeline
    beside: tuple[tuple[Issues, Issues], ...] = field(default=(), kw_only=True)

    @property
    def benchmark(self) -> Range:
        """The time that a benchmark of many runs would measure."""
        return _range(*(benchmark_us(line) for line in (self.least, self.timeline, self.most)))

    @property
    def profiler(self) -> Range:
        """The total that a profiler would report, with the program's fixed start and end."""
        return _range(*(profiler_us(line) for line in (self.least, self.timeline, self.most)))

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of the benchmark's range, the widest first, without those that change nothing.

        Each takes one or two more runs of the event loop.
        """
        headline = benchmark_us(self.timeline)
        with without_collection():
            in_order = benchmark_us(_run(Schedule, [self.issues, *(one for one, _ in self.beside)], self.timing)[0])
            pin = "with nl.no_reorder(): around instructions that are in their best order"
            found = [Cause(ORDER, _range(headline, headline, in_order), "the compiler may reorder, or not", pin)]
            compiled = [self.compiled, *(one for _, one in self.beside)]
            for one in self.timing.uncertain:
                least = benchmark_us(_run(self.order, compiled, self.timing.move_to("least", [one.cause]))[0])
                most = benchmark_us(_run(self.order, compiled, self.timing.move_to("most", [one.cause]))[0])
                found.append(Cause(one.cause, _range(least, headline, most), one.source, one.pin))
        wide = [cause for cause in found if cause.range.ratio > 1]
        return tuple(sorted(wide, key=lambda cause: -cause.range.ratio))

    @property
    def timing(self) -> Timing:
        """The target's numbers."""
        return self.issues.target.timing


def predict(program: Program) -> Prediction:
    """The prediction of a compiled program. Raises as ``schedule`` does."""
    return _predict([program])[0]


def predict_if_faster(program: Program, than_us: float) -> Prediction | Timeline:
    """``predict``; only the headline's timeline, at half the work, if a benchmark would measure more than ``than_us``
    of it."""
    with without_collection():
        compiled = [_issues_as_compiled(program)]
        headlines, order = _headline(compiled)
        if benchmark_us(headlines[0]) > than_us:
            return headlines[0]
        return _predict_ends([program], compiled, headlines, order)[0]


def predict_cores(programs: Sequence[Program]) -> tuple[Prediction, ...]:
    """The predictions of a kernel's cores; those that meet wait for each other. Raises as ``schedule`` does."""
    if not any(one.operation.meets for program in programs for one in program.instructions):
        return tuple(predict(program) for program in programs)
    from trnrt.nki.machine.cores import check_meetings  # with what runs programs: one core's prediction needs neither

    check_meetings([[one for one in program.instructions if one.operation.meets] for program in programs])
    return _predict(programs)


def _predict(programs: Sequence[Program]) -> tuple[Prediction, ...]:
    """The predictions of cores that run at the same time."""
    with without_collection():
        compiled = [_issues_as_compiled(program) for program in programs]
        return _predict_ends(programs, compiled, *_headline(compiled))


def _predict_ends(
    programs: Sequence[Program], compiled: list[Issues], headlines: list[Timeline], order: type[Schedule]
) -> tuple[Prediction, ...]:
    """The predictions of cores that run at the same time, whose headlines are known."""
    timing = programs[0].target.timing
    issues = [one if one.program is own else Issues(own) for one, own in zip(compiled, programs, strict=True)]
    least = _run(order, compiled, timing.move_to("least"))
    most = _run(Schedule, issues, timing.move_to("most"))
    both = list(zip(issues, compiled, strict=True))
    return tuple(
        Prediction(*both[k], order, headlines[k], least[k], most[k], beside=(*both[:k], *both[k + 1 :]))
        for k in range(len(programs))
    )


def _run(order: type[Schedule], cores: Sequence[Issues], timing: Timing) -> list[Timeline]:
    """The timelines of cores that run at the same time, with other timing."""
    return run_together([order(issues.retime(timing)) for issues in cores])


def predict_benchmark(programs: Sequence[Program]) -> Range:
    """The time that a benchmark would measure of a kernel, given the program of each of its cores."""
    return largest_range(prediction.benchmark for prediction in predict_cores(programs))


def add_ranges(ranges: Iterable[Range], fixed_us: float = 0.0) -> Range:
    """The total of times that follow each other, plus ``fixed_us``: the sums of the ends and headlines."""
    found = tuple(ranges)
    least, us, most = (sum(r.least_us for r in found), sum(r.us for r in found), sum(r.most_us for r in found))
    return Range(least + fixed_us, us + fixed_us, most + fixed_us)


def largest_range(ranges: Iterable[Range]) -> Range:
    """The time of programs that run at the same time: the largest of the ends and headlines."""
    found = tuple(ranges)
    return Range(max(r.least_us for r in found), max(r.us for r in found), max(r.most_us for r in found))


def schedule_freely(program: Program) -> Timeline:
    """The headline's timeline alone. Raises as ``schedule`` does."""
    with without_collection():
        return _headline([_issues_as_compiled(program)])[0][0]


def compiled_issues(program: Program) -> Issues:
    """The issues of the program after the compiler's rewrites, to time with other numbers: ``retimed_us``."""
    return _issues_as_compiled(program)


def retimed_us(issues: Issues, timing: Timing) -> float:
    """The headline of ``compiled_issues`` as a benchmark would measure it, with other numbers of the same policies."""
    return benchmark_us(_headline([issues.retime(timing)])[0][0])


def _issues_as_compiled(program: Program) -> Issues:
    """The issues of the program after the compiler's rewrites."""
    fewer = rewrite_copies(program) if program.target.timing.order == "free" else None
    return Issues(program if fewer is None else fewer)


def _headline(cores: Sequence[Issues]) -> tuple[list[Timeline], type[Schedule]]:
    """The list scheduler's timelines and its class; or those in order, if they are not slower (no compiler would choose
    the slower ones)."""
    in_order = run_together([Schedule(issues) for issues in cores])
    if cores[0].target.timing.order != "free":
        return in_order, Schedule
    for issues in cores:
        issues.rewind()
    free = run_together([ListSchedule(issues) for issues in cores])
    return (free, ListSchedule) if _duration(free) < _duration(in_order) else (in_order, Schedule)


def _duration(cores: Sequence[Timeline]) -> int:
    return max(timeline.duration for timeline in cores)


def benchmark_us(timeline: Timeline) -> float:
    """The time that a benchmark of many runs would measure."""
    return timeline.duration / PS_PER_US + timeline.timing.benchmark_ns / 1000


def profiler_us(timeline: Timeline) -> float:
    """The total that a profiler would report."""
    timing = timeline.timing
    return timeline.duration / PS_PER_US + (timing.head_ns + timing.tail_ns) / 1000


def _range(least: float, us: float, most: float) -> Range:
    """A range with sorted ends: greedy schedules may take longer with smaller numbers."""
    return Range(min(least, us), us, max(most, us))
