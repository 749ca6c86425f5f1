"""Activations on their own, and binary operators with broadcasting."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.planner.lowering import Blocked, Lowering, lowers, node_name, value_name
from trnrt.planner.ops.fusing import ACTIVATIONS, next_activation
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Operand, Step, Tensors, WeightName

# Dimensions of a binary kernel's operands in HBM.
_GROUPS = 4


@dataclass(kw_only=True)
class ActivationStep(Step):
    """``act(source)``."""

    act: str

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        same = shapes.shape(self.sources[0].value) == self.shape
        return tuple(Layout) if same else (Layout.HBM,)

    def same_layout(self) -> bool:
        return True

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return _as_matrix(prod(self.shape))

    def call(self, tensors: Tensors) -> Call:
        return Call("elementwise", "activate", (self.act,))


def _as_matrix(size: int) -> tuple[int, int]:
    """(rows, columns) of a dense tensor, with as many rows up to 128 as divide it: they are its partitions."""
    rows = max(r for r in range(1, 129) if size % r == 0)
    return rows, size // rows


@lowers(*ACTIVATIONS)
def lower_activation(lowering: Lowering, node: ir.Node) -> None:
    """An activation that could not be fused into the step before it."""
    source = lowering.operand(node.inputs[0])
    step = ActivationStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=source.shape,
        act=ACTIVATIONS[node.op_type],
    )
    lowering.add(step, [node], "a step of its own on the scalar engine")


@dataclass(kw_only=True)
class BinaryStep(Step):
    """``act(left <op> right)``; one side may be a constant. ``views`` are both sides' and the result's 4-D shapes."""

    op: str
    act: str
    constant: Array | None
    views: tuple[tuple[int, ...], ...]

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.views[2] if position is None else self.views[position]

    def call(self, tensors: Tensors) -> Call:
        options = {"act": self.act} if self.act != "none" else {}
        if self.constant is None:
            return Call("elementwise", "binary", (self.op,), options)
        return Call("elementwise", "binary", (WeightName("c"), self.op), options, weights={"c": self.constant})


@lowers("Add")
def lower_add(lowering: Lowering, node: ir.Node) -> None:
    """Element by element, with ONNX's broadcasting; one side may be a constant."""
    values = [v for v in node.inputs if v is not None]
    constants = [lowering.constant(v) for v in values]
    computed = [v for v, c in zip(values, constants, strict=True) if c is None]
    sources = [lowering.operand(v) for v in computed]
    if not computed:
        raise Blocked("both sides are constants, too large to be added when the model is read")
    constant = next((c for c in constants if c is not None), None)
    add_sum(lowering, node, node_name(node), sources, constant, "element by element on the vector engine")


def add_sum(
    lowering: Lowering, node: ir.Node, name: str, sources: list[Operand], constant: Array | None, why: str
) -> None:
    """Append the step ``name`` that makes ``node``'s output the sum of ``sources`` and ``constant``."""
    shape = lowering.shape(node.outputs[0])
    shapes = [s.shape for s in sources] + ([constant.shape] if constant is not None else [])
    views = collapse_broadcast(shapes, shape)
    if views is None:
        raise Blocked(f"shapes {shapes} broadcast to {shape} in more than {_GROUPS} groups of dimensions")
    act, activation = next_activation(lowering, node.outputs[0], node)
    nodes = [node, *activation]
    step = BinaryStep(
        name=name,
        nodes=[node_name(n) for n in nodes],
        sources=sources,
        output=value_name(nodes[-1].outputs[0]),
        shape=shape,
        op="add",
        act=act,
        constant=None if constant is None else constant.astype(np.float32).reshape(views[1]),
        views=views,
    )
    lowering.add(step, nodes, why)


def collapse_broadcast(shapes: list[tuple[int, ...]], result: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Both operands' shapes and the result's as four dimensions, neighbours that broadcast alike merged.

    None where four are not enough.
    """
    rank = len(result)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    groups: list[tuple[tuple[bool, ...], int]] = []
    for d in range(rank):
        if result[d] == 1:
            continue
        pattern = tuple(s[d] == 1 for s in padded)
        if groups and groups[-1][0] == pattern:
            groups[-1] = (pattern, groups[-1][1] * result[d])
        else:
            groups.append((pattern, result[d]))
    if len(groups) > _GROUPS:
        return None
    if len(groups) <= 1:
        # One dense run: give it as many partitions as divide it.
        pattern, size = groups[0] if groups else ((False,) * len(shapes), 1)
        rows, columns = _as_matrix(size)
        groups = [(pattern, rows), (pattern, columns)]
    groups = [((False,) * len(shapes), 1)] * (_GROUPS - len(groups)) + groups
    operands = [tuple(1 if pattern[k] else size for pattern, size in groups) for k in range(len(shapes))]
    return (*operands, tuple(size for _, size in groups))
