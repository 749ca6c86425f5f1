"""Edits of a graph that the rules share: add constants with unique names, remove nodes, replace values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import unique
from trnrt.importer.values import input_at, is_used, static_shape

Array = np.ndarray[Any, np.dtype[Any]]


class Editor:
    """A graph while rules change it. ``opset`` is the version of ONNX's own operators."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = model.opset_imports[""]
        made = (value for node in model.graph for value in node.outputs)
        values = [*model.graph.inputs, *model.graph.initializers.values(), *made]
        self.taken = {value.name or "" for value in values}
        self._node_names = {node.name or "" for node in model.graph}

    def constant(self, array: Array, like: str) -> ir.Value:
        """A new constant with a unique name made from ``like``."""
        value = ir.val(unique(like, self.taken), const_value=ir.tensor(array))
        self.graph.register_initializer(value)
        return value

    def result(self, like: str, dtype: ir.DataType | None, shape: Sequence[int]) -> ir.Value:
        """A new value that a node is to make."""
        return ir.val(unique(like, self.taken), dtype, shape)

    def reshape(self, before: ir.Node, value: ir.Value, shape: Sequence[int], like: str, name: str) -> ir.Value:
        """The value in another shape, by a new node ``name``."""
        made = self.result(like, value.dtype, shape)
        target = self.constant(np.array(shape, np.int64), f"{made.name}_shape")
        self.graph.insert_before(before, ir.node("Reshape", [value, target], outputs=[made], name=name))
        return made

    def spare_name(self, like: str) -> str:
        """A name for a value."""
        return unique(like, self.taken)

    def node_name(self, like: str) -> str:
        """A name for a new node."""
        return unique(like, self._node_names)

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Set input ``index`` of the node; remove its old value if that is a constant without other readers."""
        while len(node.inputs) <= index:
            node.resize_inputs(len(node.inputs) + 1)
        before = node.inputs[index]
        node.replace_input_with(index, value)
        self._forget([before])

    def bypass(self, node: ir.Node, value: ir.Value) -> None:
        """Remove a node; ``value`` replaces its first output, and takes its name if that is a graph output."""
        made = node.outputs[0]
        if made.is_graph_output():
            name = made.name or ""
            made.name = unique(f"{name}_before", self.taken)
            if value.is_graph_output() or value.producer() is None:
                copy = ir.node("Identity", [value], name=self.node_name(node.name or ""))
                self.graph.insert_before(node, copy)
                copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
                value = copy.outputs[0]
            value.name = name
        made.replace_all_uses_with(value, replace_graph_outputs=True)
        self.remove(node)

    def remove(self, node: ir.Node) -> None:
        """Remove a node whose outputs are not read, with the constants that only it read."""
        inputs = list(node.inputs)
        self.graph.remove(node, safe=True)
        self._forget(inputs)

    def _forget(self, values: Sequence[ir.Value | None]) -> None:
        for value in values:
            if value is not None and value.is_initializer() and not is_used(value):
                self.graph.initializers.pop(value.name or "", None)
                self.taken.discard(value.name or "")


def is_private(value: ir.Value) -> bool:
    """True if the value is read once, and is no output of the graph."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def maker(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """The node that makes the value, if it is one of ONNX's ``operators``."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type in operators else None


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of a value that is known to be static."""
    shape = static_shape(value)
    assert shape is not None
    return shape


def integers(node: ir.Node, name: str, index: int) -> list[int] | None:
    """The numbers in the attribute ``name`` or, in newer opsets, in the constant input ``index``; None if they are left
    out. Check ``is_computed`` first."""
    if name in node.attributes:
        return [int(number) for number in node.attributes[name].as_ints()]
    value = input_at(node, index)
    if value is None or value.const_value is None:
        return None
    return [int(number) for number in value.const_value.numpy().reshape(-1)]


def is_computed(node: ir.Node, index: int) -> bool:
    """True if the input is given, and is not a constant."""
    value = input_at(node, index)
    return value is not None and value.const_value is None
