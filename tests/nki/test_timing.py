"""The timing model: what waits for what, how long it takes, and that a program has one timeline."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from simulating import doubled, tile, zeros

from trnrt.errors import KernelError
from trnrt.nki import Spec, nisa, nl, trace
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, schedule
from trnrt.nki.machine.timing.hazards import Hazards
from trnrt.nki.machine.timing.tensor_engine import TensorEngine, Work

US = 1_000_000
TRN2 = get_target("trn2").timing


def timed(body: Callable[..., Any], *specs: Spec, target: str = "trn2") -> Timeline:
    """The timeline of a kernel's body, which need not return anything."""

    def kernel(*arguments: Any) -> nl.NkiTensor:
        result = body(*arguments)
        return result if result is not None else nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    return schedule(trace(kernel, *specs, target=target))


def nanoseconds(timeline: Timeline, issue: int) -> float:
    return (timeline.end[issue] - timeline.start[issue]) / 1000


def issues_of(timeline: Timeline, name: str) -> list[int]:
    instructions = timeline.program.instructions
    return [i for i, index in enumerate(timeline.instruction) if instructions[index].operation.name == name]


# What waits for what.
def waits(body: Callable[[], None]) -> list[dict[int, int]]:
    """For each instruction, lane -> the last issue it waits for; lanes are the engines' numbers."""

    def kernel() -> nl.NkiTensor:
        body()
        return nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    program = trace(kernel)
    hazards = Hazards(program)
    return [hazards.issue(instruction, instruction.engine.value).last for instruction in program.instructions]


VECTOR, GPSIMD = nisa.engine.vector.value, nisa.engine.gpsimd.value


def test_a_read_waits_for_the_write() -> None:
    def body() -> None:
        x, y = tile(128, 8), tile(128, 8)
        nisa.memset(dst=x, value=0.0, engine=nisa.engine.gpsimd)
        nisa.tensor_copy(dst=y, src=x, engine=nisa.engine.vector)

    assert waits(body)[1] == {GPSIMD: 0}


def test_a_write_waits_for_the_reads_since_the_last_write() -> None:
    def body() -> None:
        x, y = tile(128, 8), tile(128, 8)
        nisa.memset(dst=x, value=0.0, engine=nisa.engine.gpsimd)
        nisa.tensor_copy(dst=y, src=x, engine=nisa.engine.vector)
        nisa.memset(dst=x, value=1.0, engine=nisa.engine.gpsimd)

    assert waits(body)[2] == {GPSIMD: 0, VECTOR: 1}


def test_parts_that_do_not_meet_do_not_wait() -> None:
    def body() -> None:
        x = tile(128, 4, 16)
        for row in range(4):
            nisa.memset(dst=x[:, row], value=0.0, engine=nisa.engine.gpsimd)
        y = tile(128, 16)
        nisa.tensor_copy(dst=y, src=x[:, 1], engine=nisa.engine.vector)

    assert waits(body) == [{}, {}, {}, {}, {GPSIMD: 1}]


def test_a_tile_waits_for_the_last_users_of_its_address() -> None:
    """Only three tiles of that size fit."""

    def body() -> None:
        out = tile(128, 8)
        for _ in range(4):
            x = tile(128, 17000)
            nisa.memset(dst=x, value=0.0, engine=nisa.engine.gpsimd)
            nisa.tensor_copy(dst=out, src=x[:, 0:8], engine=nisa.engine.vector)

    found = waits(body)
    assert VECTOR not in found[4]
    assert found[6][VECTOR] == 1


def test_an_instruction_that_writes_a_tile_twice_does_not_wait_for_itself() -> None:
    def body() -> None:
        x, y = zeros(128, 8), zeros(128, 8)
        nisa.activation_reduce(x, nl.copy, y, nl.add, x[:, 0:1])

    assert waits(body)[2] == {GPSIMD: 1}


def test_what_a_kernel_asks_for_is_waited_for() -> None:
    def body() -> None:
        x, y = tile(128, 512), tile(128, 8)
        first = nisa.memset(dst=x, value=0.0, engine=nisa.engine.gpsimd)
        second = nisa.memset(dst=y, value=0.0, engine=nisa.engine.vector)
        second.depends_on(first)

    timeline = timed(body)
    assert timeline.start[1] > timeline.end[0]


def test_a_deadlock_is_told() -> None:
    def body() -> None:
        x, y = tile(128, 8), tile(128, 8)
        first = nisa.memset(dst=x, value=0.0, engine=nisa.engine.vector)
        second = nisa.memset(dst=y, value=0.0, engine=nisa.engine.vector)
        first.depends_on(second)

    with pytest.raises(KernelError, match=r"wait for each other for ever:\n.*vector: memset \(.*\) waits for memset"):
        timed(body)


# Engines.
def test_independent_instructions_follow_at_their_engine_s_rate() -> None:
    def body() -> None:
        for _ in range(3):
            nisa.memset(dst=tile(128, 960), value=0.0, engine=nisa.engine.vector)

    starts = timed(body).start
    assert [b - a for a, b in pairwise(starts)] == [1_000_000, 1_000_000]


def test_dependent_instructions_wait_for_the_last_element_and_its_semaphore() -> None:
    def body() -> None:
        x = zeros(128, 96)
        for _ in range(2):
            nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)

    timeline = timed(body)
    semaphore = TRN2.vector.signal_ns + TRN2.vector.wait_ns
    assert timeline.start[2] - timeline.end[1] == semaphore * 1000


def test_small_instructions_have_a_least_interval() -> None:
    def body() -> None:
        for _ in range(3):
            nisa.memset(dst=tile(128, 1), value=0.0, engine=nisa.engine.vector)

    starts = timed(body).start
    assert (starts[2] - starts[1]) / 1000 == pytest.approx(64 / 0.96, rel=1e-4)


def test_semaphores_between_engines_take_their_time() -> None:
    def body() -> None:
        x, y = tile(128, 8), tile(128, 8)
        nisa.memset(dst=x, value=0.0, engine=nisa.engine.vector)
        nisa.activation(dst=y, op=nl.copy, data=x)

    timeline = timed(body)
    assert timeline.start[1] - timeline.end[0] == round((TRN2.vector.signal_ns + TRN2.scalar.wait_ns) * 1000)
    assert timeline.waited_for[1] == 0


def test_a_new_function_loads_its_table_once() -> None:
    def body() -> None:
        x = zeros(128, 8)
        for op in (nl.exp, nl.exp, nl.tanh, nl.copy, nl.tanh):
            nisa.activation(dst=tile(128, 8), op=op, data=x)

    timeline = timed(body)
    gaps = [b - a > 1000 * TRN2.table_load_ns for a, b in pairwise(timeline.start[1:])]
    assert gaps == [False, True, False, False]
    assert timeline.start[1] >= 1000 * TRN2.table_load_ns


@pytest.mark.parametrize(("target", "waits_for_the_port"), [("trn1", True), ("trn2", False)])
def test_trn1_engines_take_turns_on_psum(target: str, waits_for_the_port: bool) -> None:
    def body() -> None:
        source, bias = tile(128, 512), tile(128, 1)  # that nothing writes: no engine is busy before
        x, y = tile(128, 512, buffer=nl.psum), tile(128, 512, buffer=nl.psum)
        nisa.memset(dst=x, value=0.0, engine=nisa.engine.vector)
        nisa.activation(dst=y, op=nl.copy, data=source, bias=bias)

    timeline = timed(body, target=target)
    (memset,), (activation,) = issues_of(timeline, "memset"), issues_of(timeline, "activation")
    streamed = round(512 / get_target(target).timing.vector.clock_ghz * 1000)
    assert (timeline.start[activation] >= timeline.start[memset] + streamed) is waits_for_the_port


# The tensor engine, against the published figures of trn2 (warm, warm-up excluded).
def products(dtype: Any, columns: int, count: int = 120) -> list[int]:
    def body() -> None:
        stationary, moving = zeros(128, 128, dtype=dtype), zeros(128, columns, dtype=dtype)
        for _ in range(count):
            nisa.nc_matmul(dst=tile(128, columns, buffer=nl.psum), stationary=stationary, moving=moving)

    timeline = timed(body)
    starts = [timeline.start[i] for i in issues_of(timeline, "nc_matmul")]
    return [b - a for a, b in pairwise(starts)]


@pytest.mark.parametrize(
    ("dtype", "columns", "published"),
    [(nl.bfloat16, 128, 56), (nl.bfloat16, 512, 217), (nl.float32, 128, 2 * 112), (nl.float32, 512, 2 * 429)],
)
def test_products_are_issued_at_the_published_rate(dtype: Any, columns: int, published: float) -> None:
    assert products(dtype, columns)[-1] / 1000 == pytest.approx(published, rel=0.04)


def test_the_clock_ramps() -> None:
    intervals = products(nl.bfloat16, 512)
    assert intervals[5] / 1000 == pytest.approx(427, rel=0.02)
    assert intervals[-1] / 1000 == pytest.approx(217, rel=0.02)


@pytest.mark.parametrize(
    ("target", "columns", "least", "most"), [("trn2", 128, 216, 216), ("trn2", 512, 376, 376), ("trn1", 128, 188, 219)]
)
def test_a_product_s_own_latency(target: str, columns: int, least: float, most: float) -> None:
    engine = TensorEngine(get_target(target))
    engine.ramp.window = 0  # warm
    _, end = engine.run(Work(1, columns, load=0, load_interval=0, flops=0), ready=0)
    assert least * 0.99 <= end / 1000 <= most * 1.01


def test_few_columns_cost_64_cycles() -> None:
    tensor = TRN2.tensor
    warm = products(nl.bfloat16, 1, count=600)[-1]
    assert warm / 1000 == pytest.approx(64 / tensor.clock_ghz + tensor.gap_ns, abs=0.002)


def test_trn1_has_no_ramp() -> None:
    def body() -> None:
        stationary, moving = zeros(128, 128, dtype=nl.bfloat16), zeros(128, 512, dtype=nl.bfloat16)
        for _ in range(4):
            nisa.nc_matmul(dst=tile(128, 512, buffer=nl.psum), stationary=stationary, moving=moving)

    timeline = timed(body, target="trn1")
    second, third = issues_of(timeline, "nc_matmul")[1:3]
    tensor = get_target("trn1").timing.tensor
    full = 512 / tensor.clock_ghz + tensor.gap_ns
    assert (timeline.start[third] - timeline.start[second]) / 1000 == pytest.approx(full, abs=0.002)


# DMA.
def moved(shape: tuple[int, ...], mode: Any = None, dtype: str = "float32") -> Timeline:
    def body(x: nl.NkiTensor) -> None:
        mode_given = {} if mode is None else {"dge_mode": mode}
        nisa.dma_copy(dst=nl.ndarray(shape, x.dtype, nl.sbuf), src=x, **mode_given)

    return timed(body, Spec(shape, dtype))


def test_one_engine_moves_eight_partitions() -> None:
    (transfer,) = moved((4, 4096), dtype="bfloat16").transfers
    assert (transfer.engines, transfer.packets, transfer.payload) == (1, 4, 32768)
    (transfer,) = moved((128, 128), dtype="bfloat16").transfers
    assert (transfer.engines, transfer.packets, transfer.payload) == (16, 128, 32768)


def test_the_published_32_kib_on_one_engine() -> None:
    def body(x: nl.NkiTensor) -> nl.NkiTensor:
        out, loaded = nl.ndarray(x.shape, x.dtype, nl.shared_hbm), tile(4, 4096, dtype=x.dtype)
        nisa.dma_copy(dst=loaded, src=x)
        nisa.dma_copy(dst=out, src=loaded)
        return out

    timeline = timed(body, Spec((4, 4096), "bfloat16"))
    assert nanoseconds(timeline, 0) == pytest.approx(1416, rel=0.02)
    assert nanoseconds(timeline, 1) == pytest.approx(1222, rel=0.02)


@pytest.mark.parametrize(
    ("mode", "until"),
    [
        (nisa.dge_mode.hwdge, TRN2.dma.start_hardware_ns + TRN2.dma.load_start_ns),
        (nisa.dge_mode.swdge, TRN2.dma.prepare_software_ns + TRN2.dma.start_software_ns + TRN2.dma.load_start_ns),
        (nisa.dge_mode.none, TRN2.dma.start_static_ns),
        (None, TRN2.dma.start_hardware_ns + TRN2.dma.load_start_ns),
    ],
)
def test_descriptors_decide_when_data_flows(mode: Any, until: float) -> None:
    timeline = moved((128, 512), mode)
    assert timeline.start[0] - timeline.transfers[0].triggered == until * 1000
    assert timeline.duration - timeline.end[0] == TRN2.dma.completion_ns * 1000


def test_software_descriptors_occupy_gpsimd() -> None:
    timeline = moved((128, 512), nisa.dge_mode.swdge)
    assert timeline.busy["gpsimd"] > 0 == timeline.busy["sync"]


def test_trn1_s_default_is_static() -> None:
    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(128, 512), src=x)

    timeline = timed(body, Spec((128, 512), "float32"), target="trn1")
    assert timeline.start[0] == get_target("trn1").timing.dma.start_static_ns * 1000


@pytest.mark.parametrize(
    ("key", "shape", "packets"),
    [
        ((slice(None), slice(None), slice(None)), (128, 2, 64), 128),
        ((slice(None), slice(None), slice(0, 32)), (128, 2, 32), 256),
        ((slice(None), slice(0, 1), slice(None)), (128, 1, 64), 128),
        ((slice(None), slice(None), slice(0, 64, 2)), (128, 2, 32), 128 * 64),
    ],
)
def test_packets_are_contiguous_on_both_sides(key: tuple[slice, ...], shape: tuple[int, ...], packets: int) -> None:
    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(*shape), src=x[key])

    timeline = timed(body, Spec((128, 2, 64), "float32"))
    assert timeline.transfers[0].packets == packets


def test_all_engines_share_the_road() -> None:
    timeline = moved((128, 2000))
    rate = timeline.transfers[0].payload / (nanoseconds(timeline, 0) - TRN2.dma.read_ns)
    assert rate == pytest.approx(TRN2.dma.total_gbps, rel=0.01)


def test_a_small_transfer_of_another_queue_does_not_wait_for_all_of_a_large_one() -> None:
    def body(x: nl.NkiTensor, y: nl.NkiTensor) -> nl.NkiTensor:
        out = nl.ndarray((128, 1), nl.float32, nl.shared_hbm)
        small = zeros(128, 1)
        nisa.dma_copy(dst=tile(128, 50000), src=x)
        nisa.dma_copy(dst=out, src=small)
        return out

    timeline = timed(body, Spec((128, 50000), "float32"), Spec((128, 1), "float32"))
    large, small = issues_of(timeline, "dma_copy")
    assert timeline.end[small] < timeline.end[large] / 4


# Programs.
def test_a_prediction_is_the_same_every_time() -> None:
    first, second = (timed(doubled, Spec((1024, 512), "float32")) for _ in range(2))
    assert (first.start, first.end, first.waited_for) == (second.start, second.end, second.waited_for)


def test_loads_run_ahead_of_compute() -> None:
    timeline = timed(doubled, Spec((1024, 512), "float32"))
    loads = [i for i in issues_of(timeline, "dma_copy") if timeline.lanes[timeline.lane[i]] == "queue sync"]
    computes = issues_of(timeline, "tensor_scalar")
    assert timeline.start[loads[1]] < timeline.end[computes[0]]


def test_lanes_are_in_order_and_nothing_starts_before_what_it_waits_for() -> None:
    timeline = timed(doubled, Spec((2048, 512), "float32"))
    last: dict[int, int] = {}
    for issue, lane in enumerate(timeline.lane):
        assert timeline.start[issue] >= last.get(lane, 0)
        last[lane] = timeline.start[issue]
        assert timeline.end[issue] > timeline.start[issue]
        assert timeline.waited_for[issue] < issue
    for busy in timeline.busy.values():
        assert 0 <= busy <= timeline.duration


@pytest.mark.usefixtures("level_0_6")
def test_device_loops_are_timed_as_often_as_they_run() -> None:
    def looped(count: int) -> Timeline:
        def body() -> None:
            x = zeros(128, 96)
            for _ in nl.dynamic_range(count):
                nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)

        return timed(body)

    assert len(issues_of(looped(7), "tensor_scalar")) == 7
    assert looped(20).duration - looped(10).duration == pytest.approx(looped(30).duration - looped(20).duration)


@pytest.mark.usefixtures("level_0_6")
def test_a_loop_whose_end_only_the_run_knows_is_told() -> None:
    def body(count: nl.NkiTensor) -> None:
        x, held = zeros(128, 96), tile(1, 1, dtype=nl.int32)
        nisa.dma_copy(dst=held, src=count)
        stop = nisa.register_alloc(0)
        nisa.register_load(stop, held)
        for _ in nl.dynamic_range(0, stop):
            nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)

    timeline = timed(body, Spec((1, 1), "int32"))
    assert len(issues_of(timeline, "tensor_scalar")) == 1
    assert "known at run time only" in timeline.notes[0]


@pytest.mark.usefixtures("level_0_6")
def test_a_loop_that_is_too_long_is_refused() -> None:
    def body() -> None:
        x = zeros(128, 96)
        for _ in nl.dynamic_range(10_000_000):
            nisa.tensor_scalar(dst=x, data=x, op0=nl.add, operand0=1.0)

    with pytest.raises(KernelError, match="runs 10000000 times 1 instructions"):
        timed(body)


@pytest.mark.parametrize("name", ["trn1", "trn2", "trn3"])
def test_every_number_names_its_source(name: str) -> None:
    text = (files("trnrt.nki.machine") / f"{name}.toml").read_text(encoding="utf-8")
    numbers, _, uncertain = text.partition("[timing]")[2].partition("[[timing.uncertain]]")
    lines = [line for line in numbers.splitlines() if " = " in line]
    assert len(lines) > 50
    assert [line for line in lines if not line.partition("#")[2].strip()] == []
    assert " = " in uncertain  # those have a source as a value (test_timing_range.py)
