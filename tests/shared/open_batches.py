"""Small random graphs with an open batch, for what they do to dimension 0: cut, pad, repeat, move and mix its rows.

A graph grows node by node. A piece is a function that takes ``Growing`` and hypothesis's ``draw``, and adds what it
likes; ``PIECES`` are all of them. What onnxruntime does not take is not added, so a piece need not know every rule of
an operator. ``open_batch_models`` is the strategy for whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
USUAL_ROWS = 6
"""The rows for which a graph is grown; others may be refused by onnxruntime, as where they are split in halves."""
LARGEST = 2000
"""Elements of a value: the simulator takes its time for more."""
END = 2**63 - 1


@dataclass
class Growing:
    """A graph of one float input ``x`` with an open batch; ``values`` are what a next node may read, at their usual
    number of rows."""

    sizes: tuple[int, ...]
    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values["x"] = random_rows(USUAL_ROWS, self.sizes)

    def constant(self, array: object, dtype: Any = np.int64) -> str:
        """The name of a new constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """The names of a new node's outputs; none where onnxruntime refuses it, or makes too much of it."""
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        try:
            made = reference(self.model(names, shapes=False), self.values["x"])
        except Exception:  # onnxruntime has many kinds, and each means the same here
            made = None
        if made is None or any(array.size > LARGEST or not array.size or array.ndim > 5 for array in made):
            self.nodes.pop()
            return []
        self.values |= dict(zip(names, made, strict=True))
        return names

    def model(self, outputs: Sequence[str], *, shapes: bool = True) -> bytes:
        """The model that gives these values; ``shapes``: their ranks are stated, and no size."""
        kinds = {name: helper.np_dtype_to_tensor_dtype(self.values[name].dtype) for name in outputs if shapes}
        stated = [
            helper.make_tensor_value_info(name, kinds[name], [f"{name}_{k}" for k in range(self.values[name].ndim)])
            if shapes
            else onnx.ValueInfoProto(name=name)
            for name in outputs
        ]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *self.sizes])
        graph = helper.make_graph(self.nodes, "open_batch", [given], stated, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        return made


def random_rows(rows: int, sizes: tuple[int, ...]) -> Array:
    """Rows, each with numbers of its own: which are the same whatever their number."""
    return np.random.default_rng(0).uniform(0.25, 2, (rows, *sizes)).astype(np.float32)


def reference(model: bytes, x: Array) -> list[Array]:
    """What onnxruntime answers, without its rewrites: with them it takes models that contradict themselves."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, {"x": x})
    return outputs


def is_valid(model: bytes, rows: int) -> bool:
    """Whether onnx agrees that the model takes so many rows: onnxruntime reduces dimension 0 of a scalar, too."""
    proto = onnx.ModelProto.FromString(model)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


# -- what pieces choose from -----------------------------------------------------------------------------


def a_value(growing: Growing, draw: Draw) -> str:
    """A float value of rank 1 or more; the newest of them half of the time."""
    names = [name for name, array in growing.values.items() if array.dtype == np.float32 and array.ndim]
    return str(draw(st.just(names[-1]) | st.sampled_from(names)))


def an_axis(growing: Growing, value: str, draw: Draw) -> int:
    """A dimension of it: the first one half of the time, which the batch mostly is."""
    axis: int = draw(st.just(0) | st.integers(0, growing.values[value].ndim - 1))
    return axis


# -- pieces: what a piece adds it gives, or nothing ------------------------------------------------------


def cut(growing: Growing, draw: Draw) -> list[str]:
    """A range of a dimension, from either end, all of it for some numbers of rows."""
    value = a_value(growing, draw)
    axis, bounds = an_axis(growing, value, draw), st.integers(-7, 7)
    start, end = draw(st.just(0) | bounds), draw(st.just(END) | bounds)
    step = draw(st.sampled_from([1, 1, 1, 2, -1]))
    if step < 0:
        start, end = draw(st.sampled_from([(END, -END), (-1, -END), (5, -END)]))
    named = [growing.constant([number]) for number in (start, end, axis, step)]
    return growing.add("Slice", value, *named)


def divide(growing: Growing, draw: Draw) -> list[str]:
    """A dimension in equal parts; what follows reads any of them."""
    value = a_value(growing, draw)
    return growing.add("Split", value, outputs=draw(st.integers(1, 3)), axis=an_axis(growing, value, draw))


def pad(growing: Growing, draw: Draw) -> list[str]:
    """More or less of a dimension at its ends; as much more as less moves its rows."""
    value = a_value(growing, draw)
    rank, axis = growing.values[value].ndim, an_axis(growing, value, draw)
    pads = [0] * (2 * rank)
    pads[axis], pads[rank + axis] = draw(st.sampled_from([(1, -1), (-1, 1), (0, 1), (2, 0), (0, 0), (-1, 0)]))
    return growing.add("Pad", value, growing.constant(pads), mode=draw(st.sampled_from(["constant", "edge"])))


def tile(growing: Growing, draw: Draw) -> list[str]:
    """Copies along a dimension."""
    value = a_value(growing, draw)
    repeats = [1] * growing.values[value].ndim
    repeats[an_axis(growing, value, draw)] = draw(st.integers(1, 2))
    return growing.add("Tile", value, growing.constant(repeats))


def reshape(growing: Growing, draw: Draw) -> list[str]:
    """Another shape, with what is open at any place in it."""
    value = a_value(growing, draw)
    shape = growing.values[value].shape
    kept = list(shape[1:])
    targets = [[-1], [0, -1], [-1, *kept], [-1, 2], [2, -1], [3, -1], [-1, shape[-1]], [0, *kept, 1], [1, -1, *kept]]
    if shape[0] % USUAL_ROWS == 0:
        targets += [[-1, shape[0] // USUAL_ROWS, *kept], [shape[0] // USUAL_ROWS, -1, *kept]]
    if len(shape) > 2:
        targets += [[-1, *shape[2:]], [shape[1], -1, *shape[2:]], [-1, shape[1] * shape[2], *shape[3:]]]
    return growing.add("Reshape", value, growing.constant(draw(st.sampled_from(targets))))


def squeeze(growing: Growing, draw: Draw) -> list[str]:
    """Dimensions of one taken away; without axes that of a single row, too."""
    return growing.add("Squeeze", a_value(growing, draw))


def transpose(growing: Growing, draw: Draw) -> list[str]:
    """Another order of dimensions."""
    value = a_value(growing, draw)
    return growing.add("Transpose", value, perm=draw(st.permutations(range(growing.values[value].ndim))))


def concatenate(growing: Growing, draw: Draw) -> list[str]:
    """Two values side by side, or one with a constant."""
    one, other = a_value(growing, draw), a_value(growing, draw)
    axis, shape = an_axis(growing, one, draw), list(growing.values[one].shape)
    if draw(st.booleans()):
        shape[axis] = 1
        other = growing.constant(np.linspace(0, 1, int(np.prod(shape))).reshape(shape), np.float32)
    return growing.add("Concat", *draw(st.permutations([one, other])), axis=axis)


def reduce(growing: Growing, draw: Draw) -> list[str]:
    """A sum and the like along a dimension."""
    value = a_value(growing, draw)
    op = draw(st.sampled_from(["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"]))
    return growing.add(op, value, axes=[an_axis(growing, value, draw)], keepdims=draw(st.integers(0, 1)))


def normalize(growing: Growing, draw: Draw) -> list[str]:
    """What a number is in its dimension."""
    value = a_value(growing, draw)
    op = draw(st.sampled_from(["Softmax", "LogSoftmax", "LpNormalization"]))
    return growing.add(op, value, axis=an_axis(growing, value, draw))


def pick(growing: Growing, draw: Draw) -> list[str]:
    """Constant places of a dimension, from either end."""
    value = a_value(growing, draw)
    places = draw(st.lists(st.integers(-2, 1), min_size=1, max_size=3))
    return growing.add("Gather", value, growing.constant(places), axis=an_axis(growing, value, draw))


def choose_best(growing: Growing, draw: Draw) -> list[str]:
    """The largest numbers of a dimension, in their order."""
    value = a_value(growing, draw)
    count = growing.constant([draw(st.integers(1, 2))])
    return growing.add("TopK", value, count, outputs=2, axis=an_axis(growing, value, draw))[:1]


def expand(growing: Growing, draw: Draw) -> list[str]:
    """One more dimension, or a repeated one."""
    value = a_value(growing, draw)
    rank = growing.values[value].ndim
    return growing.add("Expand", value, growing.constant(draw(st.sampled_from([[1], [2] + [1] * rank, [1] * rank]))))


def resize(growing: Growing, draw: Draw) -> list[str]:
    """Pixels, or rows, interpolated or repeated."""
    value = a_value(growing, draw)
    scales = [1.0] * growing.values[value].ndim
    scales[an_axis(growing, value, draw)] = draw(st.sampled_from([1.0, 1.5, 2.0, 0.5]))
    return growing.add("Resize", value, "", growing.constant(scales, np.float32), mode="nearest")


def compute(growing: Growing, draw: Draw) -> list[str]:
    """A function of each number."""
    return growing.add(draw(st.sampled_from(["Relu", "Neg", "Sigmoid", "Abs"])), a_value(growing, draw))


def combine(growing: Growing, draw: Draw) -> list[str]:
    """Arithmetic of two values, or of one and a constant that goes along some of its dimensions."""
    one, other = a_value(growing, draw), a_value(growing, draw)
    if draw(st.booleans()):
        shape = [size if size != USUAL_ROWS and draw(st.booleans()) else 1 for size in growing.values[one].shape]
        other = growing.constant(np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape), np.float32)
    return growing.add(draw(st.sampled_from(["Add", "Sub", "Mul", "Max"])), one, other)


def multiply(growing: Growing, draw: Draw) -> list[str]:
    """A product with a constant matrix, or with the transpose of the same."""
    value = a_value(growing, draw)
    array = growing.values[value]
    if draw(st.booleans()):
        turned = growing.add("Transpose", value, perm=[*range(array.ndim - 2), array.ndim - 1, array.ndim - 2])
        return turned and growing.add("MatMul", value, turned[0])
    matrix = np.linspace(-1, 1, array.shape[-1] * 3).reshape(array.shape[-1], 3)
    return growing.add("MatMul", value, growing.constant(matrix, np.float32))


def count(growing: Growing, draw: Draw) -> list[str]:
    """What depends on the number of rows: a factor, positions, as many rows as there are or fewer."""
    rows = growing.add("Shape", "x", start=0, end=1)[0]
    value, kind = a_value(growing, draw), draw(st.integers(0, 4))
    if kind == 0:
        return growing.add("Mul", value, *growing.add("Cast", rows, to=TensorProto.FLOAT))
    if kind == 1:  # one more for each row
        scalar = growing.add("Squeeze", rows)[0]
        places = growing.add("Range", growing.constant(0), scalar, growing.constant(1))[0]
        column = growing.add("Unsqueeze", places, growing.constant(range(1, growing.values[value].ndim)))
        return column and growing.add("Add", value, *growing.add("Cast", column[0], to=TensorProto.FLOAT))
    if kind == 2:  # never more than 5
        fewer = growing.add("Min", rows, growing.constant([draw(st.integers(1, 5))]))[0]
        return growing.add("Slice", value, growing.constant([0]), fewer, growing.constant([0]))
    if kind == 3:  # all of them
        return growing.add("Slice", value, growing.constant([0]), rows, growing.constant([0]))
    kept = growing.constant(growing.values[value].shape[1:])
    return growing.add("Reshape", value, *growing.add("Concat", rows, kept, axis=0))


Piece = Callable[[Growing, Draw], list[str]]
PIECES: tuple[Piece, ...] = (
    cut, divide, pad, tile, reshape, squeeze, transpose, concatenate, reduce, normalize, pick, choose_best, expand,
    resize, compute, combine, multiply, count,
)  # fmt: skip


@st.composite
def open_batch_models(draw: Any, pieces: Sequence[Piece] = PIECES, most: int = 6) -> tuple[bytes, tuple[int, ...]]:
    """A model with an open batch, of up to ``most`` pieces, and the sizes of a row of its input ``x``."""
    growing = Growing(draw(st.sampled_from([(4,), (3,), (1, 4), (2, 3), (5, 4), (1, 4, 4), (2, 4, 4), ()])))
    for piece in draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=most)):
        piece(growing, draw)
    newest = list(growing.values)[-1]
    value = newest if growing.values[newest].dtype == np.float32 else a_value(growing, draw)
    if value == "x":
        value = growing.add("Relu", value)[0]
    return growing.model([value]), growing.sizes
