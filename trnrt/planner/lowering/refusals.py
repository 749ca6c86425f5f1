"""Why an operator is refused, and a way out."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.quantised.forms import LEFT
from trnrt.importer.reading.functions import EXPANDED
from trnrt.operators.record import Refusal, records
from trnrt.planner.lowering.blocked import FALLBACK, Blocked
from trnrt.planner.naming import printable

LATER = Refusal("the operator is not supported", FALLBACK)
TRAINING = Refusal(
    "an operator of training", "export the model without it: an optimizer's step is no part of inference"
)
QUANTISED = Refusal(
    "quantised arithmetic of a form that isn't supported",
    "quantise the model to int8 or uint8, with scales by tensor or by channel (docs/quantised.md), or take the float "
    "model; " + FALLBACK,
)
_FUSED = Refusal(
    "onnxruntime's own operator, of a kind or a form that isn't rewritten",
    f"take the model before it was optimised; {FALLBACK}",
)
_FUNCTION = Refusal(
    "onnx can't write it out by other operators, as the type or the rank of an input is not known",
    "export the model with known ranks",
)


def refusal(node: ir.Node) -> Blocked:
    """Why a node of an operator without a lowering function can't run, and a way out."""
    found = _refusal(node)
    return Blocked(found.reason, found.hint)


def _refusal(node: ir.Node) -> Refusal:
    if is_quantised(node):
        why = node.meta.get(LEFT)
        return QUANTISED if why is None else Refusal(f"quantised arithmetic: {why}", QUANTISED.hint)
    record = records().get((node.domain, node.op_type))
    if record is not None and isinstance(record.lowering, Refusal):
        return record.lowering
    if (node.domain, node.op_type) in EXPANDED:
        return _FUNCTION
    if node.domain in ("", "ai.onnx.ml"):
        return LATER
    if node.domain.startswith("ai.onnx.preview.training") or node.domain == "ai.onnx.training":
        return TRAINING
    if node.domain.startswith("com.microsoft"):
        why = node.meta.get(LEFT)
        return _FUSED if why is None else Refusal(f"onnxruntime's own operator: {why}", _FUSED.hint)
    return Refusal(
        f"an operator of the domain {printable(node.domain)!r}, which trnrt doesn't know",
        "export the model with ONNX's own operators only",
    )


def is_foreign(node: ir.Node) -> bool:
    """True for an operator of a domain that neither trnrt nor onnxruntime has: no CPU runs it, either."""
    return node.domain not in ("", "ai.onnx.ml") and not node.domain.startswith(("ai.onnx.", "com.microsoft"))


def is_quantised(node: ir.Node) -> bool:
    """True if only quantised models have such a node."""
    if node.domain != "" and not node.domain.startswith("com.microsoft"):
        return False
    found = [records().get((domain, node.op_type)) for domain in ("", "com.microsoft")]
    return node.op_type.startswith("QLinear") or any(r is not None and r.lowering is QUANTISED for r in found)
