"""The critical path: it has no gap, it adds up, and each of its parts is what the target's data says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import ACTIONS, run
from simulating import tile, trace_body

from trnrt.nki import Spec, nisa, nl, profile
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, predict, schedule
from trnrt.nki.machine.timing.path import PARTS, critical_path


def spent(timeline: Timeline) -> Counter[str]:
    """Part -> picoseconds, after a look at the path: whole, without a gap, and each segment within its issue's time."""
    segments = critical_path(timeline)
    assert [one.end for one in segments[:-1]] == [one.start for one in segments[1:]]
    assert (segments[0].start, segments[-1].end) == (0, timeline.duration)
    assert {one.part for one in segments} <= set(PARTS)
    for one in segments:
        assert one.start < one.end <= timeline.seen[one.issue] + 50_000
    found: Counter[str] = Counter()
    for one in segments:
        found[one.part] += one.end - one.start
    assert found.total() == timeline.duration
    return found


def step(target: str = "trn2") -> Timeline:
    """Load, add, store: one after the other."""

    def body(x: nl.NkiTensor) -> None:
        x_sb, y_sb = tile(1, 512), tile(1, 512)
        nisa.dma_copy(dst=x_sb, src=x)
        nisa.tensor_tensor(dst=y_sb, data1=x_sb, data2=x_sb, op=nl.add)
        nisa.dma_copy(dst=tile(1, 512, buffer=nl.private_hbm), src=y_sb)

    return schedule(trace_body(body, Spec((1, 512), "float32"), target=target))


@pytest.mark.parametrize(("target", "cycles_each"), [("trn1", 2), ("trn2", 1)])
def test_each_part_is_what_the_data_file_says(target: str, cycles_each: int) -> None:
    found, timing = spent(step(target)), get_target(target).timing
    dma, vector = timing.dma, timing.vector
    static = target == "trn1"
    starts = 2 * dma.start_static_ns if static else 2 * dma.start_hardware_ns + dma.load_start_ns
    store_wait = getattr(timing, dma.static_stores if static else "scalar").wait_ns
    nanoseconds = {
        "DMA starts": starts,
        "DMA data": 2 * (dma.packet_ns + 2048 / dma.engine_gbps),
        "DMA completions": 2 * dma.completion_ns + dma.read_ns,
        "semaphores": vector.wait_ns + vector.signal_ns + store_wait,
        "instruction latency": vector.latency_ns,
        "compute": 512 * cycles_each / vector.clock_ghz,
    }
    assert found == {part: pytest.approx(ns * 1000, abs=2) for part, ns in nanoseconds.items()}


def test_triggers_of_one_engine_wait_for_each_other() -> None:
    def body(x: nl.NkiTensor) -> None:
        for _ in range(3):
            nisa.dma_copy(dst=tile(1, 16), src=x)

    found = spent(schedule(trace_body(body, Spec((1, 16), "float32"))))
    timing = get_target("trn2").timing.dma
    assert found["DMA triggers"] == 2 * timing.trigger_hardware_ns * 1000
    assert found["DMA starts"] == (timing.start_hardware_ns + timing.load_start_ns) * 1000


def test_a_table_is_its_own_part() -> None:
    def body() -> None:
        x_sb = tile(1, 16)
        nisa.memset(dst=x_sb, value=0)
        nisa.activation(dst=tile(1, 16), op=nl.exp, data=x_sb)

    timing = get_target("trn2").timing
    assert spent(schedule(trace_body(body)))["function tables"] == timing.table_load_ns * 1000


def test_a_column_s_read_is_no_data() -> None:
    """An instruction's fixed cycles are in its latency: twice the elements are twice the compute part."""

    def scaled(columns: int) -> Counter[str]:
        def body() -> None:
            x_sb, factor_sb = tile(1, columns), tile(1, 1)
            nisa.memset(dst=factor_sb, value=0)
            nisa.tensor_scalar(dst=tile(1, columns), data=x_sb, op0=nl.multiply, operand0=factor_sb)

        return spent(schedule(trace_body(body)))

    small, large = scaled(200), scaled(400)
    timing = get_target("trn2").timing.vector
    assert large["compute"] - small["compute"] == pytest.approx(100 / timing.clock_ghz * 1000, abs=2)
    assert large["instruction latency"] == pytest.approx(small["instruction latency"], abs=2)


@pytest.mark.parametrize(("target", "waits"), [("trn1", True), ("trn2", False)])
def test_an_engine_that_waits_for_another_one_s_port_is_held_up_by_it(target: str, waits: bool) -> None:
    """vector and scalar take turns on trn1's PSUM: the path goes through both."""

    def body() -> None:
        one, two = tile(1, 512, buffer=nl.psum), tile(1, 512, buffer=nl.psum)
        nisa.activation(dst=tile(1, 512), op=nl.copy, data=one)
        nisa.tensor_copy(dst=tile(1, 512), src=two, engine=nisa.engine.vector)

    timeline = schedule(trace_body(body, target=target))
    spent(timeline)
    assert ({segment.issue for segment in critical_path(timeline)} == {0, 1}) is waits


@settings(max_examples=150, phases=[Phase.generate])
@given(ACTIONS, st.sampled_from(["trn1", "trn2"]))
def test_it_adds_up_for_any_program_at_both_ends_of_its_range(actions: list[Any], target: str) -> None:
    found = predict(trace_body(lambda: run(actions, target), target=target))
    for line in (found.timeline, found.least, found.most):
        spent(line)


def products(target: str, dtype: str, count: int, columns: int) -> Program:
    """Products in a chain with what evacuates them, and a transpose on each way."""

    def body(x: nl.NkiTensor) -> None:
        x_sb = tile(64, 64, dtype=dtype)
        nisa.dma_copy(dst=x_sb, src=x)
        for number in range(count):
            y_psum = tile(64, columns, buffer=nl.psum)
            nisa.nc_matmul(dst=y_psum, stationary=x_sb, moving=x_sb[:, 0:columns])
            y_sb = tile(64, columns, dtype=dtype)
            op = nl.exp if number % 3 == 0 else nl.copy
            nisa.activation(dst=y_sb, op=op, data=y_psum)
            if number % 2:
                nisa.tensor_copy(dst=x_sb[:, 0:columns], src=y_sb, engine=nisa.engine.gpsimd)
            turned_psum = tile(columns, 64, dtype=dtype, buffer=nl.psum)
            nisa.nc_transpose(dst=turned_psum, data=x_sb[:, 0:columns])

    return trace_body(body, Spec((64, 64), dtype), target=target)


@settings(max_examples=40, phases=[Phase.generate])
@given(
    st.sampled_from(["trn1", "trn2", "trn3"]),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(1, 24),
    st.integers(1, 64),
)
def test_it_adds_up_for_products_at_both_ends_of_their_range(target: str, dtype: str, count: int, columns: int) -> None:
    found = predict(products(target, dtype, count, columns))
    for line in (found.timeline, found.least, found.most):
        assert spent(line)["compute"]


def test_a_longer_semaphore_makes_the_program_as_much_longer_as_the_path_has_of_them() -> None:
    program = products("trn2", "float32", 4, 64)
    before = schedule(program)
    dma = program.target.timing.dma
    count = round(spent(before)["DMA completions"] / 1000 / (dma.completion_ns + dma.read_ns))
    longer = replace(program.target.timing, dma=replace(dma, completion_ns=dma.completion_ns + 1))
    after = schedule(replace(program, target=replace(program.target, timing=longer)))
    assert (after.duration - before.duration, count) == (1000, 1)


def test_an_empty_program_has_no_path() -> None:
    assert critical_path(schedule(trace_body(lambda: None))) == []


def test_a_kernel_s_profile_has_the_parts_and_no_floor() -> None:
    def kernel(x: nl.NkiTensor) -> nl.NkiTensor:
        y = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=y, src=x)
        return y

    found = profile(kernel, Spec((128, 64), "float32"), target="trn2")
    assert [part.part for part in found.breakdown.parts] == list(PARTS)
    assert sum(part.time_us for part in found.breakdown.parts) == pytest.approx(found.benchmark_us, rel=1e-12)
    assert (found.breakdown.floor_us, found.breakdown.ratio) == (None, None)
    assert all(part.floor_us is None for part in found.breakdown.parts)


def test_it_adds_up_where_nothing_tells_why_an_issue_began_late() -> None:
    """A stream that chooses may let another have its turn first."""
    timeline = step()
    late = [timeline.start[0], timeline.start[1] + 7, timeline.start[2]]
    found = critical_path(replace(timeline, start=late))
    assert [one.end for one in found[:-1]] == [one.start for one in found[1:]]
    assert (found[0].start, found[-1].end) == (0, timeline.duration)
