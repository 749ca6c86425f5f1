"""Rotary positions: the sign of the half that is negated goes to the constant sines.

Exporters write a rotation as ``x * cos + concat(-second, first) * sin``. With the sines of the first half negated, the
concatenation only moves elements. Every number stays the same.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, is_private, maker
from trnrt.importer.values import attribute, constant_array, static_shape


def fold_signs(editor: Editor) -> list[str]:
    """Negate a constant factor in place of parts of the concatenation that it multiplies; return notes."""
    notes = []
    for node in list(editor.graph):
        if node.domain != "" or node.op_type != "Mul":
            continue
        side = 0 if constant_array(node.inputs[1]) is not None else 1
        factor, joining = constant_array(node.inputs[1 - side]), _find_joining(node.inputs[side])
        if factor is None or joining is None or factor.dtype.kind != "f":
            continue
        negations = [maker(part, "Neg") for part in joining.inputs]
        widths = [(static_shape(part) or (0,))[-1] for part in joining.inputs]
        if not any(negations):
            continue
        signs = [np.full(width, 1 if neg is None else -1) for neg, width in zip(negations, widths, strict=True)]
        folded = (factor * np.concatenate(signs)).astype(factor.dtype)
        for index, negation in enumerate(negations):
            if negation is not None:
                joining.replace_input_with(index, negation.inputs[0])
                if not negation.outputs[0].uses() and not negation.outputs[0].is_graph_output():
                    editor.remove(negation)
        notes.append(f"{node_text(node)}: its constant negates what {node_text(joining)} joins")
        editor.set_input(node, 1 - side, editor.constant(folded, f"{node.name}_signed"))
    return notes


def _find_joining(value: ir.Value | None) -> ir.Node | None:
    """The Concat of known parts along the last axis that makes a value which only one node reads."""
    joining, shape = maker(value, "Concat"), static_shape(value)
    if value is None or joining is None or shape is None or not is_private(value):
        return None
    known = all(static_shape(part) is not None for part in joining.inputs)
    return joining if known and attribute(joining, "axis", 0) in (-1, len(shape) - 1) else None
