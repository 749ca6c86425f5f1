"""MaxPool's Indices: comparisons of each tap of the windows with their maxima.

Of equal maxima onnxruntime takes the first in the order of the taps, so a chain of Where looks at the first tap last.
The indices are int64 constants: a session's dtype that would round them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.folding.spatial import Span, pool_spans
from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, shape_of
from trnrt.importer.values import constant_array, input_at, is_used, static_shape

MOST_TAPS = 64
"""Each element of a window takes a copy of the image and a comparison: larger windows are refused."""
MOST_ELEMENTS = 2**24
"""float32 represents all whole numbers up to here; and the most constants, one for each tap of each window."""
# Equal compares floats from this opset on.
SINCE = 11
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def write_indices(editor: Editor) -> list[str]:
    """Replace the indices that other nodes read; return notes. Unpooling is rewritten before."""
    if editor.opset < SINCE:
        return []
    pools = [node for node in editor.graph if node.op_type == "MaxPool" and any(map(is_used, node.outputs[1:]))]
    windows = [found for node in pools if (found := read_windows(editor, node))]
    # PyTorch's exports subtract the indices of windows of one pixel: constants, which are folded before the rest.
    single = [found for found in windows if prod(found.kernel) == 1]
    return [_write_indices(found) for found in single or windows]


# -- windows ---------------------------------------------------------------------------------------------


@dataclass
class Windows:
    """The windows of a MaxPool of images ``data`` (N, C, ...), and the nodes that are written for it.

    Lists have a number for each axis of the images; ``by_column``: the first axis' pixels have adjacent numbers.
    """

    editor: Editor
    pool: ir.Node
    data: ir.Value
    spans: list[Span]
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    by_column: bool
    nodes: list[ir.Node] = field(default_factory=list)

    @property
    def taps(self) -> list[tuple[int, ...]]:
        """The places in a window, in the order in which onnxruntime looks at them."""
        return list(product(*map(range, self.kernel)))

    def apply(
        self,
        op: str,
        values: Sequence[ir.Value],
        dtype: ir.DataType | None,
        shape: Sequence[int],
        **attributes: str | int,
    ) -> ir.Value:
        """The result of a new node."""
        like = op.lower()
        made = self.editor.result(f"{self.pool.outputs[0].name}_{like}", dtype, shape)
        name = self.editor.node_name(f"{self.pool.name}_{like}")
        self.nodes.append(ir.node(op, values, attributes, outputs=[made], name=name))
        return made

    def constant(self, array: Array) -> ir.Value:
        """A new constant."""
        return self.editor.constant(array, f"{self.pool.outputs[0].name}_constant")

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        """A new constant of ranges or paddings."""
        return self.constant(np.array(numbers, np.int64))


def read_windows(editor: Editor, pool: ir.Node) -> Windows | None:
    """The windows of a MaxPool; None if its indices can't be computed."""
    data, shape = pool.inputs[0], static_shape(pool.inputs[0])
    if data is None or shape is None or len(shape) < 3 or data.dtype not in FLOATS or pool.domain != "":
        return None
    spans, made = pool_spans(pool, shape[2:]), static_shape(pool.outputs[0])
    ones = [1] * (len(shape) - 2)
    kernel, strides, dilations = (
        list(pool.attributes.get_ints(name, ones)) for name in ("kernel_shape", "strides", "dilations")
    )
    if spans is None or made is None or prod(kernel) > MOST_TAPS:
        return None
    if prod(shape) > MOST_ELEMENTS or prod(made) * prod(kernel) > MOST_ELEMENTS:
        return None
    # Negative padding crops, and empty results are refused elsewhere.
    if min(made) < 1 or any(min(span.before, span.after) < 0 for span in spans):
        return None
    by_column = bool(pool.attributes.get_int("storage_order", 0))
    return Windows(editor, pool, data, spans, kernel, strides, dilations, by_column)


def compare_taps(windows: Windows) -> list[ir.Value]:
    """For each tap but the last: true for each window that has its maximum there."""
    made = windows.pool.outputs[0]
    found = []
    for tap in windows.taps[:-1]:
        elements = windows.data
        for axis, places in enumerate(_find_places(windows, tap)):
            elements = _take(windows, elements, axis + 2, places)
        found.append(windows.apply("Equal", [elements, made], ir.DataType.BOOL, shape_of(made)))
    return found


def _find_places(windows: Windows, tap: tuple[int, ...]) -> list[Array]:
    """Where each window has a tap, along each axis. A tap in the padding gives way to the nearest one in the image.

    That keeps the first maximum the first, as no two taps change their order.
    """
    found = []
    for axis, (size, span) in enumerate(zip(shape_of(windows.data)[2:], windows.spans, strict=True)):
        step = windows.dilations[axis]
        starts = np.arange(span.count) * windows.strides[axis] - span.before
        least = np.maximum(0, -(starts // step))
        most = np.minimum(windows.kernel[axis] - 1, (size - 1 - starts) // step)
        found.append(starts + np.clip(tap[axis], least, most) * step)
    return found


def _take(windows: Windows, images: ir.Value, axis: int, places: Array) -> ir.Value:
    """The pixels at these places of an axis."""
    shape = list(shape_of(images))
    shape[axis] = len(places)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if (np.diff(places) == step).all() and step > 0:
        ranges = [windows.integers([int(n)]) for n in (places[0], places[-1] + 1, axis, step)]
        return windows.apply("Slice", [images, *ranges], images.dtype, shape)
    return windows.apply("Gather", [images, windows.integers(places.tolist())], images.dtype, shape, axis=axis)


def choose(windows: Windows, found: list[ir.Value], numbers: list[Array], dtype: ir.DataType) -> ir.Value:
    """For each window, the number that belongs to the tap of its maximum."""
    *others, last = [windows.constant(_drop_repeats(array)) for array in numbers]
    chosen, shape = last, shape_of(windows.pool.outputs[0])
    for truth, number in reversed(list(zip(found, others, strict=True))):
        chosen = windows.apply("Where", [truth, number, chosen], dtype, shape)
    return chosen


def _drop_repeats(numbers: Array) -> Array:
    """Numbers that are the same for all images, or channels, once only."""
    for axis in range(min(2, numbers.ndim)):
        first = numbers.take([0], axis)
        numbers = first if (numbers == first).all() else numbers
    return numbers


# -- indices ---------------------------------------------------------------------------------------------


def _write_indices(windows: Windows) -> str:
    """Replace the Indices of a MaxPool, less a constant where a node subtracts one."""
    pool, made = windows.pool, windows.pool.outputs[1]
    numbers, found = _number_pixels(windows), compare_taps(windows)
    replaced = []
    for reader in [use.node for use in made.uses()]:
        less = constant_array(input_at(reader, 1))
        if reader.op_type != "Sub" or reader.domain != "" or less is None or not found:
            continue
        if static_shape(reader.outputs[0]) == shape_of(pool.outputs[0]):
            fewer = [array - less for array in numbers]
            replaced.append((reader, choose(windows, found, fewer, ir.DataType.INT64)))
    for reader, value in replaced:
        replace_value(windows.editor, reader.outputs[0], value)
    if any(use.node not in [reader for reader, _ in replaced] for use in made.uses()) or made.is_graph_output():
        chosen = choose(windows, found, numbers, ir.DataType.INT64)
        if not found:
            whole = windows.constant(np.broadcast_to(numbers[0], shape_of(pool.outputs[0])).copy())
            chosen = windows.apply("Identity", [whole], ir.DataType.INT64, shape_of(pool.outputs[0]))
        replace_value(windows.editor, made, chosen)
    windows.editor.graph.insert_after(pool, windows.nodes)
    for reader, _ in replaced:
        windows.editor.remove(reader)
    return f"the indices of {node_text(pool)} computed by comparing its {len(numbers)} taps"


def _number_pixels(windows: Windows) -> list[Array]:
    """For each tap, the number of each window's pixel there, counted over all images and channels."""
    images, channels, *sizes = shape_of(windows.data)
    first = np.arange(images * channels).reshape(images, channels, *[1] * len(sizes)) * prod(sizes)
    numbers = []
    for tap in windows.taps:
        grid = tuple(np.meshgrid(*_find_places(windows, tap), indexing="ij"))
        numbers.append(first + np.ravel_multi_index(grid, tuple(sizes), order="F" if windows.by_column else "C"))
    return numbers


def replace_value(editor: Editor, before: ir.Value, value: ir.Value) -> None:
    """Let all that read one value read another, which takes its name."""
    before.name, value.name = editor.spare_name(f"{before.name}_before"), before.name
    before.replace_all_uses_with(value, replace_graph_outputs=True)
