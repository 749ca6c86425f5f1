"""A model's inputs and outputs, as the file declares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import onnx
import onnx_ir as ir

from trnrt.importer.folding.guarding import infer_graph
from trnrt.importer.reading.protos import all_graphs
from trnrt.importer.records import TensorInfo


def tensor_info(info: onnx.ValueInfoProto) -> TensorInfo:
    """An input or output of the graph."""
    if not info.type.HasField("tensor_type"):
        return TensorInfo(info.name, _in_words(info.type), ())
    tensor = info.type.tensor_type
    return TensorInfo(info.name, dtype_name(tensor.elem_type), tuple(_dim(dim) for dim in tensor.shape.dim))


def dtype_name(code: int) -> str:
    """numpy's name for ONNX's code of a data type; "str" for strings."""
    dtype = ir.DataType(code)
    return "str" if dtype == ir.DataType.STRING else str(dtype.numpy().name)


# ONNX's own functions whose result has the shape of their first input. onnx's inference leaves it open.
SAME_SHAPE = frozenset({"GroupNormalization", "MeanVarianceNormalization"})


def shape_outputs(model: onnx.ModelProto) -> bool:
    """Infer the shapes of outputs that state none, as onnxruntime does; false if there were any.

    Some exporters and hand-made models leave them out.
    """
    bare = [output for output in model.graph.output if not _states_shape(output.type)]
    if not bare:
        return True
    with _write_as_identities(model):
        inferred = {output.name: output.type for output in infer_graph(model).output}
    for output in bare:
        if _states_shape(inferred[output.name]) and inferred[output.name].WhichOneof("value") is not None:
            output.type.CopyFrom(inferred[output.name])
    return False


@contextmanager
def _write_as_identities(model: onnx.ModelProto) -> Iterator[None]:
    """Turn nodes of ``SAME_SHAPE`` into Identity, whose shape onnx infers, in a with block."""
    replaced = []
    for node in model.graph.node:
        if node.domain == "" and node.op_type in SAME_SHAPE and node.input:
            replaced.append((node, onnx.NodeProto.FromString(node.SerializeToString())))
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1]))
    try:
        yield
    finally:
        for node, original in replaced:
            node.CopyFrom(original)


@contextmanager
def state_shapes(model: onnx.ModelProto) -> Iterator[bool]:
    """Give outputs of unknown shape that of a scalar in a with block: onnx's checker needs a shape for each.

    Yields whether all had one.
    """
    bare = [output.type.tensor_type for output in model.graph.output if not _states_shape(output.type)]
    bare = [kind for kind in bare if kind.elem_type]
    for kind in bare:
        kind.shape.SetInParent()
    try:
        yield not bare
    finally:
        for kind in bare:
            kind.ClearField("shape")


def _states_shape(kind: onnx.TypeProto) -> bool:
    """True if a type states its shape; true for one that isn't a tensor, which has none."""
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


def shared_batch(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> list[str]:
    """The symbols that name one batch, if each input of rank 2 or more has one of its own; else none.

    Exporters that name no axes write so (``s72`` and ``s43``, ``x_dynamic_axes_1``, ``unk__6``). Two sizes that both
    reach an output, such as those of queries and documents, are not one. Neither the file nor this proves that the rows
    belong together: that is ``mixing_at_any``'s to find, and a run may have other numbers of rows (``apart``).
    """
    shapes = [info.shape for info in inputs if info.shape]
    firsts = list(dict.fromkeys(dim for shape in shapes if isinstance(dim := shape[0], str)))
    results = [info.shape for info in outputs]
    inner = {dim for shape in (*shapes, *results) for dim in shape[1:]}
    reached = {shape[0] for shape in results if shape} & set(firsts)
    if len(firsts) < 2 or len(reached) > 1 or inner & set(firsts):
        return []
    if not all(len(shape) > 1 and isinstance(shape[0], str) for shape in shapes):
        return []
    return firsts if all(shape and not isinstance(shape[0], int) for shape in results) else []


def rename_batch(info: TensorInfo, symbols: Sequence[str]) -> TensorInfo:
    """An input or output with the first of ``symbols`` in place of the others."""
    first = info.shape[:1]
    return replace(info, shape=(symbols[0], *info.shape[1:])) if first and first[0] in symbols else info


def forget_maps(model: onnx.ModelProto) -> None:
    """Remove the types of values that are or contain maps: onnx_ir can't represent them."""
    for graph in all_graphs(model):
        for infos in (graph.input, graph.output, graph.value_info):
            for info in infos:
                if _holds_map(info.type):
                    info.ClearField("type")


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        # Some exporters write 0 or -1 for an open size.
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
