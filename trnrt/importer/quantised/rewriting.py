"""The walk over a graph that rewrites its quantised operators; ``_REWRITES`` says which function rewrites which."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from trnrt.importer.folding.inference import infer
from trnrt.importer.naming import node_text
from trnrt.importer.quantised import bytes as by_byte
from trnrt.importer.quantised import dynamic, functions, moving, products
from trnrt.importer.quantised.forms import LEFT, Left
from trnrt.importer.quantised.writing import Writer
from trnrt.importer.values import has_subgraph
from trnrt.text import list_text

Rewrite = Callable[[Writer, ir.Node], None]

# Operators of quantised models only, of ONNX and of onnxruntime.
_QUANTISED: dict[str, Rewrite] = {
    "ConvInteger": products.convolve_integers,
    "DequantizeLinear": by_byte.dequantize,
    "DynamicQuantizeLinear": dynamic.quantize_dynamically,
    "DynamicQuantizeMatMul": dynamic.multiply_dynamically,
    "MatMulInteger": products.multiply_integers,
    "QLinearAdd": functions.add_or_multiply,
    "QLinearAveragePool": functions.apply_function,
    "QLinearConcat": functions.join,
    "QLinearConv": products.convolve_bytes,
    "MatMulIntegerToFloat": dynamic.multiply_to_float,
    "QGemm": products.multiply_matrices,
    "QLinearGlobalAveragePool": functions.average_channels,
    "QLinearLeakyRelu": functions.apply_function,
    "QLinearMatMul": products.multiply_bytes,
    "QLinearMul": functions.add_or_multiply,
    "QLinearReduceMean": functions.apply_function,
    "QLinearSigmoid": functions.apply_function,
    "QLinearSoftmax": functions.apply_softmax,
    "QLinearWhere": functions.choose,
    "QuantizeLinear": by_byte.quantize,
}
# Operators that are rewritten where they read quantised tensors.
_MOVING = """DepthToSpace Expand Flatten Gather GlobalMaxPool Identity MaxPool ReduceMax ReduceMin Reshape Slice
    SpaceToDepth Split Squeeze Tile Unsqueeze"""
_OTHERS: dict[str, Rewrite] = {
    **dict.fromkeys(_MOVING.split(), moving.move),
    **dict.fromkeys(("ArgMax", "ArgMin"), moving.choose_index),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), products.multiply_floats),
    "Cast": moving.copy,
    "Clip": moving.clip,
    "Concat": moving.join,
    "Pad": moving.pad,
    "Relu": moving.relu,
    "Resize": moving.resize,
    "Transpose": moving.turn,
}


def rewritten_operators() -> dict[tuple[str, str], Rewrite]:
    """(domain, name) -> the function that rewrites each quantised operator, by name."""
    of_onnx = {name for name in _QUANTISED if onnx.defs.has(name)}
    named = {("" if name in of_onnx else "com.microsoft", name): rewrite for name, rewrite in _QUANTISED.items()}
    return dict(sorted(named.items()))


def is_quantised(graph: ir.Graph) -> bool:
    """True if the graph computes with quantised tensors; constants that are dequantised don't count."""
    for node in graph:
        if node.op_type in _QUANTISED and node.domain in ("", "com.microsoft"):
            source = node.inputs[0] if node.inputs else None
            if node.op_type != "DequantizeLinear" or source is None or source.const_value is None:
                return True
    return False


def rewrite_quantised(model: ir.Model, symbols: dict[str, int]) -> list[str]:
    """Rewrite every quantised operator that can be; return notes on what was done."""
    writer, done = Writer(model, symbols), []
    for node in list(model.graph):
        infer(node, model, symbols)
        title, is_done = node_text(node), _rewrite_node(writer, node)
        if is_done and node.op_type in _QUANTISED:
            done.append(title)
        if not is_done:
            for value in [*node.inputs, *(_outer_values(writer, node) if has_subgraph(node) else ())]:
                writer.restore(value)
    for value in list(model.graph.outputs):
        writer.restore(value)
    passes.RemoveUnusedNodesPass()(model)
    return [f"written with whole numbers: {list_text(done)}"] if done else []


def _rewrite_node(writer: Writer, node: ir.Node) -> bool:
    table = {"": _QUANTISED | _OTHERS, "com.microsoft": _QUANTISED}.get(node.domain, {})
    rewrite = table.get(node.op_type)
    if rewrite is None:
        return False
    writer.node = node
    try:
        if writer.editor.opset < 11:
            raise Left(f"the model is of opset {writer.editor.opset}; opset 10 and later are supported")
        rewrite(writer, node)
    except Left as reason:
        if str(reason):
            node.meta[LEFT] = str(reason)
        return False
    return True


def _outer_values(writer: Writer, node: ir.Node) -> list[ir.Value]:
    """The values with a form that a node's bodies read."""
    inner = {id(body_node) for a in node.attributes.values() for body_node in _bodies_nodes(a)}
    return [value for value in writer.forms if any(id(user) in inner for user, _ in value.uses())]


def _bodies_nodes(attribute: ir.Attr) -> list[ir.Node]:
    if attribute.type == ir.AttributeType.GRAPH:
        return list(attribute.as_graph().all_nodes())
    if attribute.type == ir.AttributeType.GRAPHS:
        return [node for graph in attribute.as_graphs() for node in graph.all_nodes()]
    return []
