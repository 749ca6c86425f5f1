"""Shapes and types that the folder's inference leaves open, and reasons why some stay open."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from trnrt.importer.folding.amended import AMENDED, Kind
from trnrt.importer.folding.bytewise import float_twin, kind_of
from trnrt.importer.folding.guarding import is_dangerous
from trnrt.importer.folding.spatial import result_shape
from trnrt.importer.folding.windows import WINDOWED
from trnrt.importer.naming import node_text
from trnrt.importer.reading.signature import SAME_SHAPE
from trnrt.importer.values import has_subgraph, is_resolved, named_outputs, static_shape, static_size
from trnrt.operators.record import record_of
from trnrt.text import one_line, quote


@dataclass(frozen=True)
class Reason:
    """Why a value has no static shape. If ``is_contradiction``, no session could run the model; ``whatever_shapes``:
    the reason is in the types, independent of the inputs' shapes."""

    text: str
    is_contradiction: bool = False
    whatever_shapes: bool = False
    hint: str = "Export the model again."


def infer(node: ir.Node, model: ir.Model, symbols: dict[str, int]) -> bool:
    """Fill in the shapes and types of the node's outputs; return whether some became known."""
    unknown = [value for value in named_outputs(node) if not is_resolved(value)]
    if not unknown:
        return False
    found = _own_kinds(node) or _twin_kinds(node, model) or _correct_sizes(node, _onnx_kinds(node, model))
    for value in unknown:
        if (kind := found.get(value.name or "") or _declared_kind(value, node, model, symbols)) is not None:
            value.dtype, value.shape = kind[0], ir.Shape(kind[1])
    return any(is_resolved(value) for value in unknown)


def why_unknown(model: ir.Model) -> Iterator[Reason]:
    """A reason for each node whose outputs are not all resolved, and for each that contradicts itself."""
    for node in model.graph:
        if reason := _mismatch(node):
            yield reason
        elif _makes_list(node):
            continue
        elif any(not is_resolved(value) for value in named_outputs(node)):
            yield _reason(node, model)
        elif any(static_size(value) == 0 for value in named_outputs(node)):
            yield Reason(f"{node_text(node)}: its output is empty")


def _makes_list(node: ir.Node) -> bool:
    """True if the node makes a list of dicts, which needs no shape."""
    is_zip_map = node.domain == "ai.onnx.ml" and node.op_type == "ZipMap"
    return is_zip_map and all(value is not None and is_resolved(value) for value in node.inputs)


# -- onnx's own inference ---------------------------------------------------------------------------


# Elements of the largest constant that onnx's inference gets: shapes and axes are small.
_SMALL = 64


def _onnx_kinds(node: ir.Node, model: ir.Model) -> dict[str, Kind] | None:
    """Shapes and types that onnx infers; None if it finds a contradiction."""
    try:
        found = {name: _kind(proto) for name, proto in _ask_onnx(node, model).items()}
    except Exception:  # _reason reports it
        return None
    return {name: kind for name, kind in found.items() if kind is not None}


def _twin_kinds(node: ir.Node, model: ir.Model) -> dict[str, Kind]:
    """The result of one of onnxruntime's quantised operators, by the float operator that it stands for."""
    twin = float_twin(node)
    if twin is None:
        return {}
    kind = kind_of(node, _correct_sizes(twin, _onnx_kinds(twin, model)).get("twin"))
    return {} if kind is None else {node.outputs[0].name or "": kind}


def _correct_sizes(node: ir.Node, found: dict[str, Kind] | None) -> dict[str, Kind]:
    """``found`` with the sizes that onnxruntime computes."""
    shape, source = result_shape(node), node.inputs[0] if node.inputs else None
    if found is None or shape is None or source is None or source.dtype is None:
        return found or {}
    kinds = (source.dtype, ir.DataType.INT64)  # of the result, and of the indices of maxima
    made = zip(node.outputs, kinds, strict=False)
    return found | {value.name: (kind, shape) for value, kind in made if value.name}


def _kind(proto: onnx.TypeProto) -> Kind | None:
    tensor = proto.tensor_type
    if not proto.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dims = tuple(dim.dim_value for dim in tensor.shape.dim if dim.HasField("dim_value"))
    return (ir.DataType(tensor.elem_type), dims) if len(dims) == len(tensor.shape.dim) else None


def _ask_onnx(node: ir.Node, model: ir.Model) -> dict[str, onnx.TypeProto]:
    """The types of the node's outputs that onnx infers. Raises onnx's errors."""
    values = [value for value in node.inputs if value is not None]
    if not all(is_resolved(value) for value in values) or has_subgraph(node) or is_dangerous(node):
        return {}
    schema = onnx.defs.get_schema(node.op_type, model.opset_imports[node.domain], node.domain)
    types = {value.name: _type_proto(value) for value in values}
    constants = {value.name: value.const_value for value in values}
    small = {name: tensor for name, tensor in constants.items() if tensor is not None and tensor.size <= _SMALL}
    data = {name: ir.serde.serialize_tensor(tensor) for name, tensor in small.items()}
    # ir.to_proto asks each argument whether it is one of a dozen protocols: a third of the time of this function.
    proto = ir.serde.serialize_node(node)
    found: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(schema, proto, types, data)
    return found


def _type_proto(value: ir.Value) -> onnx.TypeProto:
    assert value.dtype is not None
    return onnx.helper.make_tensor_type_proto(value.dtype.value, static_shape(value))


# -- ai.onnx.ml, where onnx infers types only --------------------------------------------------------


def _same_shape(dtype: ir.DataType | None) -> Callable[[ir.Node], Kind | None]:
    def rule(node: ir.Node) -> Kind | None:
        source = node.inputs[0]
        shape = static_shape(source)
        if source is None or source.dtype is None or shape is None:
            return None
        return dtype or source.dtype, shape

    return rule


def _extractor_kind(node: ir.Node) -> Kind | None:
    """ArrayFeatureExtractor picks along the last axis by the flattened second input; a vector becomes a row."""
    source, picks = node.inputs
    shape, count = static_shape(source), static_size(picks)
    if source is None or source.dtype is None or shape is None or count is None:
        return None
    return source.dtype, (*(shape[:-1] or (1,)), count)


def _vectorizer_kind(node: ir.Node) -> Kind | None:
    """FeatureVectorizer puts its inputs beside each other."""
    shapes = [static_shape(value) for value in node.inputs]
    rows = {shape[0] if len(shape) > 1 else 1 for shape in shapes if shape}
    sizes = [static_size(value) for value in node.inputs]
    if len(rows) != 1 or any(size is None for size in sizes):
        return None
    count = rows.pop()
    return ir.DataType.FLOAT, (count, sum(size or 0 for size in sizes) // count)


def _regressor_kind(node: ir.Node) -> Kind | None:
    """LinearRegressor gives a row of targets for each row."""
    shape = static_shape(node.inputs[0])
    if not shape:
        return None
    return ir.DataType.FLOAT, (math.prod(shape[:-1]), node.attributes.get_int("targets", 1))


def _classifier_kinds(node: ir.Node) -> dict[str, Kind]:
    """LinearClassifier gives a label and a row of scores for each row, one per class."""
    shape, (label, scores) = static_shape(node.inputs[0]), node.outputs
    if not shape:
        return {}
    texts = node.attributes.get_strings("classlabels_strings", ())
    numbers = node.attributes.get_ints("classlabels_ints", ())
    rows, kind = math.prod(shape[:-1]), ir.DataType.STRING if texts else ir.DataType.INT64
    return {label.name or "": (kind, (rows,)), scores.name or "": (ir.DataType.FLOAT, (rows, len(texts or numbers)))}


_FOREIGN: dict[str, Callable[[ir.Node], Kind | None]] = {
    "ArrayFeatureExtractor": _extractor_kind,
    "FeatureVectorizer": _vectorizer_kind,
    "Imputer": _same_shape(None),
    "LinearRegressor": _regressor_kind,
    "Normalizer": _same_shape(ir.DataType.FLOAT),
    "Scaler": _same_shape(ir.DataType.FLOAT),
}


# ONNX's own operators that are functions: its inference leaves their results open.
_FUNCTIONS = dict.fromkeys(SAME_SHAPE, _same_shape(None))


def _own_kinds(node: ir.Node) -> dict[str, Kind]:
    if node.op_type == "LinearClassifier" and node.domain == "ai.onnx.ml" and len(node.outputs) == 2 and node.inputs:
        return _classifier_kinds(node)
    rule = {"ai.onnx.ml": _FOREIGN, "": _FUNCTIONS | AMENDED}.get(node.domain, {}).get(node.op_type)
    if rule is None or not node.inputs or any(value is None for value in node.inputs):
        return {}
    kind = rule(node)
    return {} if kind is None else {node.outputs[0].name or "": kind}


# -- shapes from the file, for operators that neither ONNX nor trnrt knows ----------------------------


def _declared_kind(value: ir.Value, node: ir.Node, model: ir.Model, symbols: dict[str, int]) -> Kind | None:
    if _schema(node, model) is not None or "trnrt.declared" not in value.meta:
        return None
    kind, shape = value.meta["trnrt.declared"]
    if not isinstance(kind, ir.TensorType) or shape is None:
        return None
    dims = [dim if isinstance(dim, int) else symbols.get(dim.value or "") for dim in shape]
    known = tuple(dim for dim in dims if dim is not None)
    return (kind.dtype, known) if len(known) == len(dims) else None


def _schema(node: ir.Node, model: ir.Model) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(node.op_type, model.opset_imports.get(node.domain, 0), node.domain)
    except onnx.defs.SchemaError:
        return None


# -- reasons -----------------------------------------------------------------------------------------

# These only change the shape.
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})


def _mismatch(node: ir.Node) -> Reason | None:
    """A contradiction that onnx's inference accepts."""
    if node.domain != "" or not node.inputs:
        return None
    source, made = node.inputs[0], node.outputs[0]
    smallest = min(size for value in named_outputs(node) for size in (static_shape(value) or (1,)))
    if smallest < (1 if node.op_type in WINDOWED else 0):
        text = f"{node_text(node)} doesn't fit its input of shape {static_shape(source)}: nothing would be left"
        return Reason(text, is_contradiction=True)
    record, shapes = record_of(node), [static_shape(value) for value in node.inputs]
    if record is not None and shapes[0] is not None and (problem := record.shapes(node, shapes)) is not None:
        return Reason(f"{node_text(node)} contradicts its inputs: {problem}", is_contradiction=True)
    before, after = static_size(source), static_size(made)
    if node.op_type not in _RESHAPING or before is None or after is None or before == after:
        return None
    text = f"{node_text(node)} can't give the shape {static_shape(made)} to a tensor of shape {static_shape(source)}"
    return Reason(text, is_contradiction=True)


def _reason(node: ir.Node, model: ir.Model) -> Reason:
    for value in node.inputs:
        if value is not None and not is_resolved(value):
            return Reason(f"{node_text(node)}: its input {quote(value.name)} has no static shape")
    if has_subgraph(node):
        return Reason(f"{node_text(node)}: the shape of its output depends on control flow")
    if _schema(node, model) is None:
        domain = quote(node.domain or "ai.onnx")
        return Reason(
            f"{node_text(node)}: {domain} doesn't have this operator in ONNX, so its output shape is not known"
        )
    if (reason := _refused_type(node, model)) is not None:
        return reason
    try:
        types = _ask_onnx(node, model)
    except Exception as error:
        return Reason(f"{node_text(node)} contradicts its inputs: {one_line(str(error))}", is_contradiction=True)
    if any(proto.WhichOneof("value") not in (None, "tensor_type") for proto in types.values()):
        return Reason(f"{node_text(node)}: its output is no tensor")
    return Reason(f"{node_text(node)}: the shape of its output depends on the data")


_IN_FLOAT32 = "in float32: --dtype says what it is computed in."


def _refused_type(node: ir.Node, model: ir.Model) -> Reason | None:
    """Input types that the operator doesn't take in the model's opset, or that differ but must not.

    PyTorch's exporter writes bfloat16 in any opset, and folds a bfloat16 BatchNormalization into float32 weights.
    """
    schema, opset = _schema(node, model), model.opset_imports.get(node.domain, 0)
    if schema is None or not schema.inputs:
        return None
    first: dict[str, ir.Value] = {}
    for place, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            continue
        formal = _input_parameter(schema, place)
        start = f"{node_text(node)}: its input {quote(value.name)} is {value.dtype.name}"
        if f"tensor({value.dtype.name.lower()})" not in formal.types:
            return _too_old(node, place, value.dtype, opset, f"{start}, which {node.op_type} doesn't take")
        same = first.setdefault(formal.type_str, value) if formal.is_homogeneous else value
        if same.dtype is not None and same.dtype != value.dtype:
            text = f"{start}, but {quote(same.name)} is {same.dtype.name}, and they must be the same"
            hint = f"Export the model {_IN_FLOAT32}"
            return Reason(text, is_contradiction=True, whatever_shapes=True, hint=hint)
    return None


def _input_parameter(schema: onnx.defs.OpSchema, place: int) -> onnx.defs.OpSchema.FormalParameter:
    """The schema's parameter for an input; the last parameter may be variadic."""
    return schema.inputs[min(place, len(schema.inputs) - 1)]


def _too_old(node: ir.Node, place: int, dtype: ir.DataType, opset: int, text: str) -> Reason:
    """The reason for a refused input type, with the first opset in which the operator takes it, if any."""
    kind = f"tensor({dtype.name.lower()})"
    for later in range(opset + 1, onnx.defs.onnx_opset_version() + 1) if node.domain == "" else ():
        if kind in _input_parameter(onnx.defs.get_schema(node.op_type, later, ""), place).types:
            text += f" before opset {later}; the model is of opset {opset}"
            hint = f"Export the model with opset {later} or later, or {_IN_FLOAT32}"
            return Reason(text, is_contradiction=True, whatever_shapes=True, hint=hint)
    return Reason(text, is_contradiction=True, whatever_shapes=True)
