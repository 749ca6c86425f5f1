"""Graph to steps: each ONNX node is lowered by the function that is registered for its operator.

A lowering function makes a step (absorbing the nodes that its kernel computes as well), declares a view, or hands a
boundary node to the host; what it can't do it blocks, with the reason and a way out. Adding an operator is one
function here, its kernel if none fits, and one table of test cases.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from trnrt.errors import Blocker
from trnrt.planner.naming import printable
from trnrt.planner.plan import Array, HostNode, NodeReport
from trnrt.planner.steps import Operand, Step

Lower = Callable[["Lowering", ir.Node], None]
_REGISTRY: dict[tuple[str, str], Lower] = {}

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


class Blocked(Exception):
    """Raised by a lowering function for a node that it can't lower; the walk goes on and collects the others."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


class NotStatic(Blocked):
    """A tensor has no static shape. Of the nodes that this stops, only the first is to blame."""


def lowers(*operators: str, domain: str = "") -> Callable[[Lower], Lower]:
    """Register the decorated function for one or more operators; a second claim on a name raises."""

    def register(function: Lower) -> Lower:
        for operator in operators:
            if (domain, operator) in _REGISTRY:
                raise ValueError(f"{operator} has two lowering functions")
            _REGISTRY[domain, operator] = function
        return function

    return register


def supported_operators() -> list[tuple[str, str]]:
    """(domain, operator) of everything that can be lowered."""
    return sorted(_REGISTRY)


class Lowering:
    """The walk over one graph: its steps, views, host nodes and blockers, in order."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.opset = graph.opset_imports.get("", 0)
        self.steps: list[Step] = []
        self.host: list[HostNode] = []
        self.blockers: list[Blocker] = []
        self.reports: dict[str, NodeReport] = {}
        self.constants: dict[str, Array] = {}
        self.notes: list[str] = []
        self._inputs = {value_name(value) for value in graph.inputs}
        self._names = {v.name for v in _values(graph)} | {node.name for node in graph}
        self._views: dict[str, str] = {}
        self._absorbed: set[str] = set()
        self._on_host: set[str] = set()

    def walk(self) -> None:
        """Lower every node."""
        for node in self.graph:
            if node.name in self._absorbed:
                continue
            lower = _REGISTRY.get((node.domain, node.op_type))
            try:
                if lower is None:
                    raise Blocked("the operator is not supported")
                lower(self, node)
            except Blocked as blocked:
                self._block(node, blocked)

    def _block(self, node: ir.Node, blocked: Blocked) -> None:
        name, op = node_name(node), operator_name(node)
        to_blame = not isinstance(blocked, NotStatic) or all(_is_static(v) for v in node.inputs if v is not None)
        if to_blame:
            self.blockers.append(Blocker(name, op, blocked.reason, blocked.hint))
        self.reports[name] = NodeReport(name, op, None, None, "blocked", blocked.reason)

    # What lowering functions ask.

    def constant(self, value: ir.Value | None) -> Array | None:
        """The value of a constant, or None where it is computed."""
        if value is None or value.const_value is None:
            return None
        array = value.const_value.numpy()
        if value.dtype is ir.DataType.STRING:
            texts = [text.decode("utf-8", "replace") for text in array.reshape(-1)]
            return np.array(texts, dtype=object).reshape(array.shape)
        return array

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The static shape of a value; blocks the node where there is none."""
        if value.shape is None or not _is_static(value):
            raise NotStatic(f"the shape of {value.name!r} depends on the data", "export the model with fixed shapes")
        return tuple(int(d) for d in value.shape if isinstance(d, int))

    def operand(self, value: ir.Value | None) -> Operand:
        """A float tensor of the device, read in its ONNX shape."""
        if value is None:
            raise Blocked("an input that the kernel needs is left out")
        shape = self.shape(value)
        if value.dtype not in FLOATS:
            kind = value.dtype.name.lower() if value.dtype is not None else "unknown"
            raise Blocked(f"arithmetic on {kind} tensors", "the NeuronCore computes in float32, bfloat16 and float16")
        if value.const_value is not None:
            raise Blocked(f"{value.name!r} is a constant where the kernel needs a computed tensor")
        if self.on_host(value):
            raise Blocked(f"{value.name!r} is made on the host from a final index; no arithmetic can follow it")
        return Operand(self.root(value), shape)

    def root(self, value: ir.Value) -> str:
        """The stored value that ``value`` is a view of (itself, mostly)."""
        name = value_name(value)
        return self._views.get(name, name)

    def is_input(self, value: ir.Value) -> bool:
        """Whether a value is an input of the model, or a view of one."""
        return self.root(value) in self._inputs

    def on_host(self, value: ir.Value | None) -> bool:
        """Whether a value is computed on the host (a final index or label)."""
        return value is not None and value.name in self._on_host

    def sole_consumer(self, value: ir.Value) -> tuple[ir.Node | None, str]:
        """The only node that reads ``value``, or None and the reason why there is no such node."""
        readers = list(dict.fromkeys(node for node, _ in value.uses()))
        if value.is_graph_output():
            return None, f"{value.name!r} is an output of the model"
        if len(readers) != 1:
            return None, f"{value.name!r} is read by {len(readers)} nodes"
        return readers[0], ""

    # What lowering functions do.

    def add(self, step: Step, nodes: list[ir.Node], why: str) -> None:
        """Append a step that covers ``nodes``."""
        self.steps.append(step)
        step.title = [f"{operator_name(n)} {node_name(n)}" for n in nodes]
        for position, node in enumerate(nodes):
            reason = why if position == 0 else f"fused into {step.name}: computed as its result leaves the engine"
            self.report(node, "core", reason, step=step.name)
            self._absorbed.add(node_name(node))

    def view(self, node: ir.Node, source: ir.Value, why: str) -> None:
        """Declare the node's output to be ``source`` in another shape."""
        self._views[value_name(node.outputs[0])] = self.root(source)
        if self.on_host(source):
            self._on_host.add(value_name(node.outputs[0]))
        self.report(node, "view", why)

    def to_host(self, node: ir.Node, compute: Callable[..., Array], why: str) -> None:
        """Run a boundary node on the host."""
        for value in node.inputs:
            constant = self.constant(value)
            if value is not None and constant is not None:
                self.constants[value_name(value)] = constant
        inputs = tuple(self.root(value) for value in node.inputs if value is not None)
        output = value_name(node.outputs[0])
        self.host.append(HostNode(node_name(node), operator_name(node), inputs, output, compute))
        self._on_host.add(output)
        self.report(node, "host", why)

    def spare_name(self, wanted: str) -> str:
        """A name for a step or value of ours: ``wanted``, or like it where the model uses that."""
        while wanted in self._names:
            wanted += "_"
        self._names.add(wanted)
        return wanted

    def mark_index(self, value: ir.Value) -> None:
        """Say that a device result is an index, with which only boundary nodes may go on."""
        self._on_host.add(value_name(value))

    def report(self, node: ir.Node, place: str, reason: str, step: str | None = None) -> None:
        """Say what became of a node."""
        self.reports[node_name(node)] = NodeReport(node_name(node), operator_name(node), step, None, place, reason)


def _values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]


def _is_static(value: ir.Value) -> bool:
    return value.dtype is not None and value.shape is not None and all(isinstance(d, int) for d in value.shape)


def value_name(value: ir.Value) -> str:
    """A value's name; the importer gives every value one."""
    assert value.name is not None
    return value.name


def node_name(node: ir.Node) -> str:
    """A node's name; the importer gives every node one."""
    assert node.name is not None
    return node.name


def operator_name(node: ir.Node) -> str:
    """The operator, with its domain where that is not ONNX's own; both may be anything where ONNX knows neither."""
    return printable(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's value as plain Python, or ``default`` where the node has none."""
    found = node.attributes.get(name)
    if found is None:
        return default
    value = found.value
    return tuple(value) if isinstance(value, (list, tuple)) else value


def rows_and_columns(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    """A shape as a matrix whose columns are the dimensions from ``axis`` on."""
    return prod(shape[:axis]), prod(shape[axis:])
