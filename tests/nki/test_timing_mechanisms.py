"""The mechanisms of the timing model, each by itself: what it adds is what the target's file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from simulating import tile

from trnrt.nki import Spec, nisa, nl, trace
from trnrt.nki.machine.pace import Timing, with_value
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, Transfer, benchmark_us, profiler_us, schedule, schedule_freely
from trnrt.nki.machine.timing.tensor_engine import Ramp

TRN2 = get_target("trn2").timing
DMA, TENSOR = TRN2.dma, TRN2.tensor
SOFTWARE, HARDWARE, STATIC = nisa.dge_mode.swdge, nisa.dge_mode.hwdge, nisa.dge_mode.none
ROW = Spec((1, 16), "float32")


def programmed(body: Callable[..., Any], *specs: Spec, target: str = "trn2", timing: Timing | None = None) -> Program:
    """The program of a kernel's body, which returns nothing; with the target's numbers, or with others."""

    def kernel(*arguments: Any) -> nl.NkiTensor:
        body(*arguments)
        return nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    program = trace(kernel, *specs, target=target)
    return program if timing is None else replace(program, target=replace(program.target, timing=timing))


def timed(body: Callable[..., Any], *specs: Spec, target: str = "trn2", timing: Timing | None = None) -> Timeline:
    """The timeline of that program, in its own order."""
    return schedule(programmed(body, *specs, target=target, timing=timing))


def nanoseconds(line: Timeline, issue: int) -> float:
    return (line.end[issue] - line.start[issue]) / 1000


def changed(**numbers: float) -> Timing:
    """trn2's numbers but for some, named ``engine__name``."""
    timing = TRN2
    for name, value in numbers.items():
        timing = with_value(timing, name.replace("__", "."), value)
    return timing


# --- DMA: who triggers, for how long, and when the first data flows


def moved(store: bool, rows: int = 128, count: int = 1, **options: Any) -> Timeline:
    """Loads, or stores, of so many partitions."""

    def body(x: nl.NkiTensor) -> None:
        for _ in range(count):
            in_hbm, in_sbuf = tile(rows, 16, buffer=nl.private_hbm), tile(rows, 16)
            dst, src = (in_hbm, in_sbuf) if store else (in_sbuf, x)
            nisa.dma_copy(dst=dst, src=src, **options)

    return timed(body, Spec((rows, 16), "float32"))


def engine_of(line: Timeline, transfer: Transfer) -> str:
    return line.lanes[transfer.lane]


@pytest.mark.parametrize(
    ("mode", "store", "engine", "trigger", "until"),
    [
        (HARDWARE, False, "sync", DMA.trigger_hardware_ns, DMA.start_hardware_ns + DMA.load_start_ns),
        (HARDWARE, True, "scalar", DMA.trigger_hardware_ns, DMA.start_hardware_ns),
        (STATIC, False, "sync", DMA.trigger_static_ns, DMA.start_static_ns),
        (STATIC, True, DMA.static_stores, DMA.trigger_static_ns, DMA.start_static_ns),
        (
            SOFTWARE,
            False,
            "gpsimd",
            DMA.trigger_software_ns,
            DMA.prepare_software_ns + DMA.start_software_ns + DMA.load_start_ns,
        ),
        (SOFTWARE, True, "gpsimd", DMA.trigger_software_ns, DMA.prepare_software_ns + DMA.start_software_ns),
    ],
)
def test_each_mode_has_its_trigger(mode: Any, store: bool, engine: str, trigger: float, until: float) -> None:
    line = moved(store, dge_mode=mode)
    (transfer,) = line.transfers
    assert engine_of(line, transfer) == engine
    assert transfer.trigger_end - transfer.triggered == trigger * 1000
    assert line.start[0] - transfer.triggered == until * 1000
    following = moved(store, count=2, dge_mode=mode).transfers[1]
    assert following.triggered == trigger * 1000


@pytest.mark.parametrize("engine", ["sync", "scalar", "gpsimd"])
def test_who_triggers_static_stores_is_a_choice_whoever_computed_what_is_stored(engine: str) -> None:
    def body() -> None:
        made = tile(128, 16)
        nisa.activation(dst=made, op=nl.copy, data=tile(128, 16))
        nisa.dma_copy(dst=tile(128, 16, buffer=nl.private_hbm), src=made, dge_mode=STATIC)

    line = timed(body, timing=with_value(TRN2, "dma.static_stores", engine))
    assert engine_of(line, line.transfers[0]) == engine


def test_a_kernel_that_names_an_engine_gets_it() -> None:
    line = moved(True, dge_mode=HARDWARE, engine=nisa.engine.sync)
    assert engine_of(line, line.transfers[0]) == "sync"


@pytest.mark.parametrize("rows", [1, 16, 127, 128])
@pytest.mark.parametrize("store", [False, True])
def test_few_rows_have_few_descriptors_to_make(rows: int, store: bool) -> None:
    (transfer,) = moved(store, rows, dge_mode=SOFTWARE).transfers
    expected = DMA.trigger_software_ns - (128 - rows) * DMA.row_software_ns
    assert (transfer.trigger_end - transfer.triggered) / 1000 == pytest.approx(expected, abs=0.001)
    (other,) = moved(store, rows, dge_mode=HARDWARE).transfers
    assert other.trigger_end - other.triggered == DMA.trigger_hardware_ns * 1000


def mixed(mode: Any) -> list[Transfer]:
    """A load and a store that do not depend on each other."""

    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(128, 16), src=x, dge_mode=mode)
        nisa.dma_copy(dst=tile(128, 16, buffer=nl.private_hbm), src=tile(128, 16), dge_mode=mode)

    return timed(body, Spec((128, 16), "float32")).transfers


def test_loads_and_stores_share_gpsimd_s_generator_only() -> None:
    load, store = mixed(SOFTWARE)
    assert store.triggered == load.trigger_end
    for mode in (HARDWARE, STATIC):
        load, store = mixed(mode)
        assert store.triggered == load.triggered == 0


def test_software_descriptors_and_gpsimd_s_instructions_wait_for_each_other() -> None:
    def body(x: nl.NkiTensor) -> None:
        nisa.memset(dst=tile(128, 512), value=0, engine=nisa.engine.gpsimd)
        nisa.dma_copy(dst=tile(128, 16), src=x, dge_mode=SOFTWARE)
        nisa.memset(dst=tile(128, 512), value=0, engine=nisa.engine.gpsimd)

    line = timed(body, Spec((128, 16), "float32"))
    transfer = line.transfers[0]
    times = sorted([(0, line.freed[0]), (transfer.triggered, transfer.trigger_end), (line.start[2], line.freed[2])])
    assert len({begin for begin, _ in times}) == 3
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


@pytest.mark.parametrize("mode", [HARDWARE, STATIC])
def test_a_trigger_keeps_its_engine_from_issuing_an_instruction(mode: Any) -> None:
    by, trigger = (
        (nisa.engine.scalar, DMA.trigger_hardware_ns)
        if mode is HARDWARE
        else (nisa.engine.gpsimd, DMA.trigger_static_ns)
    )

    def body() -> None:
        nisa.dma_copy(dst=tile(1, 16, buffer=nl.private_hbm), src=tile(1, 16), dge_mode=mode)
        if mode is HARDWARE:
            nisa.activation(dst=tile(1, 16), op=nl.copy, data=tile(1, 16))
        else:
            nisa.memset(dst=tile(1, 16), value=0, engine=by)
        nisa.tensor_copy(dst=tile(1, 16), src=tile(1, 16), engine=nisa.engine.vector)

    line = timed(body)
    assert line.start[1] == line.transfers[0].trigger_end == trigger * 1000
    assert line.start[2] == 0  # another engine's


@pytest.mark.parametrize("mode", [HARDWARE, SOFTWARE])
def test_loads_start_later_than_stores(mode: Any) -> None:
    load, store = moved(False, dge_mode=mode), moved(True, dge_mode=mode)
    assert load.start[0] - store.start[0] == DMA.load_start_ns * 1000
    assert moved(False, dge_mode=STATIC).start[0] == moved(True, dge_mode=STATIC).start[0]


# --- DMA: the engines of a transfer begin one after the other


def data(timing: Timing, rows: int, store: bool, mode: Any) -> float:
    """How long the data of a transfer of so many rows of 4 KiB flows, nanoseconds."""

    def body(x: nl.NkiTensor) -> None:
        dst, src = (tile(rows, 1024, buffer=nl.private_hbm), tile(rows, 1024)) if store else (tile(rows, 1024), x)
        nisa.dma_copy(dst=dst, src=src, dge_mode=mode)

    return nanoseconds(timed(body, Spec((rows, 1024), "float32"), timing=timing), 0)


WIDE = changed(dma__total_gbps=1e6)  # so that nothing but an engine's own rate counts


@pytest.mark.parametrize(("store", "skew"), [(False, "load_skew_ns"), (True, "store_skew_ns")])
@pytest.mark.parametrize("mode", [HARDWARE, SOFTWARE])
def test_the_last_of_all_engines_begins_later(store: bool, skew: str, mode: Any) -> None:
    later = data(WIDE, 128, store, mode) - data(with_value(WIDE, f"dma.{skew}", 0), 128, store, mode)
    assert later == pytest.approx(getattr(DMA, skew), abs=0.02)
    half = data(WIDE, 64, store, mode) - data(with_value(WIDE, f"dma.{skew}", 0), 64, store, mode)
    assert half == pytest.approx(getattr(DMA, skew) * 7 / 15, abs=0.02)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize("mode", [HARDWARE, SOFTWARE, STATIC])
def test_a_single_engine_has_none_to_wait_for(store: bool, mode: Any) -> None:
    far = changed(dma__load_skew_ns=9000, dma__store_skew_ns=9000, dma__static_skew_ns=9000)
    assert data(TRN2, 8, store, mode) == data(far, 8, store, mode)
    assert data(TRN2, 16, store, mode) < data(far, 16, store, mode)


def test_descriptors_that_lie_ready_have_a_skew_of_their_own() -> None:
    far = with_value(WIDE, "dma.static_skew_ns", 300)
    assert data(far, 128, False, STATIC) - data(WIDE, 128, False, STATIC) == pytest.approx(
        300 - DMA.static_skew_ns, abs=0.02
    )
    assert data(far, 128, False, HARDWARE) == data(WIDE, 128, False, HARDWARE)


def test_only_a_transfer_s_first_chunk_begins_later() -> None:
    """8 MiB are many chunks."""

    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(128, 16384), src=x, dge_mode=HARDWARE)

    spec = Spec((128, 16384), "float32")
    long, short = (timed(body, spec, timing=with_value(WIDE, "dma.load_skew_ns", ns)) for ns in (DMA.load_skew_ns, 0))
    assert (long.duration - short.duration) / 1000 == pytest.approx(DMA.load_skew_ns, rel=0.1)


# --- the tensor engine's clock


def full_after(busy: float, window: int = 1000, share: float = 0.55) -> bool:
    """Whether the clock has its full rate in the window after one that was busy for a share of it."""
    ramp = Ramp(window, share)
    assert ramp.slowdown_at(0) == 2
    ramp.note(0, round(busy * window))
    return ramp.slowdown_at(window) == 1


def test_a_window_must_be_busy_for_its_share() -> None:
    assert TENSOR.ramp_window_ns * 1.2 == pytest.approx(8192, abs=0.1)  # cycles
    assert 0.51 < TENSOR.ramp_share < 0.61
    assert [full_after(share) for share in (0.1, 0.54, 0.55, 0.9)] == [False, False, True, True]


def test_windows_are_on_a_grid() -> None:
    ramp = Ramp(1000, 0.5, offset=300)
    assert ramp.slowdown_at(50_000) == 2  # 300 of this window are over
    ramp.note(50_000, 50_600)
    assert ramp.slowdown_at(50_699) == 2
    assert ramp.slowdown_at(50_700) == 1
    assert ramp.slowdown_at(51_700) == 2  # and that one was idle
    ramp.note(51_700, 52_700)
    assert ramp.slowdown_at(53_700) == 2  # the one between was idle


def test_what_reaches_into_the_next_window_counts_there() -> None:
    ramp = Ramp(1000, 0.5)
    assert ramp.slowdown_at(0) == 2
    ramp.note(600, 1600)
    assert ramp.slowdown_at(1000) == 2  # 400 of 1000
    assert ramp.slowdown_at(2000) == 1  # 600


def products(count: int, timing: Timing = TRN2, dtype: Any = nl.bfloat16, **options: Any) -> Timeline:
    def body() -> None:
        stationary = tile(128, 128, dtype=dtype)
        moving = tile(128, 512, dtype=dtype)
        for _ in range(count):
            nisa.nc_matmul(dst=tile(128, 512, buffer=nl.psum), stationary=stationary, moving=moving, **options)

    return timed(body, timing=timing)


@pytest.mark.parametrize("offset", [0, 0.2, 0.4, 0.5, 0.9])
def test_where_the_grid_lies_decides_when_the_clock_rises(offset: float) -> None:
    """The first window counts only if its rest is enough: products at half the clock fill it from the first one on."""
    line = products(80, changed(tensor__ramp_offset=offset))
    window = TENSOR.ramp_window_ns * 1000
    first = next(issue for issue in range(80) if issue not in line.slowed)
    windows = 1 if 1 - offset >= TENSOR.ramp_share else 2
    starts = line.start[0] + TENSOR.load_latency_ns * 1000  # about
    assert line.start[first] - starts == pytest.approx((windows - offset) * window, abs=800_000)
    assert line.slowed == set(range(first))


def test_a_pause_of_a_window_halves_the_clock_again() -> None:
    def body(x: nl.NkiTensor) -> None:
        stationary, moving, late = tile(128, 128), tile(128, 512), tile(128, 512)
        for part in (moving, late):
            if part is late:
                nisa.dma_copy(dst=tile(128, 20000), src=x)  # 10 MB: longer than two windows
                nisa.dma_copy(dst=late, src=x[:, 0:512])
            for _ in range(12):
                nisa.nc_matmul(dst=tile(128, 512, buffer=nl.psum), stationary=stationary, moving=part)

    line = timed(body, Spec((128, 20000), "float32"))
    products = [n for n, lane in enumerate(line.lane) if line.lanes[lane] == "tensor"]
    slow = [issue in line.slowed for issue in products]
    assert (slow[0], slow[11], slow[12], slow[-1]) == (True, False, True, False)


@pytest.mark.parametrize(("dtype", "passes"), [(nl.bfloat16, 1), (nl.float32, 4)])
def test_a_gap_separates_passes_at_full_clock_only(dtype: Any, passes: int) -> None:
    line = products(60, dtype=dtype)
    intervals = [(b - a) / 1000 for a, b in pairwise(line.end)]
    columns = 512 * passes / TENSOR.clock_ghz
    assert intervals[2] == pytest.approx(2 * columns, abs=0.004)
    assert intervals[-1] == pytest.approx(columns + passes * TENSOR.gap_ns, abs=0.004)


def lone(timing: Timing, loaded: int = 128) -> float:
    """How long a product takes that nothing is before."""

    def body() -> None:
        stationary, moving = tile(128, loaded, dtype=nl.bfloat16), tile(128, 512, dtype=nl.bfloat16)
        nisa.nc_matmul(dst=tile(loaded, 512, buffer=nl.psum), stationary=stationary, moving=moving)

    return nanoseconds(timed(body, timing=timing), 0)


@pytest.mark.parametrize("loaded", [128, 32])
def test_half_the_clock_lengthens_latency_and_the_load_of_weights(loaded: int) -> None:
    full = lone(changed(tensor__ramp_window_ns=0), loaded)
    cycles = (512 + loaded) / TENSOR.clock_ghz  # those of the columns and of the weights once more
    assert lone(TRN2, loaded) - full == pytest.approx(cycles + TENSOR.slow_latency_ns, abs=0.003)


# --- weights whose columns lie apart


def strided(dtype: Any, apart: int, timing: Timing = TRN2) -> float:
    """From one product to the next, warm; the columns of its weights are so many elements apart."""

    def body() -> None:
        weights, moving = tile(128, 128, apart, dtype=dtype), tile(128, 512, dtype=dtype)
        for _ in range(60):
            nisa.nc_matmul(dst=tile(128, 512, buffer=nl.psum), stationary=weights[:, :, 0], moving=moving)

    ends = timed(body, timing=timing).end
    return (ends[-1] - ends[-2]) / 1000


def test_float32_weights_far_apart_are_not_hidden() -> None:
    hidden = TENSOR.hidden_stride_bytes // 4
    near, far = strided(nl.float32, hidden), strided(nl.float32, hidden + 1)
    assert near == strided(nl.float32, 1)
    assert far - near == pytest.approx(2 * TENSOR.strided_load_ns - 4 * TENSOR.gap_ns, abs=0.01)
    assert strided(nl.bfloat16, 4 * hidden) == strided(nl.bfloat16, 1)
    longer = strided(nl.float32, hidden + 1, changed(tensor__strided_load_ns=TENSOR.strided_load_ns + 10))
    assert longer - far == pytest.approx(20, abs=0.01)


# --- semaphores


def waiting(second: nisa.engine, timing: Timing) -> int:
    """When the vector engine starts what waits for gpsimd and for another engine, that is done later."""

    def body() -> None:
        one, other = tile(128, 64), tile(128, 64)
        nisa.memset(dst=one, value=0, engine=nisa.engine.gpsimd)
        if second is nisa.engine.scalar:
            nisa.activation(dst=other, op=nl.exp, data=tile(128, 64))
        nisa.tensor_tensor(dst=tile(128, 64), data1=one, data2=other, op=nl.add)

    lines = [run(programmed(body, timing=timing)) for run in (schedule, schedule_freely)]
    assert lines[0].start == lines[1].start
    return lines[0].start[-1]


def test_a_second_semaphore_holds_an_instruction_up() -> None:
    long = changed(vector__second_wait_ns=100)
    none = changed(vector__second_wait_ns=0)
    assert waiting(nisa.engine.scalar, long) - waiting(nisa.engine.scalar, none) == 100_000
    assert waiting(nisa.engine.gpsimd, long) == waiting(nisa.engine.gpsimd, none)


def test_a_semaphore_that_was_set_while_the_engine_was_busy_costs_nothing() -> None:
    def body() -> None:
        one, other = tile(128, 64), tile(128, 64)
        nisa.memset(dst=one, value=0, engine=nisa.engine.gpsimd)
        nisa.activation(dst=other, op=nl.copy, data=tile(128, 64))
        nisa.tensor_copy(dst=tile(128, 8000), src=tile(128, 8000), engine=nisa.engine.vector)
        nisa.tensor_tensor(dst=tile(128, 64), data1=one, data2=other, op=nl.add)

    for run in (schedule, schedule_freely):
        starts = [run(programmed(body, timing=changed(vector__second_wait_ns=ns))).start for ns in (0, 100)]
        assert starts[0] == starts[1]


# --- trn1's own numbers


def test_trn1_s_benchmark_sees_what_its_profiler_sees() -> None:
    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(1, 16), src=x)

    lines = {target: timed(body, ROW, target=target) for target in ("trn1", "trn2")}
    assert benchmark_us(lines["trn1"]) == pytest.approx(profiler_us(lines["trn1"]))
    assert 4 < profiler_us(lines["trn2"]) - benchmark_us(lines["trn2"]) < 10  # as published


def test_trn1_s_transfers() -> None:
    """Alone an engine has 17 GB/s, all together less than 16 times that; a descriptor takes as long as trn2's."""
    dma = get_target("trn1").timing.dma

    def body(x: nl.NkiTensor) -> None:
        nisa.dma_copy(dst=tile(x.shape[0], x.shape[1]), src=x)

    one = timed(body, Spec((8, 1024), "float32"), target="trn1")
    assert nanoseconds(one, 0) - dma.read_ns == pytest.approx(8 * (dma.packet_ns + 4096 / dma.engine_gbps), abs=0.01)
    every = timed(body, Spec((128, 8192), "float32"), target="trn1")
    assert 128 * 8192 * 4 / (nanoseconds(every, 0) - dma.read_ns) == pytest.approx(dma.total_gbps, rel=0.001)
    assert (dma.engine_gbps, dma.packet_ns) == (17, DMA.packet_ns) and 260 <= dma.total_gbps <= 272
    assert every.transfers[0].trigger_end == dma.trigger_static_ns * 1000


def test_trn1_s_products_have_a_gap_of_their_own() -> None:
    """Published ones stop at 85 to 87 % of the peak."""
    tensor = get_target("trn1").timing.tensor

    def body() -> None:
        weights, moving = tile(128, 128, dtype=nl.bfloat16), tile(128, 512, dtype=nl.bfloat16)
        for _ in range(8):
            nisa.nc_matmul(dst=tile(128, 512, buffer=nl.psum), stationary=weights, moving=moving)

    ends = timed(body, target="trn1").end
    interval = (ends[-1] - ends[-2]) / 1000
    assert interval == pytest.approx(512 / tensor.clock_ghz + tensor.gap_ns, abs=0.002)
    assert 0.84 < 512 / tensor.clock_ghz / interval < 0.88
