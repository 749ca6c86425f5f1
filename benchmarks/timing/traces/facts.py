"""Measure each mechanism in a run: durations, counts, intervals. The same code serves measured and predicted runs.

Every function yields (mechanism, what, unit, value); equal ones are collected. Intervals between neighbours of an
engine count only if the engine alone delayed the second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.timing.traces.record import ENGINES, Event, Packet, Run, Transfer

Found = tuple[str, str, str, float]  # mechanism, what, unit, value

MECHANISMS = ("program", "instructions", "products", "semaphores", "triggers", "transfers", "packets")


@dataclass(frozen=True)
class Spread:
    """The count of a mechanism's values, with their median, least and most."""

    count: int
    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Fact:
    """One measured fact, beside the model's value; None for a side without one."""

    mechanism: str
    what: str
    unit: str
    measured: Spread | None
    ours: Spread | None

    @property
    def error(self) -> float | None:
        """Ours over measured, less 1; None if either is missing or 0."""
        if self.measured is None or self.ours is None or not self.measured.median:
            return None
        return self.ours.median / self.measured.median - 1


def compare_facts(measured: Run, ours: Run) -> list[Fact]:
    """Each fact of either run, by mechanism."""
    theirs, mine = _collect_values(measured), _collect_values(ours)
    keys = sorted({*theirs, *mine}, key=lambda key: (MECHANISMS.index(key[0]), key))
    return [Fact(*key, _spread(theirs.get(key, [])), _spread(mine.get(key, []))) for key in keys]


def _collect_values(run: Run) -> dict[tuple[str, str, str], list[float]]:
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for source in (_program, _instructions, _products, _semaphores, _triggers, _transfers, _packets):
        for mechanism, what, unit, value in source(run):
            found[mechanism, what, unit].append(value)
    return found


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(len(values), median(values), min(values), max(values)) if values else None


def _program(run: Run) -> Iterator[Found]:
    yield "program", "before the kernel's first instruction", "ns", run.first
    yield "program", "the kernel, first start to last semaphore", "ns", run.last - run.first
    yield "program", "after the kernel's last semaphore", "ns", run.total - run.last
    for engine, active in run.active.items():
        if engine in ENGINES:
            yield "program", f"{engine} active, the runtime's part included", "ns", active


def _instructions(run: Run) -> Iterator[Found]:
    for event in run.events:
        if not event.is_trigger and event.kind != "wait":
            yield "instructions", f"{event.engine}: {event.what}{_clock(event)}", "ns", event.duration


def _clock(event: Event) -> str:
    return ", half clock" if event.slow else ""


def _products(run: Run) -> Iterator[Found]:
    """Products that follow each other without a pause, and the times of each pass and of loading its weights."""
    events = [run.events[n] for n in run.on("tensor") if run.events[n].kind in ("product", "transpose")]
    for last, event in pairwise(events):
        alike = (last.what, last.slow) == (event.what, event.slow)
        if alike and event.start <= last.end:
            yield "products", f"from one end to the next: {event.what}{_clock(event)}", "ns", event.end - last.end
    passes = [(one, event) for event in events for one in event.passes]
    for (before, earlier), (one, event) in pairwise(passes):
        follows = one.product[0] <= before.product[1]
        where = f"{event.what}{_clock(event)}"
        if follows and (earlier.what, earlier.slow) == (event.what, event.slow):
            yield "products", f"from one pass's start to the next: {where}", "ns", one.product[0] - before.product[0]
        if one.load[1] > one.load[0]:
            yield "products", f"a load of weights: {where}", "ns", one.load[1] - one.load[0]
        yield "products", f"share of passes whose weights load behind the pass before: {where}", "%", 100.0 * follows


def _semaphores(run: Run) -> Iterator[Found]:
    """From an instruction's end to its semaphore, and from a semaphore to the start of the waiting instruction."""
    for engine in ENGINES:
        for before, number in pairwise([-1, *run.on(engine)]):
            event = run.events[number]
            if event.transfer is None and event.seen is not None and not event.is_trigger:
                yield (
                    "semaphores",
                    f"{engine}: from an instruction's end to its semaphore",
                    "ns",
                    event.seen - event.end,
                )
            if not _held_by_semaphore(run, before, event) or event.ready is None:
                continue
            producer = run.events[event.waited_for]
            of = "a transfer" if producer.is_trigger else "itself" if producer.engine == engine else "another engine"
            start = "the wait's start" if event.kind == "wait" else "the start"
            if not event.is_trigger:
                yield "semaphores", f"{engine}: from {of}'s semaphore to {start}", "ns", event.start - event.ready
        yield from _extra_waits(run, engine)


def _extra_waits(run: Run, engine: str) -> Iterator[Found]:
    """The cost of further waits: an instruction waits for one semaphore only; each further one takes another
    instruction."""
    for this, following in pairwise(run.on(engine)):
        wait, event = run.events[this], run.events[following]
        if wait.kind == "wait" and not event.is_trigger and (event.ready or 0) <= wait.start:
            yield "semaphores", f"{engine}: a wait for one more semaphore delays by", "ns", event.start - wait.start


def _held_by_semaphore(run: Run, before: int, event: Event) -> bool:
    """True if the semaphore, not its engine's earlier instruction, delayed an event."""
    if event.ready is None or event.waited_for < 0:
        return False
    return before < 0 or run.events[before].end <= event.ready


def _triggers(run: Run) -> Iterator[Found]:
    for engine in ENGINES:
        for before, number in pairwise([-1, *run.on(engine)]):
            event, earlier = run.events[number], run.events[before]
            if not event.is_trigger or event.transfer is None:
                continue
            how = f"{event.transfer.mode} descriptors, {engine}"
            yield "triggers", f"{how}: the trigger", "ns", event.duration
            free = event.ready is None or event.ready <= earlier.start
            if before >= 0 and earlier.is_trigger and free:
                yield "triggers", f"{how}: from one trigger to the next", "ns", event.start - earlier.start
            if _held_by_semaphore(run, before, event) and event.ready is not None:
                yield "triggers", f"{how}: from the semaphore to the trigger", "ns", event.start - event.ready


def _transfers(run: Run) -> Iterator[Found]:
    for event in run.events:
        moved = event.transfer
        if moved is None:
            continue
        how = f"{moved.mode} {moved.direction}"
        sized = f"{how} of {moved.size / 1024:g} KiB"
        yield "transfers", f"{sized}: from the trigger to the first data", "ns", moved.start - event.start
        yield "transfers", f"{sized}: first to last data", "ns", moved.end - moved.start
        if moved.end > moved.start:
            yield "transfers", f"{sized}: rate", "GB/s", moved.size / (moved.end - moved.start)
        if moved.seen is not None:
            yield "transfers", f"{how}: from the last data to the semaphore", "ns", moved.seen - moved.end
            if event.ready is not None:
                yield "transfers", f"{sized}: from what it waited for to its semaphore", "ns", moved.seen - event.ready


def _packets(run: Run) -> Iterator[Found]:
    for event in run.events:
        if event.transfer is not None and event.transfer.packets:
            yield from _packets_of(event.transfer)


def _packets_of(moved: Transfer) -> Iterator[Found]:
    engines: dict[int, list[Packet]] = defaultdict(list)
    for packet in moved.packets:
        engines[packet.engine].append(packet)
    how = f"{moved.mode} {moved.direction}"
    for packets in engines.values():
        packets.sort(key=lambda packet: packet.start)
        data = [packet for packet in packets if not packet.mark]
        for packet in data:
            yield "packets", f"{how}: a packet of {packet.size} B", "ns", packet.end - packet.start
        for before, packet in pairwise(data):
            if before.size == packet.size:
                what = f"{how}: from one packet of {packet.size} B to the next on its engine"
                yield "packets", what, "ns", packet.start - before.start
        for mark in packets:
            if mark.mark and data:
                yield "packets", f"{how}: from an engine's last data to its mark", "ns", mark.start - data[-1].end
                yield "packets", f"{how}: the mark of an engine, 4 B", "ns", mark.end - mark.start
    yield "packets", f"{how}: engines that take part", "", len(engines)
    firsts = [packets[0].start for packets in engines.values()]
    yield "packets", f"{how}: from the first engine's first data to the last engine's", "ns", max(firsts) - min(firsts)
    marks = [packet.end for packet in moved.packets if packet.mark]
    if marks and moved.seen is not None:
        yield "packets", f"{how}: from the last mark to the semaphore's last bit", "ns", moved.seen - max(marks)
