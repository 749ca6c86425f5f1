"""The math operators and activation functions that instructions take as ``op``, each with its numpy meaning.

Source of the tables: NKI API reference 2.32, "Supported Math Operators" and "Supported Activation Functions".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any

import numpy as np

from trnrt.nki.machine import bits, functions
from trnrt.nki.machine.dtypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator token such as ``nl.add``.

    ``binary`` is its meaning on two float32 arrays (vector-engine ALU), ``unary`` on one; with ``bitvec`` on the
    unsigned 32-bit patterns of integers instead. ``activation`` is the scalar engine's function, ``parametric`` one
    of (x, parameter); None if there is no such use. ``valid``: the inputs for which the scalar engine computes it, if
    the reference limits them.
    ``reduces``: it is legal as a reduction; ``comparison``: its result is 1.0 or 0.0; ``identity``: what accumulator
    registers are reset to; ``since``: the first NeuronCore generation whose ALU has it.
    """

    name: str
    binary: Callable[..., Array] | None = None
    unary: Callable[..., Array] | None = None
    activation: Callable[..., Array] | None = None
    parametric: Callable[..., Array] | None = None
    reduces: bool = False
    comparison: bool = False
    bitvec: bool = False
    identity: float = np.nan
    since: int = 2
    valid: functions.Range | None = None

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __reduce__(self) -> tuple[Callable[[str], Operator], tuple[str]]:
        """Copying and unpickling return the one object of this name: rules and meanings look it up."""
        return _by_name, (self.name,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``nl.add(x, y)``: the language defines the meaning of a call (see ``on_call``)."""
        return _CALLED[-1](self, *args, **kwargs)

    @property
    def __signature__(self) -> Signature:
        """``(x, y, dtype=None)``, or ``(x, dtype=None)``."""
        names = ("x",) if self.binary is None else ("x", "y")
        needed = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        return Signature([*needed, Parameter("dtype", Parameter.POSITIONAL_OR_KEYWORD, default=None)])


# A kernel's config may hold operators; `dataclasses.asdict` of it must not take them apart.
del Operator.__dataclass_fields__


def _by_name(name: str) -> Operator:
    return OPERATORS[name]


_CALLED: list[Callable[..., Any]] = []


def on_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``function(operator, *args, **kwargs)`` what calling an operator does."""
    _CALLED.append(function)
    return function


def _abs_max(a: Array, b: Array) -> Array:
    """The operand of greater magnitude, with its sign; ``b`` if both are equal."""
    return np.where(np.abs(a) > np.abs(b), a, b)


def _abs_min(a: Array, b: Array) -> Array:
    return np.where(np.abs(a) < np.abs(b), a, b)


_OPERATORS = (
    # Bit patterns.
    Operator("invert", unary=np.invert, bitvec=True),
    Operator("bitwise_and", binary=np.bitwise_and, bitvec=True, reduces=True),
    Operator("bitwise_or", binary=np.bitwise_or, bitvec=True, reduces=True),
    Operator("bitwise_xor", binary=np.bitwise_xor, bitvec=True, reduces=True),
    Operator("left_shift", binary=bits.left_shift, bitvec=True),
    Operator("right_shift", binary=bits.right_shift, bitvec=True),
    # Arithmetic and comparisons.
    Operator("add", binary=np.add, reduces=True, identity=0.0),
    Operator("subtract", binary=np.subtract, reduces=True, identity=0.0),
    Operator("multiply", binary=np.multiply, reduces=True, identity=1.0),
    Operator("maximum", binary=np.maximum, reduces=True, identity=-np.inf),
    Operator("minimum", binary=np.minimum, reduces=True, identity=np.inf),
    Operator("equal", binary=np.equal, comparison=True),
    Operator("not_equal", binary=np.not_equal, comparison=True),
    Operator("greater", binary=np.greater, comparison=True),
    Operator("greater_equal", binary=np.greater_equal, comparison=True),
    Operator("less", binary=np.less, comparison=True),
    Operator("less_equal", binary=np.less_equal, comparison=True),
    Operator("logical_and", binary=np.logical_and, comparison=True, reduces=True),
    Operator("logical_or", binary=np.logical_or, comparison=True, reduces=True),
    Operator("logical_xor", binary=np.logical_xor, comparison=True, reduces=True),
    Operator("power", binary=np.power),
    Operator("abs_max", binary=_abs_max, identity=0.0, since=4),
    Operator("abs_min", binary=_abs_min, identity=np.inf, since=4),
    # Of one input, on the vector engine and mostly on the scalar engine too.
    Operator("abs", unary=np.abs, activation=np.abs),
    Operator("square", unary=np.square, activation=np.square, since=4),
    Operator("relu", unary=functions.relu, activation=functions.relu, since=4),
    Operator("rsqrt", unary=functions.rsqrt, activation=functions.rsqrt, valid=functions.RSQRT_RANGE),
    Operator("reciprocal", unary=np.reciprocal, activation=np.reciprocal, valid=functions.RECIPROCAL_RANGE),
    Operator("bypass", unary=np.positive),
    # Of the scalar engine alone.
    Operator("copy", activation=np.positive),
    Operator("sigmoid", activation=functions.sigmoid),
    Operator("prelu", parametric=functions.prelu),
    Operator("gelu", activation=functions.gelu),
    Operator("gelu_dx", activation=functions.gelu_dx),
    Operator("gelu_apprx_tanh", activation=functions.gelu_apprx_tanh),
    Operator("gelu_apprx_sigmoid", activation=functions.gelu_apprx_sigmoid),
    Operator("gelu_apprx_sigmoid_dx", activation=functions.gelu_apprx_sigmoid_dx),
    Operator("silu", activation=functions.silu),
    Operator("silu_dx", activation=functions.silu_dx),
    Operator("tanh", activation=np.tanh),
    Operator("softplus", activation=functions.softplus),
    Operator("mish", activation=functions.mish),
    Operator("erf", activation=functions.erf),
    Operator("erf_dx", activation=functions.erf_dx),
    Operator("exp", activation=np.exp),
    Operator("log", activation=np.log, valid=functions.LOG_RANGE),
    Operator("sin", activation=functions.sin, valid=functions.SIN_RANGE),
    Operator("arctan", activation=np.arctan, valid=functions.ARCTAN_RANGE),
    Operator("sqrt", activation=np.sqrt, valid=functions.SQRT_RANGE),
    Operator("sign", activation=np.sign),
    # Of tensor_partition_reduce alone.
    Operator("average"),
)
OPERATORS = {operator.name: operator for operator in _OPERATORS}
AVERAGE = OPERATORS["average"]


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


def reduction(operator: Operator) -> Callable[[Array], Array]:
    """The operator over the last axis, from the first element on; comparisons give 1.0 or 0.0."""
    binary = operator.binary
    if isinstance(binary, np.ufunc):
        ufunc = binary
        if operator.comparison:
            return lambda values: ufunc.reduce(values, axis=-1).astype(np.float32)
        return lambda values: ufunc.reduce(values, axis=-1)
    assert binary in (_abs_max, _abs_min)
    find = np.argmax if binary is _abs_max else np.argmin

    def choose(values: Array) -> Array:
        backwards = values[..., ::-1]  # of equal magnitudes the last one stays
        at = np.expand_dims(find(np.abs(backwards), axis=-1), -1)
        return np.take_along_axis(backwards, at, axis=-1)[..., 0]

    return choose
