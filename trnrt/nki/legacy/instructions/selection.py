"""Constants of index expressions, and selections: by index expressions, by ranges, by predicates."""

from __future__ import annotations

from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Index, Mask, regions
from trnrt.nki.legacy.instructions.issuing import (
    FLOAT32_MIN,
    as_column,
    as_integers,
    instruction,
    issue_now,
    parts_of,
    require_one_range,
    require_result,
)
from trnrt.nki.legacy.lang.common import as_operator, require_operand, require_tile, result_format
from trnrt.nki.legacy.tiles import Pending, on_chip_shape
from trnrt.nki.machine import modes
from trnrt.nki.machine.operators import OPERATORS
from trnrt.nki.sim import isa
from trnrt.nki.sim.lang.common import copy_to_sbuf
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["affine_select", "iota", "range_select", "select_reduce", "sequence_bounds", "tensor_copy_predicated"]

_IDLE, _MAXIMUM, _ADD = modes.reduce_cmd.idle, OPERATORS["maximum"], OPERATORS["add"]


def _affine_arguments(what: str, expression: Index) -> dict[str, Any]:
    """The pattern of an index expression: the step along the partitions, and ``[step, count]`` of the others."""
    if expression.steps is None:
        raise KernelError(
            f"{what}: the index expression does not grow by constant steps: "
            f"{expression.values.ravel()[:8].tolist()} ...",
            hint="it must be a sum of nl.arange times integers",
        )
    shape = on_chip_shape(expression.shape)
    steps = (*expression.steps, *(0,) * (len(shape) - expression.ndim))
    pattern = [[step, size] for step, size in zip(steps[1:], shape[1:], strict=True)]
    return {"pattern": pattern, "offset": expression.base, "channel_multiplier": steps[0]}


@instruction
def iota(expr: Any, dtype: Any, *, mask: Any = None, **_: Any) -> Pending:
    """The values of an index expression, its first dimension along the partitions, on the GpSimd engine."""
    if not isinstance(expr, Index):
        raise KernelError(f"nisa.iota: expr is a {type(expr).__name__}; it must be an expression of nl.arange")

    def emit(dst: NkiTensor, part: Index) -> None:
        isa.iota(dst, **_affine_arguments("nisa.iota", part))

    return Pending(on_chip_shape(expr.shape), result_format(dtype), emit, (expr,), mask=mask)


@instruction
def affine_select(
    pred: Any, on_true_tile: Any, on_false_value: Any, *, mask: Any = None, dtype: Any = None, **_: Any
) -> Pending:
    """``on_true_tile`` where one comparison of index expressions holds, else a number, on the GpSimd engine."""
    what = "nisa.affine_select"
    data = require_tile(what, on_true_tile, "on_true_tile")
    if not isinstance(pred, Mask) or pred.compared is None:
        given = "made of several comparisons" if isinstance(pred, Mask) else f"a {type(pred).__name__}"
        raise KernelError(
            f"{what}: pred is {given}; it must be one comparison of index expressions",
            hint="select by one comparison after the other, or use nl.where",
        )
    try:
        compared = pred.compared.broadcast(data.shape)
    except ValueError:
        raise KernelError(f"{what}: pred has shape {pred.compared.shape}; it must fit the tile, {data.shape}") from None
    relation = OPERATORS[pred.relation]

    def emit(dst: NkiTensor, a: NkiTensor, part: Index) -> None:
        held = copy_to_sbuf(a)  # GpSimd doesn't reach PSUM
        arguments = _affine_arguments(what, part)
        isa.affine_select(dst, on_true_tile=held, on_false_value=float(on_false_value), cmp_op=relation, **arguments)

    return Pending(data.shape, result_format(dtype, data), emit, (data, compared), mask=mask)


@instruction
def range_select(
    *,
    on_true_tile: Any,
    comp_op0: Any,
    comp_op1: Any,
    bound0: Any,
    bound1: Any,
    reduce_cmd: Any = _IDLE,
    reduce_res: Any = None,
    reduce_op: Any = _MAXIMUM,
    range_start: Any = 0,
    on_false_value: Any = FLOAT32_MIN,
    mask: Any = None,
    dtype: Any = None,
    **_: Any,
) -> Pending:
    """``on_true_tile`` where ``range_start`` + place passes both comparisons, else the least float32."""
    what = "nisa.range_select"
    data = require_tile(what, on_true_tile, "on_true_tile")
    bounds = require_tile(what, bound0, "bound0"), require_tile(what, bound1, "bound1")
    first, second, reduces = as_operator(comp_op0), as_operator(comp_op1), as_operator(reduce_op)
    result = require_result(what, reduce_res, "reduce_res")
    count = Index(int(range_start), (0, 1), (data.shape[0], data.free_size))

    def emit(dst: NkiTensor, a: NkiTensor, low: Any, high: Any, total: Any, part: Index) -> None:
        more = {"reduce_cmd": reduce_cmd, "reduce_res": total, "reduce_op": reduces}
        isa.range_select(dst, a, first, second, low, high, range_start=part.base, on_false_value=on_false_value, **more)

    if data.ndim != 2 and mask is not None:
        raise KernelError(f"{what}: mask of a tile of {data.ndim} dimensions, {data.shape}; give it one of 2")
    made = Pending(data.shape, result_format(dtype, data), emit, (data, *bounds, result, count), mask=mask)
    if result is not None:
        require_one_range(what, parts_of(made))
    return made


@instruction
def select_reduce(
    *,
    dst: Any,
    predicate: Any,
    on_true: Any,
    on_false: Any,
    reduce_res: Any = None,
    reduce_cmd: Any = _IDLE,
    reduce_op: Any = _MAXIMUM,
    reverse_pred: bool = False,
    mask: Any = None,
    **_: Any,
) -> None:
    """``dst = on_true`` where the predicate isn't 0, else ``on_false``; also each partition's maximum."""
    what = "nisa.select_reduce"
    target = require_tile(what, dst, "dst")
    chosen, data = require_tile(what, predicate, "predicate"), require_tile(what, on_true, "on_true")
    other, result = require_operand(what, on_false, "on_false"), require_result(what, reduce_res, "reduce_res")
    reduces = as_operator(reduce_op)

    def emit(made: NkiTensor, choice: NkiTensor, a: NkiTensor, b: Any, total: Any) -> None:
        more = {"reduce_res": total, "reduce_cmd": reduce_cmd, "reduce_op": reduces}
        isa.select_reduce(made, as_integers(choice), a, as_column(b, _ADD), reverse_pred=reverse_pred, **more)

    if result is not None:
        require_one_range(what, regions(mask, target.shape))
    issue_now(target, emit, (chosen, data, other, result), mask)


@instruction
def tensor_copy_predicated(
    *, src: Any, dst: Any, predicate: Any, reverse_pred: bool = False, mask: Any = None, **_: Any
) -> None:
    """``dst = src`` where the predicate isn't 0."""
    what = "nisa.tensor_copy_predicated"
    target, data = require_tile(what, dst, "dst"), require_operand(what, src, "src")
    chosen = require_tile(what, predicate, "predicate")

    def emit(made: NkiTensor, a: Any, choice: NkiTensor) -> None:
        isa.tensor_copy_predicated(made, a, as_integers(choice), reverse_pred)

    issue_now(target, emit, (data, chosen), mask)


@instruction
def sequence_bounds(*, segment_ids: Any, dtype: Any = None, **_: Any) -> Pending:
    """(1, n) segment ids -> (1, 2, n): the first place of each element's segment, and the place after its last."""
    ids = require_tile("nisa.sequence_bounds", segment_ids, "segment_ids")
    return Pending((1, 2, ids.free_size), result_format(dtype, ids), isa.sequence_bounds, (ids,))
