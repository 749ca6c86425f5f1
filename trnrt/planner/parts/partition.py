"""A model as parts: plans for the device, and submodels that onnxruntime runs on the CPU between them (``--fallback``).

``partitioning.py`` makes them. Nothing here imports ``onnx_ir``: a plan from the cache needs only these records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from trnrt.errors import Blocker
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.parts.crossing import Crossing, crossing_note
from trnrt.planner.plan import Array, NodeReport, Plan, StepReport
from trnrt.text import list_text


@dataclass(frozen=True)
class DevicePart:
    """A part with a plan; ``inputs`` and ``outputs`` are names of the model's values, in the model's dtypes.

    ``group``: the part of the graph that this is one of several kernels of, "" for an only one. Values between the
    kernels of a group are in their stored shape and dtype; the last kernel has the group's outputs.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    plan: Plan
    group: str = ""


@dataclass(frozen=True)
class CpuPart:
    """A part that onnxruntime runs: the ``model`` to load, why its ``nodes`` are here, and the cost of its
    ``crossing``. ``is_end``: it is the end of a model, which the host computes without a fallback (``ends.py``)."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[NodeReport, ...]
    crossing: Crossing
    model: bytes = field(repr=False)
    is_end: bool = False


Part = DevicePart | CpuPart


@dataclass(frozen=True)
class Partition:
    """A model for given input shapes: its parts in execution order.

    ``outputs`` are the model's, ``constants`` the outputs that depend on no input. ``nodes`` has a report for every
    node of the file. ``blockers`` say why the model isn't a single plan.
    """

    name: str
    target: str
    dtype: str
    batch: int | None
    parts: tuple[Part, ...]
    outputs: tuple[str, ...]
    constants: dict[str, Array]
    nodes: tuple[NodeReport, ...]
    notes: tuple[str, ...]
    blockers: tuple[Blocker, ...] = ()

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of the parts for the device."""
        return tuple(part.plan for part in self.parts if isinstance(part, DevicePart))

    @property
    def steps(self) -> list[StepReport]:
        """The steps of all plans."""
        return [step for plan in self.plans for step in plan.steps]

    @property
    def cpu_parts(self) -> tuple[CpuPart, ...]:
        """The parts for the CPU."""
        return tuple(part for part in self.parts if isinstance(part, CpuPart))

    @property
    def choices(self) -> Choices:
        """The choices of the user and of the search, for all parts."""
        return reduce(or_, (plan.choices for plan in self.plans), DEFAULT)

    @property
    def crossings_us(self) -> float:
        """The cost of all round trips, in microseconds."""
        return sum(part.crossing.predicted_us for part in self.cpu_parts)


def fallback_notes(partition: Partition) -> list[str]:
    """The nodes on the CPU, each with its reason and the cost of its round trip; the end of a model as one."""
    ends, notes = [], []
    for part in partition.cpu_parts:
        if part.is_end:
            named = list_text([f"{node.op} {node.name!r}" for node in part.nodes], 4)
            ends.append(f"the host computes the end of the model: {named}; no prediction has its time")
            continue
        cost = crossing_text(part.crossing)
        notes += [
            f"{node.op} {node.name!r} runs on the CPU: {node.reason}; {cost} ({part.name})" for node in part.nodes
        ]
    return [*ends, *notes, *([crossing_note(partition.target)] if notes else [])]


def size_notes(partition: Partition, budget: int) -> list[str]:
    """The kernels that have more instructions than the budget (0: none), as its default allows."""
    return [
        f"kernel {plan.name!r} has {plan.size.compiled:,} instructions, more than {budget:,}: compiling may take long"
        for plan in partition.plans
        if 0 < budget < plan.size.compiled
    ]


def crossing_text(crossing: Crossing) -> str:
    """A round trip in words."""
    if not crossing.to_host and not crossing.to_device and not crossing.open_shapes:
        return "no round trip: the device runs nothing before it, or nothing after it"
    loose = ", values of open size not counted" if crossing.open_shapes else ""
    sizes = f"{crossing.to_host:,} bytes to the CPU, {crossing.to_device:,} back{loose}"
    return f"round trip {crossing.predicted_us:,.1f} us, {sizes}"
