"""The trace: every issue is a slice of its length on a track of its lane, as Perfetto's importer reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from timelines import LANES, QUEUE, line_steps, matmul_program, paced, profile_of

from trnrt.nki.machine.timing import PS_PER_US, Timeline
from trnrt.report.trace import microseconds, trace_document, trace_text

Event = dict[str, Any]


def matmul_timeline() -> Timeline:
    return paced(matmul_program())


def by_phase(timeline: Timeline, *more: Timeline) -> dict[str, list[Event]]:
    """The trace's events by their ``ph``."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in trace_document(profile_of(timeline, *more))["traceEvents"]:
        found[event["ph"]].append(event)
    return found


def nanoseconds(microseconds: float) -> int:
    """What Perfetto's importer makes of a time: the product in floating point, cut off."""
    return int(microseconds * 1000.0)


def thread_names(events: list[Event]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def issues(events: list[Event]) -> list[Event]:
    return [event for event in events if event["cat"] != "trigger"]


def test_the_document_is_strict_json_of_known_events() -> None:
    text = trace_text(profile_of(matmul_timeline()))
    document = json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} in JSON"))
    assert text.isascii() and document["displayTimeUnit"] == "ns"
    assert document["otherData"]["target"] == "trn2"
    for event in document["traceEvents"]:
        assert event["ph"] in "MXsfC" and isinstance(event["pid"], int) and event["name"]
        assert event["ph"] == "M" or isinstance(event["ts"], float)


def test_every_issue_is_a_slice_of_its_length_on_its_lane() -> None:
    timeline = matmul_timeline()
    events = by_phase(timeline)
    names = thread_names(events["M"])
    slices = issues(events["X"])
    assert [event["args"]["issue"] for event in slices] == list(range(5))
    for issue, event in enumerate(slices):
        assert event["ts"] * PS_PER_US == pytest.approx(timeline.start[issue], abs=1e-3)
        assert event["dur"] * PS_PER_US == pytest.approx(timeline.end[issue] - timeline.start[issue], abs=1e-3)
        lane = LANES[timeline.lane[issue]]
        assert names[event["pid"], event["tid"]].split(" (+")[0] == lane == event["cat"]
    lengths = sum(end - start for start, end in zip(timeline.start, timeline.end, strict=True))
    assert sum(event["dur"] for event in slices) * PS_PER_US == pytest.approx(lengths)


def test_arguments_say_what_an_issue_is_and_waited_for() -> None:
    slices = issues(by_phase(matmul_timeline())["X"])
    matmul, load = slices[2], slices[0]
    assert matmul["name"] == "nc_matmul" and matmul["args"]["waited_for"] == "dma_copy on queue sync (issue 1)"
    assert "product[128, 512] float32 psum" in matmul["args"]["operands"]
    assert "timelines.py" in matmul["args"]["source"] and matmul["args"]["nodes"].startswith("node_")
    assert "waited_for" not in load["args"]
    assert {key: load["args"][key] for key in ("bytes", "packets", "dma_engines", "triggered_by")} == {
        "bytes": 65536, "packets": 128, "dma_engines": 16, "triggered_by": "sync"
    }  # fmt: skip


def test_triggers_are_on_the_issuing_engines_track() -> None:
    timeline = matmul_timeline()
    events = by_phase(timeline)
    names = thread_names(events["M"])
    triggers = [event for event in events["X"] if event["cat"] == "trigger"]
    assert [event["args"]["issue"] for event in triggers] == [transfer.issue for transfer in timeline.transfers]
    for event, transfer in zip(triggers, timeline.transfers, strict=True):
        assert names[event["pid"], event["tid"]] == "sync" and event["args"]["queue"] == LANES[QUEUE]
        assert event["ts"] * PS_PER_US == pytest.approx(transfer.triggered)
        assert event["dur"] * PS_PER_US == pytest.approx(transfer.trigger_end - transfer.triggered)


def test_tracks_are_in_the_lanes_order_and_belong_to_one_core() -> None:
    events = by_phase(matmul_timeline(), matmul_timeline())["M"]
    names = thread_names(events)
    assert [name for (pid, _), name in names.items() if pid == 1] == [
        "tensor", "vector", "sync", "queue sync", "queue sync (+1)"
    ]  # fmt: skip
    order = [event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"]
    assert order == [*range(5), *range(5)]
    # Perfetto finds the thread to be named by its number alone.
    assert len({tid for _, tid in names}) == len(names)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "core 0: matmul_kernel", "core 1: matmul_kernel"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overlap", "pace"),
    [(0, 100_357), (1, 100_357), (999, 100_357), (150_300, 100_357), (1_000_000, 100_357), (0, 300)],
)
def test_no_slice_overlaps_another_of_its_track_in_perfettos_nanoseconds(overlap: int, pace: int) -> None:
    tracks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in by_phase(paced(matmul_program(), overlap=overlap, pace=pace))["X"]:
        start = nanoseconds(event["ts"])
        tracks[event["tid"]].append((start, start + nanoseconds(event["dur"])))
    for spans in tracks.values():
        spans.sort()
        for (start, end), (following, _) in pairwise(spans):
            assert start < following and end <= following


def open_slice(events: list[Event], flow: Event, position: int) -> Event:
    """The slice that a flow's end is tied to: the last that began on its track, of those that stand before it."""
    time = nanoseconds(flow["ts"])
    before = [
        e for e in events[:position] if e["ph"] == "X" and e["tid"] == flow["tid"] and nanoseconds(e["ts"]) <= time
    ]
    found = max(before, key=lambda event: nanoseconds(event["ts"]))
    assert nanoseconds(found["ts"]) + nanoseconds(found["dur"]) > time
    return found


@pytest.mark.parametrize("overlap", [0, 150_300])
def test_flows_bind_to_the_slices_that_they_tie_together(overlap: int) -> None:
    timeline = paced(matmul_program(), overlap=overlap)
    events: list[Event] = trace_document(profile_of(timeline))["traceEvents"]
    ends: dict[int, dict[str, Event]] = defaultdict(dict)
    for position, event in enumerate(events):
        if event["ph"] in "sf":
            assert event["ph"] == "s" or event["bp"] == "e"
            ends[event["id"]][event["ph"]] = open_slice(events, event, position)
    tied = {
        (pair["s"]["args"]["issue"], pair["f"]["args"]["issue"])
        for pair in ends.values()
        if pair["s"]["cat"] != "trigger"
    }
    lanes = timeline.lane
    if overlap == 0:
        assert tied == {(k - 1, k) for k in range(1, 5) if lanes[k - 1] != lanes[k]} == {(1, 2), (2, 3), (3, 4)}
    started = {pair["f"]["args"]["issue"] for pair in ends.values() if pair["s"]["cat"] == "trigger"}
    assert started == {transfer.issue for transfer in timeline.transfers}


def test_counters_follow_the_tiles_and_the_transfers() -> None:
    timeline = matmul_timeline()
    counters: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in by_phase(timeline)["C"]:
        counters[event["name"]].append((event["ts"], event["args"]["value"]))
    # stationary: 128 float32 a partition, moving and product: 512.
    assert max(held for _, held in counters["SBUF bytes a partition"]) == 512 + 2048
    assert counters["PSUM bytes a partition"] == [
        (timeline.start[2] / PS_PER_US, 2048),
        (timeline.end[3] / PS_PER_US, 0),
    ]
    rate = 65536 / (251_000 / 1000)
    time, value = counters["DMA GB/s"][0]
    assert time == 0.06 and value == pytest.approx(rate, abs=1e-3)
    assert all(points[-1][1] == 0 for points in counters.values())


def test_times_are_not_short_of_their_nanosecond() -> None:
    times = np.random.default_rng(0).integers(0, 10**11, 200_000) // 1000 * 1000
    plain = times / PS_PER_US
    assert (np.floor(plain * 1000.0) < times // 1000).any(), "plain division is good enough: drop the correction"
    assert [nanoseconds(time) for time in microseconds(times.tolist())] == (times // 1000).tolist()


def test_a_line_outside_of_all_steps_is_its_own() -> None:
    timeline = matmul_timeline()
    steps = line_steps(timeline)[1:]
    first, second = trace_document(profile_of(timeline, steps=steps))["traceEvents"][12:14]
    assert first["args"]["step"] == f"line {timeline.program.instructions[0].line}" and "nodes" not in first["args"]
    assert second["args"]["step"] == steps[0].name
