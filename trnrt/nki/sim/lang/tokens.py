"""Calls of operators: ``nl.add`` is an argument of instructions, ``nl.add(x, y)`` a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.operators import Operator
from trnrt.nki.sim.lang import elementwise, trigonometry

# Operators whose calls are not tensor_tensor, tensor_scalar or activation.
_OWN: dict[str, Callable[..., Any]] = {
    "arctan": trigonometry.arctan,
    "copy": elementwise.copy,
    "invert": elementwise.invert,
    "reciprocal": elementwise.reciprocal,
    "rsqrt": elementwise.rsqrt,
    "sin": trigonometry.sin,
}
_ONLY_ARGUMENTS = ("average", "bypass", "prelu")


def call(op: Operator, *args: Any, **kwargs: Any) -> Any:
    """``op(x, y, dtype=None)`` or ``op(x, dtype=None)``: the function of ``nki.language`` of that name."""
    if op.name in _ONLY_ARGUMENTS:
        raise KernelError(f"nl.{op.name} is an argument of nisa instructions, not a function")
    if op.name in _OWN:
        return _OWN[op.name](*args, **kwargs)
    function = elementwise.binary if op.binary is not None else elementwise.unary
    return function(op, *args, **kwargs)
