"""Limits of a bound graph: a small file can ask for petabytes, or for windows of a billion elements."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from trnrt.errors import Blocker
from trnrt.importer.reading.limits import (
    LARGEST_TENSOR,
    LARGEST_WINDOW,
    MOST_ACTIVATIONS,
    MOST_AXES,
    MOST_FILLED,
    in_words,
)
from trnrt.importer.values import named_outputs, static_shape
from trnrt.text import one_line

_SMALLER = "run it with a smaller batch or smaller inputs"


def find_too_large(graph: ir.Graph) -> Iterator[Blocker]:
    """A blocker for each input, constant or node that makes something too large. Open shapes are ignored."""
    for value in graph.inputs:
        yield from _check_tensor(value, value.name or "", "input")
    total = 0
    for node in graph:
        name, op = node.name or "", one_line(node.op_type)
        yield from _check_window(node)
        for value in named_outputs(node):
            yield from _check_tensor(value, name, op)
            total += _bytes(value)
    if total > MOST_ACTIVATIONS:
        reason = f"all its tensors together have {in_words(total)}; trnrt takes up to {in_words(MOST_ACTIVATIONS)}"
        yield Blocker(one_line(graph.name or ""), "the graph", reason, _SMALLER)
    yield from _check_constants(graph)


def _check_tensor(value: ir.Value, name: str, op: str) -> Iterator[Blocker]:
    shape = static_shape(value) or ()
    if len(shape) > MOST_AXES:
        yield Blocker(
            name,
            op,
            f"a tensor of {len(shape)} dimensions; trnrt takes up to {MOST_AXES}",
            "join dimensions by a Reshape",
        )
    elif _bytes(value) > LARGEST_TENSOR:
        size = f"a tensor of shape {shape}, {in_words(_bytes(value))}"
        yield Blocker(name, op, f"{size}; trnrt takes up to {in_words(LARGEST_TENSOR)}", _SMALLER)


def _bytes(value: ir.Value) -> int:
    shape = static_shape(value)
    if shape is None or value.dtype is None:
        return 0
    return math.prod(shape) * (8 if value.dtype == ir.DataType.STRING else math.ceil(value.dtype.itemsize))


def _check_window(node: ir.Node) -> Iterator[Blocker]:
    """Windows of pooling operators, which show in no tensor's shape."""
    if node.domain != "" or "kernel_shape" not in node.attributes:
        return
    kernel = list(node.attributes["kernel_shape"].as_ints())
    dilations = node.attributes.get_ints("dilations", [1] * len(kernel))
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=False)]
    if math.prod(kernel) > LARGEST_WINDOW or max(spans, default=1) > LARGEST_WINDOW:
        reason = f"a window of {tuple(kernel)}; trnrt takes windows of up to {LARGEST_WINDOW} elements"
        yield Blocker(node.name or "", one_line(node.op_type), reason, "use a global pooling operator")


def _check_constants(graph: ir.Graph) -> Iterator[Blocker]:
    """Constants that repeat one value are stored as one element, but a kernel needs them in full."""
    filled = 0
    for value in graph.initializers.values():
        if value.const_value is None or value.dtype is None or value.dtype == ir.DataType.STRING:
            continue
        array = value.const_value.numpy()
        if array.size <= 1 or any(array.strides):
            continue
        filled += array.nbytes
        if filled > MOST_FILLED:
            size = f"one value repeated to {in_words(array.nbytes)}, {in_words(filled)} with others before it"
            reason = f"{size}; trnrt takes up to {in_words(MOST_FILLED)} of such constants"
            yield Blocker(value.name or "", "constant", reason, "export the model with its weights")
            return
