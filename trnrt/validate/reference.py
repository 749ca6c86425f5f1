"""onnxruntime, node by node: the reference for every stored tensor, in as little memory as the graph allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from trnrt.errors import BackendError
from trnrt.planner.lowering.walk import node_name, operator_name, value_name
from trnrt.planner.naming import printable
from trnrt.planner.parts.levels import read_values
from trnrt.running.reference import run_session

Array = NDArray[Any]
# onnxruntime requires constants for the scales and sizes of these; no rule changes them.
_FIXED = ("Resize", "Upsample")
_KNOWN_IR = 10


@dataclass(frozen=True)
class Group:
    """The nodes, in the graph's order, that compute a value from others, ``sources``, and from constants."""

    value: ir.Value
    nodes: tuple[ir.Node, ...]
    sources: tuple[ir.Value, ...]


class Groups:
    """Cuts groups from a bound graph. ``known``: the names of values that earlier groups or the inputs give."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.known = {value_name(value) for value in model.graph.inputs}
        self._positions = {node: k for k, node in enumerate(model.graph)}
        self._values = {value.name: value for node in model.graph for value in node.outputs if value.name}

    def cut(self, name: str) -> Group:
        """The group that computes a value from known ones; it becomes known itself."""
        value, nodes, sources = self._values[name], set[ir.Node](), dict[ir.Value, None]()
        waiting = [value]
        while waiting:
            producer = waiting.pop().producer()
            if producer is None or producer in nodes:
                continue
            nodes.add(producer)
            for read in read_values(producer):
                if read.const_value is not None:
                    continue
                if value_name(read) in self.known:
                    sources[read] = None
                else:
                    waiting.append(read)
        self.known.add(name)
        return Group(value, tuple(sorted(nodes, key=lambda node: self._positions[node])), tuple(sources))


class NodeRunner:
    """Runs one node in onnxruntime, with one thread, so that its numbers don't depend on the machine."""

    def __init__(self, node: ir.Node, model: ir.Model) -> None:
        self.node = node
        self._opsets = [helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
        # onnxruntime refuses newer versions, whose features don't show in one node.
        self._ir_version = min(model.ir_version, _KNOWN_IR)
        self._sessions: dict[tuple[Any, ...], Any] = {}

    def constant(self, position: int) -> Array | None:
        """An input that is a constant of the model; else None."""
        value = self.node.inputs[position]
        return None if value is None or value.const_value is None else value.const_value.numpy()

    def run(self, inputs: Sequence[Array | None]) -> list[Array | None]:
        """The outputs by position, None for omitted ones."""
        fixed = self._fixed_constants(inputs)
        feeds = {f"x{k}": array for k, array in enumerate(inputs) if array is not None and k not in fixed}
        key = tuple((name, array.dtype, array.shape) for name, array in feeds.items())
        try:
            if key not in self._sessions:
                self._sessions[key] = self._session(inputs, fixed)
            made = iter(run_session(self._sessions[key], {n: np.ascontiguousarray(a) for n, a in feeds.items()}))
        except Exception as error:  # onnxruntime's errors share no base class
            reason = " ".join(str(error).split())
            name, op = printable(node_name(self.node)), operator_name(self.node)
            raise BackendError(f"onnxruntime can't run {op} '{name}' alone: {reason}") from None
        return [next(made) if value.name else None for value in self.node.outputs]

    def _fixed_constants(self, inputs: Sequence[Array | None]) -> set[int]:
        """Positions of constants that stay in the model: those not of floats, and those that onnxruntime requires."""
        return {
            position
            for position, (value, array) in enumerate(zip(self.node.inputs, inputs, strict=True))
            if array is not None and value is not None and value.const_value is not None
            if array.dtype.kind not in "fV" or (self.node.op_type in _FIXED and position > 0)
        }

    def _session(self, inputs: Sequence[Array | None], fixed: set[int]) -> Any:
        import onnxruntime

        proto: onnx.NodeProto = ir.to_proto(self.node)
        names = ["" if array is None else f"x{k}" for k, array in enumerate(inputs)]
        outputs = [f"y{k}" if value.name else "" for k, value in enumerate(self.node.outputs)]
        del proto.input[:], proto.output[:]
        proto.input.extend(names)
        proto.output.extend(outputs)
        given = [
            helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for k, array in enumerate(inputs)
            if array is not None and k not in fixed
        ]
        held = [numpy_helper.from_array(inputs[k], names[k]) for k in sorted(fixed)]
        made = [onnx.ValueInfoProto(name=name) for name in outputs if name]
        graph = helper.make_graph([proto], "node", given, made, held)
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@dataclass
class Evaluated:
    """A node of a group with its values in onnxruntime."""

    runner: NodeRunner
    inputs: list[Array | None]
    outputs: list[Array | None]


def evaluate(group: Group, model: ir.Model, values: Mapping[str, Array]) -> list[Evaluated]:
    """Run a group's nodes in order, on the values of its sources."""
    known = {value_name(source): values[value_name(source)] for source in group.sources}
    done = []
    for node in group.nodes:
        runner = NodeRunner(node, model)
        inputs = [
            None if value is None or not value.name else known.get(value_name(value), runner.constant(k))
            for k, value in enumerate(node.inputs)
        ]
        outputs = runner.run(inputs)
        known |= {value_name(v): a for v, a in zip(node.outputs, outputs, strict=True) if a is not None}
        done.append(Evaluated(runner, inputs, outputs))
    return done


def value_of(group: Group, done: Sequence[Evaluated]) -> Array:
    """The group's value among the outputs of its nodes."""
    for step in done:
        for value, array in zip(step.runner.node.outputs, step.outputs, strict=True):
            if value is group.value and array is not None:
                return array
    raise AssertionError(f"no node makes {group.value.name}")
