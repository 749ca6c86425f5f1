"""Rules for the batch: where each operator puts it in its output.

A rule returns the output's ``Batch``. It raises ``Mixes`` if an element may depend on another row, on the row's place,
or on the number of rows.
"""

from __future__ import annotations

from functools import partial
from math import prod

import onnx_ir as ir

from trnrt.importer.rows.batch import Batch, Mixes, Shape, constant_integers, is_same_for_rows, ranges
from trnrt.importer.values import constant_array, is_used, opset_of, paddings, static_shape

_PLACES = "its inputs have the batch in different places"
_BY_PLACE = "what it does to a row depends on the row's place in the batch"


# Before opset 13 these flatten all dimensions from the axis on into one row.
_FLATTENING = {"Softmax", "LogSoftmax", "Hardmax"}
# Exporters write "to the end" as a number this large.
_BEYOND = 2**31 - 1


def _sole_batch(sources: list[Batch | None]) -> Batch:
    """The batch of the first input; Mixes if another input has one."""
    first, *others = sources
    if first is None or any(others):
        raise Mixes("an input other than the first depends on the batch")
    return first


def _check_places(node: ir.Node, sources: list[Batch | None], made: Batch, outer: int | None = None) -> None:
    """Raise Mixes if an input without the batch has different values for different rows.

    Inputs are broadcast to ``made``, aligned at the last dimension; with ``outer``, to its first ``outer`` dimensions,
    aligned at the input's third last one.
    """
    for value, batch in zip(node.inputs, sources, strict=True):
        if value is None or batch is not None:
            continue
        shape = static_shape(value)
        if shape is None:
            raise Mixes("the shape of an input is not known")
        place = made.axis - len(made.shape) + len(shape) if outer is None else made.axis - outer + len(shape) - 2
        if place >= 0 and shape[place] != 1 and not is_same_for_rows(constant_array(value), place, made.rows):
            raise Mixes(_BY_PLACE)


def reshape(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    return Batch(shape, batch.stride, batch.rows)


def elementwise(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    found = {b.move_to(shape, len(shape) - len(b.shape) + b.axis) for b in sources if b is not None}
    if len(found) != 1:
        raise Mixes(_PLACES)
    made = found.pop()
    _check_places(node, sources, made)
    return made


def expand(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    return batch.move_to(shape, len(shape) - len(batch.shape) + batch.axis)


def by_image(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    if batch.axis != 0:
        raise Mixes("the batch is not dimension 0")
    if node.op_type == "MaxPool" and any(map(is_used, node.outputs[1:])):
        raise Mixes("its indices count from the batch's first row")
    if node.op_type == "BatchNormalization" and node.attributes.get_int("training_mode", 0) != 0:
        raise Mixes("in training it normalizes over the batch")
    return batch.move_to(shape, 0)


def by_row(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    if len(_sole_batch(sources).shape) < 2:
        raise Mixes("it takes a tensor of one dimension as one row")
    return by_image(node, sources, shape)


def along_axis(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    default = {"Gather": 0, "Split": 0, "ArgMax": 0, "ArgMin": 0}.get(node.op_type, -1)
    rank = len(batch.shape)
    flattens = node.op_type in _FLATTENING and opset_of(node) < 13
    axis = node.attributes.get_int("axis", 1 if flattens else default) % rank
    if batch.axis >= axis if flattens else batch.axis == axis:
        raise Mixes(f"it works along dimension {axis}, which is the batch's")
    kept = batch.axis if batch.axis < axis or len(shape) == rank else batch.axis + len(shape) - rank
    return batch.move_to(shape, kept)


def cumulate(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    if batch.axis in {axis % len(shape) for axis in constant_integers(node, 1, "axis") or ()}:
        raise Mixes("it sums over the batch")
    return batch.move_to(shape, batch.axis)


def by_matrix(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    if batch.axis >= len(shape) - 2:
        raise Mixes(_BY_PLACE)
    return batch.move_to(shape, batch.axis)


def sample(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """GridSample: each image has a grid of its own."""
    if any(batch is not None and batch.axis for batch in sources):
        raise Mixes("the batch is not dimension 0")
    return elementwise(node, sources, shape)


def concat(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    present = [batch for batch in sources if batch is not None]
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if len({(b.axis, b.row_step) for b in present}) > 1:
        raise Mixes(_PLACES)
    made = present[0].move_to(shape, present[0].axis)
    if made.axis == axis:
        raise Mixes(f"it works along dimension {axis}, which is the batch's")
    _check_places(node, sources, made)
    return made


def gather(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """Constant indices pick within a row; or the indices are the rows, and pick from a constant table."""
    data, indices = sources
    if indices is None or data is not None:
        return along_axis(node, sources, shape)
    table = static_shape(node.inputs[0])
    if table is None:
        raise Mixes("the table it reads has no fixed shape")
    return indices.move_to(shape, node.attributes.get_int("axis", 0) % len(table) + indices.axis)


def gather_elements(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """An element is picked along the axis, from its own place in the other dimensions."""
    data, indices = sources
    axis = node.attributes.get_int("axis", 0) % len(shape)
    if data is None and indices is not None and indices.axis == axis:
        return indices.move_to(shape, axis)
    return _pick_within(node, sources, shape, axis)


def gather_nd(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """The dimensions before ``batch_dims`` go together; or the indices are the rows, and pick from a constant table; or
    constant ones pick parts that hold the rows."""
    data, indices = sources
    together = node.attributes.get_int("batch_dims", 0)
    picked = static_shape(node.inputs[1])
    if any(batch is not None and batch.axis < together for batch in sources):
        return _pick_within(node, sources, shape)
    if data is None and indices is not None:
        if indices.axis == len(indices.shape) - 1:
            raise Mixes("an index consists of several rows")
        return indices.move_to(shape, indices.axis)
    if indices is None and data is not None and picked:
        rest = data.axis - together - picked[-1]
        if rest >= 0:
            return data.move_to(shape, len(picked) - 1 + rest)
    raise Mixes("it picks along the batch's dimension, or by indices that have it elsewhere")


def _pick_within(node: ir.Node, sources: list[Batch | None], shape: Shape, axis: int = -1) -> Batch:
    """Data and indices have the batch in the same dimension, which is not ``axis``; or one of them is constant, and the
    same for each row."""
    found = [batch for batch in sources if batch is not None]
    made = found[0].move_to(shape, found[0].axis)
    if made.axis == axis:
        raise Mixes(f"it picks along dimension {axis}, which is the batch's")
    if len({(batch.axis, batch.row_step, batch.shape[batch.axis]) for batch in found}) > 1:
        raise Mixes(_PLACES)
    for value, batch in zip(node.inputs, sources, strict=True):
        size = (static_shape(value) or ())[made.axis :][:1]
        if batch is None and (
            size != (shape[made.axis],) or not is_same_for_rows(constant_array(value), made.axis, made.rows)
        ):
            raise Mixes(_BY_PLACE)
    return made


def one_hot(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """A new axis, before which dimensions stay in place."""
    batch = _sole_batch(sources)
    axis = node.attributes.get_int("axis", -1) % len(shape)
    return batch.move_to(shape, batch.axis + (axis <= batch.axis))


def one_more(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """A new axis at the end."""
    batch = _sole_batch(sources)
    return batch.move_to(shape, batch.axis)


def reduce(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    rank = len(batch.shape)
    given = list(node.attributes.get_ints("axes", [])) or constant_integers(node, 1, "axes") or []
    axes = {axis % rank for axis in given} or set(range(rank))
    if not given and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        axes = set()
    if batch.axis in axes:
        raise Mixes("it reduces the batch's dimension")
    gone = 0 if len(shape) == rank else len([axis for axis in axes if axis < batch.axis])
    return batch.move_to(shape, batch.axis - gone)


def centre(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """MeanVarianceNormalization: its default axes include the batch."""
    batch = _sole_batch(sources)
    if batch.axis in {axis % len(shape) for axis in node.attributes.get_ints("axes", [0, 2, 3])}:
        raise Mixes("it normalizes over the batch")
    return batch.move_to(shape, batch.axis)


def transpose(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    order = list(node.attributes.get_ints("perm", list(reversed(range(len(shape))))))
    return batch.move_to(shape, order.index(batch.axis))


def gemm(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    left, right, *others = sources
    if left is None or right is not None or left.axis != (1 if node.attributes.get_int("transA", 0) else 0):
        raise Mixes("the batch is not the rows of its left side")
    made = left.move_to(shape, 0)
    if others and others[0] is not None and others[0].move_to(shape, 2 - len(others[0].shape) + others[0].axis) != made:
        raise Mixes(_PLACES)
    for value in node.inputs[2:3] if others and others[0] is None else []:
        bias = static_shape(value) or ()
        if len(bias) == 2 and bias[0] != 1 and not is_same_for_rows(constant_array(value), 0, made.rows):
            raise Mixes(_BY_PLACE)
    return made


def matmul(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    ranks = [len(static_shape(value) or ()) for value in node.inputs]
    outer = len(shape) - sum(rank > 1 for rank in ranks)  # the output's dimensions before those of the matrices
    found = set()
    for side, batch in enumerate(sources):
        if batch is None:
            continue
        # Counted from the end: the sum runs over the last dimension on the left, over the second last on the right.
        place = batch.axis - ranks[side]
        if place == -1 - (side == 1 and ranks[side] > 1):
            raise Mixes("it sums over the batch")
        if place < -2:
            axis = outer + place + 2
        else:
            axis = outer if side == 0 else len(shape) - 1
            if None not in sources:
                raise Mixes("each row meets every other")
        found.add(batch.move_to(shape, axis))
    if len(found) != 1:
        raise Mixes(_PLACES)
    made = found.pop()
    if made.axis < outer:
        _check_places(node, sources, made, outer)
    return made


def slicing(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """The slice must take all rows for any number of rows: ``:5`` takes all of 3, but not all of 6."""
    batch = _sole_batch(sources)
    for axis, start, end, step in ranges(node, len(shape)):
        to_end = end >= _BEYOND or end == batch.shape[axis]
        if axis == batch.axis and (step != 1 or not to_end or (start != 0 and start > -_BEYOND)):
            raise Mixes(f"it takes {start}:{end}:{step} of dimension {axis}, which is the batch's")
    return batch.move_to(shape, batch.axis)


def pad(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    begins, ends = paddings(node, len(shape), partial(constant_integers, node))
    # One row less at one end and one more at the other keeps their number, but shifts them.
    if begins[batch.axis] or ends[batch.axis]:
        raise Mixes(f"it pads dimension {batch.axis}, which is the batch's")
    return batch.move_to(shape, batch.axis)


def resize(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    axes = [axis % len(shape) for axis in node.attributes.get_ints("axes", range(len(shape)))]
    if batch.axis in axes:
        place = axes.index(batch.axis)
        is_late = node.op_type == "Resize" and opset_of(node) > 10
        stored = constant_array(node.inputs[1 + is_late]) if len(node.inputs) > 1 + is_late else None
        scales = node.attributes.get_floats("scales", []) if stored is None else stored.reshape(-1)
        if any(scale != 1 for scale in scales[place : place + 1]):
            raise Mixes("it resizes the batch's dimension")
        if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
            region = constant_array(node.inputs[1])
            if region is None or region[place :: len(axes)].tolist() != [0, 1]:
                raise Mixes("it crops the batch's dimension")
    return batch.move_to(shape, batch.axis)


def quantize(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    scale = static_shape(node.inputs[1])
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if scale is None or (prod(scale) > 1 and (axis == batch.axis or len(scale) > 1)):
        raise Mixes(_BY_PLACE)
    return batch.move_to(shape, batch.axis)


def normalize(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _sole_batch(sources)
    if batch.axis >= node.attributes.get_int("axis", -1) % len(batch.shape):
        raise Mixes("it normalizes over the batch")
    made = batch.move_to(shape, batch.axis)
    _check_places(node, sources, made)
    return made


def extract(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """Constant indices pick columns of a row; or the rows' indices pick entries of a constant table."""
    data, indices = sources
    if indices is None:
        batch = _sole_batch(sources)
        if batch.axis == len(batch.shape) - 1:
            raise Mixes("it picks along the batch's dimension")
        return batch.move_to(shape, batch.axis)
    if data is not None:
        raise Mixes("both its inputs depend on the batch")
    return Batch(shape, indices.stride, indices.rows)


def unknown(_node: ir.Node, _sources: list[Batch | None], _shape: Shape) -> Batch:
    """An operator without a rule."""
    raise Mixes("what it does to the batch is not known")
