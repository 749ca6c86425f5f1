"""Pad nodes folded into the convolution or pooling that reads them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, integers, is_computed, is_private, maker
from trnrt.importer.values import constant_array, input_at, paddings, static_shape

_WINDOWED = ("AveragePool", "Conv", "MaxPool")
# Their results are never negative (except NaN, which a maximum passes on in any case).
_NEVER_NEGATIVE = ("Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt")


def fold_padding(editor: Editor) -> list[str]:
    """Fold every possible Pad; return notes on what was done."""
    return [note for node in list(editor.graph) if (note := _fold_pad(editor, node))]


def _fold_pad(editor: Editor, node: ir.Node) -> str | None:
    pad = maker(node.inputs[0], "Pad") if node.domain == "" and node.op_type in _WINDOWED else None
    if pad is None or not is_private(pad.outputs[0]) or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    found = _spatial(pad)
    if found is None:
        return None
    more, value = found
    rank = len(more) // 2
    own = list(node.attributes.get_ints("pads", [0] * len(more)))
    pads = [first + second for first, second in zip(own, more, strict=True)]
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    if node.op_type == "Conv":
        fits = value == 0
    else:
        # Each window must see a true element, as pooling operators want it.
        fits = len(kernel) == rank and all(p < kernel[k % rank] for k, p in enumerate(pads))
        fits = fits and (
            _max_allows(pad, value) if node.op_type == "MaxPool" else _mean_allows(editor, pad, node, value)
        )
    if not fits:
        return None
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    if node.op_type == "AveragePool":
        node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 1)
    node.replace_input_with(0, pad.inputs[0])
    note = f"{node_text(pad)} folded into {node_text(node)}"
    editor.remove(pad)
    return note


def _spatial(pad: ir.Node) -> tuple[list[int], float] | None:
    """The amounts that a Pad adds before and after each spatial axis, and its value; None if it does anything else."""
    shape = static_shape(pad.inputs[0])
    if shape is None or len(shape) < 3 or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    if any(is_computed(pad, index) for index in (1, 2, 3)):
        return None
    before, after = paddings(pad, len(shape), lambda position, name: integers(pad, name, position))
    if min(*before, *after) < 0 or any((*before[:2], *after[:2])):
        return None
    constant = constant_array(input_at(pad, 2))
    value = float(constant.reshape(-1)[0]) if constant is not None else pad.attributes.get_float("value", 0.0)
    return before[2:] + after[2:], value


def _max_allows(pad: ir.Node, value: float) -> bool:
    """True if padding by ``value`` is never the maximum: -inf is not, nor is 0 if no element is smaller."""
    if value == -np.inf:
        return True
    source = pad.inputs[0]
    before = None if source is None else source.producer()
    if value != 0 or before is None or before.domain != "":
        return False
    if before.op_type == "Clip":
        low = constant_array(input_at(before, 1))
        floor = before.attributes.get_float("min", -np.inf) if low is None else float(low.reshape(-1)[0])
        return floor >= 0 and not is_computed(before, 1)
    return before.op_type in _NEVER_NEGATIVE


def _mean_allows(editor: Editor, pad: ir.Node, pool: ir.Node, value: float) -> bool:
    """True if a mean may include the padding: if it is 0, and the pool counts all its padding and nothing beyond."""
    counts_all = bool(pool.attributes.get_int("count_include_pad", 0))
    if not counts_all and not any(pool.attributes.get_ints("pads", [])):
        counts_all = _holds_a_window(pool, static_shape(pad.outputs[0]))
    return value == 0 and counts_all and editor.opset >= 7 and not pool.attributes.get_int("ceil_mode", 0)


def _holds_a_window(pool: ir.Node, shape: tuple[int, ...] | None) -> bool:
    """True if images are as large as the window: a larger window ends beyond the padding."""
    kernel = pool.attributes.get_ints("kernel_shape", [])
    dilations = pool.attributes.get_ints("dilations", [1] * len(kernel))
    return shape is not None and all(
        size > (taps - 1) * step for size, taps, step in zip(shape[2:], kernel, dilations, strict=False)
    )
