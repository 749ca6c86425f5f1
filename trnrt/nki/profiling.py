"""``trnrt.nki.profile``: the predicted cost of a kernel on the device, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnrt.nki.bottleneck import Bottleneck, find_bottleneck
from trnrt.nki.breakdown import Breakdown, PathPart, breakdown_of
from trnrt.nki.lines import LineUse, line_uses
from trnrt.nki.machine.loops import InstructionCounts, add_counts, count_instructions, is_loop_barrier
from trnrt.nki.machine.memory import overflow_notes
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import (
    PS_PER_US,
    Cause,
    Prediction,
    Range,
    Timeline,
    benchmark_us,
    largest_range,
    predict_cores,
    schedule,
    schedule_freely,
)
from trnrt.nki.machine.timing.path import critical_path
from trnrt.nki.machine.timing.steps import Named, Step, StepUse, attribute
from trnrt.nki.machine.timing.tensor_engine import work_of
from trnrt.nki.sim.kernel import Kernel, Simulated, default_target

__all__ = [
    "Bottleneck",
    "Breakdown",
    "EngineUse",
    "LineUse",
    "PathPart",
    "Predicted",
    "Profile",
    "Roofline",
    "Step",
    "StepUse",
    "predicted_us",
    "profile",
    "profile_programs",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Predicted(Named):
    """Two figures in microseconds: the time that a benchmark of many runs would measure, and a profiler's total."""

    benchmark: float
    profiler: float


@dataclass(frozen=True, slots=True)
class EngineUse(Named):
    """The busy time of an engine (or of the DMA engines together), also as a share of the total."""

    busy_us: float
    share: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """A kernel under the roofline of its target. ``intensity``: FLOP for each byte of HBM traffic."""

    intensity: float
    achieved_tflops: float
    peak_tflops: float
    hbm_gbps: float

    @property
    def attainable_tflops(self) -> float:
        """The roofline at this intensity."""
        return min(self.peak_tflops, self.intensity * self.hbm_gbps / 1000)


@dataclass(frozen=True, slots=True)
class Profile(Named):
    """The predicted cost of a kernel on the device, in microseconds and bytes.

    ``benchmark_us``: the time that a benchmark of many runs would measure. ``profiler_us``: a profiler's total
    (``total_time``), with the program's fixed start and end. Both are in a range (``benchmark``, ``profiler``);
    ``causes`` explain its width (computed on first use, by a few more runs of the model). ``compared``: this target's
    model was compared with measurements. ``mfu``: the share of the tensor engine's peak in the benchmark's time (of
    each product's own dtype; transposes are no FLOP). ``mbu``: the share of the core's part of the device's HBM
    bandwidth. ``engines`` are busy for a share of the time between the first and the last instruction. ``cores``: the
    timelines of the kernel's physical cores, from ``predictions``. ``breakdown``: the parts of ``benchmark_us``.
    ``bottleneck``: what holds most of the critical path (None without instructions); ``lines``: the cost by source
    line. Steps, engines, lines and bottleneck are those of the slowest core.
    ``fits``: False if tiles take more SBUF or PSUM than the device has (``capacity=False``); the times then leave out
    the spills.
    """

    kernel: str
    target: str
    dtype: str
    batch: int | None
    compared: bool
    benchmark_us: float
    profiler_us: float
    mfu: float
    mbu: float
    flops: int
    hbm_bytes: int
    hbm_read_bytes: int
    hbm_write_bytes: int
    dma_transfer_count: int
    dma_packets: int
    instructions: int
    engines: dict[str, EngineUse]
    steps: tuple[StepUse, ...]
    sbuf_peak_bytes: int
    psum_peak_bytes: int
    roofline: Roofline
    cores: tuple[Timeline, ...]
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...] = ()
    breakdown: Breakdown = field(default_factory=lambda: Breakdown(()))
    fits: bool = True
    bottleneck: Bottleneck | None = None
    lines: tuple[LineUse, ...] = ()

    @property
    def schema_version(self) -> int:
        """The version of the JSON document that has the same fields."""
        return SCHEMA_VERSION

    @property
    def predicted_us(self) -> Predicted:
        """Both figures."""
        return Predicted(self.benchmark_us, self.profiler_us)

    @property
    def low_us(self) -> Predicted:
        """The lower ends of both ranges."""
        return Predicted(self.benchmark.least_us, self.profiler.least_us)

    @property
    def high_us(self) -> Predicted:
        """The upper ends of both ranges."""
        return Predicted(self.benchmark.most_us, self.profiler.most_us)

    @property
    def benchmark(self) -> Range:
        """The range of ``benchmark_us``: each end is that of the core that is slowest there."""
        return largest_range(prediction.benchmark for prediction in self.predictions)

    @property
    def profiler(self) -> Range:
        """The range of ``profiler_us``."""
        return largest_range(prediction.profiler for prediction in self.predictions)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of the range of ``benchmark_us``, the widest first; of the slowest core if there are several."""
        return _slowest(self.predictions).causes

    @property
    def counts(self) -> InstructionCounts:
        """The kernel's size on all of its cores, before the compiler's rewrites."""
        return add_counts(count_instructions(prediction.issues.program) for prediction in self.predictions)

    @property
    def timeline(self) -> Timeline:
        """The first core's timeline."""
        return self.cores[0]


def profile(
    kernel: Kernel | Callable[..., Any],
    *args: Any,
    target: str | None = None,
    strict: bool = False,
    cores: int | None = None,
    capacity: bool | None = None,
    **kwargs: Any,
) -> Profile:
    """The predicted cost of ``kernel`` for these arguments (arrays, or ``Spec`` for tensors), without computing data.

    ``target``, ``strict`` and ``capacity`` are as in ``trace``; ``cores``: physical cores, by default the kernel's own
    number (``kernel[2]``). Raises the errors of ``trace``, and KernelError if instructions deadlock.
    """
    simulated = Simulated(kernel, get_target(target or default_target()), strict=strict, cores=cores, capacity=capacity)
    return profile_programs(simulated.trace(*args, **kwargs))


def predicted_us(program: Program) -> float:
    """``Profile.benchmark_us`` of a program on one core, without the rest of the profile."""
    return benchmark_us(schedule_freely(program))


def in_order_us(program: Program) -> float:
    """The same with instructions in order. The planner compares this, because it depends on no compiler."""
    return benchmark_us(schedule(program))


def profile_programs(
    programs: Sequence[Program],
    *,
    steps: Sequence[Step] | None = None,
    dtype: str | None = None,
    batch: int | None = None,
    floor: Program | None = None,
) -> Profile:
    """The profile of traced programs, one a physical core. ``steps``: None makes a step of each line of the kernel.

    ``dtype``: the dtype to report; None takes that of most of the multiplications. ``floor``: the program to compare
    the breakdown with, which only loads the inputs and stores the outputs.
    """
    predictions = predict_cores(programs)
    timelines = tuple(prediction.timeline for prediction in predictions)
    prediction = _slowest(predictions)
    slowest = prediction.timeline
    program, timing = slowest.program, slowest.program.target.timing
    read, written = map(sum, zip(*map(_traffic, timelines), strict=True))
    flops = sum((_flops(timeline) for timeline in timelines), Counter[str]())
    ideal_us = sum(count / timing.tensor.peak(name) / 1e6 for name, count in flops.items()) / len(programs)
    kind = dtype or _largest(flops) or _widest_dtype(program)
    time_us = prediction.benchmark.us
    return Profile(
        kernel=program.kernel,
        target=program.target.name,
        dtype=kind,
        batch=batch,
        compared=timing.compared,
        benchmark_us=time_us,
        profiler_us=prediction.profiler.us,
        mfu=ideal_us / time_us,
        mbu=(read + written) / (timing.dma.hbm_gbps * 1000 * len(programs) * time_us),
        flops=flops.total(),
        hbm_bytes=read + written,
        hbm_read_bytes=read,
        hbm_write_bytes=written,
        dma_transfer_count=sum(len(timeline.transfers) for timeline in timelines),
        dma_packets=sum(transfer.packets for timeline in timelines for transfer in timeline.transfers),
        instructions=sum(map(_count_issued, timelines)),
        engines=_engines(slowest),
        **_path_parts(slowest, steps, floor),
        **_memory(programs),
        roofline=_roofline(timing, kind, flops.total(), read + written, time_us, len(programs)),
        cores=timelines,
        predictions=predictions,
        notes=_notes(timelines),
    )


def _path_parts(timeline: Timeline, steps: Sequence[Step] | None, floor: Program | None) -> dict[str, Any]:
    """The parts of a profile that divide the critical path."""
    path = critical_path(timeline)
    return {
        "steps": attribute(timeline, steps, path),
        "breakdown": breakdown_of(timeline, path, floor),
        "bottleneck": find_bottleneck(timeline, path, steps),
        "lines": line_uses(timeline, path),
    }


def _memory(programs: Sequence[Program]) -> dict[str, Any]:
    known = [program.memory for program in programs if program.memory]
    return {
        "sbuf_peak_bytes": max((memory.sbuf_peak_bytes for memory in known), default=0),
        "psum_peak_bytes": max((memory.psum_peak_bytes for memory in known), default=0),
        "fits": all(memory.fits for memory in known),
    }


def _slowest(predictions: Sequence[Prediction]) -> Prediction:
    return max(predictions, key=lambda prediction: prediction.timeline.duration)


def _roofline(timing: Timing, dtype: str, flops: int, hbm_bytes: int, time_us: float, cores: int) -> Roofline:
    return Roofline(
        intensity=flops / hbm_bytes if hbm_bytes else 0.0,
        achieved_tflops=flops / time_us / 1e6,
        peak_tflops=timing.tensor.peak(dtype) * cores,
        hbm_gbps=timing.dma.hbm_gbps * cores,
    )


def _count_issued(timeline: Timeline) -> int:
    """The instructions that the engines are given: the barriers of device loops are none."""
    instructions = timeline.program.instructions
    return sum(not is_loop_barrier(instructions[index]) for index in timeline.instruction)


def _notes(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    notes = [timeline.program.target.note for timeline in timelines if timeline.program.target.note]
    notes += [note for timeline in timelines for note in overflow_notes(timeline.program)]
    notes += [note for timeline in timelines for note in timeline.notes]
    return tuple(dict.fromkeys(notes))


def _traffic(timeline: Timeline) -> tuple[int, int]:
    """Bytes read from and written to HBM."""
    read = written = 0
    instructions = timeline.program.instructions
    for transfer in timeline.transfers:
        instruction = instructions[timeline.instruction[transfer.issue]]
        target = instruction.operands[0][1]
        stored = 0 if target.storage.on_chip else target.size * target.dtype.itemsize
        written += stored
        read += transfer.hbm_bytes - stored
    return read, written


def _flops(timeline: Timeline) -> Counter[str]:
    """Dtype -> the multiplications and additions of matrix products in it."""
    flops: Counter[str] = Counter()
    program = timeline.program
    for index in timeline.instruction:
        instruction = program.instructions[index]
        if instruction.operation.name == "nc_matmul":
            flops[instruction["stationary"].dtype.name] += work_of(instruction, program.target).flops
    return +flops


def _widest_dtype(program: Program) -> str:
    """The dtype of a kernel without matrix products: that of most of its arguments' bytes."""
    bytes_of: Counter[str] = Counter()
    for storage in program.inputs:
        bytes_of[storage.dtype.name] += storage.size * storage.dtype.itemsize
    return _largest(bytes_of) or "float32"


def _largest(amounts: Counter[str]) -> str:
    """The name with the largest amount, the alphabetically last of several; "" if there is none."""
    return max(amounts, key=lambda name: (amounts[name], name), default="")


def _engines(timeline: Timeline) -> dict[str, EngineUse]:
    total = max(1, timeline.duration)
    return {name: EngineUse(busy / PS_PER_US, busy / total) for name, busy in timeline.busy.items()}
