"""Neighbouring element-wise steps become one: each element then moves to SBUF and back once."""

from __future__ import annotations

from dataclasses import replace

from trnrt.operators.functions import shorten
from trnrt.operators.programs import ComputeStep, collapse_broadcast
from trnrt.operators.rounding import shorten_rounding
from trnrt.planner.lowering.walk import Lowering
from trnrt.planner.steps import Step

# Per program: more tiles at once would leave each too little of SBUF. There is no record of how these two were chosen;
# when one changes, measure the networks with gates and norms (EfficientNet, MobileNetV3, the mixer).
MOST_SOURCES = 6
MOST_OPERATIONS = 24


def merge_steps(lowering: Lowering, leaving: set[str]) -> None:
    """Merge a step into the element-wise step that is its only reader, if both have the same shape.

    ``leaving`` are the values that leave the device; their steps stay.
    """
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(lowering.steps):
        for value in {source.value for source in step.sources}:
            readers.setdefault(value, []).append(index)
    gone: set[int] = set()
    for index, step in enumerate(lowering.steps):
        follower = readers.get(step.output, [])
        if step.output in leaving or len(follower) != 1 or _kept_apart(lowering, lowering.steps[follower[0]]):
            continue
        merged = _merge_steps(step, lowering.steps[follower[0]])
        if merged is None:
            continue
        for source in step.sources:
            readers[source.value] = sorted({follower[0], *readers[source.value]} - {index})
        lowering.steps[follower[0]] = merged
        gone.add(index)
        for name in merged.nodes:
            why = "element by element, in one pass with its neighbours"
            lowering.reports[name] = replace(lowering.reports[name], step=merged.name, reason=why)
    lowering.steps = [step for index, step in enumerate(lowering.steps) if index not in gone]
    for step in lowering.steps:
        if isinstance(step, ComputeStep):
            step.program = shorten_rounding(shorten(step.program))


def _kept_apart(lowering: Lowering, reader: Step) -> bool:
    """True if the user wants ``reader``'s node that reads the earlier step kept apart from it.

    That node is the last one: nodes already merged into ``reader`` come earlier and read nothing of that step.
    """
    return bool(reader.nodes) and reader.nodes[-1] in lowering.no_fuse


def _merge_steps(first: object, second: object) -> ComputeStep | None:
    """The two steps merged into one, or None if they can't be."""
    if not isinstance(first, ComputeStep) or not isinstance(second, ComputeStep) or first.shape != second.shape:
        return None
    if any(source.value == first.output and source.shape != first.shape for source in second.sources):
        return None
    operations = len(first.program.operations) + len(second.program.operations)
    if len(second.program.sources) > MOST_SOURCES + 1 or operations > MOST_OPERATIONS:
        return None
    program = second.program.absorb(first.program, first.output)
    if len(program.sources) > MOST_SOURCES or len(program.operations) > MOST_OPERATIONS:
        return None
    if collapse_broadcast([source.shape for source in program.sources], second.shape) is None:
        return None
    return ComputeStep(
        name=first.name,
        nodes=[*first.nodes, *second.nodes],
        sources=program.operands,
        output=second.output,
        shape=second.shape,
        dtype=second.dtype,
        weight_dtype=first.weight_dtype or second.weight_dtype,
        title=[*first.title, *second.title],
        program=program,
    )
