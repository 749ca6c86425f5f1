"""Operators that ONNX defines by others and trnrt has no kernel for, written out; and operators that onnx's checker
doesn't know, though onnxruntime's optimizer writes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
from onnx import inliner

from trnrt.importer.reading.protos import all_nodes

# (domain, name) of operators that are written out by onnx's definition of them. It needs the ranks of their inputs.
_EXPANDED = (
    ("", "Attention"),
    ("", "CastLike"),
    ("", "CenterCropPad"),
    ("", "RotaryEmbedding"),
    ("", "SwiGLU"),
    ("ai.onnx.preview", "FlexAttention"),
)
# Operators that onnxruntime has in ONNX's own domain -> the first opset in which ONNX has them; 0: in none.
_FOREIGN = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 0}
_DOMAIN = "com.microsoft"


def expand_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the operators of ``_EXPANDED`` written out, where that is possible."""
    if not any((node.domain, node.op_type) in _EXPANDED for node in all_nodes(model.graph.node)):
        return model
    return inliner.inline_selected_functions(model, list(_EXPANDED), inline_schema_functions=True)


@contextmanager
def hide_foreign(model: onnx.ModelProto) -> Iterator[bool]:
    """Give operators that ONNX doesn't have in the model's opset onnxruntime's domain in a with block.

    Yields whether there were none.
    """
    opset = next((entry.version for entry in model.opset_import if entry.domain == ""), 0)
    hidden = [node for node in all_nodes(model.graph.node) if node.domain == "" and _is_foreign(node, opset)]
    is_imported = any(entry.domain == _DOMAIN for entry in model.opset_import)
    for node in hidden:
        node.domain = _DOMAIN
    if hidden and not is_imported:
        model.opset_import.add(domain=_DOMAIN, version=1)
    try:
        yield not hidden
    finally:
        for node in hidden:
            node.domain = ""
        if hidden and not is_imported:
            model.opset_import.pop()


def _is_foreign(node: onnx.NodeProto, opset: int) -> bool:
    since = _FOREIGN.get(node.op_type)
    return since is not None and (since == 0 or opset < since)
