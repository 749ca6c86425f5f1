"""Write ``auto_pad`` of convolutions and pooling out as numbers."""

from __future__ import annotations

import onnx_ir as ir

from trnrt.importer.folding.spatial import POOLS, pool_spans
from trnrt.importer.naming import node_text
from trnrt.importer.values import input_at, static_shape

# onnxscript has this for Conv without dilation only.
WINDOWED = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})


def write_out_padding(model: ir.Model) -> list[str]:
    """Replace ``auto_pad`` by ``pads`` wherever shapes are known; return notes on what was done."""
    return [note for node in model.graph if (note := _write_out(node))]


def _write_out(node: ir.Node) -> str | None:
    if node.op_type not in WINDOWED or node.domain != "":
        return None
    rule = node.attributes.get_string("auto_pad", "NOTSET")
    if rule not in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        return None
    pads = _pads(node, rule)
    if pads is None or min(pads, default=0) < 0:
        return None
    del node.attributes["auto_pad"]
    node.attributes.add(ir.AttrInt64s("pads", pads))
    return f"{node_text(node)}: auto_pad {rule} written out as pads {pads}"


def _pads(node: ir.Node, rule: str) -> list[int] | None:
    """Padding before each axis, then after each axis, as in ONNX's ``pads``."""
    source, made = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if node.op_type in POOLS:
        spans = pool_spans(node, source[2:]) if source is not None else None
        return None if spans is None else [*(span.before for span in spans), *(span.after for span in spans)]
    kernel = _kernel(node)
    if source is None or made is None or kernel is None or not len(source) == len(made) == len(kernel) + 2:
        return None
    ones = [1] * len(kernel)
    strides, dilations = node.attributes.get_ints("strides", ones), node.attributes.get_ints("dilations", ones)
    if rule == "VALID":
        return [0] * (2 * len(kernel))
    totals = [
        max(0, (out - 1) * stride + (size - 1) * dilation + 1 - length)
        for length, out, size, stride, dilation in zip(source[2:], made[2:], kernel, strides, dilations, strict=True)
    ]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return small + large if rule == "SAME_UPPER" else large + small


def _kernel(node: ir.Node) -> list[int] | None:
    if "kernel_shape" in node.attributes:
        return list(node.attributes["kernel_shape"].as_ints())
    weight = static_shape(input_at(node, 1))
    return None if weight is None else list(weight[2:])
