"""Rows over their 2-norms, as exporters write ``normalize``: ReduceL2, a limit, and a quotient."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.kernels.normalize import LEAST_NORM, MAX_COLUMNS
from trnrt.operators.normalize_steps import UnitRowsStep
from trnrt.planner.lowering.walk import Lowering, attribute, node_name, value_name


def lower_unit_rows(lowering: Lowering, node: ir.Node, axes: tuple[int, ...]) -> bool:
    """Append the step of a ReduceL2 over the last dimension and of the quotient that follows; False if none does."""
    value, shape = node.inputs[0], lowering.shape(node.inputs[0])
    if axes != (len(shape) - 1,) or not attribute(node, "keepdims", 1) or 0 in shape or shape[-1] > MAX_COLUMNS:
        return False
    limit, _ = lowering.sole_consumer(node.outputs[0])
    least, norm, nodes = 0.0, node.outputs[0], [node]
    if limit is not None and limit.domain == "" and limit.op_type in ("Clip", "Max"):
        found = _least_norm(lowering, limit, norm)
        if found is None:
            return False
        least, norm = found, limit.outputs[0]
        nodes.append(limit)
    quotient, _ = lowering.sole_consumer(norm)
    if quotient is None or quotient.domain != "" or quotient.op_type != "Div" or list(quotient.inputs) != [value, norm]:
        return False
    nodes.append(quotient)
    made = quotient.outputs[0]
    step = UnitRowsStep(
        name=node_name(node),
        sources=[lowering.operand(value)],
        output=value_name(made),
        shape=shape,
        least=least,
    )
    lowering.add(step, nodes, "rows over their norms, in one step", together=True)
    return True


def _least_norm(lowering: Lowering, node: ir.Node, norm: ir.Value) -> float | None:
    """The number that a Clip or Max holds a norm above; None if the node does anything else, or the kernel can't."""
    if node.op_type == "Clip":
        if lowering.opset < 11 or node.inputs[0] is not norm or input_at(node, 2) is not None:
            return None
        given = input_at(node, 1)
    else:
        others = [value for value in node.inputs if value is not norm]
        given = others[0] if len(node.inputs) == 2 and len(others) == 1 else None
    constant = lowering.constant(given) if given is not None else None
    if constant is None or constant.size != 1:
        return None
    least = float(constant.reshape(()))
    return least if least >= LEAST_NORM else None
