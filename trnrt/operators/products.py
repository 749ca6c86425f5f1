"""Einsum, which the importer writes as products and sums (``importer/rewriting/einsum.py``)."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.operators import batch, order, shapes
from trnrt.operators.record import ON_CPU, SMALL, Declaration
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.walk import Blocked, Lowering


@Declaration(
    {"Einsum": (12, 28)},
    batch=batch.unknown,
    order=order.keep_order,
    bound=ON_CPU,
    values=(),
    folds=SMALL,
    shapes=shapes.by_onnx,
)
def lower_einsum(_lowering: Lowering, _node: ir.Node) -> None:
    """Becomes Transpose, Reshape, MatMul, ReduceSum and Mul when the model is read, and GatherND for a diagonal."""
    raise Blocked(
        "an equation that doesn't fit its operands' sizes as they are (one is broadcast, or unknown)",
        f"expand the operands before it; {FALLBACK}",
    )
