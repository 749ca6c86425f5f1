"""The tolerance of a group of nodes: what its inputs are apart by, carried through each node, and each node's rounding.

An operator has a rule: from the values that flow in, and how far ours may be from them, to how far what flows out may
be. ``docs/validation.md`` derives them; ``rules`` holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.planner.lowering.walk import attribute, value_name
from trnrt.validate.reference import Evaluated, Group
from trnrt.validate.rounding import SUMS, Rounding, of_sum, unit_of

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass
class Case:
    """A node as a rule sees it. Floats are float32; ``errors`` are those of the inputs, zeros where there are none."""

    evaluated: Evaluated
    inputs: list[Array | None]
    errors: list[Array | None]
    outputs: list[Array | None]
    rounding: Rounding
    opset: int
    length: int = 1

    @property
    def op(self) -> str:
        """The operator."""
        return str(self.evaluated.runner.node.op_type)

    @property
    def x(self) -> Array:
        """The first input."""
        found = self.inputs[0]
        assert found is not None
        return found

    @property
    def e(self) -> Array:
        """The error of the first input."""
        found = self.errors[0]
        assert found is not None
        return found

    @property
    def size(self) -> Array:
        """How large ours may be of the first input."""
        return np.abs(self.x) + self.e

    @property
    def y(self) -> Array:
        """The first output."""
        found = self.outputs[0]
        assert found is not None
        return found

    def input(self, position: int) -> Array | None:
        """An input, None where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def error(self, position: int) -> Array:
        """The error of an input, 0 where that is left out."""
        found = self.errors[position] if position < len(self.errors) else None
        return np.zeros((), np.float32) if found is None else found

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return attribute(self.evaluated.runner.node, name, default)

    def run(self, inputs: Sequence[Array | None]) -> list[Array | None]:
        """The node on other numbers."""
        return self.evaluated.runner.run(inputs)

    def first(self, *replaced: Array | None) -> Array:
        """The node's first output with its first inputs replaced."""
        made = self.run([*replaced, *self.inputs[len(replaced) :]])[0]
        assert made is not None
        return made

    def sums(self, length: int) -> float:
        """The bound of sums of so many terms, for each element of the output; it is noted for the report."""
        self.length = max(self.length, length)
        return of_sum(length, self.y.size)


# The rules compute in float32, and take slopes from differences: their results are this exact, relative to themselves.
_SLACK = np.float32(1 + 2 * np.sqrt(SUMS))

Rule = Callable[[Case], list[Array]]
_RULES: dict[str, Rule] = {}
_EXACT: set[str] = set()


def rule(*operators: str, exact: bool = False) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of operators; a second claim on one raises.

    What is ``exact`` gives numbers that the dtype holds if its inputs are such: storing the result changes nothing.
    """

    def register(function: Rule) -> Rule:
        for operator in operators:
            if operator in _RULES:
                raise ValueError(f"{operator} has two rules")
            _RULES[operator] = function
        _EXACT.update(operators if exact else ())
        return function

    return register


def has_rule(operator: str) -> bool:
    """Whether an operator has a rule of its own."""
    return operator in _RULES


def is_exact(operator: str) -> bool:
    """Whether an operator rounds nothing."""
    return operator in _EXACT


@dataclass(frozen=True)
class Bound:
    """What a group's value may be off by, element by element; ``length`` is the longest sum in it."""

    error: Array
    length: int
    errors: dict[str, Array]


def bound(
    group: Group, done: Sequence[Evaluated], errors: Mapping[str, Array], rounding: Rounding, opset: int
) -> Bound:
    """Carry the ``errors`` of a group's sources (by name) through its nodes."""
    known, length = dict(errors), 1
    for evaluated in done:
        node = evaluated.runner.node
        case = _case(evaluated, known, rounding, opset)
        with np.errstate(all="ignore"):
            made = _RULES.get(node.op_type, _unknown)(case) if _is_float(evaluated.outputs) else []
            for k, (value, output) in enumerate(zip(node.outputs, evaluated.outputs, strict=True)):
                if output is not None:
                    carried = made[k] if k < len(made) else np.zeros(output.shape, np.float32)
                    known[value_name(value)] = _settled(carried, output, None if node.op_type in _EXACT else rounding)
        length = max(length, case.length)
    return Bound(known[value_name(group.value)], length, known)


def _is_float(outputs: Sequence[Array | None]) -> bool:
    return any(array is not None and array.dtype.kind in "fVb" for array in outputs)


def _case(evaluated: Evaluated, known: Mapping[str, Array], rounding: Rounding, opset: int) -> Case:
    inputs = [None if array is None else as_float(array) for array in evaluated.inputs]
    errors: list[Array | None] = []
    for value, array in zip(evaluated.runner.node.inputs, inputs, strict=True):
        if value is None or array is None:
            errors.append(None)
        elif value.const_value is not None and array.dtype == np.float32:
            errors.append(rounding.stored(array))
        else:
            errors.append(known.get(value_name(value), np.zeros(array.shape, np.float32)))
    outputs = [None if array is None else as_float(array) for array in evaluated.outputs]
    return Case(evaluated, inputs, errors, outputs, rounding, opset)


def _settled(carried: Array, output: Array, rounding: Rounding | None) -> Array:
    """An error with what storing the result adds, here and, for a model of 16 bits, in onnxruntime.

    Without a ``rounding`` it adds nothing.
    """
    value = as_float(output)
    # What is no number comes of errors that are infinite.
    error = np.where(np.isnan(carried), np.float32(np.inf), carried.astype(np.float32))
    error = np.broadcast_to(error * _SLACK, output.shape)
    if output.dtype.kind not in "fV":
        return error
    theirs = unit_of(output.dtype) if output.dtype != np.float32 else 0.0
    stored: Array = np.zeros((), np.float32)
    if rounding is not None:  # ours is rounded as it is, with its error
        stored = rounding.stored(np.abs(value) + error) + np.float32(theirs) * np.abs(value)
    return np.where(np.isfinite(value), error + stored, np.float32(0)).astype(np.float32)


def as_float(array: Array) -> Array:
    """Floats of any kind as float32; everything else as it is."""
    return array.astype(np.float32) if array.dtype.kind in "fV" and array.dtype != np.float32 else array


def _unknown(case: Case) -> list[Array]:
    """An operator without a rule: the scale of its result, and the largest relative error of its inputs."""
    floats = [(a, e) for a, e in zip(case.inputs, case.errors, strict=True) if a is not None and e is not None]
    ratios = [float(e.max() / np.abs(a).max()) for a, e in floats if a.size and a.dtype.kind == "f" and np.any(a)]
    length = max((a.size for a, _ in floats), default=1)
    share = max(ratios, default=0.0) + case.sums(max(1, length // max(case.y.size, 1)))
    return [
        np.full(output.shape, share * np.abs(output).max(initial=0), np.float32)
        for output in case.outputs
        if output is not None
    ]
