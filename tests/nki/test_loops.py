"""Device loops: the two sizes of a program, and what a loop costs in time."""

from __future__ import annotations

from typing import Any

import pytest
from simulating import load, tile, trace_body

from trnrt.nki import Spec, nisa, nl
from trnrt.nki.machine.loops import InstructionCounts, add_counts, count_instructions
from trnrt.nki.machine.program import Program

TILE = Spec((64, 64), "float32")


def nested(*trips: int) -> Program:
    """Loops in each other, with one instruction in the body of each, and two outside of all."""

    def body(x: nl.NkiTensor) -> None:
        x_sb = load(x)

        def run(level: int) -> None:
            nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)
            if level < len(trips):
                nl.fori_loop(0, trips[level], lambda _: run(level + 1))

        run(0)

    return trace_body(body, TILE)


@pytest.mark.parametrize(
    ("trips", "unrolled"), [((), 2), ((0,), 2), ((5,), 7), ((3, 4), 2 + 3 + 12), ((2, 0, 9), 4), ((2, 3, 4), 34)]
)
def test_a_body_counts_once_or_once_a_trip(trips: tuple[int, ...], unrolled: int) -> None:
    assert count_instructions(nested(*trips)) == InstructionCounts(2 + len(trips), unrolled)


@pytest.mark.parametrize(("start", "stop", "step", "trips"), [(0, 7, 2, 4), (3, 3, 1, 0), (5, 1, 1, 0), (2, 9, 7, 1)])
def test_the_trips_of_a_stepped_loop_are_counted(start: int, stop: int, step: int, trips: int) -> None:
    def body(x: nl.NkiTensor) -> None:
        x_sb = load(x)
        nl.fori_loop(start, stop, lambda _: add(x_sb), step=step)

    assert count_instructions(trace_body(body, TILE)) == (2, 1 + trips)


def add(x_sb: nl.NkiTensor) -> None:
    nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)


@pytest.mark.parametrize("outer", [0, 3])
def test_trips_of_run_time_make_the_unrolled_size_unknown(outer: int) -> None:
    """Unless a loop around them never runs."""

    def body(limit: nl.NkiTensor) -> None:
        x_sb = tile(64, 64)
        nisa.memset(dst=x_sb, value=0)
        count = nisa.register_alloc()
        nisa.register_load(count, load(limit))

        def inner(_: Any) -> None:
            nl.fori_loop(0, count, lambda _: add(x_sb))

        nl.fori_loop(0, outer, inner)

    counts = count_instructions(trace_body(body, Spec((1, 1), "int32")))
    assert counts == (4, None if outer else 3)


def test_sizes_of_several_programs_add_up() -> None:
    known, unknown = InstructionCounts(3, 30), InstructionCounts(4, None)
    assert add_counts([known, known]) == (6, 60)
    assert add_counts([known, unknown]) == (7, None)
    assert add_counts([]) == (0, 0)
