"""Operators that move nothing, or only change the order of elements."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from trnrt.planner.lowering import Blocked, Lowering, attribute, lowers, node_name, value_name
from trnrt.planner.steps import Call, Step, Tensors


@lowers("Reshape", "Flatten", "Identity", "Dropout", "Squeeze", "Unsqueeze")
def lower_view(lowering: Lowering, node: ir.Node) -> None:
    """The same elements in another shape: later steps read them where they are."""
    source = node.inputs[0]
    if source is None:
        raise Blocked("the input is left out")
    if (
        node.op_type == "Dropout"
        and len(node.outputs) > 1
        and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    ):
        raise Blocked("the output mask", "export the model in inference mode")
    lowering.shape(node.outputs[0])
    lowering.view(node, source, "the same elements in another shape; nothing moves")


@dataclass(kw_only=True)
class TransposeStep(Step):
    """``source.transpose(order)`` over the collapsed dimensions ``collapsed``."""

    order: tuple[int, ...]
    collapsed: tuple[int, ...]

    def _is_matrices(self) -> bool:
        return self.order in ((1, 0), (0, 2, 1))

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = self.collapsed if position == 0 else tuple(self.collapsed[d] for d in self.order)
        return (1, *shape) if self.order == (1, 0) else shape

    def call(self, tensors: Tensors) -> Call:
        if self._is_matrices():
            return Call("transpose", "transpose_matrices", ())
        return Call("transpose", "permute_dims", (self.order,))


@lowers("Transpose")
def lower_transpose(lowering: Lowering, node: ir.Node) -> None:
    """Another order of dimensions: a view where only dimensions of size 1 move, a step otherwise."""
    source = lowering.operand(node.inputs[0])
    rank = len(source.shape)
    order = tuple(attribute(node, "perm", tuple(reversed(range(rank)))))
    collapsed, small = collapse_transpose(source.shape, order)
    if small == tuple(range(len(small))):
        assert node.inputs[0] is not None
        lowering.view(node, node.inputs[0], "only dimensions of size 1 move; the elements stay in order")
        return
    if len(small) > 5:
        raise Blocked(f"perm={list(order)} moves {len(small)} groups of dimensions; an access pattern has 5")
    step = TransposeStep(
        name=node_name(node),
        nodes=[node_name(node)],
        sources=[source],
        output=value_name(node.outputs[0]),
        shape=lowering.shape(node.outputs[0]),
        order=small,
        collapsed=collapsed,
    )
    lowering.add(step, [node], "another order of elements, by the tensor engine (matrices) or DMA")


def collapse_transpose(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same transpose over as few dimensions as possible: size 1 left out, runs that stay together merged."""
    kept = [d for d in order if shape[d] != 1]
    runs: list[list[int]] = []
    for d in kept:
        between = range(runs[-1][-1] + 1, d) if runs else range(0)
        if runs and d > runs[-1][-1] and all(shape[k] == 1 for k in between):
            runs[-1].append(d)
        else:
            runs.append([d])
    by_source = sorted(runs)
    sizes = tuple(prod(shape[d] for d in run) for run in by_source)
    return sizes, tuple(by_source.index(run) for run in runs)
