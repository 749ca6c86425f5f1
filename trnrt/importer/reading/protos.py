"""Walks over a model's protobuf, including functions, subgraphs and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their subgraphs. (protobuf limits the nesting.)"""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from all_nodes(graph.node)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The model's graph and all subgraphs, those in functions included."""
    yield model.graph
    for node in every_node(model):
        yield from subgraphs(node)


def every_node(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of the graph and the functions, with those of their subgraphs."""
    yield from all_nodes(model.graph.node)
    for function in model.functions:
        yield from all_nodes(function.node)


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """All initializers and tensor attributes."""
    for graph in all_graphs(model):
        yield from graph.initializer
    for node in every_node(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
    for function in model.functions:
        for attribute in function.attribute_proto:
            if attribute.HasField("t"):
                yield attribute.t


def name_standard_domain(model: onnx.ModelProto) -> bool:
    """Write the domain of ONNX's own operators as "" everywhere; false if it was "ai.onnx" somewhere."""
    was_so = True
    opsets = [*model.opset_import, *(opset for function in model.functions for opset in function.opset_import)]
    for item in (*opsets, *every_node(model)):
        if item.domain == "ai.onnx":
            item.domain = ""
            was_so = False
    return was_so


def read_names(node: onnx.NodeProto) -> set[str]:
    """Names of the tensors that the node and its subgraphs read from the graph around it."""
    names = set(node.input)
    for graph in subgraphs(node):
        names |= _free_names(graph)
    names.discard("")
    return names


def _free_names(graph: onnx.GraphProto) -> set[str]:
    used = {output.name for output in graph.output}
    defined = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        used |= read_names(node)
        defined.update(node.output)
    return used - defined
