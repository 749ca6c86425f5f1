"""Index expressions: ``nl.arange`` and ``nl.mgrid``, and the sums of them that index a tensor.

An index is ``offset + sum(coefficient * axis)``. Each axis counts from 0 to its size, at a place of the result's shape.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import count

from trnrt.nki.porting.algebra import Poly, add, as_number, constant, expand, multiply, write
from trnrt.nki.porting.marks import UntranslatedError

AFFINE = "write the index as sums and products with numbers: slices can express those"
_NUMBERS = count()


@dataclass(frozen=True)
class Axis:
    """The numbers 0 to ``size`` at ``place`` of ``places`` dimensions; None before ``[:, None]`` placed them."""

    size: str
    place: int | None
    places: int
    number: int


@dataclass(frozen=True)
class Index:
    """``offset`` plus axes times their coefficients; ``offset`` keeps the form in which it was written."""

    axes: tuple[tuple[Axis, str], ...]
    offset: ast.expr | None = None

    @property
    def start(self) -> str:
        return "0" if self.offset is None else ast.unparse(self.offset)


@dataclass(frozen=True)
class Grid:
    """What ``nl.mgrid`` gives: an index for each dimension, as ``.p``, ``.x``, ``.y`` and ``.z`` or unpacked."""

    indexes: tuple[Index, ...]


def arange(start: ast.expr | None, stop: ast.expr) -> Index:
    """The numbers from ``start`` to ``stop``, with no place yet."""
    return Index(((Axis(_difference(stop, start), None, 1, next(_NUMBERS)), "1"),), _unless_zero(start))


def grid(slices: list[ast.expr]) -> Grid:
    """The grid of ``nl.mgrid[a:b, c:d]``."""
    found = []
    for place, item in enumerate(slices):
        if not isinstance(item, ast.Slice) or item.upper is None or item.step is not None:
            raise UntranslatedError("nl.mgrid takes slices without steps here", AFFINE)
        axis = Axis(_difference(item.upper, item.lower), place, len(slices), next(_NUMBERS))
        found.append(Index(((axis, "1"),), _unless_zero(item.lower)))
    return Grid(tuple(found))


def place(index: Index, keys: list[ast.expr]) -> Index:
    """``index[:, None]``: the one ``:`` is the place of its axis."""
    free = [at for at, key in enumerate(keys) if isinstance(key, ast.Slice)]
    others = [key for key in keys if not isinstance(key, ast.Slice)]
    nones = all(isinstance(key, ast.Constant) and key.value is None for key in others)
    if len(free) != 1 or not nones or len(index.axes) != 1 or index.axes[0][0].place is not None:
        raise UntranslatedError("an index of nl.arange is indexed by something but : and None", AFFINE)
    axis, factor = index.axes[0]
    return Index(((Axis(axis.size, free[0], len(keys), axis.number), factor),), index.offset)


def combine(left: Index | ast.expr, operator: ast.operator, right: Index | ast.expr) -> Index:
    """``left + right``, ``left - right`` or ``left * right``, one of which at least is an index."""
    if isinstance(operator, (ast.Add, ast.Sub)):
        minus = isinstance(operator, ast.Sub)
        return Index(
            _sum(_axes(left), _axes(right), -1 if minus else 1), _join(_offset(left), operator, _offset(right))
        )
    if isinstance(operator, ast.Mult) and not (isinstance(left, Index) and isinstance(right, Index)):
        index, factor = (left, right) if isinstance(left, Index) else (right, left)
        assert isinstance(index, Index) and isinstance(factor, ast.expr)
        scaled = tuple((axis, write(multiply(_poly(text), expand(factor)))) for axis, text in index.axes)
        return Index(scaled, None if index.offset is None else ast.BinOp(index.offset, ast.Mult(), factor))
    raise UntranslatedError("an index of nl.arange or nl.mgrid is not a sum of multiples", AFFINE)


def negative(index: Index) -> Index:
    offset = None if index.offset is None else ast.UnaryOp(ast.USub(), index.offset)
    return Index(_sum((), index.axes, -1), offset)


def _axes(value: Index | ast.expr) -> tuple[tuple[Axis, str], ...]:
    return value.axes if isinstance(value, Index) else ()


def _offset(value: Index | ast.expr) -> ast.expr | None:
    return value.offset if isinstance(value, Index) else _unless_zero(value)


def _sum(
    one: tuple[tuple[Axis, str], ...], other: tuple[tuple[Axis, str], ...], sign: int
) -> tuple[tuple[Axis, str], ...]:
    found: dict[Axis, Poly] = {axis: _poly(text) for axis, text in one}
    for axis, text in other:
        found[axis] = add(found.get(axis, {}), multiply(_poly(text), constant(sign)))
    return tuple((axis, write(poly)) for axis, poly in found.items() if poly)


def _join(left: ast.expr | None, operator: ast.operator, right: ast.expr | None) -> ast.expr | None:
    if right is None:
        return left
    if left is None:
        return ast.UnaryOp(ast.USub(), right) if isinstance(operator, ast.Sub) else right
    return ast.BinOp(left, operator, right)


def _unless_zero(node: ast.expr | None) -> ast.expr | None:
    return None if node is None or as_number(expand(node)) == 0 else node


def _difference(stop: ast.expr, start: ast.expr | None) -> str:
    """``stop - start``, simplified if they have terms in common."""
    if _unless_zero(start) is None:
        return ast.unparse(stop)
    assert start is not None
    return write(add(expand(stop), multiply(expand(start), constant(-1))))


def _poly(text: str) -> Poly:
    return expand(ast.parse(text, mode="eval").body)
