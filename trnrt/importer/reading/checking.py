"""Checks of a model before anything is built from it, cheapest first."""

from __future__ import annotations

import graphlib
import re
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir

from trnrt.errors import ModelFileError
from trnrt.importer.reading.limits import MOST_NODES, MOST_VALUES
from trnrt.importer.reading.protos import all_graphs, all_nodes, all_tensors, every_node, read_names
from trnrt.text import list_text, one_line, quote

# Operators that no version of an exporter converts, and what to write instead.
_KEPT = {
    "Erfc": ". tf2onnx 1.17 has none for Erfc: give the layer gelu with approximate=True, which is written with Tanh."
}


def check_names(model: onnx.ModelProto, where: str) -> None:
    """Refuse names that are not text: protobuf returns them as bytes."""
    names: list[object] = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    for graph in all_graphs(model):
        names += [tensor.name for tensor in graph.initializer]
        for info in (*graph.input, *graph.output, *graph.value_info):
            names.append(info.name)
            names += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
    for node in every_node(model):
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    if not all(isinstance(name, str) for name in names):
        raise ModelFileError(
            f"{where}: the model is damaged: a name in it is not text", hint="Copy or export the file again."
        )


def check_versions(model: onnx.ModelProto, where: str) -> None:
    """Refuse a model that is newer than the installed ``onnx``."""
    newest = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": max(row[3] for row in onnx.helper.VERSION_TABLE)}
    if model.ir_version > onnx.IR_VERSION:
        raise _too_new(where, f"version {model.ir_version} of the file format", onnx.IR_VERSION)
    if not model.opset_import:
        raise ModelFileError(f"{where}: the model doesn't say which operator sets it uses", hint="Export it again.")
    seen: dict[str, int] = {}
    for opset in model.opset_import:
        domain = "" if opset.domain == "ai.onnx" else opset.domain
        # skl2onnx says the same version twice.
        if seen.setdefault(domain, opset.version) != opset.version:
            raise ModelFileError(f"{where}: the model names two versions of the operator set {quote(domain)}")
        what = f"version {opset.version} of the operator set {quote(domain or 'ai.onnx')}"
        if opset.version < 1:
            raise ModelFileError(f"{where}: the model uses {what}, and the first one is 1", hint="Export it again.")
        if opset.version > newest.get(domain, opset.version):
            raise _too_new(where, what, newest[domain])


def _too_new(where: str, what: str, newest: int) -> ModelFileError:
    return ModelFileError(
        f"{where}: the model needs {what}; the installed onnx {onnx.__version__} knows up to {newest}",
        hint="Update the package (pip install --upgrade onnx), or export the model with an older opset.",
    )


def check_size(model: onnx.ModelProto, where: str) -> None:
    """Refuse models with too many nodes to prepare in reasonable time, counted after functions are expanded."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    calls: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for key, function in functions.items():
        calls[key] = [(n.domain, n.op_type, n.overload) for n in all_nodes(function.node)]
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        names = " -> ".join(quote(key[1]) for key in error.args[1])
        raise ModelFileError(f"{where}: functions of the model call each other in a circle: {names}") from None
    size: dict[tuple[str, str, str], int] = {}
    for key in order:
        # An operator, if it isn't a function of the model.
        size[key] = sum(size[callee] for callee in calls[key]) if key in functions else 1
    total = sum(size.get((n.domain, n.op_type, n.overload), 1) for n in all_nodes(model.graph.node))
    for node in every_node(model):
        count = max(len(node.input), len(node.output))
        if count > MOST_VALUES:
            raise ModelFileError(
                f"{where}: {_node_text(node)} reads or makes {count} tensors; trnrt takes nodes of up to {MOST_VALUES}",
                hint="Divide the node, as a Concat of Concats.",
            )
    if total > MOST_NODES:
        raise ModelFileError(
            f"{where}: the model has {total} nodes; trnrt takes models of up to {MOST_NODES}",
            hint="Cut it into several models, with onnx.utils.extract_model.",
        )


def sort_nodes(model: onnx.ModelProto, where: str) -> bool:
    """Put the nodes into topological order, as onnxruntime does; false if they were in another order."""
    graph = model.graph
    known = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output}
    needs = [read_names(node) for node in graph.node]
    if _are_sorted(graph, needs, set(known)):
        return True
    for node, names in zip(graph.node, needs, strict=True):
        if missing := sorted(names - known - producer.keys()):
            raise ModelFileError(
                f"{where}: {_node_text(node)} reads the tensor {quote(missing[0])}, which nothing in the model makes",
                hint="The model was cut out of a larger one, or edited wrongly: export it again.",
            )
    before = {i: sorted(producer[n] for n in names if n in producer) for i, names in enumerate(needs)}
    try:
        order = list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError as error:
        circle = list_text((_node_text(graph.node[i]) for i in reversed(error.args[1])), 6)
        raise ModelFileError(
            f"{where}: nodes of the model wait for each other in a circle: {circle}", hint="Export the model again."
        ) from None
    # Copies, as deleting from the list invalidates its nodes.
    nodes = [onnx.NodeProto.FromString(graph.node[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(nodes)
    return False


def _are_sorted(graph: onnx.GraphProto, needs: list[set[str]], known: set[str]) -> bool:
    for node, names in zip(graph.node, needs, strict=True):
        if not names <= known:
            return False
        known.update(node.output)
    return True


def _node_text(node: onnx.NodeProto) -> str:
    return f"{one_line(node.op_type)} node {quote(node.name or ', '.join(node.output))}"


def check_model(data: bytes, where: str) -> None:
    """Run onnx's own checker on a serialized model."""
    try:
        onnx.checker.check_model(data)
    except Exception as error:  # the checker's C++ raises several kinds
        if unknown := re.search(r"No Op registered for (\S+) with domain_version of (\d+)", str(error)):
            name, opset = unknown.groups()
            raise ModelFileError(
                f"{where}: the model has the operator {quote(name)}, which ONNX's opset {opset} doesn't have",
                hint="The exporter kept an operator of its framework: use a newer exporter, or another opset"
                + _KEPT.get(name, "."),
            ) from error
        raise ModelFileError(
            f"{where}: not a valid ONNX model: {one_line(str(error))}",
            hint="The file is damaged, or was exported or edited wrongly: export it again.",
        ) from error


def check_graph(model: onnx.ModelProto, where: str) -> None:
    """Refuse models that onnx's checker accepts, but no session can run."""
    names = [output.name for output in model.graph.output]
    if not names:
        raise ModelFileError(f"{where}: the model has no outputs", hint="Export the model again.")
    if len(set(names)) < len(names):
        raise ModelFileError(f"{where}: the model has two outputs of the same name", hint="Export the model again.")
    if any(graph.sparse_initializer for graph in all_graphs(model)):
        raise ModelFileError(
            f"{where}: the model stores tensors in ONNX's sparse format, which trnrt doesn't read",
            hint="Export the model with dense weights.",
        )


def check_counts(model: onnx.ModelProto, where: str) -> None:
    """Refuse a Split into more parts than it has outputs: onnx would allocate all of them."""
    for node in every_node(model):
        parts = next((a.i for a in node.attribute if a.name == "num_outputs"), len(node.output))
        if node.op_type == "Split" and parts != len(node.output):
            raise ModelFileError(
                f"{where}: {_node_text(node)} has {len(node.output)} outputs and num_outputs={parts}",
                hint="Export the model again.",
            )


def check_tensors(model: onnx.ModelProto, where: str) -> None:
    """Refuse negative dimensions."""
    for tensor in all_tensors(model):
        if any(dim < 0 for dim in tensor.dims):
            raise ModelFileError(
                f"{where}: the tensor {quote(tensor.name)} has a negative dimension in its shape {list(tensor.dims)}",
                hint="The file is damaged: copy or export it again.",
            )


def settle_tensors(model: ir.Model, where: str) -> None:
    """Decode every tensor once: this finds broken ones now, and no later use decodes them again."""
    for value in [value for graph in model.graphs() for value in graph.initializers.values()]:
        tensor = value.const_value
        if tensor is None:
            raise ModelFileError(f"{where}: the initializer {quote(value.name)} has no data")
        array = _decode_tensor(tensor, value.name, where)
        # The file may state another shape and type elsewhere.
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        if tensor.dtype != ir.DataType.STRING:
            value.const_value = ir.Tensor(array, dtype=tensor.dtype, name=tensor.name)
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            for tensor in _attribute_tensors(attribute):
                _decode_tensor(tensor, node.name, where)


def _attribute_tensors(attribute: ir.Attr) -> Sequence[ir.TensorProtocol]:
    if attribute.type == ir.AttributeType.TENSOR:
        return [attribute.as_tensor()]
    return attribute.as_tensors() if attribute.type == ir.AttributeType.TENSORS else []


def _decode_tensor(tensor: ir.TensorProtocol, name: str | None, where: str) -> np.ndarray:
    try:
        return tensor.numpy()
    except Exception as error:
        raise ModelFileError(
            f"{where}: the data of tensor {quote(name)} doesn't fit its shape and type ({one_line(str(error))})",
            hint="The file is damaged: copy or export it again.",
        ) from error
