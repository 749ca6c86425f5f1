"""What the tests of the reports share: small kernels with a timeline, and a profile around it, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trnrt.nki import Spec, nisa, nki, nl, trace
from trnrt.nki.machine.program import Engine, Program
from trnrt.nki.machine.timing import PS_PER_US, Prediction, Timeline, Transfer
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.simulation import Schedule
from trnrt.nki.profiling import EngineUse, Profile, Roofline, StepUse

LANES = ("tensor", "vector", "scalar", "gpsimd", "sync", "queue sync", "queue scalar")
QUEUE = LANES.index("queue sync")


@nki.jit
def matmul_kernel(a: Any, b: Any) -> Any:
    """(128, 128) and (128, 512) float32 -> a.T @ b, in two lines that are two steps."""
    product = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum, name="product")
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    stationary = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf, name="stationary")
    moving = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=stationary, src=a)
    nisa.dma_copy(dst=moving, src=b)
    nisa.nc_matmul(dst=product, stationary=stationary, moving=moving)
    nisa.tensor_copy(dst=moving, src=product)
    nisa.dma_copy(dst=result, src=moving)
    return result


def matmul_program(target: str = "trn2") -> Program:
    """The program of ``matmul_kernel``: five instructions."""
    return trace(matmul_kernel, Spec((128, 128), "float32"), Spec((128, 512), "float32"), target=target)


def paced(program: Program, *, overlap: int = 150_300, pace: int = 100_700) -> Timeline:
    """A timeline in which an issue starts every ``pace`` ps and lasts ``pace + overlap``: lanes overlap themselves.

    DMA is triggered on sync, 50 ns before its data starts to flow; each issue waited for the one before.
    """
    count = len(program.instructions)
    start = [60_000 + number * pace for number in range(count)]
    end = [time + pace + overlap for time in start]
    moves = [instruction.engine is Engine.dma for instruction in program.instructions]
    names = [instruction.engine.name for instruction in program.instructions]
    lane = [QUEUE if move else LANES.index(name) for move, name in zip(moves, names, strict=True)]
    transfers = [
        Transfer(k, LANES.index("sync"), start[k] - 50_000, start[k] - 1_500, 65536, 65536, 128, 16)
        for k in range(count)
        if moves[k]
    ]
    busy = dict.fromkeys(LANES, 0)
    for number in lane:
        busy[LANES[number]] += pace
    waited_for, timing = [k - 1 for k in range(count)], program.target.timing
    return Timeline(
        program, LANES, list(range(count)), lane, start, end, waited_for, transfers, busy, end[-1], timing=timing
    )


def profile_of(*cores: Timeline, steps: Sequence[StepUse] | None = None, **changes: Any) -> Profile:
    """A profile around these timelines; its totals are made up, and every line of the kernel is a step."""
    timeline = cores[0]
    total = timeline.duration / PS_PER_US
    made = Profile(
        kernel=timeline.program.kernel, target=timeline.program.target.name, dtype="float32", batch=8, compared=True,
        benchmark_us=total + 6.7, profiler_us=total + 14.1, mfu=0.123, mbu=0.456, flops=2 * 128 * 128 * 512,
        hbm_bytes=589_824, hbm_read_bytes=327_680, hbm_write_bytes=262_144,
        dma_transfer_count=len(timeline.transfers), dma_packets=384, instructions=len(timeline.program.instructions),
        engines={name: EngineUse(ps / PS_PER_US, ps / timeline.duration) for name, ps in timeline.busy.items() if ps},
        steps=tuple(line_steps(timeline) if steps is None else steps),
        sbuf_peak_bytes=2560, psum_peak_bytes=2048,
        roofline=Roofline(28.4, 3.2, 22.8, 2_900.0), cores=cores,
        predictions=tuple(prediction_of(core) for core in cores),
    )  # fmt: skip
    return replace(made, **changes)


def prediction_of(core: Timeline) -> Prediction:
    """The prediction whose three timelines are this one."""
    issues = Issues(core.program)
    return Prediction(issues, issues, Schedule, core, core, core)


def line_steps(timeline: Timeline) -> list[StepUse]:
    """A step for each line of the kernel that issues something."""
    instructions = timeline.program.instructions
    lines = list(dict.fromkeys(instruction.line for instruction in instructions))
    found = []
    for line in lines:
        own = [k for k, number in enumerate(timeline.instruction) if instructions[number].line == line]
        start, end = min(timeline.start[k] for k in own), max(timeline.end[k] for k in own)
        time = (end - start) / PS_PER_US
        found.append(
            StepUse(
                f"line {line}",
                (f"node_{line}",),
                start / PS_PER_US,
                end / PS_PER_US,
                time,
                (end - start) / timeline.duration,
                "DMA latency",
                0.1,
                65536,
                len(own),
                (line, line),
            )
        )
    return found
