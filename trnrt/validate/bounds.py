"""The tolerance of a group of nodes: its inputs' errors carried through each node, and each node's rounding.

An operator has a rule, from its inputs and their errors to its outputs' errors. ``docs/validation.md`` derives the
rules; the operators' records name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from trnrt.operators.bounds.case import Array, Case, is_exact
from trnrt.operators.bounds.rounding import SUMS, Rounding, unit_of
from trnrt.operators.record import BoundRule, NotApplicable, record_of
from trnrt.planner.lowering.integers import ARITHMETIC
from trnrt.planner.lowering.walk import value_name
from trnrt.validate.reference import Evaluated, Group

# The rules compute in float32, and take slopes from differences: this is their results' relative accuracy.
_SLACK = np.float32(1 + 2 * np.sqrt(SUMS))


def rule_of(node: ir.Node) -> BoundRule | None:
    """The rule of a node's operator, if it has one."""
    record = record_of(node)
    return None if record is None or isinstance(record.bound, NotApplicable) else record.bound


_RESHAPING = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
_ELEMENTWISE = ARITHMETIC - {"CumSum", "ReduceSum"} | {"Clip", "Max", "Min", "Where"}


@dataclass(frozen=True)
class Bound:
    """The largest error of each element of a group's value. ``length``: of its longest sum; ``errors``: by value."""

    error: Array
    length: int
    errors: dict[str, Array]


def carry_errors(
    group: Group, done: Sequence[Evaluated], errors: Mapping[str, Array], rounding: Rounding, opset: int
) -> Bound:
    """Carry the ``errors`` of a group's sources (by name) through its nodes."""
    known, length = dict(errors), 1
    for evaluated in done:
        node = evaluated.runner.node
        rule = rule_of(node) or _unknown
        case = _case(evaluated, known, rounding, opset)
        with np.errstate(all="ignore"):
            made = rule(case) if _is_float(evaluated.outputs) else _carry_doubt(case)
            for k, (value, output) in enumerate(zip(node.outputs, evaluated.outputs, strict=True)):
                if output is not None:
                    carried = made[k] if k < len(made) else np.zeros(output.shape, np.float32)
                    known[value_name(value)] = _add_rounding(carried, output, None if is_exact(rule) else rounding)
        length = max(length, case.length)
    return Bound(known[value_name(group.value)], length, known)


def _is_float(outputs: Sequence[Array | None]) -> bool:
    return any(array is not None and array.dtype.kind in "fVb" for array in outputs)


def _carry_doubt(case: Case) -> list[Array]:
    """Integers that are made of others, such as an index of close numbers: nothing is known where one may differ."""
    doubts = [error > 0 for error in case.errors if error is not None and np.any(error > 0)]
    found: list[Array] = []
    for shape in [output.shape for output in case.outputs if output is not None] if doubts else []:
        if case.op in _RESHAPING:
            doubt = doubts[0].reshape(shape)
        elif case.op in _ELEMENTWISE:
            doubt = np.any([np.broadcast_to(each, shape) for each in doubts], axis=0)
        else:
            doubt = np.ones(shape, bool)
        found.append(np.where(doubt, np.float32(np.inf), np.float32(0)))
    return found


def _case(evaluated: Evaluated, known: Mapping[str, Array], rounding: Rounding, opset: int) -> Case:
    inputs = [None if array is None else as_float(array) for array in evaluated.inputs]
    errors: list[Array | None] = []
    for value, array in zip(evaluated.runner.node.inputs, inputs, strict=True):
        if value is None or array is None:
            errors.append(None)
        elif value.const_value is not None and array.dtype == np.float32:
            errors.append(rounding.storage_error(array))
        else:
            errors.append(known.get(value_name(value), np.zeros(array.shape, np.float32)))
    outputs = [None if array is None else as_float(array) for array in evaluated.outputs]
    made = evaluated.outputs[0]
    dtype = None if made is None else made.dtype
    return Case(evaluated.runner.node, evaluated.runner.run, inputs, errors, outputs, dtype, rounding, opset)


def _add_rounding(carried: Array, output: Array, rounding: Rounding | None) -> Array:
    """Add the error of storing the result, here and, in 16 bits, in onnxruntime. None without ``rounding``."""
    value = as_float(output)
    # NaN comes from infinite errors.
    error = np.where(np.isnan(carried), np.float32(np.inf), carried.astype(np.float32))
    error = np.broadcast_to(error * _SLACK, output.shape)
    if output.dtype.kind not in "fV":
        return error
    theirs = unit_of(output.dtype) if output.dtype != np.float32 else 0.0
    stored: Array = np.zeros((), np.float32)
    if rounding is not None:  # ours, error included, is rounded
        stored = rounding.storage_error(np.abs(value) + error) + np.float32(theirs) * np.abs(value)
    return np.where(np.isfinite(value), error + stored, np.float32(0)).astype(np.float32)


def as_float(array: Array) -> Array:
    """Floats of any kind as float32; everything else as it is."""
    return array.astype(np.float32) if array.dtype.kind in "fV" and array.dtype != np.float32 else array


def _unknown(case: Case) -> list[Array]:
    """The rule of other operators: the largest relative error of the inputs, at the scale of the result."""
    floats = [(a, e) for a, e in zip(case.inputs, case.errors, strict=True) if a is not None and e is not None]
    ratios = [float(e.max() / np.abs(a).max()) for a, e in floats if a.size and a.dtype.kind == "f" and np.any(a)]
    length = max((a.size for a, _ in floats), default=1)
    share = max(ratios, default=0.0) + case.sums(max(1, length // max(case.y.size, 1)))
    return [
        np.full(output.shape, share * np.abs(output).max(initial=0), np.float32)
        for output in case.outputs
        if output is not None
    ]
