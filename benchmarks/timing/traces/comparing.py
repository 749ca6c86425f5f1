"""A trace and our timeline of the same kernel side by side: a row per event, a summary per engine, and the
differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.timing.traces.aligning import Pair, align
from benchmarks.timing.traces.cases import Match, find_case, predicted
from benchmarks.timing.traces.clock import Change, Grid, clock_changes, grids
from benchmarks.timing.traces.facts import Fact, compare_facts
from benchmarks.timing.traces.record import ENGINES, HELPERS, Event, Run, Transfer
from benchmarks.timing.traces.resolving import read_run


@dataclass(frozen=True)
class Side:
    """One side's part of a row. ``start`` and ``end`` count from the kernel's first event.

    ``busy`` is the total time of its events, without the gaps between those that the other side has merged. ``engine``
    is its engine or queue, ``name`` its own; ``waited_for`` says in words what it waited for, ``waited`` how long after
    that it started.
    """

    start: int
    end: int
    busy: int
    name: str
    engine: str
    waited_for: str | None
    waited: int | None


@dataclass(frozen=True)
class Row:
    """An event, or with ``data`` a transfer on its queue, on one or both sides."""

    lane: str
    what: str
    how: str
    measured: Side | None
    ours: Side | None
    data: bool = False

    @property
    def start_difference(self) -> int | None:
        """Our start less theirs."""
        return self.ours.start - self.measured.start if self.ours and self.measured else None

    @property
    def duration_difference(self) -> int | None:
        """Our duration less theirs."""
        if self.ours is None or self.measured is None:
            return None
        return self.ours.busy - self.measured.busy


@dataclass(frozen=True)
class EngineSummary:
    """An engine's events: the number on each side, by how they were paired, and their total time. ``difference`` is the
    median of ours less the measured duration, of pairs of one kind and size."""

    engine: str
    measured: int
    ours: int
    pairs: dict[str, int]
    measured_ns: int
    ours_ns: int
    difference: float | None


@dataclass(frozen=True)
class Comparison:
    """All findings about one trace."""

    match: Match
    measured: Run
    ours: Run
    pairs: tuple[Pair, ...]
    rows: tuple[Row, ...]
    engines: tuple[EngineSummary, ...]
    facts: tuple[Fact, ...]
    changes: tuple[Change, ...]
    grids: tuple[Grid, ...]

    def found(self, how: str) -> Counter[tuple[str, str]]:
        """(engine, what) of the events paired in one way: what the compiler moved, merged, added ..."""
        return Counter((row.lane, row.what) for row in self.rows if row.how == how and not row.data)


def compare(path: Path, kernel: str | None = None) -> Comparison:
    """Compare the trace in a file with our timeline of ``kernel``, or of the most similar kernel."""
    measured = read_run(path)
    match = find_case(measured, kernel)
    ours = predicted(match.case)
    pairs = tuple(align(measured, ours))
    return Comparison(
        match=match,
        measured=measured,
        ours=ours,
        pairs=pairs,
        rows=tuple(_rows(measured, ours, pairs)),
        engines=tuple(_summary(engine, measured, ours, pairs) for engine in ENGINES),
        facts=tuple(compare_facts(measured, ours)),
        changes=tuple(clock_changes(measured)),
        grids=tuple(grids(measured)),
    )


def _rows(measured: Run, ours: Run, pairs: tuple[Pair, ...]) -> Iterator[Row]:
    for pair in pairs:
        there, here = [measured.events[n] for n in pair.measured], [ours.events[n] for n in pair.ours]
        lane = (there or here)[0].engine
        sides = _side(measured, there), _side(ours, here)
        yield Row(lane, _both(_what(there), _what(here)), pair.how, *sides)
        moved = [[event.transfer for event in events if event.transfer] for events in (there, here)]
        if any(moved):
            queue = (moved[0] or moved[1])[0].queue
            texts = [_texts([f"{one.mode} data {one.size / 1024:g} KiB" for one in side]) for side in moved]
            yield Row(queue, _both(*texts), pair.how, _data(measured, moved[0]), _data(ours, moved[1]), data=True)


def _what(events: list[Event]) -> str:
    return _texts([f"{event.what} of {event.source}" if event.source else event.what for event in events])


def _texts(texts: list[str]) -> str:
    """Texts, with equal ones counted."""
    return ", ".join(f"{count} x {text}" if count > 1 else text for text, count in Counter(texts).items())


def _both(there: str, here: str) -> str:
    """The kind of an event; if the sides differ, the measured one and ours."""
    return f"{there} (ours: {here})" if there and here and there != here else there or here


def _side(run: Run, events: list[Event]) -> Side | None:
    if not events:
        return None
    first = min(events, key=lambda event: event.start)
    producer = run.events[first.waited_for] if first.waited_for >= 0 else None
    return Side(
        start=first.start - run.first,
        end=max(event.end for event in events) - run.first,
        busy=sum(event.duration for event in events),
        name=first.name,
        engine=first.engine,
        waited_for=f"{producer.engine} {producer.what}" if producer else None,
        waited=first.start - first.ready if first.ready is not None else None,
    )


def _data(run: Run, moved: list[Transfer]) -> Side | None:
    if not moved:
        return None
    start, end = min(one.start for one in moved), max(one.end for one in moved)
    busy = sum(one.end - one.start for one in moved)
    return Side(start - run.first, end - run.first, busy, "", moved[0].queue, None, None)


def _summary(engine: str, measured: Run, ours: Run, pairs: tuple[Pair, ...]) -> EngineSummary:
    theirs = [measured.events[n] for n in measured.on(engine) if measured.events[n].kind not in HELPERS]
    mine = [ours.events[n] for n in ours.on(engine)]
    here = [pair for pair in pairs if _lane(measured, ours, pair) == engine]
    both = [
        (measured.events[pair.measured[0]], ours.events[pair.ours[0]])
        for pair in here
        if len(pair.measured) == 1 == len(pair.ours)
    ]
    alike = [one.duration - there.duration for there, one in both if one.slow == there.slow]
    return EngineSummary(
        engine=engine,
        measured=len(theirs),
        ours=len(mine),
        pairs=dict(Counter(pair.how for pair in here)),
        measured_ns=_covered_time(theirs),
        ours_ns=_covered_time(mine),
        difference=median(alike) if alike else None,
    )


def _lane(measured: Run, ours: Run, pair: Pair) -> str:
    """The engine of a pair: the measured one's, if there is one."""
    event = measured.events[pair.measured[0]] if pair.measured else ours.events[pair.ours[0]]
    return event.engine


def _covered_time(events: list[Event]) -> int:
    """The time during which at least one of the events runs."""
    total, until = 0, 0
    for event in sorted(events, key=lambda event: event.start):
        total += max(0, event.end - max(event.start, until))
        until = max(until, event.end)
    return total
