"""Operators that ONNX defines by others and trnrt has no kernel for, written out; and operators that onnx's checker
doesn't know, though onnxruntime's optimizer writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import onnx
from onnx.helper import make_tensor_type_proto

from trnrt.importer.folding.guarding import infer_graph
from trnrt.importer.reading.protos import all_nodes

EXPANDED = frozenset(
    {
        ("", "Attention"),
        ("", "LinearAttention"),
        ("", "RotaryEmbedding"),
        ("", "SwiGLU"),
        ("ai.onnx.preview", "FlexAttention"),
    }
)
"""(domain, name) of operators that are written out by onnx's definition of them."""
EXPANDED_DOMAIN = "trnrt.expanded"
"""The domain of the functions that ``define_operators`` adds."""
# Operators that onnxruntime has in ONNX's own domain -> the first opset in which ONNX has them; 0: in none.
_FOREIGN = {"LayerNormalization": 17, "SimplifiedLayerNormalization": 0}
_DOMAIN = "com.microsoft"


def define_operators(model: onnx.ModelProto) -> None:
    """Turn each node of ``EXPANDED`` into a call of a function of the model, wherever onnx can define it.

    onnx's own inliner does the same for operators without omitted inputs.
    """
    nodes = [node for node in model.graph.node if (node.domain, node.op_type) in EXPANDED]
    if not nodes:
        return
    graph = infer_graph(model)
    types = {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
    types |= {t.name: make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    for node in nodes:
        function = _define(node, types, opsets)
        if function is not None:
            function.domain, function.name = EXPANDED_DOMAIN, f"{node.op_type}_{len(model.functions)}"
            # The definition doesn't make outputs that the node leaves out.
            pairs = [pair for pair in zip(node.output, function.output, strict=False) if pair[0]]
            del node.output[:], function.output[:]
            node.output.extend(outer for outer, _ in pairs)
            function.output.extend(inner for _, inner in pairs)
            _drop_graphs(node, function)
            node.domain, node.op_type = function.domain, function.name
            model.functions.append(function)
    if any(function.domain == EXPANDED_DOMAIN for function in model.functions):
        model.opset_import.add(domain=EXPANDED_DOMAIN, version=1)


def _drop_graphs(node: onnx.NodeProto, function: onnx.FunctionProto) -> None:
    """Remove attributes that are graphs: they are written into the definition."""
    graphs = [attribute for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    for attribute in graphs:
        node.attribute.remove(attribute)
        if attribute.name in function.attribute:
            function.attribute.remove(attribute.name)


def _define(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], opsets: Mapping[str, int]
) -> onnx.FunctionProto | None:
    """onnx's definition of a node as a function; None if it has none for inputs of these types."""
    version = opsets.get(node.domain, 0)
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        if schema.has_function:
            text = schema.get_function_with_opset_version(max(schema.function_opset_versions))
        else:
            given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
            known = [v for v in schema.context_dependent_function_opset_versions if v <= opsets.get("", 0)]
            text = schema.get_context_dependent_function_with_opset_version(max(known), node.SerializeToString(), given)
    except (ValueError, RuntimeError, onnx.defs.SchemaError):
        return None
    function = onnx.FunctionProto.FromString(text)
    if not function.node or any(name and name not in types for name in node.input):
        return None
    there = {attribute.name for attribute in node.attribute}
    defaults = {name: entry.default_value for name, entry in schema.attributes.items() if name not in there}
    node.attribute.extend(value for value in defaults.values() if value.name)
    for entry in function.opset_import:
        entry.version = opsets.get(entry.domain, entry.version)
    return function


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
