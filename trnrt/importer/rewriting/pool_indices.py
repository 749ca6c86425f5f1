"""MaxPool's Indices, and the MaxUnpool of them: comparisons of each tap of the windows with their maxima.

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
from trnrt.importer.rewriting.editing import Array, Editor, maker, shape_of
from trnrt.importer.values import constant_array, input_at, is_used, static_shape

MOST_TAPS = 64
"""Each element of a window takes a copy of the image and a comparison: larger windows are refused."""
MOST_ELEMENTS = 2**24
"""float32 represents all whole numbers up to here; and the most constants, one for each tap of each window."""
# Equal compares floats from this opset on.
SINCE = 11
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def write_indices(editor: Editor) -> list[str]:
    """Replace MaxUnpools of a MaxPool's own indices, and the indices that other nodes read; return notes."""
    if editor.opset < SINCE:
        return []
    nodes = list(editor.graph)
    notes = [note for node in nodes if (note := _write_unpool(editor, node))]
    pools = [node for node in nodes if node.op_type == "MaxPool" and any(map(is_used, node.outputs[1:]))]
    windows = [found for node in pools if (found := _read_windows(editor, node))]
    # PyTorch's exports subtract the indices of windows of one pixel: constants, which are folded before the rest.
    single = [found for found in windows if prod(found.kernel) == 1]
    return notes + [_write_indices(found) for found in single or windows]


# -- windows ---------------------------------------------------------------------------------------------


@dataclass
class _Windows:
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


def _read_windows(editor: Editor, pool: ir.Node) -> _Windows | None:
    """The windows of a MaxPool; None if its indices can't be computed."""
    data, shape = pool.inputs[0], static_shape(pool.inputs[0])
    if data is None or shape is None or len(shape) < 3 or data.dtype not in _FLOATS or pool.domain != "":
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
    return _Windows(editor, pool, data, spans, kernel, strides, dilations, by_column)


def _compare_taps(windows: _Windows) -> list[ir.Value]:
    """For each tap but the last: true for each window that has its maximum there."""
    made = windows.pool.outputs[0]
    found = []
    for tap in windows.taps[:-1]:
        elements = windows.data
        for axis, places in enumerate(_find_places(windows, tap)):
            elements = _take(windows, elements, axis + 2, places)
        found.append(windows.apply("Equal", [elements, made], ir.DataType.BOOL, shape_of(made)))
    return found


def _find_places(windows: _Windows, tap: tuple[int, ...]) -> list[Array]:
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


def _take(windows: _Windows, images: ir.Value, axis: int, places: Array) -> ir.Value:
    """The pixels at these places of an axis."""
    shape = list(shape_of(images))
    shape[axis] = len(places)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    if (np.diff(places) == step).all() and step > 0:
        ranges = [windows.integers([int(n)]) for n in (places[0], places[-1] + 1, axis, step)]
        return windows.apply("Slice", [images, *ranges], images.dtype, shape)
    return windows.apply("Gather", [images, windows.integers(places.tolist())], images.dtype, shape, axis=axis)


def _choose(windows: _Windows, found: list[ir.Value], numbers: list[Array], dtype: ir.DataType) -> ir.Value:
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


def _write_indices(windows: _Windows) -> str:
    """Replace the Indices of a MaxPool, less a constant where a node subtracts one."""
    pool, made = windows.pool, windows.pool.outputs[1]
    numbers, found = _number_pixels(windows), _compare_taps(windows)
    replaced = []
    for reader in [use.node for use in made.uses()]:
        less = constant_array(input_at(reader, 1))
        if reader.op_type != "Sub" or reader.domain != "" or less is None or not found:
            continue
        if static_shape(reader.outputs[0]) == shape_of(pool.outputs[0]):
            fewer = [array - less for array in numbers]
            replaced.append((reader, _choose(windows, found, fewer, ir.DataType.INT64)))
    for reader, value in replaced:
        _replace(windows.editor, reader.outputs[0], value)
    if any(use.node not in [reader for reader, _ in replaced] for use in made.uses()) or made.is_graph_output():
        chosen = _choose(windows, found, numbers, ir.DataType.INT64)
        if not found:
            whole = windows.constant(np.broadcast_to(numbers[0], shape_of(pool.outputs[0])).copy())
            chosen = windows.apply("Identity", [whole], ir.DataType.INT64, shape_of(pool.outputs[0]))
        _replace(windows.editor, made, chosen)
    windows.editor.graph.insert_after(pool, windows.nodes)
    for reader, _ in replaced:
        windows.editor.remove(reader)
    return f"the indices of {node_text(pool)} computed by comparing its {len(numbers)} taps"


def _number_pixels(windows: _Windows) -> list[Array]:
    """For each tap, the number of each window's pixel there, counted over all images and channels."""
    images, channels, *sizes = shape_of(windows.data)
    first = np.arange(images * channels).reshape(images, channels, *[1] * len(sizes)) * prod(sizes)
    numbers = []
    for tap in windows.taps:
        grid = tuple(np.meshgrid(*_find_places(windows, tap), indexing="ij"))
        numbers.append(first + np.ravel_multi_index(grid, tuple(sizes), order="F" if windows.by_column else "C"))
    return numbers


def _replace(editor: Editor, before: ir.Value, value: ir.Value) -> None:
    """Let all that read one value read another, which takes its name."""
    before.name, value.name = editor.spare_name(f"{before.name}_before"), before.name
    before.replace_all_uses_with(value, replace_graph_outputs=True)


# -- unpooling -------------------------------------------------------------------------------------------


def _write_unpool(editor: Editor, node: ir.Node) -> str | None:
    """Replace a MaxUnpool of a MaxPool's own indices: each window's number, repeated, where its maximum was."""
    pool = maker(input_at(node, 1), "MaxPool") if node.op_type == "MaxUnpool" and node.domain == "" else None
    windows = _read_windows(editor, pool) if pool is not None and node.inputs[1] is pool.outputs[1] else None
    if windows is None or not _are_tiles(windows, node):
        return None
    data, made, sizes = node.inputs[0], node.outputs[0], shape_of(windows.data)
    assert data is not None and data.dtype is not None and made.dtype is not None
    kind = data.dtype.numpy()
    # Taps are counted, not pixels: every dtype holds such small numbers.
    counts = [np.array(tap, kind) for tap in range(prod(windows.kernel))]
    chosen = _choose(windows, _compare_taps(windows), counts, data.dtype)
    tiles = np.array(counts).reshape(1, 1, *windows.kernel)
    pattern = np.tile(tiles, (1, 1, *[span.count for span in windows.spans]))
    numbers, values = (_repeat_pixels(windows, value) for value in (chosen, data))
    shape = shape_of(numbers)
    truth = windows.apply("Equal", [numbers, windows.constant(pattern)], ir.DataType.BOOL, shape)
    spread = windows.apply("Where", [truth, values, windows.constant(np.array(0, kind))], data.dtype, shape)
    if shape != sizes:
        after = [size - pixels for size, pixels in zip(sizes, shape, strict=True)]
        spread = windows.apply("Pad", [spread, windows.integers([*[0] * len(after), *after])], data.dtype, sizes)
    editor.graph.insert_before(node, windows.nodes)
    _replace(editor, made, spread)
    editor.remove(node)
    return f"{node_text(node)} made the repeated pixels that were the maxima of {node_text(windows.pool)}"


def _are_tiles(windows: _Windows, unpool: ir.Node) -> bool:
    """True if the windows lie side by side within the images, and a MaxUnpool makes images of the same size."""
    if windows.kernel != windows.strides or max(windows.dilations) > 1 or windows.by_column or prod(windows.kernel) < 2:
        return False
    shape, data = shape_of(windows.data), unpool.inputs[0]
    wanted = constant_array(input_at(unpool, 2))  # ONNX's inference doesn't know this shape
    made = static_shape(unpool.outputs[0]) if input_at(unpool, 2) is None else wanted is not None and tuple(wanted)
    if made != shape or static_shape(data) != shape_of(windows.pool.outputs[0]):
        return False
    if data is None or data.dtype not in _FLOATS:
        return False
    ends = (span.count * kernel for span, kernel in zip(windows.spans, windows.kernel, strict=True))
    return all(end <= size and not span.before for end, size, span in zip(ends, shape[2:], windows.spans, strict=True))


def _repeat_pixels(windows: _Windows, value: ir.Value) -> ir.Value:
    """Images with each pixel as large as a window."""
    shape = shape_of(value)
    sizes = [size * kernel for size, kernel in zip(shape[2:], windows.kernel, strict=True)]
    none, scales = (windows.constant(np.array(x, np.float32)) for x in ([], [1, 1, *windows.kernel]))
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return windows.apply("Resize", [value, none, scales], value.dtype, [*shape[:2], *sizes], **options)
