"""The range of a prediction: its ends are schedules and sourced intervals, and each that matters is a cause."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from random_programs import ACTIONS, run
from simulating import doubled, tile, trace_body

from trnrt.calibration.cases import lengths, program
from trnrt.calibration.published import CASES
from trnrt.nki import Spec, nisa, nl, profile, trace
from trnrt.nki.machine.pace import Timing, Uncertain, with_value
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, predict, schedule, schedule_freely
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.list_scheduling import ListSchedule
from trnrt.nki.machine.timing.prediction import ORDER
from trnrt.nki.machine.timing.simulation import Schedule

TARGETS = ("trn1", "trn2", "trn3")
UNCERTAIN = [(target, one) for target in TARGETS for one in get_target(target).timing.uncertain]
NAMES = [f"{target}-{one.cause}" for target, one in UNCERTAIN]
MODES = "descriptors of transfers that name no mode"


def another(program: Program, timing: Timing) -> Program:
    return replace(program, target=replace(program.target, timing=timing))


def steps(count: int, dtype: str, target: str, pin: bool = False) -> Program:
    """Loads, products, functions, copies by gpsimd, and stores, with descriptors of the default's mode."""

    def body(x: nl.NkiTensor) -> None:
        with nl.no_reorder() if pin else nullcontext():
            for number in range(count):
                x_sb, y_sb, y_psum = tile(64, 64, dtype=dtype), tile(64, 64, dtype=dtype), tile(64, 64, buffer=nl.psum)
                nisa.dma_copy(dst=x_sb, src=x)
                nisa.nc_matmul(dst=y_psum, stationary=x_sb, moving=x_sb)
                nisa.activation(dst=y_sb, op=nl.exp if number % 2 else nl.copy, data=y_psum)
                nisa.tensor_tensor(dst=y_sb, data1=y_sb, data2=x_sb, op=nl.add)
                nisa.dma_copy(dst=tile(64, 64, dtype=dtype, buffer=nl.private_hbm), src=y_sb)

    return trace_body(body, Spec((64, 64), dtype), target=target)


# --- the uncertain numbers


@pytest.mark.parametrize(("target", "one"), UNCERTAIN, ids=NAMES)
def test_uncertain_numbers_are_numbers_of_the_model(target: str, one: Uncertain) -> None:
    timing = get_target(target).timing
    assert one.least or one.most
    for name, value in (*one.least, *one.most):
        present = attrgetter(name)(timing)
        assert isinstance(value, str) == isinstance(present, str), name
        assert value != present, f"{name} is no other number"


@pytest.mark.parametrize(("target", "one"), UNCERTAIN, ids=NAMES)
def test_uncertain_numbers_have_a_source(target: str, one: Uncertain) -> None:
    assert len(one.source) > 10 and one.cause
    assert [other.cause for other in get_target(target).timing.uncertain].count(one.cause) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_no_number_is_in_two_tables(target: str) -> None:
    """Or a cause alone would not be what it is among all."""
    for end in ("least", "most"):
        names = [name for one in get_target(target).timing.uncertain for name, _ in getattr(one, end)]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", TARGETS)
def test_a_timing_at_one_end(target: str) -> None:
    timing = get_target(target).timing
    for end in ("least", "most"):
        every = timing.move_to(end)
        asked = {name: value for one in timing.uncertain for name, value in getattr(one, end)}
        assert {name: attrgetter(name)(every) for name in asked} == asked
        one_by_one = timing
        for one in timing.uncertain:
            alone = timing.move_to(end, [one.cause])
            assert {name for name in asked if attrgetter(name)(alone) != attrgetter(name)(timing)} == {
                name for name, _ in getattr(one, end)
            }
            one_by_one = one_by_one.move_to(end, [one.cause])
        assert one_by_one == every
        assert timing.move_to(end, []) == timing
    assert timing == get_target(target).timing


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.id))
def test_the_least_is_never_slower_than_the_most(case: Any) -> None:
    """Of each cause alone, on every calibration kernel (of several lengths the first), with its fixed costs.

    Without the ramp of the clock, except for what is uncertain of it: an engine that is done sooner may be idle in a
    window, and be slow in the next.
    """
    length = next(iter(dict(lengths(case, True))))
    issues = Issues(program(case, length))
    timing = issues.target.timing

    def took(one: Uncertain, end: Any) -> float:
        numbers = timing.move_to(end, [one.cause])
        ramp = any(name.startswith("tensor.ramp") for name, _ in one.least)
        line = Schedule(issues.retime(numbers if ramp else with_value(numbers, "tensor.ramp_window_ns", 0))).run()
        return line.duration / 1000 + line.timing.benchmark_ns + line.timing.head_ns + line.timing.tail_ns

    for one in timing.uncertain:
        assert took(one, "least") <= took(one, "most"), one.cause


# --- the same issues under other numbers


def alike(one: Timeline, other: Timeline) -> bool:
    lists = ("lanes", "instruction", "lane", "start", "end", "waited_for", "seen", "freed")
    rest = ("transfers", "busy", "duration", "notes", "slowed", "timing")
    return all(getattr(one, name) == getattr(other, name) for name in (*lists, *rest))


def check_under(program: Program) -> None:
    timing = program.target.timing
    issues = Issues(program)
    for kind in (Schedule, ListSchedule):
        for numbers in (timing.move_to("least"), timing.move_to("most"), timing):
            anew = kind(Issues(another(program, numbers))).run()
            assert alike(kind(issues.retime(numbers)).run(), anew)
            assert alike(kind(issues.retime(numbers)).run(), anew)  # a run leaves nothing behind
    assert alike(Schedule(issues).run(), schedule(program))


@settings(max_examples=40, phases=[Phase.generate], deadline=None)
@given(ACTIONS, st.sampled_from(["trn1", "trn2"]))
def test_other_numbers_are_as_if_all_were_done_anew(actions: list[Any], target: str) -> None:
    check_under(trace_body(lambda: run(actions, target), target=target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_default_mode_is_as_if_all_were_done_anew(target: str, dtype: str) -> None:
    """The range's end has other descriptors, that other engines trigger."""
    check_under(steps(6, dtype, target))


# --- the prediction


def check_prediction(program: Program) -> None:
    before = copy.deepcopy([(i.operation.name, i.engine, i.line) for i in program.instructions])
    first, second = predict(program), predict(program)
    for name in ("timeline", "least", "most"):
        assert alike(getattr(first, name), getattr(second, name))
    for found in (first.benchmark, first.profiler):
        assert 0 < found.least_us <= found.us <= found.most_us
    assert [cause.range for cause in first.causes] == [cause.range for cause in second.causes]
    assert alike(first.timeline, schedule_freely(program)) and alike(predict(program).timeline, first.timeline)
    assert [(i.operation.name, i.engine, i.line) for i in program.instructions] == before
    timing = program.target.timing
    assert alike(first.least, schedule_freely(another(program, timing.move_to("least"))))
    assert alike(first.most, schedule(another(program, timing.move_to("most"))))
    assert first.timeline.duration <= schedule(program).duration


@settings(max_examples=30, phases=[Phase.generate], deadline=None)
@given(ACTIONS, st.sampled_from(["trn1", "trn2"]))
def test_a_prediction_lies_in_its_range_and_changes_nothing(actions: list[Any], target: str) -> None:
    check_prediction(trace_body(lambda: run(actions, target), target=target))


@settings(max_examples=15, phases=[Phase.generate], deadline=None)
@given(st.integers(1, 10), st.sampled_from(["float32", "bfloat16"]), st.sampled_from(TARGETS))
def test_predictions_of_products_lie_in_their_range_too(count: int, dtype: str, target: str) -> None:
    check_prediction(steps(count, dtype, target))


def test_a_range_without_anything_uncertain_is_that_of_the_order() -> None:
    sure = replace(get_target("trn2").timing, uncertain=())
    found = predict(another(steps(6, "float32", "trn2"), sure))
    in_order = schedule(another(steps(6, "float32", "trn2"), sure))
    assert alike(found.least, found.timeline) and alike(found.most, in_order)
    assert {cause.name for cause in found.causes} <= {ORDER}
    pinned = predict(another(steps(6, "float32", "trn2", pin=True), sure))
    assert pinned.benchmark.ratio == 1 and pinned.causes == ()


# --- what makes it wide


def causes(program: Program) -> dict[str, Any]:
    return {cause.name: cause for cause in predict(program).causes}


@pytest.mark.parametrize("target", TARGETS)
def test_causes_are_the_widest_first_and_each_is_within_the_whole(target: str) -> None:
    found = predict(steps(8, "float32", target))
    ratios = [cause.range.ratio for cause in found.causes]
    assert ratios == sorted(ratios, reverse=True) and all(ratio > 1 for ratio in ratios)
    assert len(found.causes) >= 3
    whole = found.benchmark
    for cause in found.causes:
        assert cause.range.us == whole.us and cause.source
        assert whole.least_us * 0.99 <= cause.range.least_us and cause.range.most_us <= whole.most_us * 1.01


def cleared(pin: bool) -> Program:
    """The vector engine clears each sum after it has copied the one before; it could do so while products run."""

    def body() -> None:
        weights, moving = tile(128, 128), tile(128, 512)
        with nl.no_reorder() if pin else nullcontext():
            for _ in range(6):
                y_psum, sum_sb = tile(128, 512, buffer=nl.psum), tile(128, 512)
                nisa.memset(dst=sum_sb, value=0, engine=nisa.engine.vector)
                nisa.nc_matmul(dst=y_psum, stationary=weights, moving=moving)
                nisa.tensor_tensor(dst=sum_sb, data1=sum_sb, data2=y_psum, op=nl.add)

    return trace_body(body)


def test_the_order_is_a_cause_only_where_the_compiler_may_choose() -> None:
    found = causes(cleared(pin=False))
    assert "no_reorder" in found[ORDER].pin and found[ORDER].range.most_us > found[ORDER].range.us
    assert ORDER not in causes(cleared(pin=True))


def loaded(mode: Any) -> Program:
    def body(x: nl.NkiTensor) -> None:
        for _ in range(8):
            nisa.dma_copy(dst=tile(128, 64), src=x, dge_mode=mode)

    return trace_body(body, Spec((128, 64), "float32"))


def test_descriptors_are_a_cause_unless_the_kernel_names_their_mode() -> None:
    assert "hwdge" in causes(loaded(nisa.dge_mode.unknown))[MODES].pin
    for mode in (nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none):
        assert MODES not in causes(loaded(mode))
        assert "DMA starts" in causes(loaded(mode))


def joined() -> Program:
    """An instruction that waits for two engines at once."""

    def body() -> None:
        one, other = tile(128, 64), tile(128, 64)
        nisa.memset(dst=one, value=0, engine=nisa.engine.gpsimd)
        nisa.activation(dst=other, op=nl.copy, data=tile(128, 64))
        nisa.tensor_tensor(dst=tile(128, 64), data1=one, data2=other, op=nl.add)

    return trace_body(body)


def test_what_a_kernel_does_not_use_is_no_cause() -> None:
    found = causes(loaded(nisa.dge_mode.hwdge))
    assert not {"the tensor engine's clock", "function tables", "second semaphores"} & found.keys()
    assert "function tables" in causes(steps(8, "float32", "trn2"))
    assert "the tensor engine's clock" in causes(cleared(pin=True))
    assert "second semaphores" in causes(joined())


def test_a_profile_has_the_ranges_and_the_causes() -> None:
    found = profile(doubled, Spec((512, 64), "float32"), target="trn2")
    assert found.benchmark.us == found.benchmark_us and found.profiler.us == found.profiler_us
    assert found.benchmark.least_us < found.benchmark_us < found.benchmark.most_us
    assert found.profiler.least_us < found.profiler_us < found.profiler.most_us
    assert [cause.name for cause in found.causes] == [
        cause.name for cause in predict(trace(doubled, Spec((512, 64), "float32"), target="trn2")).causes
    ]
