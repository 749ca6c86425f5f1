"""A measured run and ours in one picture for Perfetto: two processes, each from its kernel's first event on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trnrt.report.timeline import stack_rows
from trnrt.report.trace import PS_PER_NS, Event, metadata_event, microseconds, slice_event
from trnrt.text import name_text

if TYPE_CHECKING:
    from benchmarks.timing.traces.comparing import Comparison
    from benchmarks.timing.traces.record import Run

_ENGINES = ("tensor", "vector", "scalar", "gpsimd", "sync")
_TRACKS = 1000  # the most threads of a process, as no two share a number
_FLOWS = 10_000_000  # the most arrows of a process

Span = tuple[str, str, int, int, dict[str, Any], int]  # lane, name, start, end, arguments, event or -1


def pairs_text(comparisons: Iterable[Comparison]) -> str:
    """The trace events of each comparison's two sides, as compact JSON in ASCII."""
    events: list[Event] = []
    for number, found in enumerate(comparisons):
        partners = _partners(found)
        names = f"measured: {found.measured.name}", f"ours: {found.match.case.name}"
        for side, (run, name) in enumerate(zip((found.measured, found.ours), names, strict=True)):
            events += _process(2 * number + side + 1, name_text(name), run, partners[side])
    document = {"traceEvents": events, "displayTimeUnit": "ns"}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


def _partners(found: Comparison) -> tuple[dict[int, Event], dict[int, Event]]:
    """A note for each event of a side about its partners."""
    theirs: dict[int, Event] = {}
    mine: dict[int, Event] = {}
    for pair in found.pairs:
        for one, other, run, known in (
            (pair.measured, pair.ours, found.ours, theirs),
            (pair.ours, pair.measured, found.measured, mine),
        ):
            starts = ", ".join(str(run.events[number].start - run.first) for number in other)
            for number in one:
                known[number] = {"pair": pair.how, "other side's start, ns": starts}
    return theirs, mine


def _process(pid: int, name: str, run: Run, partners: dict[int, Event]) -> Iterator[Event]:
    spans = list(_spans(run, partners))
    lanes = sorted({span[0] for span in spans}, key=_rank)
    index = {lane: number for number, lane in enumerate(lanes)}
    rows = stack_rows([index[span[0]] for span in spans], [span[2] for span in spans], [span[3] for span in spans])
    places = sorted({(index[span[0]], row) for span, row in zip(spans, rows, strict=True)})
    threads = {place: pid * _TRACKS + number for number, place in enumerate(places, start=1)}
    yield metadata_event("process_name", pid, 0, {"name": name})
    yield metadata_event("process_sort_index", pid, 0, {"sort_index": pid})
    for (lane, row), tid in threads.items():
        yield metadata_event("thread_name", pid, tid, {"name": lanes[lane] + (f" (+{row})" if row else "")})
        yield metadata_event("thread_sort_index", pid, tid, {"sort_index": tid})
    tids = [threads[index[span[0]], row] for span, row in zip(spans, rows, strict=True)]
    starts = microseconds(span[2] * PS_PER_NS for span in spans)
    durations = microseconds((span[3] - span[2]) * PS_PER_NS for span in spans)
    for span, tid, start, duration in zip(spans, tids, starts, durations, strict=True):
        yield slice_event(name_text(span[1]), span[0], pid, tid, start, duration, span[4])
    yield from _flows(pid, run, spans, tids)


def _rank(lane: str) -> tuple[int, str]:
    """Engines first, then the clock, queues, and DMA engines."""
    return _ENGINES.index(lane) if lane in _ENGINES else len(_ENGINES) + ("DMA engine" in lane), lane


def _spans(run: Run, partners: dict[int, Event]) -> Iterator[Span]:
    """The spans to draw, nanoseconds since the kernel's first event."""
    for number, event in enumerate(run.events):
        args: Event = {"name": name_text(event.name), **partners.get(number, {})}
        if event.ready is not None:
            args["its semaphore was there for, ns"] = event.start - event.ready
        yield event.engine, event.what, event.start - run.first, event.end - run.first, args, number
        moved = event.transfer
        if moved is None:
            continue
        name = f"{moved.mode} {moved.direction} {moved.size / 1024:g} KiB"
        told = {"semaphore after its end, ns": moved.seen - moved.end} if moved.seen is not None else {}
        yield moved.queue, name, moved.start - run.first, moved.end - run.first, told, -1
        for packet in moved.packets:
            text = "semaphore" if packet.mark else f"{packet.size} B"
            lane = f"DMA engine {packet.engine}"
            yield lane, text, packet.start - run.first, packet.end - run.first, {"queue": packet.queue}, -1
    for window in run.windows:
        start = max(0, window.start - run.first)
        if window.end > run.first:
            yield "tensor clock", "full" if window.full else "half", start, window.end - run.first, {}, -1


def _flows(pid: int, run: Run, spans: list[Span], tids: list[int]) -> Iterator[Event]:
    """An arrow from each event to those on other engines that waited for it."""
    slots = {span[5]: slot for slot, span in enumerate(spans) if span[5] >= 0}
    count = 0
    for sink, event in enumerate(run.events):
        source = event.waited_for
        if source < 0 or run.events[source].engine == event.engine:
            continue
        leaves, arrives = spans[slots[source]], spans[slots[sink]]
        leave = max(leaves[2], min(leaves[3] - 2, arrives[2]))
        if leave > arrives[2]:
            continue
        count += 1
        out, into = microseconds((leave * PS_PER_NS, arrives[2] * PS_PER_NS))
        flow = {"name": "waits", "cat": "flow", "id": pid * _FLOWS + count, "pid": pid}
        yield {**flow, "ph": "s", "tid": tids[slots[source]], "ts": out}
        yield {**flow, "ph": "f", "bp": "e", "tid": tids[slots[sink]], "ts": into}
