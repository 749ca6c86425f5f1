"""The float operators whose results have the shapes of onnxruntime's quantised ones, which onnx doesn't infer.

The nodes after them may read these shapes: exporters flatten an image by its Shape.
"""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.folding.amended import Kind
from trnrt.importer.values import static_shape

# The float operator, and the places of its tensors among the inputs.
_PLAIN: dict[str, tuple[str, slice]] = {
    "QLinearAdd": ("Add", slice(0, 4, 3)),
    "QLinearAveragePool": ("AveragePool", slice(0, 1)),
    "QLinearConcat": ("Concat", slice(2, None, 3)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", slice(0, 1)),
    "QLinearLeakyRelu": ("LeakyRelu", slice(0, 1)),
    "QLinearMul": ("Mul", slice(0, 4, 3)),
    "QLinearSigmoid": ("Sigmoid", slice(0, 1)),
    "QLinearSoftmax": ("Softmax", slice(0, 1)),
}
_OWN = ("channels_last", "opset")


def float_twin(node: ir.Node) -> ir.Node | None:
    """A node of the float operator, with inputs of the same shapes, channels second; None if there is none."""
    if node.domain != "com.microsoft" or node.op_type not in _PLAIN:
        return None
    operator, places = _PLAIN[node.op_type]
    shapes = [static_shape(value) for value in node.inputs[places]]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    if _is_last(node):
        known = [(shape[0], shape[-1], *shape[1:-1]) for shape in known]
    given = [ir.val(f"operand_{k}", ir.DataType.FLOAT, shape) for k, shape in enumerate(known)]
    attributes = [value for name, value in node.attributes.items() if name not in _OWN]
    return ir.Node("", operator, given, attributes, outputs=[ir.val("twin")])


def kind_of(node: ir.Node, twin: Kind | None) -> Kind | None:
    """The kind of the quantised node's result, by that of its float twin."""
    source = next((value for value in node.inputs[_PLAIN[node.op_type][1]] if value is not None), None)
    if twin is None or source is None or source.dtype is None:
        return None
    shape = twin[1]
    return source.dtype, (shape[0], *shape[2:], shape[1]) if _is_last(node) else shape


def _is_last(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("channels_last", 0))
