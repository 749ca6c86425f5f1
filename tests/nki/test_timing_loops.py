"""The time of device loops: a barrier of all engines at the entry and after each trip, and no overlap across it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from simulating import tile, trace_body

from trnrt.nki import Spec, nisa, nl
from trnrt.nki.machine.loops import count_instructions, is_loop_barrier
from trnrt.nki.machine.pace import with_value
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, predict, schedule
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.list_scheduling import ListSchedule
from trnrt.nki.machine.timing.path import critical_path
from trnrt.nki.machine.timing.simulation import Schedule
from trnrt.nki.profiling import profile_programs
from trnrt.report.trace import trace_document

TARGETS = ("trn1", "trn2", "trn3")
CAUSE = "barriers of device loops"
ROWS, COLUMNS = 128, 128


def scaled(
    trips: int, tiles: int = 1, *, looped: bool, target: str = "trn2", charge_ns: float | None = None
) -> Program:
    """2 x, ``tiles`` of 128 rows a trip: a device loop of ``trips``, or all of it unrolled."""
    total = trips * tiles * ROWS

    def body(x: nl.NkiTensor) -> None:
        out = tile(total, COLUMNS, buffer=nl.private_hbm)

        def move(source: Callable[[nl.NkiTensor], nl.NkiTensor]) -> None:
            x_sb, y_sb = tile(ROWS, COLUMNS), tile(ROWS, COLUMNS)
            nisa.dma_copy(dst=x_sb, src=source(x))
            nisa.tensor_scalar(dst=y_sb, data=x_sb, op0=nl.multiply, operand0=2.0)
            nisa.dma_copy(dst=source(out), src=y_sb)

        def trip(row: Any) -> None:
            pattern = [[COLUMNS, ROWS], [1, COLUMNS]]
            for number in range(tiles):
                first = number * ROWS * COLUMNS
                move(lambda t, f=first: t.ap(pattern, offset=f, scalar_offset=row, indirect_dim=0))  # type: ignore[misc]

        if looped:
            nl.fori_loop(0, total, trip, step=tiles * ROWS)
        else:
            for row in range(0, total, ROWS):
                move(lambda t, r=row: t[r : r + ROWS])  # type: ignore[misc]

    program = trace_body(body, Spec((total, COLUMNS), "float32"), target=target)
    return program if charge_ns is None else with_charge(program, charge_ns)


def with_charge(program: Program, charge_ns: float) -> Program:
    timing = with_value(program.target.timing, "loop_barrier_ns", charge_ns)
    return replace(program, target=replace(program.target, timing=timing))


def barriers(timeline: Timeline) -> list[int]:
    """The issues that are barriers."""
    instructions = timeline.program.instructions
    return [issue for issue, index in enumerate(timeline.instruction) if is_loop_barrier(instructions[index])]


def charge_of(target: str) -> float:
    """Microseconds."""
    return get_target(target).timing.loop_barrier_ns / 1000


# --- what a loop costs


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tiles", [1, 4])
def test_a_loop_is_slower_than_unrolled_by_its_barriers_and_the_overlap(target: str, tiles: int) -> None:
    trips = 8
    unrolled = predict(scaled(trips, tiles, looped=False, target=target)).benchmark
    looped = predict(scaled(trips, tiles, looped=True, target=target)).benchmark
    free = predict(scaled(trips, tiles, looped=True, target=target, charge_ns=0)).benchmark
    assert looped.us - unrolled.us >= (trips + 1) * charge_of(target)
    assert free.us - unrolled.us > trips, "a trip's loads don't overlap with the trip before: more than 1 us each"
    assert looped.us == pytest.approx(free.us + (trips + 1) * charge_of(target), rel=0.01)


def test_a_trip_costs_the_same_every_time() -> None:
    times = [predict(scaled(trips, looped=True)).benchmark.us for trips in (4, 8, 12, 16)]
    first, *rest = [later - sooner for sooner, later in pairwise(times)]
    assert first > 4 * charge_of("trn2")
    assert rest == pytest.approx([first] * len(rest), rel=0.01)


@pytest.mark.parametrize("end", ["least_us", "us", "most_us"])
def test_more_trips_take_longer(end: str) -> None:
    times = [getattr(predict(scaled(trips, looped=True)).benchmark, end) for trips in range(1, 8)]
    assert times == sorted(set(times))


def test_larger_bodies_are_the_way_out() -> None:
    times = [predict(scaled(16 // tiles, tiles, looped=True)).benchmark.us for tiles in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)


# --- the range


@pytest.mark.parametrize("target", TARGETS)
def test_the_range_carries_the_barriers(target: str) -> None:
    trips = 8
    (uncertain,) = (one for one in get_target(target).timing.uncertain if one.cause == CAUSE)
    (least,), (most,) = ([value for _, value in end] for end in (uncertain.least, uncertain.most))
    assert isinstance(least, (int, float)) and isinstance(most, (int, float))
    assert least < get_target(target).timing.loop_barrier_ns < most
    found = predict(scaled(trips, looped=True, target=target))
    (cause,) = (cause for cause in found.causes if cause.name == CAUSE)
    width = (trips + 1) * (most - least) / 1000
    assert cause.range.most_us - cause.range.least_us == pytest.approx(width, rel=0.02)
    assert found.benchmark.most_us - found.benchmark.least_us > width
    assert CAUSE not in [cause.name for cause in predict(scaled(trips, looped=False, target=target)).causes]


# --- the barrier itself


@pytest.mark.parametrize("order", [Schedule, ListSchedule])
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_runs_beside_a_barrier(order: type[Schedule], target: str) -> None:
    """Every issue before it has ended, with its semaphore; no issue after it, and no trigger, has begun."""
    timeline = order(Issues(scaled(4, 3, looped=True, target=target))).run()
    transfers = {transfer.issue: transfer for transfer in timeline.transfers}
    found = barriers(timeline)
    assert len(found) == 5
    for barrier in found:
        begin, end = timeline.start[barrier], timeline.end[barrier]
        assert end - begin == round(charge_of(target) * 1e6)
        assert all(seen <= begin for seen in timeline.seen[:barrier])
        for later in range(barrier + 1, len(timeline.start)):
            issued = transfers[later].triggered if later in transfers else timeline.start[later]
            assert issued >= end


@pytest.mark.parametrize(("outer", "inner"), [(3, 4), (0, 4), (3, 0), (1, 1)])
def test_nested_loops_meet_at_every_edge(outer: int, inner: int) -> None:
    def body() -> None:
        x_sb = tile(64, 64)
        nisa.memset(dst=x_sb, value=0)

        def add(_: Any) -> None:
            nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)

        nl.fori_loop(0, outer, lambda _: nl.fori_loop(0, inner, add))

    program = trace_body(body)
    timeline = schedule(program)
    met = 1 + outer * (1 + inner + 1)  # the outer entry; and for each of its trips, the inner entry and trips, its end
    assert len(barriers(timeline)) == met
    assert count_instructions(program).unrolled == len(timeline.instruction) - met
    assert timeline.duration >= met * charge_of("trn2") * 1e6


def test_a_loop_at_a_programs_end_is_paid_for() -> None:
    program = scaled(2, looped=True, charge_ns=50_000)
    assert schedule(program).duration == pytest.approx(
        schedule(with_charge(program, 0)).duration + 3 * 50_000_000, rel=0.01
    )


@pytest.mark.parametrize("order", [Schedule, ListSchedule])
def test_the_critical_path_names_the_barriers(order: type[Schedule]) -> None:
    timeline = order(Issues(scaled(5, 2, looped=True))).run()
    segments = critical_path(timeline)
    spent = sum(one.end - one.start for one in segments if one.part == "loop barriers")
    assert spent == 6 * charge_of("trn2") * 1e6
    assert sum(one.end - one.start for one in segments) == timeline.duration


# --- where a kernel's author sees it


def test_a_profile_says_why_a_loop_is_slow() -> None:
    found = profile_programs([scaled(6, looped=True)])
    parts = {part.part: part.time_us for part in found.breakdown.parts}
    assert parts["loop barriers"] == pytest.approx(7 * charge_of("trn2"))
    assert max(found.steps, key=lambda step: step.time_us).bound == "loop barrier"
    assert any("all engines meet 7 times" in note for note in found.notes)
    names = [event["name"] for event in trace_document(found)["traceEvents"]]
    assert names.count("loop barrier of all engines") == 7
    assert (found.counts.compiled, found.counts.unrolled) == (3, 18)


def test_a_profile_without_loops_says_nothing_of_barriers() -> None:
    found = profile_programs([scaled(6, looped=False)])
    assert {part.part: part.time_us for part in found.breakdown.parts}["loop barriers"] == 0
    assert not any("device loop" in note for note in found.notes)


# --- what third parties measured on NeuronCore-v2 (docs/timing.md, Device loops)


def streamed(tiles: int, columns: int, per_trip: int | None) -> Program:
    """A float32 product of each tile of 128 rows with resident weights, loaded and stored with software descriptors."""
    moved: dict[str, Any] = {"dge_mode": nisa.dge_mode.swdge}

    def body(w: nl.NkiTensor, x: nl.NkiTensor) -> None:
        out = tile(tiles * ROWS, columns, buffer=nl.private_hbm)
        w_sb = tile(ROWS, ROWS)
        nisa.dma_copy(dst=w_sb, src=w, **moved)
        sums = [tile(ROWS, columns, buffer=nl.psum) for _ in range(min(8, per_trip or 8))]

        def multiply(number: int, source: nl.NkiTensor, target: nl.NkiTensor) -> None:
            x_sb, y_sb, y_psum = tile(ROWS, columns), tile(ROWS, columns), sums[number % len(sums)]
            nisa.dma_copy(dst=x_sb, src=source, **moved)
            nisa.nc_matmul(dst=y_psum, stationary=w_sb, moving=x_sb)
            nisa.tensor_copy(dst=y_sb, src=y_psum)
            nisa.dma_copy(dst=target, src=y_sb, **moved)

        def trip(row: Any) -> None:
            pattern = [[columns, ROWS], [1, columns]]
            for n in range(per_trip or 0):
                views = (t.ap(pattern, offset=n * ROWS * columns, scalar_offset=row, indirect_dim=0) for t in (x, out))
                multiply(n, *views)

        if per_trip is None:
            for n in range(tiles):
                multiply(n, *(t[n * ROWS : (n + 1) * ROWS] for t in (x, out)))
        else:
            nl.fori_loop(0, tiles * ROWS, trip, step=per_trip * ROWS)

    return trace_body(body, Spec((ROWS, ROWS), "float32"), Spec((tiles * ROWS, columns), "float32"), target="trn1")


def us_a_tile(columns: int, per_trip: int | None) -> tuple[float, float, float]:
    """(least, headline, most) microseconds of one more tile."""
    one, two = (predict(streamed(tiles, columns, per_trip)).benchmark for tiles in (32, 64))
    return tuple((getattr(two, end) - getattr(one, end)) / 32 for end in ("least_us", "us", "most_us"))


@pytest.mark.parametrize("columns", [128, 256, 512])
@pytest.mark.parametrize(("per_trip", "measured"), [(1, 11.94), (16, 5.69)])
def test_the_measured_loss_of_a_streaming_product_is_in_the_range(columns: int, per_trip: int, measured: float) -> None:
    """A loop's time less the unrolled one's, 3.18 us a tile. The tile's size was not published: for any of these."""
    unrolled = us_a_tile(columns, None)[1]
    least, _, most = us_a_tile(columns, per_trip)
    assert least - unrolled <= measured - 3.18 <= most - unrolled
