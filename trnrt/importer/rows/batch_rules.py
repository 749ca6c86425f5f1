"""What each operator does to the batch: where it lies in the output, or why rows come together there.

A tensor is laid out row-major, and the batch is where ``(element // stride) % rows`` tells the row: the stride says
where the batch is, whatever shape the elements are given. A rule gives the output's ``Batch``, and raises ``Mixes``
where an element may depend on another row, on the row's place, or on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import constant_array, static_shape

Shape = tuple[int, ...]

_PLACES = "its inputs have the batch in different places"
_BY_PLACE = "what it does to a row depends on the row's place in the batch"


class Mixes(Exception):
    """Raised where rows come together, or may."""


@dataclass(frozen=True)
class Batch:
    """Where the batch lies in a tensor of ``shape``: ``rows`` of them, ``stride`` elements apart."""

    shape: Shape
    stride: int
    rows: int

    @property
    def axis(self) -> int:
        """The dimension that holds the batch. Mixes where it is spread over several."""
        for axis, size in enumerate(self.shape):
            inner = prod(self.shape[axis + 1 :])
            if inner and inner <= self.stride and self.stride * self.rows <= inner * size and self.stride % inner == 0:
                return axis
        raise Mixes("the batch is spread over several dimensions")

    @property
    def within(self) -> int:
        """Elements of the batch's dimension from one row to the next."""
        return self.stride // prod(self.shape[self.axis + 1 :])

    def moved(self, shape: Shape, axis: int) -> Batch:
        """The same part of a dimension as dimension ``axis`` of another shape."""
        if shape[axis] != self.shape[self.axis]:
            raise Mixes(f"dimension {axis} of {shape} is not the batch's any more")
        return Batch(shape, self.within * prod(shape[axis + 1 :]), self.rows)


Rule = Callable[[ir.Node, list[Batch | None], Shape], Batch]

_REFORMING = "Reshape Flatten Squeeze Unsqueeze Identity Dropout Cast"
_ELEMENTWISE = """Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp
Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod
Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish
Tan Tanh ThresholdedRelu Where Xor"""
# These work within an image or a row of pixels: dimension 0 is left alone.
_BY_IMAGE = """AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool SpaceToDepth"""
# These work along one dimension, named by ``axis``.
_ALONG = """ArgMax ArgMin Hardmax LogSoftmax LpNormalization Softmax Split TopK"""
_REDUCING = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare"""
# Of ai.onnx.ml: each takes a matrix, whose rows it treats alone; of a vector it makes one row.
_BY_ROW = "Imputer LinearClassifier LinearRegressor Normalizer Scaler"
# Before opset 13 these take everything from the axis on as one row.
_FLATTENING = {"Softmax", "LogSoftmax", "Hardmax"}


def _only(sources: list[Batch | None]) -> Batch:
    """The first input, which alone may have the batch."""
    first, *others = sources
    if first is None or any(others):
        raise Mixes("an input other than the first depends on the batch")
    return first


def _opset(node: ir.Node) -> int:
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def _integers(node: ir.Node, position: int, what: str) -> list[int] | None:
    """The constant integers of an input; None where it is left out. Mixes where they are computed."""
    value = node.inputs[position] if position < len(node.inputs) else None
    if value is None:
        return None
    array = constant_array(value)
    if array is None:
        raise Mixes(f"its {what} are computed")
    return [int(number) for number in array.reshape(-1)]


def _check_places(node: ir.Node, sources: list[Batch | None], made: Batch, outer: int | None = None) -> None:
    """Mixes where an input without the batch has other values for other rows.

    Inputs are broadcast, the last dimensions beside each other: those of ``made``, or its first ``outer`` ones only,
    with two more in the input.
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


def is_same_for_rows(array: np.ndarray | None, axis: int, rows: int) -> bool:
    """Whether a constant, whose dimension ``axis`` goes along the batch, holds the same for each row."""
    if array is None or array.shape[axis] % rows:
        return False
    if not array.size or not array.strides[axis]:
        return True
    by_row = np.moveaxis(array, axis, 0).reshape(rows, -1)
    return bool((by_row == by_row[:1]).all())


def _reformed(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    return Batch(shape, batch.stride, batch.rows)


def _elementwise(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    found = {b.moved(shape, len(shape) - len(b.shape) + b.axis) for b in sources if b is not None}
    if len(found) != 1:
        raise Mixes(_PLACES)
    made = found.pop()
    _check_places(node, sources, made)
    return made


def _expanded(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    return batch.moved(shape, len(shape) - len(batch.shape) + batch.axis)


def _by_image(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    if batch.axis != 0:
        raise Mixes("the batch is not dimension 0")
    if node.op_type == "MaxPool" and any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise Mixes("its indices count from the batch's first row")
    if node.op_type == "BatchNormalization" and node.attributes.get_int("training_mode", 0) != 0:
        raise Mixes("in training it normalizes over the batch")
    return batch.moved(shape, 0)


def _by_row(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    if len(_only(sources).shape) < 2:
        raise Mixes("it takes a tensor of one dimension as one row")
    return _by_image(node, sources, shape)


def _along(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    default = {"Gather": 0, "Split": 0, "ArgMax": 0, "ArgMin": 0}.get(node.op_type, -1)
    rank = len(batch.shape)
    flattens = node.op_type in _FLATTENING and _opset(node) < 13
    axis = node.attributes.get_int("axis", 1 if flattens else default) % rank
    if batch.axis >= axis if flattens else batch.axis == axis:
        raise Mixes(f"it works along dimension {axis}, which is the batch's")
    kept = batch.axis if batch.axis < axis or len(shape) == rank else batch.axis + len(shape) - rank
    return batch.moved(shape, kept)


def _concatenated(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    present = [batch for batch in sources if batch is not None]
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if len({(b.axis, b.within) for b in present}) > 1:
        raise Mixes(_PLACES)
    made = present[0].moved(shape, present[0].axis)
    if made.axis == axis:
        raise Mixes(f"it works along dimension {axis}, which is the batch's")
    _check_places(node, sources, made)
    return made


def _gathered(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """By constant indices from within a row, or rows of a constant table by the indices that a row holds."""
    data, indices = sources
    if indices is None or data is not None:
        return _along(node, sources, shape)
    table = static_shape(node.inputs[0])
    if table is None:
        raise Mixes("the table it reads has no fixed shape")
    return indices.moved(shape, node.attributes.get_int("axis", 0) % len(table) + indices.axis)


def _reduced(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    rank = len(batch.shape)
    given = list(node.attributes.get_ints("axes", [])) or _integers(node, 1, "axes") or []
    axes = {axis % rank for axis in given} or set(range(rank))
    if not given and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        axes = set()
    if batch.axis in axes:
        raise Mixes("it reduces the batch's dimension")
    gone = 0 if len(shape) == rank else len([axis for axis in axes if axis < batch.axis])
    return batch.moved(shape, batch.axis - gone)


def _centred(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """MeanVarianceNormalization, which takes the batch together with the pixels unless its axes say otherwise."""
    batch = _only(sources)
    if batch.axis in {axis % len(shape) for axis in node.attributes.get_ints("axes", [0, 2, 3])}:
        raise Mixes("it normalizes over the batch")
    return batch.moved(shape, batch.axis)


def _transposed(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    order = list(node.attributes.get_ints("perm", list(reversed(range(len(shape))))))
    return batch.moved(shape, order.index(batch.axis))


def _gemm(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    left, right, *others = sources
    if left is None or right is not None or left.axis != (1 if node.attributes.get_int("transA", 0) else 0):
        raise Mixes("the batch is not the rows of its left side")
    made = left.moved(shape, 0)
    if others and others[0] is not None and others[0].moved(shape, 2 - len(others[0].shape) + others[0].axis) != made:
        raise Mixes(_PLACES)
    for value in node.inputs[2:3] if others and others[0] is None else []:
        bias = static_shape(value) or ()
        if len(bias) == 2 and bias[0] != 1 and not is_same_for_rows(constant_array(value), 0, made.rows):
            raise Mixes(_BY_PLACE)
    return made


def _matmul(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    ranks = [len(static_shape(value) or ()) for value in node.inputs]
    outer = len(shape) - sum(rank > 1 for rank in ranks)  # dimensions of the output before those of the matrices
    found = set()
    for side, batch in enumerate(sources):
        if batch is None:
            continue
        # Counted from the end: a left matrix is summed along its last dimension, a right one along the one before it.
        place = batch.axis - ranks[side]
        if place == -1 - (side == 1 and ranks[side] > 1):
            raise Mixes("it sums over the batch")
        if place < -2:
            axis = outer + place + 2
        else:
            axis = outer if side == 0 else len(shape) - 1
            if None not in sources:
                raise Mixes("each row meets every other")
        found.add(batch.moved(shape, axis))
    if len(found) != 1:
        raise Mixes(_PLACES)
    made = found.pop()
    if made.axis < outer:
        _check_places(node, sources, made, outer)
    return made


# What stands for "to the end" is beyond any batch.
_BEYOND = 2**31 - 1


def ranges(node: ir.Node, rank: int) -> list[tuple[int, int, int, int]]:
    """(axis, start, end, step) of a Slice. Mixes where they are computed."""
    if _opset(node) < 10:
        starts, ends = node.attributes.get_ints("starts", []), node.attributes.get_ints("ends", [])
        axes, steps = node.attributes.get_ints("axes", range(len(starts))), [1] * len(starts)
    else:
        starts, ends = _integers(node, 1, "starts") or [], _integers(node, 2, "ends") or []
        found = _integers(node, 3, "axes"), _integers(node, 4, "steps")
        axes = range(len(starts)) if found[0] is None else found[0]
        steps = [1] * len(starts) if found[1] is None else found[1]
    return [(axis % rank, start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=False)]


def _sliced(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """All rows must be meant, not only be there: 5 rows from the start or the end are all of 3, and not of 6."""
    batch = _only(sources)
    for axis, start, end, step in ranges(node, len(shape)):
        to_end = end >= _BEYOND or end == batch.shape[axis]
        if axis == batch.axis and (step != 1 or not to_end or (start != 0 and start > -_BEYOND)):
            raise Mixes(f"it takes {start}:{end}:{step} of dimension {axis}, which is the batch's")
    return batch.moved(shape, batch.axis)


def _padded(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    rank = len(shape)
    if _opset(node) < 11:
        pads, axes = list(node.attributes.get_ints("pads", node.attributes.get_ints("paddings", []))), None
    else:
        pads, axes = _integers(node, 1, "pads") or [], _integers(node, 3, "axes")
    padded = [axis % rank for axis in (range(rank) if axes is None else axes)]
    pairs = zip(padded * 2, pads, strict=False)
    # One row less at one end and one more at the other keeps their number, and moves each.
    if any(count and axis == batch.axis for axis, count in pairs):
        raise Mixes(f"it pads dimension {batch.axis}, which is the batch's")
    return batch.moved(shape, batch.axis)


def _resized(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    axes = [axis % len(shape) for axis in node.attributes.get_ints("axes", range(len(shape)))]
    if batch.axis in axes:
        place = axes.index(batch.axis)
        is_late = node.op_type == "Resize" and _opset(node) > 10
        stored = constant_array(node.inputs[1 + is_late]) if len(node.inputs) > 1 + is_late else None
        scales = node.attributes.get_floats("scales", []) if stored is None else stored.reshape(-1)
        if any(scale != 1 for scale in scales[place : place + 1]):
            raise Mixes("it resizes the batch's dimension")
        if node.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
            region = constant_array(node.inputs[1])
            if region is None or region[place :: len(axes)].tolist() != [0, 1]:
                raise Mixes("it crops the batch's dimension")
    return batch.moved(shape, batch.axis)


def _tiled(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    return batch.moved(shape, batch.axis)


def _quantized(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    scale = static_shape(node.inputs[1])
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if scale is None or (prod(scale) > 1 and (axis == batch.axis or len(scale) > 1)):
        raise Mixes(_BY_PLACE)
    return batch.moved(shape, batch.axis)


def _normalized(node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    batch = _only(sources)
    if batch.axis >= node.attributes.get_int("axis", -1) % len(batch.shape):
        raise Mixes("it normalizes over the batch")
    made = batch.moved(shape, batch.axis)
    _check_places(node, sources, made)
    return made


def _extracted(_node: ir.Node, sources: list[Batch | None], shape: Shape) -> Batch:
    """Columns of a row by constant indices, or entries of a constant table by the indices of the rows."""
    data, indices = sources
    if indices is None:
        batch = _only(sources)
        if batch.axis == len(batch.shape) - 1:
            raise Mixes("it picks along the batch's dimension")
        return batch.moved(shape, batch.axis)
    if data is not None:
        raise Mixes("both its inputs depend on the batch")
    return Batch(shape, indices.stride, indices.rows)


def _table() -> dict[tuple[str, str], Rule]:
    families: list[tuple[str, Rule]] = [
        (_REFORMING, _reformed),
        (_ELEMENTWISE, _elementwise),
        (_BY_IMAGE, _by_image),
        (_ALONG, _along),
        (_REDUCING, _reduced),
        ("Concat", _concatenated),
        ("Expand", _expanded),
        ("Gather", _gathered),
        ("Gemm", _gemm),
        ("LayerNormalization RMSNormalization", _normalized),
        ("MatMul", _matmul),
        ("MeanVarianceNormalization", _centred),
        ("Pad", _padded),
        ("QuantizeLinear DequantizeLinear", _quantized),
        ("Resize Upsample", _resized),
        ("Slice", _sliced),
        ("Tile", _tiled),
        ("Transpose", _transposed),
    ]
    table = {("", name): rule for names, rule in families for name in names.split()}
    table |= {("ai.onnx.ml", name): _by_row for name in _BY_ROW.split()}
    table |= {("ai.onnx.ml", "Binarizer"): _elementwise, ("ai.onnx.ml", "LabelEncoder"): _reformed}
    return table | {("ai.onnx.ml", "ArrayFeatureExtractor"): _extracted}


RULES = _table()
"""(domain, operator) -> what it does to the batch. Any other operator counts as one that mixes rows."""

WITHOUT_RULE = {("ai.onnx.ml", "ZipMap"): "it makes a list of dicts, one for each row, and only as a model's output"}
"""Operators that are lowered and have no rule, with the reason."""
