"""CumSum and Trilu: sums up to each place, and the parts of a matrix above and below a diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.operators import batch, order, shapes
from trnrt.operators.bounds.case import Array, Case
from trnrt.operators.integers import check_integers, makes_integers
from trnrt.operators.movement import bound_move, can_move, constant_numbers
from trnrt.operators.programs import Program, add_compute
from trnrt.operators.record import SMALL, Declaration
from trnrt.operators.reduce import checked_axes, nonempty_shape
from trnrt.planner.lowering.blocked import WRONG
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Blocked, Lowering, attribute, node_name, value_name
from trnrt.planner.steps import Call, Step, Tensors


@dataclass(kw_only=True)
class CumSumStep(Step):
    """The running sums of each row."""

    exclusive: bool

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape

    def call(self, tensors: Tensors) -> Call:
        return Call("cumsum", "cumsum", (), {"rows": self.shape[0], "exclusive": self.exclusive})


def bound_cumsum(case: Case) -> list[Array]:
    """Of each sum, the errors of its terms, and a rounding of every partial sum."""
    axis = int(np.asarray(case.inputs[1]).reshape(-1)[0])
    count = case.x.shape[axis] if case.x.ndim else 1
    errors, sizes = case.first(case.e, case.inputs[1]), case.first(case.size, case.inputs[1])
    return [np.abs(errors) + case.sums(count) * np.abs(sizes)]


def _flip(view: View, axis: int) -> View:
    """The indices of one dimension backwards."""
    size = view.shape[axis]
    return view.slice(axis, size - 1, size, -1)


@Declaration(
    {"CumSum": (11, 14)},
    batch=batch.cumulate,
    order=order.keep_order,
    bound=bound_cumsum,
    values=(1,),
    folds=SMALL,
    shapes=shapes.by_onnx,
)
def lower_cumsum(lowering: Lowering, node: ir.Node) -> None:
    """The sum of each element and those before it along an axis; "reverse": those after it."""
    made = node.outputs[0]
    if makes_integers(node):
        check_integers(lowering, made)
    given = constant_numbers(lowering, node, 1, "axis")
    view = can_move(lowering, node.inputs[0])
    shape = nonempty_shape(view.shape)
    axis = checked_axes(tuple(int(i) for i in given) if given is not None else (0,), len(shape))[0]
    backwards = bool(attribute(node, "reverse", 0))
    around = (*(d for d in range(len(shape)) if d != axis), axis)
    source = lowering.operand_of((_flip(view, axis) if backwards else view).permute(around))
    plain = axis == len(shape) - 1 and not backwards
    step = CumSumStep(
        name=node_name(node),
        sources=[source],
        output=value_name(made) if plain else lowering.spare_name(f"{value_name(made)}.sums"),
        shape=(prod(shape) // shape[axis], shape[axis]),
        exclusive=bool(attribute(node, "exclusive", 0)),
    )
    lowering.add(step, [node], "the vector engine's scan of each row")
    if not plain:
        stored = View.whole(step.output, source.shape).permute(tuple(around.index(d) for d in range(len(shape))))
        lowering.set_view(made, _flip(stored, axis) if backwards else stored)
    lowering.mark_whole_numbers(made)


@Declaration(
    {"Trilu": (14,)},
    batch=batch.by_matrix,
    order=order.keep_order,
    bound=bound_move,
    values=(1,),
    folds=SMALL,
    shapes=shapes.by_onnx,
)
def lower_trilu(lowering: Lowering, node: ir.Node) -> None:
    """The elements above a diagonal, or below it; the others are 0."""
    given = constant_numbers(lowering, node, 1, "k")
    shape = nonempty_shape(lowering.shape(node.inputs[0]))
    if len(shape) < 2:
        raise Blocked(f"a tensor of {len(shape)} dimensions; there must be matrices", WRONG)
    k = 0 if given is None or not given.size else int(given[0])
    upper = bool(attribute(node, "upper", 1))
    ones = np.ones(shape[-2:], bool)
    # Diagonals beyond the matrix are all alike.
    k = max(-shape[-2] - 1, min(shape[-1] + 1, k))
    kept = np.triu(ones, k) if upper else np.tril(ones, k)
    program = Program()
    source = program.source(lowering.operand(node.inputs[0], short_integers=True))
    mask = program.source(kept.astype(np.float32))
    program.apply("where", mask, source, 0.0)
    add_compute(lowering, node, program)
