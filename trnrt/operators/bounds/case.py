"""A node as error bounds see it, and the mark of an exact rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from trnrt.importer.values import attribute
from trnrt.operators.bounds.rounding import Rounding, sum_bound

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass
class Case:
    """A node with its inputs, their errors (zeros if there are none), and outputs. Floats are float32.

    ``run`` computes the node on other inputs; ``dtype`` is the first output's in the model.
    """

    node: ir.Node
    run: Callable[[Sequence[Array | None]], list[Array | None]]
    inputs: list[Array | None]
    errors: list[Array | None]
    outputs: list[Array | None]
    dtype: np.dtype[Any] | None
    rounding: Rounding
    opset: int
    length: int = 1

    @property
    def op(self) -> str:
        """The operator."""
        return str(self.node.op_type)

    @property
    def x(self) -> Array:
        """The first input."""
        return _check_given(self.inputs[0])

    @property
    def e(self) -> Array:
        """The error of the first input."""
        return _check_given(self.errors[0])

    @property
    def size(self) -> Array:
        """The largest magnitude that the first input may have."""
        return np.abs(self.x) + self.e

    @property
    def y(self) -> Array:
        """The first output."""
        return _check_given(self.outputs[0])

    def required_input(self, position: int) -> Array:
        """An input that ONNX requires."""
        return _check_given(self.inputs[position])

    def input(self, position: int) -> Array | None:
        """An input, None if it is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    def error(self, position: int) -> Array:
        """The error of an input, 0 if that is left out."""
        found = self.errors[position] if position < len(self.errors) else None
        return np.zeros((), np.float32) if found is None else found

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return attribute(self.node, name, default)

    def first(self, *replaced: Array | None) -> Array:
        """The node's first output with its first inputs replaced."""
        return _check_given(self.run([*replaced, *self.inputs[len(replaced) :]])[0])

    def sums(self, length: int) -> float:
        """The bound of sums of ``length`` terms, one for each element of the output; the report shows the longest."""
        self.length = max(self.length, length)
        return sum_bound(length, self.y.size)


def _check_given(array: Array | None) -> Array:
    assert array is not None
    return array


_Rule = TypeVar("_Rule", bound=Callable[[Case], list[Array]])
_EXACT: set[Callable[..., Any]] = set()


def exact(rule: _Rule) -> _Rule:
    """Mark the rule of operators whose results need no rounding: the dtype holds them if it holds their inputs."""
    _EXACT.add(rule)
    return rule


def is_exact(rule: object) -> bool:
    """True if an operator that has this rule rounds nothing."""
    return rule in _EXACT
