"""Choose dtypes by step where the graph multiplies whole numbers, as quantised models do.

In float32, whole numbers up to 256 are stored in bfloat16, which is exact, and multiplied in one pass of the tensor
engine instead of four. In 16 bits, sums of their products stay in float32 until they have been scaled and rounded.
A graph without such products keeps its dtypes.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from trnrt.importer.wholes import EXACT_BFLOAT16, EXACT_SUM, Wholes, find_wholes
from trnrt.operators.programs import ComputeStep
from trnrt.planner.lowering.moving import MoveStep, TransposeStep
from trnrt.planner.steps import Step

# The whole numbers that a dtype represents: all of them up to here.
_EXACT = {"bfloat16": EXACT_BFLOAT16, "float16": 2048.0}


def choose_dtypes(graph: ir.Graph, steps: list[Step], dtype: str, leaving: Collection[str]) -> None:
    """Set the dtypes of results and weights. ``leaving`` are the values that leave the device: they keep the session's
    dtype in float32."""
    wholes = find_wholes(graph)
    products = [step for step in steps if _multiplies_wholes(step, wholes)]
    if products and dtype == "float32":
        _narrow(steps, products, _narrow_values(steps, products, wholes, leaving))
    elif products and dtype in _EXACT:
        _widen(steps, _wide_values(steps, products, wholes, _EXACT[dtype]))


def _multiplies_wholes(step: Step, wholes: Wholes) -> bool:
    """True if a step multiplies whole numbers, all of whose partial sums are exact in float32."""
    return bool(step.multiplied_sources()) and any(wholes.sums.get(node, EXACT_SUM) < EXACT_SUM for node in step.nodes)


def _narrow_values(steps: list[Step], products: list[Step], wholes: Wholes, leaving: Collection[str]) -> set[str]:
    """The values to store in bfloat16: whole, small, and so that each kernel gets the dtypes that it accepts."""
    narrow: set[str] = set()
    for step in steps:
        limits = wholes.limits.get(step.output)
        small = limits is not None and limits.size <= EXACT_BFLOAT16
        copied = limits is None and _only_moves(step) and all(s.value in narrow for s in step.sources)
        if (small or copied) and not step.dtype and step.output not in leaving:
            narrow.add(step.output)
    multiplied = {id(step) for step in products}
    while refused := {value for step in steps for value in _find_refused(step, narrow, id(step) in multiplied)}:
        narrow -= refused
    return narrow


def _only_moves(step: Step) -> bool:
    return isinstance(step, TransposeStep) or (isinstance(step, MoveStep) and step.fill in (None, 0.0))


def _find_refused(step: Step, narrow: set[str], multiplies: bool) -> set[str]:
    """The values in bfloat16 that a step can't read or write so."""
    if isinstance(step, ComputeStep):
        return set()
    read = {source.value for source in step.sources}
    if multiplies:
        factors = {source.value for source in step.multiplied_sources()}
        return (read - factors) & narrow | (set() if factors <= narrow else factors & narrow)
    together = read | {step.output}
    return set() if together <= narrow else together & narrow


def _narrow(steps: list[Step], products: list[Step], narrow: set[str]) -> None:
    for step in steps:
        if step.output in narrow:
            step.dtype = "bfloat16"
    for step in products:
        if all(source.value in narrow for source in step.multiplied_sources()):
            step.cast_weights("bfloat16")


def _wide_values(steps: list[Step], products: list[Step], wholes: Wholes, exact: float) -> set[str]:
    """The sums that 16 bits would round, and what is computed of them while it stays whole."""
    wide: set[str] = set()
    made = {step.output for step in products}
    for step in steps:
        limits = wholes.limits.get(step.output)
        rounds = limits is not None and limits.size > exact
        follows = any(source.value in wide for source in step.sources)
        moved = _only_moves(step) and all(source.value in wide for source in step.sources)
        if (rounds and (step.output in made or (follows and isinstance(step, ComputeStep)))) or moved:
            wide.add(step.output)
    while refused := {value for step in steps for value in _find_rounded(step, wide)}:
        wide -= refused
    return wide


def _find_rounded(step: Step, wide: set[str]) -> set[str]:
    """The values in float32 that a step can't read so in a session of 16 bits."""
    read = {source.value for source in step.sources} & wide
    return read if not isinstance(step, ComputeStep) and step.output not in wide else set()


def _widen(steps: list[Step], wide: set[str]) -> None:
    for step in steps:
        if step.output in wide and not step.dtype:
            step.dtype = "float32"
        if isinstance(step, ComputeStep) and any(source.value in wide for source in step.sources):
            step.weight_dtype = "float32"
