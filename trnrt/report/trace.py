"""The timeline as JSON trace events for Perfetto (ui.perfetto.dev) and Chrome's tracing page.

Perfetto's importer decides the form. It keeps nanoseconds, by truncating ``ts * 1000`` and ``dur * 1000``. It drops a
slice that overlaps another one of its track without lying within it. It ties both ends of a flow to the slice that is
open on the track at that time; equal times keep the order of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trnrt.nki.machine.collecting import without_collection
from trnrt.nki.machine.program import Instruction, MemoryRegion
from trnrt.nki.machine.targets import overlay_of
from trnrt.nki.machine.timing import PS_PER_US, Timeline, Transfer
from trnrt.nki.profiling import Profile, StepUse
from trnrt.report.timeline import (
    NO_STEP,
    bytes_held,
    drawn_spans,
    operand_texts,
    operation_text,
    source_text,
    stack_rows,
    step_finder,
    step_name,
    tile_spans,
)
from trnrt.text import name_text

Event = dict[str, Any]

PS_PER_NS = 1000
_TRACKS_A_CORE = 100_000  # Perfetto identifies threads by number alone: cores must not share one


def trace_document(profile: Profile) -> dict[str, Any]:
    """The trace events of a profile; ``json.dumps`` makes a file for Perfetto.

    Each core is a process. Each engine and each DMA queue is a thread, in the order of the timeline's lanes, with more
    threads for what overlaps. Each issue and each DMA trigger is a complete event. Flows lead from an issue to those on
    other lanes that waited for it, and from a trigger to its transfer. Counters show the bytes per partition that tiles
    hold, and the DMA engines' rate. ``ts`` and ``dur`` are microseconds.
    """
    events: list[Event] = []
    overlay = overlay_of(profile.target)
    with without_collection():
        for number, timeline in enumerate(profile.cores):
            events += _core_events(number, timeline, profile.steps)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "kernel": name_text(profile.kernel),
            "target": profile.target,
            "dtype": profile.dtype,
            "predicted_us": asdict(profile.predicted_us),
            "low_us": asdict(profile.low_us),
            "high_us": asdict(profile.high_us),
            "compared_with_measurements": profile.compared,
            **({} if overlay is None else {"timing": overlay.describe()}),
        },
    }


def trace_text(profile: Profile) -> str:
    """``trace_document`` as compact JSON in ASCII."""
    return json.dumps(trace_document(profile), separators=(",", ":"), allow_nan=False, check_circular=False) + "\n"


def microseconds(picoseconds: Iterable[int]) -> list[float]:
    """Times as floats, rounded up where 1000 times the float would truncate to an earlier nanosecond."""
    exact = np.fromiter(picoseconds, dtype=np.int64)
    times: npt.NDArray[np.float64] = exact / PS_PER_US
    short = np.floor(times * 1000.0) < exact // PS_PER_NS
    times[short] = np.nextafter(times[short], np.inf)
    listed: list[float] = times.tolist()
    return listed


@dataclass(frozen=True, slots=True)
class _Tracks:
    """The slices of a core: the timeline's issues, then its DMA triggers, each with its row in the lane."""

    lane: list[int]
    start: list[int]
    end: list[int]
    row: list[int]

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> _Tracks:
        lane, start, end = drawn_spans(timeline)
        # In Perfetto's nanoseconds, so that rounded slices don't overlap either.
        row = stack_rows(lane, [time // PS_PER_NS for time in start], [time // PS_PER_NS for time in end])
        return cls(lane, start, end, row)

    def threads(self, core: int) -> dict[tuple[int, int], int]:
        """(lane, row) -> thread number, in order."""
        places = sorted(set(zip(self.lane, self.row, strict=True)))
        return {place: (core + 1) * _TRACKS_A_CORE + k for k, place in enumerate(places, start=1)}


def _core_events(core: int, timeline: Timeline, steps: tuple[StepUse, ...]) -> list[Event]:
    pid = core + 1
    tracks = _Tracks.from_timeline(timeline)
    threads = tracks.threads(core)
    tids = [threads[place] for place in zip(tracks.lane, tracks.row, strict=True)]
    events = list(_names(core, timeline, threads))
    # All slices before all flows: a slice that starts when a flow ends must be open by then.
    events += _slices(pid, timeline, tids, tracks, steps)
    events += _flows(pid, timeline, tids, tracks)
    events += _counters(pid, timeline)
    return events


def _names(core: int, timeline: Timeline, threads: dict[tuple[int, int], int]) -> Iterator[Event]:
    pid = core + 1
    kernel = name_text(timeline.program.kernel)
    yield metadata_event("process_name", pid, 0, {"name": f"core {core}: {kernel}"})
    yield metadata_event("process_sort_index", pid, 0, {"sort_index": core})
    for order, ((lane, row), tid) in enumerate(threads.items()):
        name = timeline.lanes[lane] + (f" (+{row})" if row else "")
        yield metadata_event("thread_name", pid, tid, {"name": name})
        yield metadata_event("thread_sort_index", pid, tid, {"sort_index": order})


def metadata_event(name: str, pid: int, tid: int, args: Event) -> Event:
    """A process's or a thread's name or order."""
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _slices(
    pid: int, timeline: Timeline, tids: list[int], tracks: _Tracks, steps: tuple[StepUse, ...]
) -> Iterator[Event]:
    """A complete event for each issue, then for each trigger."""
    instructions = timeline.program.instructions
    names = [operation_text(instruction) for instruction in instructions]
    common = _instruction_args(instructions, steps)
    own = _issue_args(timeline, names)
    starts = microseconds(tracks.start)
    durations = microseconds(end - start for start, end in zip(tracks.start, tracks.end, strict=True))
    for issue, number in enumerate(timeline.instruction):
        args = {**common[number], **own[issue]}
        yield slice_event(
            names[number], timeline.lanes[tracks.lane[issue]], pid, tids[issue], starts[issue], durations[issue], args
        )
    first = len(timeline.instruction)
    for slot, transfer in enumerate(timeline.transfers, start=first):
        name = f"trigger {names[timeline.instruction[transfer.issue]]}"
        args = {"issue": transfer.issue, "queue": timeline.lanes[timeline.lane[transfer.issue]]}
        yield slice_event(name, "trigger", pid, tids[slot], starts[slot], durations[slot], args)


def slice_event(name: str, category: str, pid: int, tid: int, start: float, duration: float, args: Event) -> Event:
    """A complete event; ``start`` and ``duration`` in microseconds."""
    return {
        "name": name, "cat": category, "ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": args
    }  # fmt: skip


def _instruction_args(instructions: list[Instruction], steps: tuple[StepUse, ...]) -> list[Event]:
    """The arguments that all issues of an instruction share."""
    find = step_finder(steps)
    found = []
    for instruction in instructions:
        step = find(instruction.line)
        args: Event = {"source": source_text(instruction.source), "step": step_name(steps, step, instruction.line)}
        if step != NO_STEP and steps[step].nodes:
            args["nodes"] = ", ".join(map(name_text, steps[step].nodes))
        args["operands"] = "; ".join(operand_texts(instruction))
        found.append(args)
    return found


def _issue_args(timeline: Timeline, names: list[str]) -> list[Event]:
    """The arguments of each issue: its number, the issue it waited for, and its DMA's transfer."""
    found: list[Event] = []
    for issue, producer in enumerate(timeline.waited_for):
        args: Event = {"issue": issue}
        if producer >= 0:
            lane = timeline.lanes[timeline.lane[producer]]
            args["waited_for"] = f"{names[timeline.instruction[producer]]} on {lane} (issue {producer})"
        found.append(args)
    for transfer in timeline.transfers:
        found[transfer.issue] |= _transfer_args(timeline, transfer)
    return found


def _transfer_args(timeline: Timeline, transfer: Transfer) -> Event:
    return {
        "bytes": transfer.payload,
        "hbm_bytes": transfer.hbm_bytes,
        "packets": transfer.packets,
        "dma_engines": transfer.engines,
        "triggered_by": timeline.lanes[transfer.lane],
    }


def _flows(pid: int, timeline: Timeline, tids: list[int], tracks: _Tracks) -> Iterator[Event]:
    """Flows from producers to waiting issues on other lanes, and from triggers to transfers."""
    lane, waited_for = timeline.lane, timeline.waited_for
    links = [(p, issue, "waits") for issue, p in enumerate(waited_for) if p >= 0 and lane[p] != lane[issue]]
    first = len(lane)
    links += [(slot, transfer.issue, "starts") for slot, transfer in enumerate(timeline.transfers, start=first)]
    # Shortly before the producer's end, where another slice of its track may begin: truncating start and length loses
    # one nanosecond.
    leaves = [
        max(tracks.start[source], min(tracks.end[source] - 2 * PS_PER_NS, tracks.start[sink]))
        for source, sink, _ in links
    ]
    out_times = microseconds(leaves)
    in_times = microseconds(tracks.start[sink] for _, sink, _ in links)
    for number, (source, sink, kind) in enumerate(links):
        if out_times[number] > in_times[number]:
            continue
        flow = {"name": kind, "cat": "flow", "id": pid * _TRACKS_A_CORE * 1000 + number, "pid": pid}
        yield {**flow, "ph": "s", "tid": tids[source], "ts": out_times[number]}
        yield {**flow, "ph": "f", "bp": "e", "tid": tids[sink], "ts": in_times[number]}


def _counters(pid: int, timeline: Timeline) -> Iterator[Event]:
    """Counters: the bytes per partition that tiles hold, by memory, and the DMA engines' rate."""
    tiles = tile_spans(timeline)
    for region in (MemoryRegion.sbuf, MemoryRegion.psum):
        curve = bytes_held(tiles, region)
        times = microseconds(time for time, _ in curve)
        name = f"{region.value.upper()} bytes a partition"
        for time, (_, held) in zip(times, curve, strict=True):
            yield _counter(name, pid, time, held)
    curve_gbps = _dma_rate(timeline)
    times = microseconds(time for time, _ in curve_gbps)
    for time, (_, rate) in zip(times, curve_gbps, strict=True):
        yield _counter("DMA GB/s", pid, time, rate)


def _counter(name: str, pid: int, time: float, value: float) -> Event:
    return {"name": name, "ph": "C", "pid": pid, "ts": time, "args": {"value": value}}


def _dma_rate(timeline: Timeline) -> list[tuple[int, float]]:
    """(picosecond, GB/s from then on): each transfer's payload spread evenly over its time."""
    changes: dict[int, float] = {}
    for transfer in timeline.transfers:
        start, end = timeline.start[transfer.issue], timeline.end[transfer.issue]
        if end > start:
            rate = transfer.payload * 1000 / (end - start)
            changes[start] = changes.get(start, 0.0) + rate
            changes[end] = changes.get(end, 0.0) - rate
    total, curve = 0.0, []
    for time in sorted(changes):
        total += changes[time]
        curve.append((time, max(0.0, round(total, 3))))
    return curve
