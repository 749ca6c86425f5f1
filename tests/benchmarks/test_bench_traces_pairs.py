"""Which events of two runs are paired, and which period explains the tensor engine's clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.timing.traces import aligning, comparing
from benchmarks.timing.traces.aligning import MEASURED, MERGED, MOVED, OURS, REORDERED, SAME, SPLIT, align
from benchmarks.timing.traces.clock import clock_changes, grids
from benchmarks.timing.traces.record import Event, Pass, Run, Window


def event(kind: str, size: int, start: int = 0, engine: str = "vector", source: str = "", **more: Any) -> Event:
    return Event(engine, kind, size, start, start + 10, source=source, **more)


def run_of(*events: Event) -> Run:
    ordered = [replace(one, start=start, end=start + 10) for start, one in enumerate(events)]
    return Run("run", tuple(ordered), 100, 0, 100)


def found(measured: Run, ours: Run) -> list[tuple[tuple[int, ...], tuple[int, ...], str]]:
    return [(pair.measured, pair.ours, pair.how) for pair in align(measured, ours)]


def test_one_side_may_have_more_events() -> None:
    measured = run_of(event("copy", 8), event("reduce add", 8), event("copy", 8), event("wait", 0))
    ours = run_of(event("copy", 8), event("copy", 8), event("copy", 8), event("reduce add", 8))
    assert found(measured, ours) == [
        ((0,), (0,), SAME),
        ((1,), (3,), REORDERED),
        ((2,), (1,), SAME),
        ((3,), (), MEASURED),
        ((), (2,), OURS),
    ]


def test_another_order_and_another_engine() -> None:
    measured = run_of(event("copy", 8), event("copy", 4), event("activate exp", 8, engine="scalar"))
    ours = run_of(event("copy", 4), event("copy", 8), event("activate exp", 8))
    assert [how for *_, how in found(measured, ours)] == [REORDERED, SAME, MOVED]


def test_merged_and_split() -> None:
    measured = run_of(event("copy", 512, engine="scalar"), *[event("store", 64, engine="gpsimd")] * 4)
    ours = run_of(*[event("copy", 128)] * 5, event("store", 256, engine="gpsimd"))
    assert found(measured, ours) == [
        ((0,), (0, 1, 2, 3), MERGED),
        ((1, 2, 3, 4), (5,), SPLIT),
        ((), (4,), OURS),
    ]


def test_how_long_merged_events_take_together() -> None:
    """The time between the parts is not theirs."""
    measured, ours = run_of(event("copy", 16)), run_of(event("copy", 8), event("reduce add", 8), event("copy", 8))
    row, lone = comparing._rows(measured, ours, tuple(align(measured, ours)))
    assert row.what == "copy 16 (ours: 2 x copy 8)" and row.ours is not None
    assert (row.how, row.ours.start, row.ours.end, row.ours.busy) == (MERGED, 0, 12, 20)
    assert (row.duration_difference, lone.duration_difference, lone.start_difference) == (10, None, None)


def test_copies_of_different_things_are_no_pair_if_it_is_known() -> None:
    measured = run_of(event("copy", 8, source="transpose"))
    ours = run_of(event("copy", 8, source="product"))
    assert [how for *_, how in found(measured, ours)] == [MEASURED, OURS]
    assert [how for *_, how in found(measured, run_of(event("copy", 8)))] == [SAME]


def test_every_event_is_in_one_pair() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        sides = []
        for count in rng.integers(0, 12, 2):
            kinds = rng.choice(["copy", "reduce add", "wait", "store"], count)
            engines = rng.choice(["vector", "scalar"], count)
            sizes = rng.choice([4, 8, 16], count)
            sides.append(
                run_of(*(event(str(k), int(s), engine=str(e)) for k, s, e in zip(kinds, sizes, engines, strict=True)))
            )
        pairs = align(*sides)
        for side, run in enumerate(sides):
            assert sorted(number for pair in pairs for number in pair[:2][side]) == list(range(len(run.events)))
        for pair in pairs:
            parts = [[run.events[n] for n in numbers] for run, numbers in zip(sides, pair[:2], strict=True)]
            kinds_of = {one.kind for part in parts for one in part}
            assert len(kinds_of) == 1
            amounts = [sum(one.size for one in part) for part in parts]
            assert pair.how in (MEASURED, OURS) or amounts[0] == amounts[1]


def test_the_longest_common_sequence() -> None:
    sides = aligning._Sides([event("copy", size) for size in (1, 2, 3, 4)], [event("copy", size) for size in (2, 1, 4)])
    pairs = aligning._sequence(sides, [0, 1, 2, 3], [0, 1, 2])
    assert len(pairs) == 2 and pairs[-1] == ((3,), (2,), SAME)


# --- the clock


def test_which_period_explains_the_clock() -> None:
    """Busy for 60 % of a window of 6,827 ns, then idle; the half of it that is shorter is busy for 20 % only."""

    def busy(start: int, end: int) -> Event:
        passes = (Pass((start, start), (start, end)),)
        return Event("tensor", "product", 512, start, end, passes=passes)

    events = (busy(10_000 + 683, 10_000 + 4_096), busy(10_000 + 6_144, 10_000 + 6_827))
    windows = (Window(0, 16_827, False), Window(16_827, 23_653, True), Window(23_653, 30_000, False))
    run = Run("run", events, 40_000, 10_000, 17_000, windows=windows)
    changes = clock_changes(run)
    assert [(change.full, change.at, change.after_first_product) for change in changes] == [
        (True, 16_827, 6_144),
        (False, 23_653, 12_970),
    ]
    short, period, long = grids(run)
    assert period.on_grid and period.explains and list(period.full) == [pytest.approx(0.6, abs=0.001)]
    assert short.on_grid and not short.explains  # 83 % busy without effect, 20 % with one
    assert not long.explains
    assert grids(replace(run, windows=())) == []
