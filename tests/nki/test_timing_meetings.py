"""Two cores that meet are timed together: each waits for the later one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.nki import Spec, nisa, nl, profile
from trnrt.nki.errors import KernelError
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Timeline, predict, predict_cores
from trnrt.nki.machine.timing.path import critical_path
from trnrt.nki.sim.kernel import simulate, trace_cores

CHARGE = round(get_target("trn2").timing.meeting_ns * 1000)
SRC = Spec((2, 128, 512), "float32")


def meeting(src: Any, work: tuple[int, int], rounds: tuple[int, int], kind: str) -> Any:
    """Each core works for a while, then both meet, some rounds."""
    core = nl.program_id(0)
    out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    between = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
    mine = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    theirs = nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=mine, src=src[core])
    for _ in range(rounds[core]):
        for _ in range(work[core]):
            nisa.tensor_scalar(dst=mine, data=mine, op0=nl.multiply, operand0=2.0)
        if kind == "exchange":
            nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        else:
            nisa.dma_copy(dst=between[core], src=mine)
            nisa.core_barrier(data=between, cores=(0, 1))
            nisa.dma_copy(dst=theirs, src=between[1 - core])
        nisa.tensor_tensor(dst=mine, data1=mine, data2=theirs, op=nl.add)
    nisa.dma_copy(dst=out[core], src=mine)
    return out


def programs_of(*arguments: Any) -> list[Program]:
    return trace_cores(meeting, SRC, *arguments, target="trn2", cores=2)


def issues_named(line: Timeline, name: str) -> list[int]:
    return [k for k, index in enumerate(line.instruction) if line.program.instructions[index].operation.name == name]


@settings(max_examples=15, deadline=None)
@given(
    work=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    rounds=st.integers(1, 4),
    kind=st.sampled_from(["exchange", "barrier"]),
)
def test_a_meeting_starts_when_the_later_core_has_reached_it(work: tuple[int, int], rounds: int, kind: str) -> None:
    predictions = predict_cores(programs_of(work, (rounds, rounds), kind))
    lines = [prediction.timeline for prediction in predictions]
    name = "sendrecv" if kind == "exchange" else "core_barrier"
    both = [issues_named(line, name) for line in lines]
    for one, other in zip(*both, strict=True):
        reached = lines[0].reached[one], lines[1].reached[other]
        began = [
            next((t.triggered for t in line.transfers if t.issue == issue), line.start[issue])
            for line, issue in zip(lines, (one, other), strict=True)
        ]
        assert began == [max(reached) + CHARGE] * 2
    for line, prediction in zip(lines, predictions, strict=True):
        path = critical_path(line)
        assert path[0].start == 0 and path[-1].end == line.duration
        assert all(one.end == other.start for one, other in pairwise(path))
        assert "meetings" in {segment.part for segment in path}
        assert prediction.benchmark.least_us < prediction.benchmark.us < prediction.benchmark.most_us


def test_a_core_is_as_late_as_the_one_that_it_waits_for() -> None:
    even, uneven = (profile(meeting, SRC, work, (1, 1), "exchange", cores=2) for work in ((20, 20), (0, 20)))
    assert uneven.benchmark.us == pytest.approx(even.benchmark.us, rel=0.02)
    late = [prediction.timeline.duration for prediction in uneven.predictions]
    assert late[0] == pytest.approx(late[1], rel=0.02)
    assert any(cause.name == "meetings of two cores" for cause in uneven.causes)
    assert not any("each core is timed on its own" in note for note in uneven.notes)


def test_a_load_after_a_barrier_waits_for_it() -> None:
    for prediction in predict_cores(programs_of((0, 20), (1, 1), "barrier")):
        line = prediction.timeline
        (barrier,) = issues_named(line, "core_barrier")
        copies = issues_named(line, "dma_copy")
        stored, loaded = copies[1], copies[2]
        assert line.seen[stored] <= line.reached[barrier]
        triggered = next(transfer.triggered for transfer in line.transfers if transfer.issue == loaded)
        assert triggered >= line.seen[barrier]


def test_a_waiting_exchange_holds_up_no_loads() -> None:
    def kernel(src: Any) -> Any:
        core = nl.program_id(0)
        out = nl.ndarray(src.shape, dtype=src.dtype, buffer=nl.shared_hbm)
        tiles = [nl.ndarray(src.shape[1:], dtype=src.dtype, buffer=nl.sbuf) for _ in range(3)]
        nisa.dma_copy(dst=tiles[0], src=src[core])
        for _ in range(40 * core):
            nisa.tensor_scalar(dst=tiles[0], data=tiles[0], op0=nl.multiply, operand0=2.0)
        nisa.sendrecv(src=tiles[0], dst=tiles[1], send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.dma_copy(dst=tiles[2], src=src[1 - core])
        nisa.tensor_tensor(dst=tiles[1], data1=tiles[1], data2=tiles[2], op=nl.add)
        nisa.dma_copy(dst=out[core], src=tiles[1])
        return out

    line = predict_cores(trace_cores(kernel, SRC, target="trn2", cores=2))[0].timeline
    (exchange,) = issues_named(line, "sendrecv")
    assert line.end[issues_named(line, "dma_copy")[1]] < line.start[exchange]
    data = np.arange(2 * 128 * 512, dtype=np.float32).reshape(2, 128, 512) % 7
    expected = np.stack([data[1] * np.float32(2.0**40) + data[1], data[0] + data[0]])
    np.testing.assert_array_equal(simulate(kernel)[2](data), expected)


def test_cores_that_never_meet_are_timed_alone() -> None:
    programs = programs_of((1, 5), (0, 0), "exchange")
    alone = [predict(program).benchmark for program in programs]
    assert [prediction.benchmark for prediction in predict_cores(programs)] == alone


def test_meetings_that_do_not_match_are_refused() -> None:
    with pytest.raises(KernelError, match="wait for each other for ever at their meeting number 2"):
        profile(meeting, SRC, (1, 1), (1, 2), "exchange", cores=2)
