"""AffineGrid as a product: the pixels' places, which are constant, by the affine transformations."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor
from trnrt.importer.values import constant_array, input_at, static_shape


def write_affine_grids(editor: Editor) -> list[str]:
    """Replace every AffineGrid of a constant size; return notes on what was done."""
    return [note for node in list(editor.graph) if (note := _write_grid(editor, node))]


def _write_grid(editor: Editor, node: ir.Node) -> str | None:
    if node.op_type != "AffineGrid" or node.domain != "":
        return None
    theta, size, made = node.inputs[0], constant_array(input_at(node, 1)), node.outputs[0]
    shape = static_shape(theta)
    if theta is None or theta.dtype != ir.DataType.FLOAT or shape is None or size is None or size.size not in (4, 5):
        return None
    count, _, *sizes = (int(n) for n in size)
    axes = len(sizes)
    if shape != (count, axes, axes + 1):
        return None
    places = editor.constant(_places(sizes, bool(node.attributes.get_int("align_corners", 0))), f"{made.name}_places")
    turned = editor.result(f"{made.name}_turned", theta.dtype, (count, axes + 1, axes))
    grid = editor.result(f"{made.name}_rows", theta.dtype, (count, prod(sizes), axes))
    names = [editor.node_name(f"{node.name}_{word}") for word in ("transpose", "reshape")]
    turn = ir.node("Transpose", [theta], {"perm": [0, 2, 1]}, outputs=[turned], name=names[0])
    product = ir.node("MatMul", [places, turned], outputs=[grid], name=node.name)
    editor.graph.insert_before(node, [turn, product])
    result = editor.reshape(node, grid, (count, *sizes, axes), f"{made.name}_grid", names[1])
    editor.bypass(node, result)
    return f"{node_text(node)} made one MatMul with the places of {' x '.join(map(str, sizes))} pixels"


def _places(sizes: list[int], align_corners: bool) -> Array:
    """(pixels, axes + 1) float32: each pixel's x, y (and z), and 1. From -1 to 1, at the pixels' centres, or so that
    the outer pixels are at -1 and 1; a single pixel then is at 1, as in onnxruntime."""
    lines = []
    for size in sizes:
        end = 1.0 if align_corners else 1 - 1 / size
        lines.append(np.linspace(-end, end, size) if size > 1 else np.array([end]))
    grid = [line.reshape(-1) for line in np.meshgrid(*lines, indexing="ij")]
    return np.stack([*reversed(grid), np.ones(prod(sizes))], axis=1).astype(np.float32)
