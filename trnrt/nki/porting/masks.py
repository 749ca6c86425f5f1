"""Masks: comparisons of index expressions with numbers, as what they leave of each dimension."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from trnrt.nki.porting.algebra import add, expand, scale, write
from trnrt.nki.porting.evaluating import as_node, evaluate
from trnrt.nki.porting.indexes import Index, combine
from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.scope import Scope
from trnrt.nki.porting.tensors import Bound, Bounds, plus

_INSTEAD = "write slices of the elements to compute, or choose elements with nisa.affine_select"
_TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}


@dataclass
class Mask:
    """``bounds`` of the result's dimensions, and ``conditions`` without an index, of an ``if``."""

    bounds: Bounds = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)


def parse_mask(scope: Scope, node: ast.expr | None) -> Mask:
    """The mask of a call."""
    mask = Mask()
    for part in split_mask(scope, node):
        _add(scope, mask, part)
    return mask


def split_mask(scope: Scope, node: ast.expr | None) -> list[ast.expr]:
    """The comparisons that hold together."""
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
        return split_mask(scope, node.left) + split_mask(scope, node.right)
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [part for value in node.values for part in split_mask(scope, value)]
    if isinstance(node, ast.Name) and node.id in scope.held.masks:
        scope.check_stale(node.id)
        return split_mask(scope, scope.held.masks[node.id])
    return [node]


def _add(scope: Scope, mask: Mask, node: ast.expr) -> None:
    if not isinstance(node, ast.Compare):
        mask.conditions.append(ast.unparse(as_node(scope, evaluate(scope, node))))
        return
    operands = [node.left, *node.comparators]
    for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
        _add_comparison(scope, mask, left, operator, right)


def _add_comparison(scope: Scope, mask: Mask, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> None:
    """``left < right``, or another order, with at most one axis."""
    one, other = evaluate(scope, left), evaluate(scope, right)
    if not isinstance(one, Index) and not isinstance(other, Index):
        sides = as_node(scope, one), as_node(scope, other)
        mask.conditions.append(ast.unparse(ast.Compare(sides[0], [operator], [sides[1]])))
        return
    if type(operator) not in _TURNED:
        raise UntranslatedError("a mask that compares with == or != is not a rectangle", _INSTEAD)
    first = one if isinstance(one, Index) else as_node(scope, one)
    second = other if isinstance(other, Index) else as_node(scope, other)
    difference = combine(first, ast.Sub(), second)  # < 0
    if len(difference.axes) != 1 or difference.axes[0][1] not in ("1", "-1"):
        raise UntranslatedError("a mask of several indexes is not a rectangle", _INSTEAD)
    (axis, factor), kind = difference.axes[0], type(operator)
    poly = expand(difference.offset) if difference.offset is not None else {}
    if factor == "1":
        poly = scale(poly, -1)
    else:
        kind = _TURNED[kind]
    if axis.place is None:
        raise UntranslatedError("a mask of an nl.arange without a place", "write nl.arange(n)[:, None]")
    _cut(mask.bounds, axis.place, kind, write(poly), write(add(poly, {(): 1})))


def _cut(bounds: Bounds, place: int, kind: type[ast.cmpop], limit: str, after: str) -> None:
    """The index at ``place`` is ``kind`` (less, ...) than ``limit``; ``after`` is limit + 1."""
    before = bounds.get(place, Bound())
    if kind in (ast.Lt, ast.LtE):
        high = limit if kind is ast.Lt else after
        bounds[place] = Bound(before.low, high if before.high is None else f"min({before.high}, {high})")
    else:
        low = after if kind is ast.Gt else limit
        bounds[place] = Bound(low if before.low is None else f"max({before.low}, {plus(low, '0')})", before.high)
