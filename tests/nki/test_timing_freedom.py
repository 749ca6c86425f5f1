"""The list scheduler: it keeps every dependence and what is pinned, uses what is free, and is never slower."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import ACTIONS, run
from simulating import tile, trace_body
from test_timing_hazards import touched
from test_timing_path import spent

from trnrt.calibration import attention, convolutions, kernels, products
from trnrt.calibration.cases import program
from trnrt.calibration.published import CASES
from trnrt.nki import Spec, nisa, nki, nl, trace
from trnrt.nki.machine.program import Instruction, Program
from trnrt.nki.machine.timing import Timeline, schedule
from trnrt.nki.machine.timing.hazards import WINDOW
from trnrt.nki.machine.timing.issues import ENGINES, Issues
from trnrt.nki.machine.timing.list_scheduling import ListSchedule

VECTOR, GPSIMD = nisa.engine.vector, nisa.engine.gpsimd


def freely(program: Program) -> Timeline:
    """What the list scheduler alone makes of a program, even where that is slower."""
    return ListSchedule(Issues(program)).run()


class Schedules(NamedTuple):
    """What the compiler may make of a program's order; the program's own where another one takes longer."""

    in_order: Timeline
    reordered: Timeline

    @property
    def free(self) -> Timeline:
        return min(self, key=lambda line: line.duration)


def schedules(program: Program) -> Schedules:
    return Schedules(schedule(program), freely(program))


def begins(timeline: Timeline) -> list[int]:
    """When each issue begins; a transfer when it is triggered."""
    found = list(timeline.start)
    for transfer in timeline.transfers:
        found[transfer.issue] = transfer.triggered
    return found


def order(timeline: Timeline, engine: str) -> list[str]:
    """The names of an engine's instructions as they run."""
    instructions, start = timeline.program.instructions, begins(timeline)
    lane = ENGINES.index(engine)
    issued = sorted((i for i in range(len(start)) if timeline.lane[i] == lane), key=start.__getitem__)
    return [instructions[timeline.instruction[i]].name or "" for i in issued]


# Dependences, counted byte by byte.
def conflicts(program: Program) -> list[tuple[int, int, bool]]:
    """(earlier, later, whether the earlier one only reads) of every pair of which one writes a byte of the other's."""
    reads = [{place for view in one.reads() for place in touched(view)} for one in program.instructions]
    writes = [{place for view in one.writes() for place in touched(view)} for one in program.instructions]
    found = []
    for later in range(len(reads)):
        for earlier in range(later):
            if writes[earlier] & (reads[later] | writes[later]):
                found.append((earlier, later, False))
            elif reads[earlier] & writes[later]:
                found.append((earlier, later, True))
    return found


def violations(timeline: Timeline) -> list[str]:
    """The pairs that the timeline does not keep; issues are instructions, so no device loops."""
    start, tensor, wrong = begins(timeline), ENGINES.index("tensor"), []
    for earlier, later, only_reads in conflicts(timeline.program):
        together = timeline.lane[earlier] == timeline.lane[later]
        in_order = together and (timeline.lane[later] == tensor or (only_reads and timeline.lane[later] < len(ENGINES)))
        if start[later] < (timeline.start[earlier] if in_order else timeline.end[earlier]):
            names = [timeline.program.instructions[i].operation.name for i in (earlier, later)]
            wrong.append(f"{later} {names[1]} begins at {start[later]}, too early for {earlier} {names[0]}")
    return wrong


def reordered(timeline: Timeline) -> bool:
    """Whether some engine, or queue, does not keep the order of the program."""
    start, last = begins(timeline), dict[int, int]()
    for issue, lane in enumerate(timeline.lane):
        if start[issue] < last.get(lane, 0):
            return True
        last[lane] = start[issue]
    return False


@settings(max_examples=120, phases=[Phase.generate])
@given(ACTIONS, st.sampled_from(["trn1", "trn2"]))
def test_nothing_starts_before_what_it_depends_on(actions: list[Any], target: str) -> None:
    timeline = freely(trace_body(lambda: run(actions, target), target=target))
    assert violations(timeline) == []
    spent(timeline)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["product", "transpose", "evacuate", "exp", "add", "mix", "fill", "load", "store", "clear"]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    min_size=4,
    max_size=30,
)
"""Kind, which tile is written, which is read, which 16 of their 64 columns."""


def tensor_kernel(steps: list[Any]) -> Callable[..., None]:
    """Products, their evacuations, and DMA on three tiles of SBUF and three of PSUM, each made anew now and then."""

    def body(x: nl.NkiTensor) -> None:
        sbuf = [tile(64, 64, dtype=nl.bfloat16) for _ in range(3)]
        psum = [tile(64, 64, buffer=nl.psum) for _ in range(3)]
        for one in sbuf:
            nisa.dma_copy(dst=one, src=x)
        out = tile(4, 64, 16, dtype=nl.bfloat16, buffer=nl.private_hbm)
        for number, (kind, to, of, part) in enumerate(steps):
            columns = slice(part * 16, part * 16 + 16)
            if kind == "product":
                nisa.nc_matmul(dst=psum[to][:, columns], stationary=sbuf[of], moving=sbuf[(of + 1) % 3][:, columns])
            elif kind == "transpose":
                turned = tile(16, 64, dtype=nl.bfloat16, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=sbuf[of][:, columns])
                nisa.tensor_copy(dst=sbuf[to][0:16], src=turned, engine=VECTOR)
            elif kind == "evacuate":
                sbuf[to] = tile(64, 64, dtype=nl.bfloat16) if number % 3 == 0 else sbuf[to]
                nisa.tensor_copy(dst=sbuf[to], src=psum[of], engine=VECTOR)
            elif kind == "exp":
                nisa.activation(dst=sbuf[to][:, columns], op=(nl.exp, nl.tanh)[number % 2], data=psum[of][:, columns])
            elif kind == "add":
                nisa.tensor_tensor(dst=sbuf[to], data1=sbuf[to], data2=sbuf[of], op=nl.add, engine=GPSIMD)
            elif kind == "mix":
                one, two = sbuf[of][:, 0:32], sbuf[(of + 1) % 3][:, 16:48]
                nisa.tensor_tensor(dst=sbuf[to][:, 32:64], data1=one, data2=two, op=nl.add, engine=VECTOR)
            elif kind == "fill":
                nisa.memset(dst=sbuf[to][:, columns], value=1, engine=(VECTOR, GPSIMD)[number % 2])
            elif kind == "load":
                nisa.dma_copy(dst=sbuf[to][:, columns], src=x[:, columns])
            elif kind == "store":
                nisa.dma_copy(dst=out[part], src=sbuf[of][:, columns])
            else:
                psum[to] = tile(64, 64, buffer=nl.psum)
                nisa.memset(dst=psum[to], value=0, engine=VECTOR)

    return body


@settings(max_examples=60, phases=[Phase.generate])
@given(STEPS, st.sampled_from(["trn1", "trn2", "trn3"]))
def test_products_keep_their_dependences_too(steps: list[Any], target: str) -> None:
    timeline = freely(trace_body(tensor_kernel(steps), Spec((64, 64), "bfloat16"), target=target))
    assert violations(timeline) == []
    spent(timeline)


def test_the_random_kernels_are_reordered_at_all() -> None:
    """Or the tests above would say nothing."""
    numbers = np.random.default_rng(0)
    kinds = ["product", "evacuate", "exp", "add", "store", "clear"]

    def drawn() -> list[Any]:
        return [
            (str(numbers.choice(kinds)), *numbers.integers(0, 3, 2), int(numbers.integers(0, 4))) for _ in range(30)
        ]

    timelines = [freely(trace_body(tensor_kernel(drawn()), Spec((64, 64), "bfloat16"))) for _ in range(20)]
    assert sum(map(reordered, timelines)) >= 10


def test_more_readers_than_the_window_is_wide_all_come_first() -> None:
    """A tile is read 3 * WINDOW times by an engine that is slow, and then overwritten by one that has nothing else."""

    def body() -> None:
        held = tile(128, 64)
        nisa.memset(dst=held, value=0, engine=GPSIMD)
        for _ in range(3 * WINDOW):
            nisa.tensor_copy(dst=tile(128, 64), src=held, engine=VECTOR)
        nisa.memset(dst=held, value=1, engine=GPSIMD)

    timeline = freely(trace_body(body))
    assert timeline.start[-1] > max(timeline.end[:-1])


SLOW, FAST = True, False


def waiting(kind: bool, dst: nl.NkiTensor) -> None:
    """The vector engine writes ``dst``: at once, or when a slow engine is done."""
    if kind is FAST:
        nisa.memset(dst=dst, value=0, engine=VECTOR)
        return
    slow = tile(1, 4096, address=(0, 65536))
    nisa.memset(dst=slow, value=0, engine=GPSIMD)
    nisa.tensor_copy(dst=dst, src=slow[:, 0 : dst.shape[1]], engine=VECTOR)


def test_an_engine_does_not_overwrite_what_it_has_not_read() -> None:
    def body() -> None:
        late, held = tile(1, 4096), tile(1, 8)
        nisa.memset(dst=held, value=0, engine=VECTOR)
        nisa.memset(dst=late, value=0, engine=GPSIMD)
        nisa.tensor_tensor(dst=tile(1, 8), data1=late[:, 0:8], data2=held, op=nl.add, engine=VECTOR)
        nisa.memset(dst=held[:, 0:4], value=1, engine=VECTOR)
        nisa.memset(dst=held, value=2, engine=VECTOR)

    assert violations(freely(trace_body(body))) == []


@pytest.mark.parametrize("first", [SLOW, FAST])
@pytest.mark.parametrize("whole", [True, False])
def test_a_read_of_two_parts_waits_for_the_later_one_of_an_engine(first: bool, whole: bool) -> None:
    def body() -> None:
        held = tile(1, 16)
        waiting(first, held[:, 0:8])
        waiting(not first, held[:, 8:16])
        width = 16 if whole else 12
        nisa.activation(dst=tile(1, width), op=nl.copy, data=held[:, 0:width])

    assert violations(freely(trace_body(body))) == []


@pytest.mark.parametrize("first", [SLOW, FAST])
def test_a_tile_waits_for_all_that_lived_at_its_bytes(first: bool) -> None:
    def body() -> None:
        waiting(first, tile(1, 8, address=(0, 0)))
        waiting(not first, tile(1, 8, address=(0, 32)))
        nisa.activation(dst=tile(1, 16, address=(0, 0)), op=nl.copy, data=tile(1, 16))

    assert violations(freely(trace_body(body))) == []


def test_a_register_is_not_overwritten_before_it_is_used() -> None:
    """The first row's load waits for a slow engine; the register's next value is there at once."""

    def body(x: nl.NkiTensor) -> None:
        row = nisa.register_alloc(3)
        slow, held = tile(128, 4096), tile(1, 8)
        nisa.memset(dst=slow, value=0, engine=GPSIMD)
        nisa.memset(dst=held, value=0, engine=GPSIMD)
        nisa.dma_copy(dst=held, src=x.select(0, row).expand_dim(0))
        nisa.register_move(row, 5)
        nisa.dma_copy(dst=tile(1, 8), src=x.select(0, row).expand_dim(0))

    timeline = freely(trace_body(body, Spec((16, 8), "float32")))
    first, second = timeline.transfers
    names = [timeline.program.instructions[i].operation.name for i in timeline.instruction]
    (moved,) = [i for i, name in enumerate(names) if name == "register_move"][-1:]
    assert first.triggered < timeline.end[moved] <= second.triggered


# What it does with freedom.
def cleared_tiles(pin: bool = False) -> Callable[..., None]:
    """Sums that the vector engine clears, and copies when they are done; the next one only after that, as written."""

    def body(x: nl.NkiTensor) -> None:
        x_sb, w_sb = tile(128, 512, dtype=nl.bfloat16), tile(128, 128, dtype=nl.bfloat16)
        nisa.dma_copy(dst=x_sb, src=x)
        nisa.dma_copy(dst=w_sb, src=x[:, 0:128])
        for _ in range(6):
            sums = tile(128, 512, buffer=nl.psum)
            nisa.memset(dst=sums, value=0, engine=VECTOR, name="clear")
            for _ in range(4):
                nisa.nc_matmul(dst=sums, stationary=w_sb, moving=x_sb)
            nisa.tensor_copy(dst=tile(128, 512), src=sums, engine=VECTOR, name="copy")

    def pinned(x: nl.NkiTensor) -> None:
        with nl.no_reorder():
            body(x)

    return pinned if pin else body


def test_the_next_sum_is_cleared_before_the_last_one_is_copied() -> None:
    both = schedules(trace_body(cleared_tiles(), Spec((128, 512), "bfloat16")))
    assert order(both.in_order, "vector")[:4] == ["clear", "copy", "clear", "copy"]
    assert order(both.reordered, "vector")[:3] == ["clear", "clear", "clear"]
    assert both.reordered.duration < 0.9 * both.in_order.duration


IMAGE = Spec((256, 18, 224), "float16"), Spec((256, 256, 3, 3), "float16"), Spec((256, 1), "float16"), 1


@pytest.mark.parametrize(
    ("kernel", "arguments", "share"),
    [
        (products.matmul_tuned, (Spec((1024, 1024), "bfloat16"),) * 2, 0.8),
        (attention.attention_fused, (Spec((128, 512), "float32"),) * 3, 0.7),
    ],
)
def test_published_kernels_gain_what_their_order_costs(kernel: Any, arguments: tuple[Any, ...], share: float) -> None:
    both = schedules(trace(kernel, *arguments, target="trn2"))
    assert both.reordered.duration < share * both.in_order.duration
    spent(both.reordered)


def test_a_kernel_whose_sums_another_engine_clears_gains_nothing() -> None:
    """gpsimd clears them ahead, while vector copies those before: free or not makes less than 1 %."""
    both = schedules(trace(convolutions.convolve_blocks, *IMAGE, target="trn2"))
    assert both.reordered.duration == pytest.approx(both.in_order.duration, rel=0.01)
    spent(both.reordered)


def test_a_table_is_not_loaded_anew_for_each_of_two_functions() -> None:
    def body() -> None:
        for number in range(8):
            held = tile(128, 8)
            nisa.memset(dst=held, value=0, engine=GPSIMD)
            nisa.activation(dst=tile(128, 8), op=(nl.exp, nl.tanh)[number % 2], data=held, name="et"[number % 2])

    both = schedules(trace_body(body))
    runs = [list(order(timeline, "scalar")) for timeline in both[:2]]
    switches = [sum(one != other for one, other in pairwise(run)) for run in runs]
    assert switches[0] == 7
    assert switches[1] <= 3
    assert both.reordered.duration < both.in_order.duration


def test_loads_keep_their_order() -> None:
    """The second waits for memory; those behind it would go first."""

    def body(x: nl.NkiTensor) -> None:
        held = tile(128, 64)
        for _ in range(20):
            nisa.memset(dst=held, value=0, engine=GPSIMD)
        nisa.dma_copy(dst=tile(128, 64), src=x)
        nisa.dma_copy(dst=held, src=x)
        for _ in range(3):
            nisa.dma_copy(dst=tile(128, 64), src=x)

    timeline = freely(trace_body(body, Spec((128, 64), "float32")))
    triggered = [transfer.triggered for transfer in timeline.transfers]
    assert triggered == sorted(triggered)


# What is pinned.
@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_a_region_of_no_reorder_keeps_its_order_and_its_time(target: str) -> None:
    spec = Spec((128, 512), "bfloat16")
    free, pinned = (trace_body(cleared_tiles(pin=pin), spec, target=target) for pin in (False, True))
    assert freely(free).duration < schedule(free).duration
    assert begins(freely(pinned)) == begins(schedule(pinned)) == begins(schedule(free))


@settings(max_examples=40, phases=[Phase.generate])
@given(STEPS, st.sampled_from(["trn1", "trn2"]))
def test_any_kernel_in_a_region_has_the_timeline_in_order(steps: list[Any], target: str) -> None:
    def pinned(x: nl.NkiTensor) -> None:
        with nl.no_reorder():
            tensor_kernel(steps)(x)

    traced = trace_body(pinned, Spec((64, 64), "bfloat16"), target=target)
    free, in_order = freely(traced), schedule(traced)
    assert (free.start, free.end, free.seen, free.duration) == (
        in_order.start,
        in_order.end,
        in_order.seen,
        in_order.duration,
    )


def around(middle: Callable[[Callable[[str, bool], Instruction]], None]) -> list[str]:
    """The vector engine's order: ``a`` waits for a slow engine, ``middle`` and ``z`` could go first."""

    def body() -> None:
        slow = tile(128, 4096)

        def fill(name: str, waits: bool) -> Instruction:
            if waits:
                nisa.memset(dst=slow, value=0, engine=GPSIMD)
                return nisa.tensor_copy(dst=tile(128, 4096), src=slow, engine=VECTOR, name=name)
            return nisa.memset(dst=tile(128, 8), value=0, engine=VECTOR, name=name)

        fill("a", True)
        middle(fill)
        fill("z", False)

    return order(freely(trace_body(body)), "vector")


def test_nothing_moves_into_a_region_out_of_it_or_across() -> None:
    def outside(fill: Callable[[str, bool], Instruction]) -> None:
        fill("b", False), fill("c", True), fill("d", False)

    def inside(fill: Callable[[str, bool], Instruction]) -> None:
        with nl.no_reorder():
            outside(fill)

    assert around(outside) == ["b", "d", "z", "a", "c"]
    assert around(inside) == ["a", "b", "c", "d", "z"]


@pytest.mark.usefixtures("level_0_6")
def test_an_iteration_of_a_device_loop_stays_in_its_place() -> None:
    def loop(fill: Callable[[str, bool], Instruction]) -> None:
        for _ in nl.dynamic_range(2):
            fill("b", True), fill("c", False)

    assert around(loop) == ["a", "c", "b", "c", "b", "z"]


def test_an_edge_that_the_kernel_asks_for_is_kept() -> None:
    def after(fill: Callable[[str, bool], Instruction]) -> None:
        first = fill("b", True)
        fill("c", False).depends_on(first)
        fill("d", False)

    assert around(after) == ["d", "z", "a", "b", "c"]


def test_a_kernel_s_schedule_pins_what_it_names() -> None:
    @nki.jit
    def kernel() -> nl.NkiTensor:
        slow = tile(128, 4096)
        nisa.memset(dst=slow, value=0, engine=GPSIMD)
        nisa.tensor_copy(dst=tile(128, 4096), src=slow, engine=VECTOR, name="late")
        nisa.memset(dst=tile(128, 8), value=0, engine=VECTOR, name="early")
        return nl.ndarray((1, 1), nl.float32, nl.shared_hbm)

    assert order(freely(trace(kernel)), "vector") == ["early", "late"]
    assert order(freely(trace(kernel.with_schedule([("early", "late")]))), "vector") == ["late", "early"]


# That it is never slower, and always the same.
SHORT = {case.id: min(case.short or [case.length]) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_calibration_kernels_are_not_slower(case: Any) -> None:
    both = schedules(program(case, SHORT[case.id]))
    assert both.free.duration <= both.in_order.duration
    spent(both.free)


@settings(max_examples=40, phases=[Phase.generate])
@given(STEPS)
def test_free_is_at_most_in_order(steps: list[Any]) -> None:
    both = schedules(trace_body(tensor_kernel(steps), Spec((64, 64), "bfloat16")))
    assert both.free.duration <= both.in_order.duration
    assert both.in_order == schedule(both.in_order.program)


def test_the_same_program_has_the_same_timelines() -> None:
    def timelines() -> Any:
        found = schedules(trace(kernels.matmul_tiled, Spec((512, 256), "float32"), Spec((512, 1024), "float32")))
        return [(one.start, one.end, one.seen, one.waited_for, one.busy) for one in found if one is not None]

    assert timelines() == timelines()
