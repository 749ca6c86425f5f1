"""Wrong models for the comparison of outputs: what trnrt runs is changed, what onnxruntime runs is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import trnrt

Array = NDArray[Any]
Change = Callable[[onnx.ModelProto], None]


def mistaken(model: bytes, change: Change, dtype: str = "float32") -> trnrt.InferenceSession:
    """A session of ``model`` that runs a changed copy of it."""
    copy = onnx.load_from_string(model)
    change(copy)
    wrong = trnrt.InferenceSession(copy.SerializeToString(), dtype=dtype, backend="simulator", cache=False)
    session = trnrt.InferenceSession(model, dtype=dtype, backend="simulator", cache=False)
    patch = pytest.MonkeyPatch()
    patch.setattr(session, "run", wrong.run)
    patch.setattr(session, "with_options", wrong.with_options)
    return session


def weights_of(model: onnx.ModelProto) -> list[tuple[onnx.NodeProto, onnx.TensorProto]]:
    """The products with constant weights, and these, in the order of the graph."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    return [(node, stored[node.input[1]]) for node in products if node.input[1] in stored]


def with_array(tensor: onnx.TensorProto, change: Callable[[Array], None]) -> None:
    """Change a tensor in place."""
    array = numpy_helper.to_array(tensor).copy()
    change(array)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def middle(model: onnx.ModelProto) -> onnx.TensorProto:
    """The weights in the middle of the model."""
    found = weights_of(model)
    return found[len(found) // 2][1]


def one_weight(model: onnx.ModelProto) -> None:
    """The largest weight of a layer, doubled."""

    def double(array: Array) -> None:
        array.reshape(-1)[np.abs(array).argmax()] *= 2

    with_array(middle(model), double)


def one_filter(model: onnx.ModelProto) -> None:
    """Half the weights of a filter, by 1 %: a norm after it would undo it for all of them."""

    def grow(array: Array) -> None:
        array[0, ::2] *= np.float32(1.01)

    with_array(middle(model), grow)


def swapped(model: onnx.ModelProto) -> None:
    """Two filters in each other's place."""

    def swap(array: Array) -> None:
        array[[0, 1]] = array[[1, 0]]

    with_array(middle(model), swap)


def padded(model: onnx.ModelProto) -> None:
    """An image that is moved by one row."""
    node = [node for node in model.graph.node if node.op_type == "Conv"][1]
    (pads,) = [attribute for attribute in node.attribute if attribute.name == "pads"]
    top, left, bottom, right = pads.ints
    pads.ints[:] = [top + 1, left, bottom - 1, right]


def last_channel(model: onnx.ModelProto) -> None:
    """One channel of what comes out, by 1 %."""
    node, tensor = weights_of(model)[-1]

    def grow(array: Array) -> None:
        array[..., -1] *= np.float32(1.01)

    def grow_filter(array: Array) -> None:
        array[-1] *= np.float32(1.01)

    with_array(tensor, grow_filter if node.op_type == "Conv" else grow)


CHANGES: dict[str, Change] = {
    "one weight": one_weight,
    "one filter": one_filter,
    "swapped filters": swapped,
    "moved image": padded,
    "one channel": last_channel,
}
