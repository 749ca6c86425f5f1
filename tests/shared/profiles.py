"""A profile made by hand, for tests of what users see of one: its numbers are round, and no machine's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Cause, Prediction, Range, Timeline
from trnrt.nki.machine.timing.issues import Issues
from trnrt.nki.machine.timing.simulation import Schedule
from trnrt.nki.profiling import EngineUse, Profile, Roofline, StepUse

LANES = ("tensor", "vector", "scalar", "gpsimd", "sync", "queue sync")

STEPS = (
    StepUse("conv1", ("conv1", "relu1", "pool1"), 2.0, 14.0, 12.0, 0.375, "vector", 0.02, 4096, 60),
    StepUse("conv2", ("conv2", "relu2", "pool2"), 10.0, 30.0, 16.0, 0.5, "DMA bandwidth", 0.11, 1_234_567, 80),
    StepUse("fc", ("fc",), 28.0, 34.0, 4.0, 0.125, "dependency", 0.005, 11_520, 20),
)
ENGINES = {
    "tensor": EngineUse(8.0, 0.25),
    "vector": EngineUse(20.0, 0.625),
    "scalar": EngineUse(6.0, 0.1875),
    "gpsimd": EngineUse(0.0, 0.0),
    "sync": EngineUse(1.0, 0.03125),
    "dma": EngineUse(24.0, 0.75),
}


def timeline(target: str = "trn2") -> Timeline:
    """A timeline in which nothing happens."""
    program = Program("digits", get_target(target))
    timing = program.target.timing
    return Timeline(program, LANES, [], [], [], [], [], [], dict.fromkeys(LANES, 0), 32_000_000, timing=timing)


CAUSES = (
    Cause("order of instructions", Range(40.0, 40.0, 48.0), "the compiler may reorder, or not", "nl.no_reorder()"),
    Cause("DMA starts", Range(37.0, 40.0, 41.0), "public traces", ""),
)


@dataclass(frozen=True)
class MadePrediction(Prediction):
    """A prediction whose ranges and causes are made by hand."""

    made: tuple[Range, Range]
    made_causes: tuple[Cause, ...] = CAUSES

    @property
    def benchmark(self) -> Range:
        return self.made[0]

    @property
    def profiler(self) -> Range:
        return self.made[1]

    @cached_property
    def causes(self) -> tuple[Cause, ...]:
        return self.made_causes


def made_prediction(benchmark: Range, profiler: Range, causes: tuple[Cause, ...] = CAUSES) -> Prediction:
    """A prediction with these ranges."""
    line = timeline()
    issues = Issues(line.program)
    return MadePrediction(issues, issues, Schedule, line, line, line, (benchmark, profiler), causes)


def around(us: float) -> Range:
    """A range that is wide enough to be seen: 36 to 50 around 40."""
    return Range(0.9 * us, us, 1.25 * us)


def made_profile(**changes: Any) -> Profile:
    """A profile of 40 us in three steps, with ``changes``."""
    profile = Profile(
        kernel="digits",
        target="trn2",
        dtype="bfloat16",
        batch=8,
        compared=True,
        benchmark_us=40.0,
        profiler_us=50.0,
        mfu=0.25,
        mbu=0.125,
        flops=786_432_000,
        hbm_bytes=1_250_183,
        hbm_read_bytes=1_250_023,
        hbm_write_bytes=160,
        dma_transfer_count=14,
        dma_packets=1800,
        instructions=160,
        engines=ENGINES,
        steps=STEPS,
        sbuf_peak_bytes=49_152,
        psum_peak_bytes=4_096,
        roofline=Roofline(629.1, 19.7, 79.0, 368.0),
        cores=(timeline(),),
        predictions=(),
        notes=(),
    )
    profile = replace(profile, **changes)
    if profile.predictions:
        return profile
    return replace(profile, predictions=(made_prediction(around(profile.benchmark_us), around(profile.profiler_us)),))
