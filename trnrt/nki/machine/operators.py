"""The math operators and activation functions that instructions take as ``op``, each with its numpy meaning.

Source of the tables: NKI API reference 2.32, "Supported Math Operators" and "Supported Activation Functions".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnrt.nki.machine.dtypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator token such as ``nl.add``.

    ``binary`` is its meaning on two float32 arrays (vector-engine ALU), ``unary`` on one;
    ``activation`` the scalar engine's function; None where that use does not exist.
    ``reduces``: it is legal as a reduction; ``comparison``: its result is 1.0 or 0.0.
    """

    name: str
    binary: Callable[..., Array] | None = None
    unary: Callable[..., Array] | None = None
    activation: Callable[..., Array] | None = None
    reduces: bool = False
    comparison: bool = False

    def __repr__(self) -> str:
        return f"nl.{self.name}"


def _sigmoid(x: Array) -> Array:
    # Where exp overflows to infinity the result is 0, which is right; a form with tanh loses small results.
    return np.reciprocal(np.float32(1) + np.exp(-x))


def _relu(x: Array) -> Array:
    return np.maximum(x, np.float32(0))


_TABLE: tuple[Operator, ...] = (
    Operator("add", binary=np.add, reduces=True),
    Operator("subtract", binary=np.subtract, reduces=True),
    Operator("multiply", binary=np.multiply, reduces=True),
    Operator("maximum", binary=np.maximum, reduces=True),
    Operator("minimum", binary=np.minimum, reduces=True),
    Operator("equal", binary=np.equal, comparison=True),
    Operator("not_equal", binary=np.not_equal, comparison=True),
    Operator("greater", binary=np.greater, comparison=True),
    Operator("greater_equal", binary=np.greater_equal, comparison=True),
    Operator("less", binary=np.less, comparison=True),
    Operator("less_equal", binary=np.less_equal, comparison=True),
    Operator("copy", activation=np.positive),
    Operator("relu", unary=_relu, activation=_relu),
    Operator("square", unary=np.square, activation=np.square),
    Operator("abs", unary=np.abs, activation=np.abs),
    Operator("exp", activation=np.exp),
    Operator("tanh", activation=np.tanh),
    Operator("sigmoid", activation=_sigmoid),
)

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _TABLE}


def binary_function(operator: Operator, reverse: bool = False) -> Callable[[Any, Any], Array]:
    """``f(data, operand)`` in float32; unary operators ignore the operand; comparisons give 1.0 or 0.0."""
    if operator.binary is None:
        unary = operator.unary
        assert unary is not None
        return lambda data, operand: unary(data)
    function = operator.binary
    if operator.comparison:
        compare = function
        function = lambda a, b: compare(a, b).astype(np.float32)  # noqa: E731
    return (lambda data, operand: function(operand, data)) if reverse else function
