"""Parts of a bound graph as models of their own."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from trnrt.errors import ModelFileError
from trnrt.importer import ImportedModel, TensorInfo
from trnrt.planner.lowering.walk import value_name
from trnrt.planner.naming import printable

LARGEST_PART = 2**31 - 1
"""The most bytes of a part for the CPU: onnxruntime gets it as one protobuf message, which can't be larger."""

_SMALL = 1024
"""The most bytes of a constant for inference: shapes and axes are small."""


def type_open_values(model: ir.Model) -> None:
    """Give values without a static shape the type that ONNX infers; onnxruntime needs one for inputs."""
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
    """Cut out the nodes that make ``outputs`` of ``inputs``, with their constants, as a model called ``name``."""
    graph = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    graph.name = name
    for domain, version in model.opset_imports.items():
        graph.opset_imports.setdefault(domain, version)
    part = ir.Model(graph, ir_version=model.ir_version)
    opset = model.opset_imports.get("", 0)
    given, made = tuple(map(_info, graph.inputs)), tuple(map(_info, graph.outputs))
    return ImportedModel(name, given, made, metadata={}, batch=None, opset=opset, read=lambda: part)


def _info(value: ir.Value) -> TensorInfo:
    if value.dtype is None:
        return TensorInfo(value_name(value), "unknown()", ())
    dtype = "str" if value.dtype is ir.DataType.STRING else value.dtype.numpy().name
    dims = () if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    return TensorInfo(value_name(value), dtype, dims)


def serialize_part(part: ImportedModel) -> bytes:
    """A part as onnxruntime loads it. ModelFileError if it is larger than a message can be."""
    size = sum(value.const_value.nbytes for value in part.model.graph.initializers.values() if value.const_value)
    too_large = f"{printable(part.name)}: the part for the CPU holds {size:,} bytes of constants; onnxruntime takes"
    if size > LARGEST_PART:
        raise ModelFileError(f"{too_large} {LARGEST_PART:,} at most", hint="split the model before its large constants")
    proto: onnx.ModelProto = ir.to_proto(part.model)
    return bytes(proto.SerializeToString())
