"""onnxruntime's MatMulNBits, whose weights are packed in blocks of 2, 4 or 8 bits, as a MatMul with their floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import attribute, constant_array, input_at, is_used

_BITS = (2, 4, 8)


def unpack_weights(model: ir.Model) -> list[str]:
    """Rewrite each MatMulNBits with constant weights; return notes on what was done. Shapes need not be known."""
    nodes = [n for n in model.graph if n.domain == "com.microsoft" and n.op_type == "MatMulNBits"]
    if not nodes:
        return []
    editor = Editor(model)
    return [note for node in nodes if (note := _unpack(editor, node))]


def _unpack(editor: Editor, node: ir.Node) -> str | None:
    weights, scale = _find_weights(node), constant_array(input_at(node, 2))
    if weights is None or scale is None or any(is_used(value) for value in node.outputs[1:]):
        return None
    matrix = editor.constant(weights.astype(scale.dtype), f"{node.name or node.outputs[0].name}_unpacked")
    product = ir.node("MatMul", [node.inputs[0], matrix], name=node.name)
    made, bias, text = product, input_at(node, 5), node_text(node)
    editor.graph.insert_before(node, product)
    if bias is not None:
        product.outputs[0].name = editor.spare_name(f"{node.outputs[0].name}_product")
        made = ir.node("Add", [product.outputs[0], bias], name=editor.node_name(f"{node.name}_bias"))
        editor.graph.insert_before(node, made)
    result, before = made.outputs[0], node.outputs[0]
    name = before.name
    before.name = editor.spare_name(f"{name}_before")
    result.name, result.type, result.shape = name, before.type, before.shape
    before.replace_all_uses_with(result, replace_graph_outputs=True)
    editor.remove(node)
    return f"{text} written as a MatMul: its weights are unpacked once"


def _find_weights(node: ir.Node) -> Array | None:
    """The weights (K, N) in float32: (number - zero point) * scale, with a scale and a zero point for each block along
    K; None if they are not constant, or don't fit together."""
    sizes = [int(attribute(node, name, 0)) for name in ("K", "N", "block_size")]
    bits = int(attribute(node, "bits", 4))
    packed, scale = (constant_array(input_at(node, place)) for place in (1, 2))
    zero, order = input_at(node, 3), input_at(node, 4)
    if packed is None or scale is None or order is not None or bits not in _BITS or min(sizes) < 1:
        return None
    terms, outputs, block = sizes
    blocks = -(-terms // block)
    if packed.dtype != np.uint8 or packed.size * 8 != outputs * blocks * block * bits or scale.size != outputs * blocks:
        return None
    numbers = _unpack_bits(packed.reshape(outputs, -1), bits).reshape(outputs, blocks, block)
    zeros = _find_zeros(zero, outputs, blocks, bits)
    if zeros is None:
        return None
    floats = (numbers.astype(np.float32) - zeros) * scale.reshape(outputs, blocks, 1).astype(np.float32)
    return np.ascontiguousarray(floats.reshape(outputs, -1)[:, :terms].T)


def _find_zeros(zero: ir.Value | None, outputs: int, blocks: int, bits: int) -> Array | None:
    """The zero points (outputs, blocks, 1); by default the middle of the range. Bytes are packed like the weights."""
    if zero is None:
        return np.full((outputs, blocks, 1), 2.0 ** (bits - 1), np.float32)
    array = constant_array(zero)
    if array is not None and array.dtype == np.uint8:
        each = -(-blocks * bits // 8)
        array = _unpack_bits(array.reshape(outputs, -1), bits)[:, :blocks] if array.size == outputs * each else None
    if array is None or array.size != outputs * blocks:
        return None
    return array.reshape(outputs, blocks, 1).astype(np.float32)


def _unpack_bits(packed: Array, bits: int) -> Array:
    """The numbers of ``bits`` bits in rows of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[:, :, None] >> shifts) & np.uint8(2**bits - 1)
    return numbers.reshape(len(packed), -1)
