"""The cost by source line: it adds up to the critical path and to what engines do; helpers have lines, too."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from random_programs import ACTIONS, run
from simulating import tile, trace_body

from trnrt.nki import Spec, nisa, nki, nl, profiling, trace
from trnrt.nki.lines import line_uses
from trnrt.nki.machine.timing import PS_PER_US, schedule
from trnrt.nki.machine.timing.path import critical_path


def load(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    nisa.dma_copy(dst=dst, src=src)


def body(x: nl.NkiTensor) -> nl.NkiTensor:
    x_sb, y_sb = tile(128, 512), tile(128, 512)
    load(x_sb, x)
    load(y_sb, x)
    for _ in range(3):
        nisa.tensor_tensor(dst=y_sb, data1=x_sb, data2=y_sb, op=nl.add)
    nisa.dma_copy(dst=tile(128, 512, buffer=nl.private_hbm), src=y_sb)
    return tile(1, 1, buffer=nl.shared_hbm)


def profiled() -> Any:
    return profiling.profile_programs([trace(nki.jit(body), Spec((128, 512), "float32"))])


def test_lines_of_the_kernel_are_its_steps() -> None:
    found = profiled()
    own = {use.line: use for use in found.lines if use.function != "load"}
    for step in found.steps:
        line = own[step.lines[0]]
        assert (line.path_us, line.share, line.instructions) == (step.time_us, step.share, step.instructions)
    assert round(sum(use.path_us for use in own.values()) * PS_PER_US) == found.timeline.duration


def test_a_helpers_line_has_the_instructions_of_all_its_calls() -> None:
    found = profiled()
    (helper,) = [use for use in found.lines if use.function == "load"]
    calls = [use for use in found.lines if use.function == "body"][:2]
    assert helper.instructions == 2 and [use.instructions for use in calls] == [1, 1]
    assert helper.path_us == sum(use.path_us for use in calls)
    assert set(helper.busy_us) == {"dma"}


def test_engines_are_busy_as_long_as_their_lines() -> None:
    found = profiled()
    (adding,) = [use for use in found.lines if set(use.busy_us) == {"vector"}]
    assert adding.instructions == 3
    assert abs(adding.busy_us["vector"] - found.engines["vector"]["busy_us"]) < 1e-9


def test_a_device_loop_holds_the_path_but_no_engine() -> None:
    def looped(x: nl.NkiTensor) -> nl.NkiTensor:
        x_sb = tile(128, 512)
        nisa.dma_copy(dst=x_sb, src=x)

        def double(k: Any) -> None:
            nisa.tensor_tensor(dst=x_sb, data1=x_sb, data2=x_sb, op=nl.add)

        nl.fori_loop(0, 4, double)
        return tile(1, 1, buffer=nl.shared_hbm)

    found = profiling.profile_programs([trace(nki.jit(looped), Spec((128, 512), "float32"))])
    barriers = {part.part: part.time_us for part in found.breakdown.parts}["loop barriers"]
    (loop,) = [use for use in found.lines if not use.busy_us]
    assert (loop.instructions, loop.path_us >= barriers > 0) == (0, True)
    (adding,) = [use for use in found.lines if "vector" in use.busy_us]
    assert adding.instructions == 4


@given(actions=ACTIONS)
@settings(max_examples=20, deadline=None)
def test_no_time_of_the_path_is_lost(actions: list[Any]) -> None:
    timeline = schedule(trace_body(lambda: run(actions, "trn2"), target="trn2"))
    segments = critical_path(timeline)
    uses = line_uses(timeline, segments)
    own = {(i.source.file, i.source.line) for i in timeline.program.instructions}
    inner = [use for use in uses if (use.file, use.line) in own]
    entries = {i.line for i in timeline.program.instructions}
    total = sum(segment.end - segment.start for segment in segments)
    if not own & {(timeline.program.file, line) for line in entries}:
        assert round(sum(use.path_us for use in inner) * PS_PER_US) == total
    outer = [use for use in uses if use.file == timeline.program.file and use.line in entries]
    assert round(sum(use.path_us for use in outer) * PS_PER_US) >= total
    for use in uses:
        assert all(0 < time * PS_PER_US <= timeline.duration for time in use.busy_us.values())
