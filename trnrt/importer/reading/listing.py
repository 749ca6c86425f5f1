"""A model as text, for ``describe``."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from trnrt.importer.reading.signature import dtype_name
from trnrt.text import one_line, quote

_LONGEST_ATTRIBUTE = 60


def list_model(model: ir.Model) -> str:
    """See ``trnrt.importer.describe``."""
    return "\n".join(_lines(model)) + "\n"


def _lines(model: ir.Model) -> Iterator[str]:
    graph = model.graph
    opsets = ", ".join(f"{one_line(domain) or 'ai.onnx'} {version}" for domain, version in model.opset_imports.items())
    yield f"graph {quote(graph.name)}, opset {opsets}"
    for value in graph.inputs:
        yield f"input {_value_text(value)}"
    for value in graph.initializers.values():
        yield f"constant {_value_text(value)}"
    for node in graph:
        yield _node(node)
    for value in graph.outputs:
        yield f"output {_value_text(value)}"


def _node(node: ir.Node) -> str:
    op = one_line(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    inputs = ", ".join("-" if value is None else _value_text(value) for value in node.inputs)
    outputs = ", ".join(_value_text(value) if value.name else "-" for value in node.outputs)
    attributes = "".join(f" {one_line(name)}={_attribute(a)}" for name, a in sorted(node.attributes.items()))
    return f"node {quote(node.name)} {op}({inputs}) -> {outputs}{attributes}"


def _value_text(value: ir.Value) -> str:
    """A value with its type: ``'image' float32[N, 1, 8, 8]``."""
    if value.dtype is None:
        return f"{quote(value.name)} {one_line(str(value.type)) if value.type is not None else '?'}"
    return f"{quote(value.name)} {dtype_name(value.dtype)}{_shape(value.shape)}"


def _shape(shape: ir.Shape | None) -> str:
    if shape is None:
        return "[...]"
    return f"[{', '.join(str(dim) if isinstance(dim, int) else one_line(dim.value or '?') for dim in shape)}]"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{one_line(attribute.ref_attr_name or '')}"
    if attribute.type == ir.AttributeType.GRAPH:
        return f"<graph of {len(attribute.as_graph())} nodes>"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"<{dtype_name(tensor.dtype)}{list(tensor.shape.numpy())}>"
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT, ir.AttributeType.STRING):
        return _cut(repr(attribute.value))
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS, ir.AttributeType.STRINGS):
        return _cut(repr(list(attribute.value)))
    return f"<{attribute.type.name.lower()}>"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_ATTRIBUTE else f"{text[:_LONGEST_ATTRIBUTE]}..."
