"""The layers that a session multiplies in 8-bit floats, in a model that onnxruntime runs with the same rounding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from trnrt.errors import QuantiseError
from trnrt.operators.float8_steps import LARGEST, NUMPY, weight_scales
from trnrt.planner.lowering.walk import node_name
from trnrt.quantise.data import BATCH, Batch, Data
from trnrt.quantise.preparing import Layer, Prepared
from trnrt.running.rows import pad_rows
from trnrt.text import one_line

if TYPE_CHECKING:
    from trnrt.session import InferenceSession

_OPSET = 19
"""The first opset whose Cast makes 8-bit floats."""
# Up to 240 both formats with 4 significant bits have the same numbers; onnxruntime has the one without infinities.
_CASTS = {"float8_e4m3": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2}
_KNOWN_IR = 10  # onnxruntime refuses newer versions


@dataclass(frozen=True)
class Float8Layers:
    """A model as planned, for a batch of ``rows`` (None: without a batch), and the scale of the source of each layer
    that multiplies 8-bit floats. ``prepared``: these layers, and the model in float32. ``products``: the number of
    convolutions and matrix products."""

    model: onnx.ModelProto
    prepared: Prepared
    dtype: str
    scales: Mapping[str, float]
    rows: int | None
    products: int

    def make(self, kept: Collection[str]) -> bytes:
        """The model with rounded factors in all layers but ``kept``."""
        made = onnx.ModelProto()
        made.CopyFrom(self.model)
        nodes = list(made.graph.node)
        weights = {one.name: one for one in made.graph.initializer}
        del made.graph.node[:]
        for node in nodes:
            if node.name in self.scales and node.name not in kept:
                made.graph.node.extend(_round_source(node, self.scales[node.name], self.dtype))
                rounded = _round_weight(node, weights[node.input[1]], self.dtype)
                made.graph.initializer.append(rounded)
                node.input[1] = rounded.name
            made.graph.node.append(node)
        return bytes(made.SerializeToString())

    def pad(self, data: Data) -> Data:
        """The data with whole batches of the model's rows, and only the inputs that are left in it."""
        wanted = {value.name for value in self.model.graph.input}
        batches = []
        for batch in data.batches:
            feeds = {name: array for name, array in batch.feeds.items() if name in wanted}
            if self.rows is not None:
                feeds = {name: pad_rows(array, self.rows) if array.ndim else array for name, array in feeds.items()}
            batches.append(Batch(feeds, batch.rows))
        return replace(data, batches=tuple(batches))


def join_batches(data: Data) -> dict[str, NDArray[Any]]:
    """The rows of all batches, without those that fill a batch."""
    first = data.batches[0].feeds
    return {
        name: np.concatenate([batch.feeds[name][: batch.rows] for batch in data.batches]) if array.ndim else array
        for name, array in first.items()
    }


def find_layers(session: InferenceSession, planned: int | None = None) -> Float8Layers:
    """The layers that a session in 8-bit floats has in them if it is planned for ``planned`` rows, by default BATCH.

    QuantiseError if onnx can't convert the model to an opset with 8-bit floats.
    """
    fixed = session.model.batch
    rows = None if fixed is None else fixed if isinstance(fixed, int) else BATCH
    bound = session.model.bind(session.shapes_for(rows or 1)).model
    steps = {
        step.name: step for plan in session.partition(planned or rows or 1).plans for step in plan.steps if step.float8
    }
    layers, products = [], 0
    for node in bound.graph:
        node.name = node_name(node)
        products += node.op_type in ("Conv", "Gemm", "MatMul")
        if node.name in steps:
            layers.append(Layer(node.name, node.op_type, steps[node.name].nodes))
    proto = _in_opset(ir.to_proto(bound), session.name)
    content = proto.SerializeToString()
    scales = {name: step.source_scale for name, step in steps.items()}
    size = len(session.serialized())
    return Float8Layers(proto, Prepared(content, tuple(layers), size), session.dtype, scales, rows, products)


def _in_opset(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with an opset whose Cast makes 8-bit floats, and its weights as initializers."""
    opset = next((item.version for item in proto.opset_import if item.domain == ""), _OPSET)
    if opset < _OPSET:
        from onnx import version_converter

        try:
            proto = version_converter.convert_version(proto, _OPSET)
        except Exception as error:  # onnx raises errors of several kinds for what it can't convert
            raise QuantiseError(
                f"{name!r} has opset {opset}, and onnx can't convert it to {_OPSET}, which has 8-bit floats: "
                f"{one_line(str(error))}",
                hint=f"export the model with opset {_OPSET} or later",
            ) from None
    proto.ir_version = min(max(proto.ir_version, 9), _KNOWN_IR)
    constants = [node for node in proto.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    for node in constants:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        proto.graph.initializer.append(tensor)
        proto.graph.node.remove(node)
    return proto


def _round_source(node: onnx.NodeProto, scale: float, dtype: str) -> Iterator[onnx.NodeProto]:
    """The nodes that round a layer's source, which then reads their result: first to bfloat16, as it is stored."""
    value, name = node.input[0], f"{node.name}/{dtype}"
    constants = {"scale": 1 / scale, "low": -LARGEST[dtype], "high": LARGEST[dtype], "unit": scale}
    for key, number in constants.items():
        tensor = helper.make_tensor(f"{name}/{key}", TensorProto.FLOAT, [], [number])
        yield helper.make_node("Constant", [], [tensor.name], value=tensor)
    yield helper.make_node("Cast", [value], [f"{name}/stored"], to=TensorProto.BFLOAT16)
    yield helper.make_node("Cast", [f"{name}/stored"], [f"{name}/read"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{name}/read", f"{name}/scale"], [f"{name}/scaled"])
    yield helper.make_node("Clip", [f"{name}/scaled", f"{name}/low", f"{name}/high"], [f"{name}/limited"])
    yield helper.make_node("Cast", [f"{name}/limited"], [f"{name}/rounded"], to=_CASTS[dtype])
    yield helper.make_node("Cast", [f"{name}/rounded"], [f"{name}/wide"], to=TensorProto.FLOAT)
    yield helper.make_node("Mul", [f"{name}/wide", f"{name}/unit"], [f"{name}/source"])
    node.input[0] = f"{name}/source"


def _round_weight(node: onnx.NodeProto, weight: onnx.TensorProto, dtype: str) -> onnx.TensorProto:
    """A layer's weight, each output's rounded in units of its scale."""
    given: dict[str, Any] = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    array = numpy_helper.to_array(weight).astype(np.float32)
    first = node.op_type == "Conv" or bool(given.get("transB", 0))
    by_output = np.moveaxis(array, 0, -1) if first else array
    alpha = np.float32(given.get("alpha", 1.0) or 1.0)
    scales = weight_scales(by_output * alpha, dtype)
    rounded = (by_output * alpha / scales).astype(NUMPY[dtype]).astype(np.float32) * scales / alpha
    made = np.moveaxis(rounded, -1, 0) if first else rounded
    return numpy_helper.from_array(np.ascontiguousarray(made), f"{node.name}/{dtype}/weight")
