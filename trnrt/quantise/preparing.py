"""A float model as onnxruntime's quantiser takes it: BatchNormalization folded, opset 13 or later, its layers known."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.errors import ModelFileError, OptionError, QuantiseError
from trnrt.text import list_text, name_text, one_line, quote

if TYPE_CHECKING:
    import onnx

    from trnrt.importer import ImportedModel

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose sums become sums of integers."""
ROUNDING = (*PRODUCTS, "Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Pad", "Split")
"""Operators that the quantiser gives scales of their own, wherever they are: each is a layer."""
ACTIVATIONS = ("Relu", "Clip")
"""Operators that become limits of the rounding before them: they belong to the layer that they follow."""
PASSING = ("Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that are quantised where their input is, with its scale."""
QUANTISED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
LAYERS = {
    "qdq": ROUNDING,
    "qoperator": tuple(op for op in ROUNDING if op != "ConvTranspose"),
    "dynamic": ("Gemm", "MatMul"),
}
"""The operators of a form's layers. There is no QLinearConvTranspose, and onnxruntime has no ConvInteger for weights
with a sign."""

CHANNEL_OPSET = 13
"""The first opset with a scale for each channel."""
_FUSED = "/MatMulAddFusion"


@dataclass(frozen=True)
class Layer:
    """A node that rounds its result once it is quantised, and the activation behind it: ``nodes`` has both names."""

    name: str
    op: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A model as the quantiser takes it, as the bytes of a file; its layers in order; the bytes of the file as read."""

    content: bytes
    layers: tuple[Layer, ...]
    original_bytes: int

    def find_layers(self, names: Iterable[str]) -> frozenset[str]:
        """The layers that have nodes of these names; OptionError for an unknown name."""
        by_node = {node: layer.name for layer in self.layers for node in layer.nodes}
        if unknown := [name for name in names if name not in by_node]:
            raise OptionError(
                f"the model has no layer {quote(unknown[0])} to keep in float",
                hint=f"its layers are {list_text((name_text(layer.name) for layer in self.layers), 30)}",
            )
        return frozenset(by_node[name] for name in names)


def prepare(model: ImportedModel, form: str) -> Prepared:
    """Fold, convert and check a model for a form of ``LAYERS``.

    Raises:
        ModelFileError: if it is quantised already.
        QuantiseError: if it has nothing to quantise, or onnxruntime can't read it.
    """
    import onnx_ir as ir

    proto: onnx.ModelProto = ir.to_proto(model.model)
    _check_float(proto, model.name)
    size = proto.ByteSize()
    folded = _fold(_raise_opset(proto, model.name), model.name)
    del folded.metadata_props[:]
    folded.metadata_props.extend(proto.metadata_props)
    layers = tuple(_find_layers(folded, LAYERS[form]))
    if not any(layer.op in PRODUCTS for layer in layers):
        wanted = ", ".join(op for op in PRODUCTS if op in LAYERS[form])
        raise QuantiseError(
            f"{name_text(model.name)} has nothing to quantise: no {wanted} that computes in float32",
            hint="to quantise convolutions, give --data and leave --dynamic out"
            if form == "dynamic"
            else "run the model as it is; one in float64 or float16 must be exported in float32 first",
        )
    return Prepared(folded.SerializeToString(), layers, size)


def keep_used_domains(proto: onnx.ModelProto) -> None:
    """Declare only the operator sets that the graph uses: onnxruntime declares all that it knows."""
    used = {node.domain for node in proto.graph.node} | {""}
    kept = [opset for opset in proto.opset_import if opset.domain in used]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def interpolates(node: onnx.NodeProto) -> bool:
    """Whether a node is a Resize that computes new values."""
    return node.op_type == "Resize" and any(a.name == "mode" and a.s != b"nearest" for a in node.attribute)


def _check_float(proto: onnx.ModelProto, name: str) -> None:
    """Refuse a quantised model, and one whose weights have 16 bits: onnxruntime would quantise these at run time."""
    from onnx import TensorProto

    short = {t.name for t in proto.graph.initializer if t.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16)}
    for node in proto.graph.node:
        if node.op_type in QUANTISED or node.op_type.startswith(("QLinear", "QGemm")):
            raise ModelFileError(
                f"{name_text(name)} is quantised already: node {quote(node.name)} is a {node.op_type}",
                hint="quantise the float model that it was made from",
            )
        if node.op_type in PRODUCTS and short.intersection(node.input):
            raise QuantiseError(
                f"{name_text(name)} has weights of 16 bits, in node {quote(node.name)}, and int8 is made from float32",
                hint="export the model in float32",
            )


def _raise_opset(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model in opset 13 or later."""
    from onnx import version_converter

    opset = next((item.version for item in proto.opset_import if item.domain == ""), CHANNEL_OPSET)
    if opset >= CHANNEL_OPSET:
        return proto
    try:
        raised: onnx.ModelProto = version_converter.convert_version(proto, CHANNEL_OPSET)
    except Exception as error:  # onnx raises errors of several kinds for what it can't convert
        raise QuantiseError(
            f"{name_text(name)} has opset {opset}, and onnx can't convert it to {CHANNEL_OPSET}, which scales by "
            f"channel need ({one_line(str(error))})",
            hint=f"export the model with opset {CHANNEL_OPSET} or later",
        ) from error
    return raised


def _fold(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model after onnxruntime's basic optimisations, with all shapes: normalisations and scales in the weights."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory(prefix="trnrt.quantise.") as folder:
        options.optimized_model_filepath = str(Path(folder) / "folded.onnx")
        try:
            content = proto.SerializeToString()
            onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            folded = onnx.load(options.optimized_model_filepath)
            del folded.graph.value_info[:]  # onnx's inference refuses some of onnxruntime's shapes
            folded = onnx.shape_inference.infer_shapes(folded)
            if _state_types(folded):
                folded = onnx.shape_inference.infer_shapes(folded)
        except Exception as error:  # onnxruntime and protobuf raise errors of their own kinds
            raise QuantiseError(
                f"onnxruntime can't read {name_text(name)}: {one_line(str(error))}",
                hint="export the model with operators that onnxruntime has",
            ) from error
    keep_used_domains(folded)
    _flatten_biases(folded)
    names = {node.name for node in folded.graph.node}
    for node in folded.graph.node:
        before = node.name.removesuffix(_FUSED)
        if before not in names:  # a MatMul that became a Gemm keeps the name that its user knows
            node.name = before
    return folded


def _state_types(proto: onnx.ModelProto) -> bool:
    """Write down which tensors are float32 where onnx doesn't know, such as behind operators that are not its own.

    onnxruntime does: it names the types of a model's outputs. False if there was nothing to add.
    """
    import onnx
    import onnxruntime

    graph = proto.graph
    known = {value.name for value in (*graph.value_info, *graph.output)}
    unknown = [name for node in graph.node for name in node.output if name and name not in known]
    if not unknown:
        return False
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in unknown)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options, providers=["CPUExecutionProvider"])
    floats = {output.name for output in session.get_outputs() if output.type == "tensor(float)"}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in unknown if name in floats
    )
    return True


def _flatten_biases(proto: onnx.ModelProto) -> None:
    """Store biases of shape (1, N) as (N): onnxruntime's quantiser compares a bias's scale with one number a value."""
    biases = {node.input[2] for node in proto.graph.node if node.op_type == "Gemm" and len(node.input) > 2}
    others = {
        name for node in proto.graph.node for at, name in enumerate(node.input) if node.op_type != "Gemm" or at < 2
    }
    for tensor in proto.graph.initializer:
        if tensor.name in biases - others and len(tensor.dims) == 2 and tensor.dims[0] == 1:
            del tensor.dims[0]


def _find_layers(proto: onnx.ModelProto, ops: Collection[str]) -> Iterable[Layer]:
    from onnx import TensorProto

    values = (*proto.graph.value_info, *proto.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in proto.graph.node:
        for tensor in node.input:
            readers.setdefault(tensor, []).append(node)
    outputs = {value.name for value in proto.graph.output}
    for node in proto.graph.node:
        if node.op_type not in ops or node.domain or node.output[0] not in floats:
            continue
        behind = readers.get(node.output[0], [])
        fused = len(behind) == 1 and behind[0].op_type in ACTIVATIONS and node.output[0] not in outputs
        yield Layer(node.name, node.op_type, (node.name, *((behind[0].name,) if fused else ())))
