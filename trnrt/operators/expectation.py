"""Means of distributions: a softmax over channels, and a 1x1 convolution to one channel behind it, in one step.

Detectors decode the sides of a box so: the distribution over bins of each side is weighted with the bins' numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.values import input_at
from trnrt.kernels.expectation import MAX_BINS
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, attribute, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Array
from trnrt.planner.steps import Call, Step, Tensors, WeightName

# Distributions that lie side by side: with fewer, a transfer brings only some bytes at a time.
_LEAST_COLUMNS = 16


@dataclass(kw_only=True)
class ExpectationStep(Step):
    """The sum of a softmax over the middle of three dimensions ``seen``, weighted with ``factors``: the weights, and a
    number that is added."""

    seen: tuple[int, int, int]
    factors: Array

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (self.seen[0], self.seen[2]) if position is None else self.seen

    def part(self, images: int) -> Step | None:
        whole, rows = self.shape[0], self.seen[0]
        if rows % whole:
            return None
        sources = [source.part(images) for source in self.sources]
        seen = (rows // whole * images, *self.seen[1:])
        return replace(self, shape=(images, *self.shape[1:]), sources=sources, seen=seen)

    def call(self, tensors: Tensors) -> Call:
        factors = np.tile(self.factors, (PARTITIONS, 1))
        return Call("expectation", "weighted_softmax", (WeightName("f"),), biases={"f": factors}, held=("f",))


def add_expectation(lowering: Lowering, node: ir.Node, axis: int) -> bool:
    """Append one step for a softmax along an axis and the convolution that weights its results; return whether there is
    one."""
    made = node.outputs[0]
    reader, _ = lowering.sole_consumer(made)
    shape = lowering.shape(made)
    factors = None if reader is None else _read_factors(lowering, reader)
    if reader is None or factors is None or axis != 1 or len(factors) != shape[1] + 1 or shape[1] > MAX_BINS:
        return False
    view, outer = _lay_out(lowering.view_of(node.inputs[0]))
    seen = (prod(view.shape[:outer]), shape[1], prod(view.shape[outer + 1 :]))
    if seen[2] < _LEAST_COLUMNS:
        return False
    result = reader.outputs[0]
    step = ExpectationStep(
        name=node_name(node),
        sources=[lowering.operand_of(view)],
        output=value_name(result),
        shape=lowering.shape(result),
        seen=seen,
        factors=factors,
    )
    lowering.add(step, [node, reader], "exponentials, their sum and their weighted sum, many distributions a partition")
    return True


def _read_factors(lowering: Lowering, node: ir.Node) -> Array | None:
    """The weights and the bias of a 1x1 convolution to one channel; None if the node is anything else."""
    if node.domain != "" or node.op_type != "Conv" or attribute(node, "group", 1) != 1:
        return None
    weight, bias = lowering.constant(node.inputs[1]), lowering.constant(input_at(node, 2))
    moved = any(p for p in attribute(node, "pads", ())) or any(s != 1 for s in attribute(node, "strides", ()))
    if weight is None or moved or weight.shape[0] != 1 or weight.size != weight.shape[1]:
        return None
    if bias is None and input_at(node, 2) is not None:
        return None
    shift = np.zeros(1, np.float32) if bias is None else bias
    return np.concatenate([weight.reshape(-1), shift.reshape(-1)]).astype(np.float32)


def _lay_out(view: View) -> tuple[View, int]:
    """The view with its channels behind the dimensions that are further apart in memory, and their number."""
    outer = 1
    while outer + 1 < len(view.shape) and view.strides[outer + 1] > view.strides[1]:
        outer += 1
    rest = tuple(range(2, len(view.shape)))
    return view.permute((0, *rest[: outer - 1], 1, *rest[outer - 1 :])), outer
