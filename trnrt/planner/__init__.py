"""Graph to plan to kernel module: lower, fuse, place, render.

Importing this package imports no ``onnx_ir``: a session of a cached plan needs only the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trnrt.planner.options import PlanOptions
from trnrt.planner.plan import Array, Layout, NodeReport, Plan, StepReport

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel

__all__ = ["Layout", "NodeReport", "Plan", "PlanOptions", "StepReport", "make_plan"]


def make_plan(
    model: ImportedModel,
    shapes: Mapping[str, tuple[int, ...]],
    options: PlanOptions,
    values: Mapping[str, Array] | None = None,
) -> Plan:
    """Plan a model as one kernel, whatever its size, for concrete input shapes.

    ``values`` are those of inputs that are its parameters.

    Raises UnsupportedModelError with every blocking node, InputError if the shapes don't fit the model, OptionError if
    the choices contain an unknown name.
    """
    from trnrt.planner.making import plan_model

    return plan_model(model, shapes, options, values)
