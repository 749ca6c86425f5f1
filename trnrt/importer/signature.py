"""What a model's inputs and outputs are, as the file declares them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from trnrt.importer.model import TensorInfo
from trnrt.importer.protos import all_graphs


def tensor_info(info: onnx.ValueInfoProto) -> TensorInfo:
    """An input or output of the graph."""
    if not info.type.HasField("tensor_type"):
        return TensorInfo(info.name, _in_words(info.type), ())
    tensor = info.type.tensor_type
    return TensorInfo(info.name, dtype_name(tensor.elem_type), tuple(_dim(dim) for dim in tensor.shape.dim))


def dtype_name(code: int) -> str:
    """The name that numpy has for ONNX's code of a data type; "str" for strings."""
    dtype = ir.DataType(code)
    return "str" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


def shape_outputs(model: onnx.ModelProto) -> bool:
    """Give outputs that state no shape the inferred one, as onnxruntime does; false if there was any to give.

    onnx's checker wants every output to state its shape; exporters and hand-made models leave it out.
    """
    bare = [output for output in model.graph.output if not _states_shape(output.type)]
    if not bare:
        return True
    inferred = {output.name: output.type for output in onnx.shape_inference.infer_shapes(model).graph.output}
    for output in bare:
        if _states_shape(inferred[output.name]):
            output.type.CopyFrom(inferred[output.name])
    return False


def _states_shape(kind: onnx.TypeProto) -> bool:
    """True too for what is no tensor, which has no shape to state."""
    return kind.WhichOneof("value") not in (None, "tensor_type") or kind.tensor_type.HasField("shape")


def batch_of(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> int | str | None:
    """See ``ImportedModel.batch``."""
    shapes = [info.shape for info in inputs if info.shape]
    firsts = {shape[0] for shape in shapes}
    if len(firsts) != 1:
        return None
    first = firsts.pop()
    if not isinstance(first, int):
        return first or "batch"
    # A list of dicts (ZipMap) has one for each row.
    in_every_output = all(info.shape[:1] == (first,) for info in outputs if not info.dtype.startswith("seq(map("))
    return first if in_every_output and all(len(shape) > 1 for shape in shapes) else None


def forget_maps(model: onnx.ModelProto) -> None:
    """Remove the types of values that are or hold maps, for which onnx_ir has no words."""
    for graph in all_graphs(model):
        for infos in (graph.input, graph.output, graph.value_info):
            for info in infos:
                if _holds_map(info.type):
                    info.ClearField("type")


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        # Some exporters write 0 or -1 for a size that is open.
        return int(dim.dim_value) if dim.dim_value > 0 else None
    return str(dim.dim_param) or None


def _holds_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("map_type"):
        return True
    if kind.HasField("sequence_type"):
        return _holds_map(kind.sequence_type.elem_type)
    return kind.HasField("optional_type") and _holds_map(kind.optional_type.elem_type)


def _in_words(kind: onnx.TypeProto) -> str:
    """A type in words, for example "seq(map(int64, float32))"."""
    if kind.HasField("tensor_type"):
        return dtype_name(kind.tensor_type.elem_type)
    if kind.HasField("sequence_type"):
        return f"seq({_in_words(kind.sequence_type.elem_type)})"
    if kind.HasField("optional_type"):
        return f"optional({_in_words(kind.optional_type.elem_type)})"
    if kind.HasField("map_type"):
        return f"map({dtype_name(kind.map_type.key_type)}, {_in_words(kind.map_type.value_type)})"
    return "sparse()" if kind.HasField("sparse_tensor_type") else "unknown()"
