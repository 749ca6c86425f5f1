"""Reductions: sums, means, products, norms, maxima and minima over any dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

import onnx_ir as ir

from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds import sums
from trnrt.operators.integers import check_integers, makes_integers
from trnrt.operators.movement import integers
from trnrt.operators.pool_steps import AveragePoolStep, PoolStep
from trnrt.operators.programs import Program, Register, add_compute, add_program
from trnrt.operators.record import CHEAP, NEVER, BoundRule, Declaration, Folding
from trnrt.operators.unit_rows import lower_unit_rows
from trnrt.operators.windows import Window
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.steps import Call, Operand, Step, Tensors

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Reduction:
    """``after(factor * op-reduction of before(x))``, by the kernel's names. ``is_mean``: the factor is 1 / count."""

    op: str
    before: str = "none"
    after: str = "none"
    is_mean: bool = False


L1 = Reduction("add", before="abs")
L2 = Reduction("add", before="square", after="sqrt")
# Operator -> reduction, opsets, error bound, folding.
REDUCTIONS: dict[str, tuple[Reduction, tuple[int, ...], BoundRule, Folding]] = {
    "ReduceSum": (Reduction("add"), (6, 11, 13), sums.average, CHEAP),
    "ReduceMean": (Reduction("add", is_mean=True), (6, 11, 13, 18), sums.average, CHEAP),
    "ReduceProd": (Reduction("multiply"), (6, 11, 13, 18), sums.bound_product, CHEAP),
    "ReduceMax": (Reduction("maximum"), (6, 11, 12, 13, 18, 20), sums.largest, CHEAP),
    "ReduceMin": (Reduction("minimum"), (6, 11, 12, 13, 18, 20), sums.largest, CHEAP),
    "ReduceL1": (L1, (6, 11, 13, 18), sums.average, CHEAP),
    "ReduceL2": (L2, (6, 11, 13, 18), sums.norm, CHEAP),
    "ReduceSumSquare": (Reduction("add", before="square"), (6, 11, 13, 18), sums.squares, CHEAP),
    "ReduceLogSum": (Reduction("add", after="log"), (6, 11, 13, 18, 28), sums.log_of_sum, NEVER),
}
_reducing = partial(Declaration, batch=batch.reduce, order=order.reduce, values=(1,), shapes=shapes.by_onnx)


@dataclass(kw_only=True)
class ReduceStep(Step):
    """A reduction of the second of three dimensions, ``groups``."""

    groups: tuple[int, int, int]
    reduction: Reduction
    factor: float

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return (self.groups[0], self.groups[2]) if position is None else self.groups

    def call(self, tensors: Tensors) -> Call:
        chosen = {"before": self.reduction.before, "factor": self.factor, "after": self.reduction.after}
        options = {key: value for key, value in chosen.items() if value not in ("none", 1.0)}
        return Call("reduce", "reduce", (self.reduction.op,), options)


def add_reduce(
    lowering: Lowering, node: ir.Node, source: Operand, axes: Shape, reduction: Reduction, output: str, shape: Shape
) -> Operand:
    """Append the steps that reduce ``source`` over ``axes`` into the tensor ``output``: one for each run of
    neighbouring axes. Tensors between them are float32.
    """
    runs = merged_runs(nonempty_shape(source.shape), axes)
    factor = 1.0 / prod(source.shape[a] for a in axes) if reduction.is_mean else 1.0
    before = reduction.before
    while True:
        k = max(k for k, (is_reduced, _) in enumerate(runs) if is_reduced)
        sizes = [size for _, size in runs]
        groups = (prod(sizes[:k]), sizes[k], prod(sizes[k + 1 :]))
        is_last = sum(is_reduced for is_reduced, _ in runs) == 1
        made = output if is_last else lowering.spare_name(f"{output}.part")
        step = ReduceStep(
            name=node_name(node) if made == value_name(node.outputs[0]) else lowering.spare_name(f"{made}.step"),
            sources=[source],
            output=made,
            shape=shape if is_last else (groups[0] * groups[2],),
            dtype="" if is_last else "float32",
            groups=groups,
            reduction=Reduction(reduction.op, before, reduction.after if is_last else "none"),
            factor=factor if is_last else 1.0,
        )
        lowering.add(step, [node], "groups on the partitions, reduced by the vector engine")
        if is_last:
            return Operand(output, shape)
        source, before = Operand(made, step.shape), "none"
        runs = merged_runs(tuple(sizes[:k] + sizes[k + 1 :]), tuple(j for j in range(k) if runs[j][0]))


def add_statistic(
    lowering: Lowering, node: ir.Node, source: Operand, axes: Shape, reduction: Reduction, what: str
) -> Operand:
    """A reduction on the way to a node's output; the axes stay, of size 1, so that it broadcasts."""
    shape = tuple(1 if d in axes else size for d, size in enumerate(source.shape))
    name = lowering.spare_name(f"{value_name(node.outputs[0])}.{what}")
    return add_reduce(lowering, node, source, axes, reduction, name, shape)


def merged_runs(shape: Shape, axes: Shape) -> list[tuple[bool, int]]:
    """Runs of neighbouring dimensions that are all reduced, or all kept: (whether they are reduced, their size)."""
    runs: list[tuple[bool, int]] = []
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if runs and runs[-1][0] == (d in axes):
            runs[-1] = (runs[-1][0], runs[-1][1] * size)
        else:
            runs.append((d in axes, size))
    return runs if any(is_reduced for is_reduced, _ in runs) else [*runs, (True, 1)]


def stored_operand(
    lowering: Lowering, value: ir.Value | None, axes: Shape, *, integers: bool = False
) -> tuple[Operand, Shape]:
    """A tensor to reduce over ``axes``, and these axes, as the tensor is stored, if that leaves the result in order:
    then a Transpose before the reduction moves nothing."""
    view = lowering.view_of(value, short_integers=integers)
    order = view.order
    if order is not None:
        kept = [order[d] for d, size in enumerate(view.shape) if d not in axes and size > 1]
        if kept == sorted(kept):
            stored = tuple(view.shape[order.index(d)] for d in range(len(order)))
            return Operand(view.root, stored), tuple(sorted(order[a] for a in axes))
    return lowering.operand_of(view), axes


def reduced_axes(lowering: Lowering, node: ir.Node, rank: int) -> Shape:
    """The axes of a reduction, not negative; none if the node says that nothing is reduced."""
    axes = integers(lowering, node, 1, "axes")
    if axes is None:
        axes = attribute(node, "axes", None)
    if not axes:
        return () if attribute(node, "noop_with_empty_axes", 0) else tuple(range(rank))
    return checked_axes(axes, rank)


def nonempty_shape(shape: Shape) -> Shape:
    """The shape itself; blocks one without elements."""
    if 0 in shape:
        raise Blocked(f"a tensor of shape {shape}, which has no elements", "export the model for larger inputs")
    return shape


def checked_axes(axes: Shape, rank: int) -> Shape:
    """The axes sorted, not negative, each once; blocks axes that the tensor doesn't have."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise Blocked(f"axis {axis} of a tensor of {rank} dimensions", WRONG)
    return tuple(sorted({axis % rank for axis in axes}))


def lower_reduce(lowering: Lowering, node: ir.Node) -> None:
    """A reduction over any axes; before opset 18 (ReduceSum: 13) the axes are an attribute."""
    made, reduction = node.outputs[0], REDUCTIONS[node.op_type][0]
    adds = node.op_type == "ReduceSum" and makes_integers(node)
    exact = adds or node.op_type in ("ReduceMax", "ReduceMin")
    if adds:
        check_integers(lowering, made)
    rank = len(lowering.shape(node.inputs[0]))
    axes = reduced_axes(lowering, node, rank)
    if not axes and rank:
        _apply_elementwise(lowering, node, reduction)
        return
    if node.op_type == "ReduceL2" and lower_unit_rows(lowering, node, axes):
        return
    source, stored_axes = stored_operand(lowering, node.inputs[0], axes, integers=exact)
    nonempty_shape(source.shape)
    if stored_axes == (2, 3) and len(source.shape) == 4 and node.op_type in ("ReduceMean", "ReduceMax"):
        _pool_images(lowering, node, source)
        return
    add_reduce(lowering, node, source, stored_axes, reduction, value_name(made), lowering.shape(made))
    lowering.mark_whole_numbers(made)


for _name, (_, _opsets, _bound, _folds) in REDUCTIONS.items():
    _reducing({_name: _opsets}, bound=_bound, folds=_folds)(lower_reduce)


def _pool_images(lowering: Lowering, node: ir.Node, source: Operand) -> None:
    """Append the mean or maximum of each channel by a pooling kernel, which reads images that are on chip."""
    made, shape = node.outputs[0], (*source.shape[:2], 1, 1)
    is_same = lowering.shape(made) == shape
    kind = PoolStep if node.op_type == "ReduceMax" else partial(AveragePoolStep, ends=(0, 0), count_include_pad=True)
    step = kind(
        name=node_name(node),
        sources=[source],
        output=value_name(made) if is_same else lowering.spare_name(f"{value_name(made)}.pooled"),
        shape=shape,
        window=Window((source.shape[2], source.shape[3]), (1, 1), (1, 1), (0, 0)),
    )
    lowering.add(step, [node], "a window that is all of the image, on the vector engine")
    if not is_same:
        view = View.whole(step.output, shape).reshape(lowering.shape(made))
        assert view is not None
        lowering.set_view(made, view)
    lowering.mark_whole_numbers(made)


def _apply_elementwise(lowering: Lowering, node: ir.Node, reduction: Reduction) -> None:
    """noop_with_empty_axes=1: apply the functions before and after the reduction, with nothing reduced."""
    names = [name for name in (reduction.before, reduction.after) if name != "none"]
    if not names:
        source = node.inputs[0]
        assert source is not None
        lowering.view(node, source, "no axes: nothing is reduced")
        return
    program = Program()
    value = program.source(lowering.operand(node.inputs[0]))
    for name in names:
        value = program.apply(name, value)
    add_compute(lowering, node, program)


@_reducing({"ReduceLogSumExp": (6, 11, 13, 18, 28)}, bound=sums.log_of_sum, folds=NEVER)
def lower_log_sum_exp(lowering: Lowering, node: ir.Node) -> None:
    """The logarithm of the sum of exponentials, computed relative to the largest element so that none overflows."""
    made = node.outputs[0]
    shape = lowering.shape(node.inputs[0])
    axes = reduced_axes(lowering, node, len(shape))
    if not axes and shape:
        _apply_elementwise(lowering, node, Reduction("add"))
        return
    source = lowering.operand(node.inputs[0])
    largest = add_statistic(lowering, node, source, axes, Reduction("maximum"), "max")
    relative = Program()
    base = _finite(relative, largest)
    relative.apply("exp", relative.apply("subtract", relative.source(source), base))
    terms = add_program(lowering, node, relative, lowering.spare_name(f"{value_name(made)}.terms"), shape)
    logarithm = add_statistic(lowering, node, terms, axes, Reduction("add", after="log"), "log")
    total = Program()
    total.apply(
        "add",
        total.source(Operand(logarithm.value, lowering.shape(made))),
        _finite(total, Operand(largest.value, lowering.shape(made))),
    )
    add_compute(lowering, node, total)


def _finite(program: Program, operand: Operand) -> Register:
    """The operand, 0 where it is infinite: a difference to infinity could be NaN."""
    value = program.source(operand)
    return program.apply("where", program.apply("is_inf", value), 0.0, value)
