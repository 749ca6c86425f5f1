"""Plans with wrong weights: a weight may share an argument of the kernel with others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from trnrt.planner import Plan

Array = NDArray[Any]


def with_weight(plan: Plan, weight: str, change: Callable[[Array], None]) -> Plan:
    """The plan with a weight, by its name, that ``change`` has changed in place."""
    part = plan.parts.get(weight)
    argument = weight if part is None else part.argument
    array = plan.weights[argument].copy()
    change(array if part is None else part.of(array))
    return replace(plan, weights=plan.weights | {argument: array})


def shifted(plan: Plan, weight: str, by: float) -> Plan:
    """The plan with all of a weight moved by a number."""

    def change(array: Array) -> None:
        array += array.dtype.type(by)

    return with_weight(plan, weight, change)
