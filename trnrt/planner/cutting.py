"""Parts of a bound graph as models of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from trnrt.errors import ModelFileError
from trnrt.importer import ImportedModel, TensorInfo
from trnrt.importer.limits import MOST_FOLDED
from trnrt.importer.values import constant_array, replace_output
from trnrt.planner.lowering import value_name
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array

LARGEST_PART = 2**31 - 1
"""Bytes of a part for the CPU: it is handed to onnxruntime as one protobuf message, which can't be larger."""

_SMALL = 1024
"""Bytes of a constant that inference is shown: shapes and axes are small."""


def type_open_values(model: ir.Model) -> None:
    """Give values without a static shape the type that ONNX's own inference knows; onnxruntime wants one of inputs."""
    untyped = [value for node in model.graph for value in node.outputs if value.name and value.type is None]
    if not untyped:
        return
    bare = model.clone()
    for name, value in list(bare.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _SMALL:
            bare.graph.initializers.pop(name)
            value.const_value = None
            bare.graph.inputs.append(value)
    try:
        graph = onnx.shape_inference.infer_shapes(ir.to_proto(bare), data_prop=True).graph
    except Exception:  # the graph is untrusted; what onnxruntime then says of it names the part
        return
    found = {info.name: info.type for info in [*graph.value_info, *graph.output]}
    for value in untyped:
        kind = found.get(value_name(value))
        if kind is not None and kind.WhichOneof("value") is not None and "map_type" not in str(kind):
            value.type = ir.serde.deserialize_type_proto_for_type(kind)
            value.shape = ir.serde.deserialize_type_proto_for_shape(kind)


def cut(model: ir.Model, name: str, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> ImportedModel:
    """What makes ``outputs`` of ``inputs``, with the constants that it reads, as a model called ``name``."""
    graph = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    graph.name = name
    for domain, version in model.opset_imports.items():
        graph.opset_imports.setdefault(domain, version)
    part = ir.Model(graph, ir_version=model.ir_version)
    opset = model.opset_imports.get("", 0)
    given, made = tuple(map(_info, graph.inputs)), tuple(map(_info, graph.outputs))
    return ImportedModel(name, given, made, metadata={}, batch=None, opset=opset, model=part)


def dequantise_constants(model: ir.Model) -> None:
    """Compute the weights that a quantised model stores as integers, once: they are then weights like others."""
    left = MOST_FOLDED
    for node in list(model.graph):
        if node.domain == "" and node.op_type == "DequantizeLinear" and (array := _dequantised(node)) is not None:
            left -= array.nbytes
            if left < 0:
                return
            tensor = ir.tensor(array)
            kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
            replace_output(node, ir.Value(name=node.outputs[0].name, type=kind, shape=shape, const_value=tensor))


def _dequantised(node: ir.Node) -> Array | None:
    """What a DequantizeLinear of constants makes; None where it has none, or is of a kind that is not done here."""
    given = [constant_array(value) for value in node.inputs]
    if any(array is None for array in given) or node.attributes.keys() - {"axis"}:
        return None
    whole, scale, *rest = (array for array in given if array is not None)
    if whole.dtype.kind not in "iu" or scale.dtype != np.float32 or scale.ndim > 1:
        return None
    along = [1] * whole.ndim
    if scale.size > 1:
        along[node.attributes.get_int("axis", 1)] = -1
    zero = (rest[0] if rest else np.zeros((), whole.dtype)).astype(np.int32)
    if zero.size > 1:
        zero = zero.reshape(along)
    numbers = (whole.astype(np.int32) - zero).astype(np.float32)
    return np.asarray(numbers * (scale.reshape(along) if scale.size > 1 else scale), np.float32)


def _info(value: ir.Value) -> TensorInfo:
    if value.dtype is None:
        return TensorInfo(value_name(value), "unknown()", ())
    dtype = "str" if value.dtype is ir.DataType.STRING else value.dtype.numpy().name
    dims = () if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return TensorInfo(value_name(value), dtype, dims)


def serialized(part: ImportedModel) -> bytes:
    """A part as onnxruntime loads it. ModelFileError where it is larger than a message can be."""
    size = sum(value.const_value.nbytes for value in part.model.graph.initializers.values() if value.const_value)
    too_large = f"{printable(part.name)}: the part for the CPU holds {size:,} bytes of constants; onnxruntime takes"
    if size > LARGEST_PART:
        raise ModelFileError(f"{too_large} {LARGEST_PART:,} at most", hint="split the model before its large constants")
    proto: onnx.ModelProto = ir.to_proto(part.model)
    return bytes(proto.SerializeToString())
