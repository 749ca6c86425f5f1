"""Are the rows of a batch independent? Then a batch may be padded, or be one of several requests put together.

A tensor is laid out row-major, and the batch is where ``(element // stride) % rows`` tells the row: the stride says
where the batch is, whatever shape the elements are given. Each operator is followed by what it does to the stride; one
that joins elements of different rows, or is not known here, ends the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from trnrt.importer.naming import titled
from trnrt.importer.values import named_outputs, static_shape

Shape = tuple[int, ...]


class _Mixes(Exception):
    """Raised where rows come together, or may."""


@dataclass(frozen=True)
class _Batch:
    """Where the batch lies in a tensor of ``shape``: ``rows`` of them, ``stride`` elements apart."""

    shape: Shape
    stride: int
    rows: int

    @property
    def axis(self) -> int:
        """The dimension that holds the batch. _Mixes where it is spread over several."""
        for axis, size in enumerate(self.shape):
            inner = prod(self.shape[axis + 1 :])
            if inner and inner <= self.stride and self.stride * self.rows <= inner * size and self.stride % inner == 0:
                return axis
        raise _Mixes("the batch is spread over several dimensions")

    @property
    def within(self) -> int:
        """Elements of the batch's dimension from one row to the next."""
        return self.stride // prod(self.shape[self.axis + 1 :])

    def moved(self, shape: Shape, axis: int) -> _Batch:
        """The same part of a dimension as dimension ``axis`` of another shape."""
        if shape[axis] != self.shape[self.axis]:
            raise _Mixes(f"dimension {axis} of {shape} is not the batch's any more")
        return _Batch(shape, self.within * prod(shape[axis + 1 :]), self.rows)


Rule = Callable[[ir.Node, list[_Batch | None], Shape], _Batch]

_REFORMING = "Reshape Flatten Squeeze Unsqueeze Identity Dropout Cast Constant"
_ELEMENTWISE = """Abs Add And BitShift Celu Ceil Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual
HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow
Reciprocal Relu Round Selu Sigmoid Sign Sin Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where Xor
Expand"""
# These work within an image or a row of pixels: dimension 0 is left alone.
_BY_IMAGE = """AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool SpaceToDepth Upsample"""
# These work along one dimension, or several, named by ``axis`` or ``axes`` (attribute or second input).
_ALONG = """ArgMax ArgMin Concat Hardmax LogSoftmax LpNormalization Softmax Split TopK"""
_REDUCING = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare"""
# Before opset 13 these take everything from the axis on as one row.
_FLATTENING = {"Softmax", "LogSoftmax", "Hardmax"}


def mixing(graph: ir.Graph, inputs: Iterable[str], rows: int) -> str | None:
    """Why the rows of ``inputs`` may not be independent, or an output may not hold one for each; None if all is well.

    ``graph`` is static, with ``rows`` (2 or more) in dimension 0 of the inputs named.
    """
    known: dict[ir.Value, _Batch] = {}
    lists: set[ir.Value] = set()
    wanted = set(inputs)
    for value in graph.inputs:
        shape = static_shape(value)
        if value.name in wanted and shape:
            known[value] = _Batch(shape, prod(shape[1:]), rows)
    for node in graph:
        sources = [known.get(value) if value is not None else None for value in node.inputs]
        if not any(sources):
            continue
        try:
            if node.domain == "ai.onnx.ml" and node.op_type == "ZipMap" and sources[0] is not None:
                if sources[0].axis != 0:
                    raise _Mixes("the batch is not dimension 0")
                lists.update(node.outputs)
                continue
            for value in named_outputs(node):
                known[value] = _through(node, sources, static_shape(value))
        except _Mixes as reason:
            return f"{titled(node)}: {reason}"
    for value in graph.outputs:
        if value in lists:
            continue
        batch, shape = known.get(value), static_shape(value)
        if batch is None or not shape or shape[0] != rows or batch.stride != prod(shape[1:]):
            return f"output {value.name!r} does not hold one row for each of the batch"
    return None


def _through(node: ir.Node, sources: list[_Batch | None], shape: Shape | None) -> _Batch:
    rule = _RULES.get((node.domain, node.op_type))
    if rule is None or shape is None:
        raise _Mixes("what it does to the batch is not known")
    batch = rule(node, sources, shape)
    if batch.axis < 0:  # asks for the axis: it must be one dimension's
        raise _Mixes("the batch is lost")
    return batch


def _only(sources: list[_Batch | None]) -> _Batch:
    """The first input, which alone may have the batch."""
    first, *others = sources
    if first is None or any(others):
        raise _Mixes("an input other than the first depends on the batch")
    return first


def _reformed(_node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    return _Batch(shape, batch.stride, batch.rows)


def _elementwise(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    found = {b.moved(shape, len(shape) - len(b.shape) + b.axis) for b in sources if b is not None}
    if len(found) != 1:
        raise _Mixes("its inputs have the batch in different places")
    made = found.pop()
    for value, batch in zip(node.inputs, sources, strict=True):
        other = static_shape(value) or ()
        place = made.axis - len(shape) + len(other)
        if batch is None and place >= 0 and other[place] != 1:
            raise _Mixes("what it does to a row depends on the row's place in the batch")
    return made


def _by_image(_node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    if batch.axis != 0:
        raise _Mixes("the batch is not dimension 0")
    return batch.moved(shape, 0)


def _along(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    present = [batch for batch in sources if batch is not None]
    batch = present[0]
    if node.op_type != "Concat":
        _only(sources)
    default = {"Concat": 1, "Gather": 0, "Split": 0, "ArgMax": 0, "ArgMin": 0}.get(node.op_type, -1)
    rank = len(batch.shape)
    opset = node.graph.opset_imports[""] if node.graph is not None else 0
    flattens = node.op_type in _FLATTENING and opset < 13
    axis = node.attributes.get_int("axis", 1 if flattens else default) % rank
    if batch.axis >= axis if flattens else batch.axis == axis:
        raise _Mixes(f"it works along dimension {axis}, which is the batch's")
    kept = batch.axis if batch.axis < axis or len(shape) == rank else batch.axis + len(shape) - rank
    if any(other != batch for other in present) and node.op_type != "Concat":
        raise _Mixes("its inputs have the batch in different places")
    if len({(b.axis, b.within) for b in present}) > 1 or (node.op_type == "Concat" and len(present) < len(sources)):
        raise _Mixes("its inputs have the batch in different places")
    return batch.moved(shape, kept)


def _gathered(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    """By constant indices from within a row, or rows of a constant table by the indices that a row holds."""
    data, indices = sources
    if indices is None or data is not None:
        return _along(node, sources, shape)
    assert node.inputs[0] is not None
    table = static_shape(node.inputs[0])
    if table is None:
        raise _Mixes("the table it reads has no fixed shape")
    return indices.moved(shape, node.attributes.get_int("axis", 0) % len(table) + indices.axis)


def _reduced(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    rank = len(batch.shape)
    given = node.attributes.get_ints("axes", [])
    if not given and len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = node.inputs[1].const_value
        if constant is None:
            raise _Mixes("its axes are computed")
        given = [int(axis) for axis in constant.numpy().reshape(-1)]
    axes = {axis % rank for axis in given} or set(range(rank))
    if not given and node.attributes.get_int("noop_with_empty_axes", 0) != 0:
        axes = set()
    if batch.axis in axes:
        raise _Mixes("it reduces the batch's dimension")
    gone = 0 if len(shape) == rank else len([axis for axis in axes if axis < batch.axis])
    return batch.moved(shape, batch.axis - gone)


def _transposed(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    order = list(node.attributes.get_ints("perm", list(reversed(range(len(shape))))))
    return batch.moved(shape, order.index(batch.axis))


def _gemm(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch, *others = sources
    if batch is None or others[0] is not None or batch.axis != (1 if node.attributes.get_int("transA", 0) else 0):
        raise _Mixes("the batch is not the rows of its left side")
    made = batch.moved(shape, 0)
    if len(others) > 1 and others[1] is not None and others[1].moved(shape, others[1].axis) != made:
        raise _Mixes("its inputs have the batch in different places")
    return made


def _matmul(_node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    found = set()
    for position, batch in enumerate(sources):
        if batch is None:
            continue
        kept = len(batch.shape) - 2  # of a matrix: its rows on the left side, nothing on the right
        if batch.axis > kept or (position == 1 and batch.axis == kept):
            raise _Mixes("it sums over the batch")
        found.add(batch.moved(shape, len(shape) - len(batch.shape) + batch.axis))
    if len(found) != 1 or (len(found) == 1 and _rows_meet(sources)):
        raise _Mixes("its inputs have the batch in different places")
    return found.pop()


def _rows_meet(sources: list[_Batch | None]) -> bool:
    """Whether the rows of a left matrix are the batch, and all of them meet a right side that depends on it, too."""
    left, right = sources[0], sources[1]
    return left is not None and right is not None and left.axis == len(left.shape) - 2


def _sliced(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    if node.op_type == "Slice" and any(step < 0 for step in _steps(node)):
        raise _Mixes("it turns a dimension around, which may be the batch's")
    if node.op_type == "Tile" and shape[batch.axis] != batch.shape[batch.axis]:
        raise _Mixes("it repeats the batch")
    return batch.moved(shape, batch.axis)


def _steps(node: ir.Node) -> list[int]:
    """The steps of a Slice; -1 where they are computed."""
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is None:
        return []
    return [-1] if steps.const_value is None else [int(step) for step in steps.const_value.numpy().reshape(-1)]


def _normalized(node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    batch = _only(sources)
    if batch.axis >= node.attributes.get_int("axis", -1) % len(batch.shape):
        raise _Mixes("it normalizes over the batch")
    return batch.moved(shape, batch.axis)


def _extracted(_node: ir.Node, sources: list[_Batch | None], shape: Shape) -> _Batch:
    """Columns of a row by constant indices, or entries of a constant table by the indices of the rows."""
    data, indices = sources
    if indices is None:
        batch = _only(sources)
        return batch.moved(shape, batch.axis)
    if data is not None:
        raise _Mixes("both its inputs depend on the batch")
    return _Batch(shape, indices.stride, indices.rows)


def _table() -> dict[tuple[str, str], Rule]:
    families: list[tuple[str, Rule]] = [
        (_REFORMING, _reformed),
        (_ELEMENTWISE, _elementwise),
        (_BY_IMAGE, _by_image),
        (_ALONG, _along),
        (_REDUCING, _reduced),
        ("Transpose", _transposed),
        ("Gather", _gathered),
        ("Gemm", _gemm),
        ("MatMul", _matmul),
        ("Slice Pad Resize Tile QuantizeLinear DequantizeLinear", _sliced),
        ("LayerNormalization RMSNormalization", _normalized),
    ]
    table = {("", name): rule for names, rule in families for name in names.split()}
    by_row = "Binarizer Imputer LinearClassifier LinearRegressor Normalizer Scaler"
    table |= {("ai.onnx.ml", name): _by_image for name in by_row.split()}
    table |= {("ai.onnx.ml", "LabelEncoder"): _reformed, ("ai.onnx.ml", "ArrayFeatureExtractor"): _extracted}
    return table


_RULES = _table()
