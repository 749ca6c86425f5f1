"""Small helpers for the nodes and values of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

ReadIntegers = Callable[[int, str], Sequence[int] | None]
"""Return the constant integers of an input by its position and name; None if it is left out."""


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The value's shape, if all of it is known."""
    if value is None or value.shape is None:
        return None
    dims = [dim for dim in value.shape if isinstance(dim, int)]
    return tuple(dims) if len(dims) == len(value.shape) else None


def static_size(value: ir.Value | None) -> int | None:
    """The number of elements, if known."""
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)


def is_resolved(value: ir.Value) -> bool:
    """True if the tensor's shape and type are known."""
    return value.dtype is not None and static_shape(value) is not None


def named_outputs(node: ir.Node) -> list[ir.Value]:
    """The outputs that exist: one with an empty name is left out."""
    return [value for value in node.outputs if value.name]


def is_used(value: ir.Value) -> bool:
    """True if a node reads the value, or it is an output of the graph."""
    return bool(value.uses()) or value.is_graph_output()


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """An input, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def has_subgraph(node: ir.Node) -> bool:
    """True if the node has a body, as If, Loop and Scan do."""
    graphs = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
    return any(attribute.type in graphs for attribute in node.attributes.values())


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs in the node's attributes."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def release_bodies(node: ir.Node) -> None:
    """Let the bodies of a removed node read nothing: the values around them must not seem to be used."""
    for body in bodies_of(node):
        for inner in body.all_nodes():
            for k in range(len(inner.inputs)):
                inner.replace_input_with(k, None)
        body.outputs.clear()


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The value's array, if it is a constant."""
    if value is None or value.const_value is None:
        return None
    array: np.ndarray = value.const_value.numpy()
    return array


def replace_output(node: ir.Node, value: ir.Value, *new_nodes: ir.Node) -> None:
    """Put ``value``, made by ``new_nodes`` or an initializer, where ``node``'s first output was; remove ``node``."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    ir.convenience.replace_nodes_and_values(graph, node, [node], new_nodes, [node.outputs[0]], [value])
    if not new_nodes:
        graph.register_initializer(value)


def opset_of(node: ir.Node) -> int:
    """The version of ONNX's own operators in the node's graph; 0 if it is in none."""
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def copies_at_inference(dropout: ir.Node) -> bool:
    """True if a Dropout copies its input, as it does except in training."""
    opset = opset_of(dropout)
    if opset < 7:
        return bool(dropout.attributes.get_int("is_test", 0))
    mode = input_at(dropout, 2) if opset >= 12 else None
    array = constant_array(mode)
    return mode is None or (array is not None and not array.any())


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's value as plain Python, or ``default`` if the node doesn't have it."""
    found = node.attributes.get(name)
    if found is None:
        return default
    value = found.value
    return tuple(value) if isinstance(value, (list, tuple)) else value


def slice_ranges(node: ir.Node, rank: int, read: ReadIntegers) -> list[tuple[int, int, int, int]]:
    """(axis, start, end, step) of a Slice; before opset 10 they are attributes.

    An end beyond the last element means "to the end", as in Python's slices.
    """
    names = ("starts", "ends", "axes", "steps")
    if opset_of(node) < 10:
        starts, ends, axes, steps = (attribute(node, name, None) for name in names)
    else:
        starts, ends, axes, steps = (read(k, name) for k, name in enumerate(names, 1))
    starts, ends = starts or (), ends or ()
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    return [(axis % rank, start, end, step) for axis, start, end, step in zip(axes, starts, ends, steps, strict=False)]


def paddings(node: ir.Node, rank: int, read: ReadIntegers) -> tuple[list[int], list[int]]:
    """Elements that a Pad adds before and after each dimension; before opset 11 they are an attribute."""
    if opset_of(node) < 11:
        pads, axes = attribute(node, "pads", attribute(node, "paddings", ())), None
    else:
        pads, axes = read(1, "pads") or (), read(3, "axes")
    axes = range(rank) if axes is None else axes
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=False):
        begins[axis % rank], ends[axis % rank] = int(begin), int(end)
    return begins, ends
