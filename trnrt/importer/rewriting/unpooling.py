"""Unpooling: MaxUnpool of a MaxPool's own indices, and what PyTorch writes for it, a ScatterND of zeros."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Array, Editor, maker, shape_of
from trnrt.importer.rewriting.pool_indices import (
    FLOATS,
    MOST_ELEMENTS,
    SINCE,
    Windows,
    choose,
    compare_taps,
    read_windows,
    replace_value,
)
from trnrt.importer.values import constant_array, input_at, static_shape


def write_unpools(editor: Editor) -> list[str]:
    """Replace every unpooling by constant indices, or by those of a MaxPool with windows side by side; return notes."""
    if editor.opset < SINCE:
        return []
    rules = (_write_unpool, _write_constant, _write_scatter)
    notes = (next((note for rule in rules if (note := rule(editor, node))), None) for node in list(editor.graph))
    return [note for note in notes if note]


def _write_unpool(editor: Editor, node: ir.Node) -> str | None:
    """Replace a MaxUnpool of a MaxPool's own indices: each window's number, repeated, where its maximum was."""
    pool = maker(input_at(node, 1), "MaxPool") if node.op_type == "MaxUnpool" and node.domain == "" else None
    windows = read_windows(editor, pool) if pool is not None and node.inputs[1] is pool.outputs[1] else None
    data = node.inputs[0] if windows is not None else None
    if windows is None or data is None or not _are_tiles(windows, data) or not _keeps_size(windows, node):
        return None
    return _replace(windows, node, _spread(windows, data))


def _replace(windows: Windows, node: ir.Node, value: ir.Value) -> str:
    """Put the nodes that were written, and their result, in the place of a node."""
    windows.editor.graph.insert_before(node, windows.nodes)
    replace_value(windows.editor, node.outputs[0], value)
    windows.editor.remove(node)
    return f"{node_text(node)} made the repeated pixels that were the maxima of {node_text(windows.pool)}"


def _spread(windows: Windows, data: ir.Value) -> ir.Value:
    """Images as large as the pool's, with a number for each window where its maximum was."""
    sizes = shape_of(windows.data)
    assert data.dtype is not None
    kind = data.dtype.numpy()
    # Taps are counted, not pixels: every dtype holds such small numbers.
    counts = [np.array(tap, kind) for tap in range(prod(windows.kernel))]
    chosen = choose(windows, compare_taps(windows), counts, data.dtype)
    tiles = np.array(counts).reshape(1, 1, *windows.kernel)
    pattern = np.tile(tiles, (1, 1, *[span.count for span in windows.spans]))
    numbers, values = (_repeat_pixels(windows, value) for value in (chosen, data))
    shape = shape_of(numbers)
    truth = windows.apply("Equal", [numbers, windows.constant(pattern)], ir.DataType.BOOL, shape)
    spread = windows.apply("Where", [truth, values, windows.constant(np.array(0, kind))], data.dtype, shape)
    if shape != sizes:
        after = [size - pixels for size, pixels in zip(sizes, shape, strict=True)]
        spread = windows.apply("Pad", [spread, windows.integers([*[0] * len(after), *after])], data.dtype, sizes)
    return spread


def _are_tiles(windows: Windows, data: ir.Value) -> bool:
    """True if the windows lie side by side within the images, and ``data`` has a number for each."""
    if windows.kernel != windows.strides or max(windows.dilations) > 1 or windows.by_column or prod(windows.kernel) < 2:
        return False
    if static_shape(data) != shape_of(windows.pool.outputs[0]) or data.dtype not in FLOATS:
        return False
    ends = (span.count * kernel for span, kernel in zip(windows.spans, windows.kernel, strict=True))
    sizes = shape_of(windows.data)[2:]
    return all(end <= size and not span.before for end, size, span in zip(ends, sizes, windows.spans, strict=True))


def _keeps_size(windows: Windows, unpool: ir.Node) -> bool:
    """True if a MaxUnpool makes images of the pool's size."""
    wanted = constant_array(input_at(unpool, 2))  # ONNX's inference doesn't know this shape
    made = static_shape(unpool.outputs[0]) if input_at(unpool, 2) is None else wanted is not None and tuple(wanted)
    return made == shape_of(windows.data)


def _repeat_pixels(windows: Windows, value: ir.Value) -> ir.Value:
    """Images with each pixel as large as a window."""
    shape = shape_of(value)
    sizes = [size * kernel for size, kernel in zip(shape[2:], windows.kernel, strict=True)]
    none, scales = (windows.constant(np.array(x, np.float32)) for x in ([], [1, 1, *windows.kernel]))
    options = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return windows.apply("Resize", [value, none, scales], value.dtype, [*shape[:2], *sizes], **options)


def _write_constant(editor: Editor, node: ir.Node) -> str | None:
    """Replace a MaxUnpool at constant indices by a ScatterND into zeros, which becomes moves."""
    if node.op_type != "MaxUnpool" or node.domain != "" or editor.opset < 13:
        return None
    data, indices, wanted, made = node.inputs[0], constant_array(node.inputs[1]), input_at(node, 2), node.outputs[0]
    shape = static_shape(made) if wanted is None else constant_array(wanted)
    size = static_shape(data)
    if data is None or data.dtype not in FLOATS or indices is None or shape is None or indices.shape != size:
        return None
    shape = tuple(int(dim) for dim in shape)
    if not 0 < prod(shape) <= MOST_ELEMENTS or indices.min() < 0 or indices.max() >= prod(shape):
        return None
    zeros = editor.constant(np.zeros(prod(shape), data.dtype.numpy()), f"{made.name}_zeros")
    places = editor.constant(indices.reshape(-1, 1).astype(np.int64), f"{made.name}_places")
    numbers = editor.reshape(node, data, [indices.size], f"{made.name}_numbers", editor.node_name(f"{node.name}_flat"))
    flat = editor.result(f"{made.name}_flat", data.dtype, [prod(shape)])
    scatter = ir.node(
        "ScatterND", [zeros, places, numbers], outputs=[flat], name=editor.node_name(f"{node.name}_scatter")
    )
    editor.graph.insert_before(node, scatter)
    note = f"{node_text(node)} at constant indices made moves"
    editor.bypass(
        node, editor.reshape(node, flat, shape, f"{made.name}_images", editor.node_name(f"{node.name}_shape"))
    )
    return note


# -- as PyTorch writes it --------------------------------------------------------------------------------


def _write_scatter(editor: Editor, node: ir.Node) -> str | None:
    """Replace a ScatterND that writes a number for each window into a flat tensor of zeros, at the pool's indices."""
    is_scatter = node.op_type == "ScatterND" and node.domain == ""
    plain = is_scatter and node.attributes.get_string("reduction", "none") == "none"
    zeros = constant_array(node.inputs[0]) if plain else None
    if zeros is None or zeros.ndim != 1 or len(static_shape(node.inputs[1]) or ()) != 2:
        return None
    pool, less = _read_numbers(node.inputs[1])
    windows = None if pool is None else read_windows(editor, pool)
    if windows is None or zeros.size != prod(shape_of(windows.data)) or zeros.any() or not _is_zero(windows, less):
        return None
    data = _images(windows, node)
    if not _are_tiles(windows, data):
        return None
    flat = windows.integers([zeros.size])
    value = windows.apply("Reshape", [_spread(windows, data), flat], data.dtype, [zeros.size])
    return _replace(windows, node, value)


def _read_numbers(value: ir.Value | None) -> tuple[ir.Node | None, list[Array]]:
    """The MaxPool whose indices these are, and constants that are added to them."""
    added = []
    while (node := maker(value, "Add", "Sub", "Reshape", "Unsqueeze", "Identity")) is not None:
        value = node.inputs[0]
        if node.op_type in ("Add", "Sub"):
            constant = constant_array(node.inputs[1])
            if constant is None:
                return None, []
            added.append(constant if node.op_type == "Add" else -constant)
    pool = maker(value, "MaxPool")
    return (pool, added) if pool is not None and value is pool.outputs[1] else (None, [])


def _is_zero(windows: Windows, added: list[Array]) -> bool:
    """True if constants cancel out: PyTorch takes the images' first pixels away, and adds them again."""
    shape = shape_of(windows.pool.outputs[0])
    if any(array.ndim > len(shape) or np.broadcast_shapes(array.shape, shape) != shape for array in added):
        return False
    return not np.asarray(sum(added)).any()


def _images(windows: Windows, scatter: ir.Node) -> ir.Value:
    """The numbers that a ScatterND writes, in the shape of the pool's result."""
    value, shape = scatter.inputs[2], shape_of(windows.pool.outputs[0])
    assert value is not None
    before = maker(value, "Reshape")
    if before is not None and static_shape(before.inputs[0]) == shape and before.inputs[0] is not None:
        return before.inputs[0]
    return windows.apply("Reshape", [value, windows.integers(shape)], value.dtype, shape)
