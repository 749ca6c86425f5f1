"""A tensor as the port knows it, by syntax alone: its memory, and the text of its sizes as far as it can be read."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trnrt.nki.porting.algebra import add, as_number, expand, scale, write

Make = Callable[[str], str]  # the statement that writes a result into a destination, by the destination's text


@dataclass(frozen=True)
class Plain:
    """An expression of Python, as it is to be written."""

    node: ast.expr


@dataclass(frozen=True)
class Bound:
    """The part of a dimension that a mask leaves: from ``low`` to before ``high``; None where it doesn't say."""

    low: str | None = None
    high: str | None = None


Bounds = dict[int, Bound]  # by the dimension of the result, in the old order


@dataclass(frozen=True)
class Tensor:
    """A tensor, a view of one, or a result that no tensor holds yet.

    ``text``: the expression, None for a result that ``make`` must write into a destination. ``shape``: the text of each
    size, None where unknown; None if even their number is. ``partition``: where the partition dimension was in the old
    order; it is the first in the ported file. ``space``: hbm, sbuf, psum, or "" where unknown. ``whole``: all of a
    named tensor. ``origin``: the dtype that it was made with. ``root``: a named tensor of the same shape. ``likeness``:
    the text of a shape whose sizes are not all known. ``bounds``: what a mask leaves of the result. ``matmul``: a
    product, which may accumulate.
    """

    text: str | None
    space: str = ""
    shape: tuple[str | None, ...] | None = None
    dtype: str | None = None
    partition: int = 0
    whole: bool = False
    make: Make | None = None
    origin: str | None = None
    root: str | None = None
    likeness: str | None = None
    bounds: tuple[tuple[int, Bound], ...] = ()
    matmul: bool = False

    @property
    def element(self) -> str:
        """The text of its dtype."""
        return self.dtype or (f"{self.text}.dtype" if self.text else "nl.float32")

    def new_dim(self, old: int) -> int:
        """The dimension in the ported file of one in the old order."""
        old = old + len(self.shape) if old < 0 and self.shape is not None else old
        return 0 if old == self.partition else old + 1 if 0 <= old < self.partition else old

    def size(self, dim: int) -> str:
        """The text of a size, in the ported file's order."""
        known = self.shape[dim] if self.shape is not None and dim < len(self.shape) else None
        return known if known is not None else f"{self.root or self.text}.shape[{dim}]"

    def shape_text(self) -> str:
        """The shape as an expression: by its sizes if all are known, else by the attribute of its likeness."""
        if self.likeness is not None:
            return self.likeness
        if self.shape is not None and all(size is not None for size in self.shape):
            return tuple_text([str(size) for size in self.shape])
        return f"{self.root or self.text}.shape"


def tuple_text(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def same(one: str | None, other: str | None) -> bool:
    """True if two sizes are the same number as far as their text says; unknown ones are not."""
    return one is not None and other is not None and as_number(difference(one, other)) == 0


def difference(one: str, other: str) -> dict[tuple[str, ...], int]:
    return add(poly(one), scale(poly(other), -1))


def poly(text: str) -> dict[tuple[str, ...], int]:
    return expand(ast.parse(text, mode="eval").body)


def plus(one: str, other: str) -> str:
    """``one + other``: simplified to its terms if that is shorter."""
    if as_number(poly(one)) == 0:
        return other
    if as_number(poly(other)) == 0:
        return one
    multiple = _next_multiple(one, other)
    if multiple is not None:
        return multiple
    simple, long = write(add(poly(one), poly(other))), f"{one} + {other}"
    return simple if len(simple) < len(long) else long


def _next_multiple(one: str, other: str) -> str | None:
    """``(i + 1) * n`` for ``i * n + n``."""
    node = ast.parse(one, mode="eval").body
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for factor, count in ((node.right, node.left), (node.left, node.right)):
        if ast.unparse(factor) == other:
            more = plus(ast.unparse(count), "1")
            return f"({more}) * {other}" if factor is node.right else f"{other} * ({more})"
    return None


def times(one: str, other: str) -> str:
    """``one * other``, with the parentheses that it needs."""
    if as_number(poly(one)) == 1:
        return other
    if as_number(poly(other)) == 1:
        return one
    factors = [
        f"({text})" if isinstance(ast.parse(text, mode="eval").body, ast.BinOp) else text for text in (one, other)
    ]
    return " * ".join(factors)


def narrow(tensor: Tensor, bounds: Bounds) -> Tensor:
    """The part of a named tensor or a view that a mask leaves; dimensions of size 1 stay, as they are repeated."""
    if not bounds or tensor.text is None:
        return tensor
    moved = {tensor.new_dim(dim): bound for dim, bound in bounds.items()}
    keys = [":"] * (max(moved) + 1)
    for dim, bound in moved.items():
        if tensor.shape is not None and (dim >= len(tensor.shape) or tensor.shape[dim] == "1"):
            continue
        keys[dim] = slice_text("0", tensor.size(dim), bound)
    while keys and keys[-1] == ":":
        keys.pop()
    return replace(tensor, text=f"{tensor.text}[{', '.join(keys)}]", whole=False) if keys else tensor


def slice_text(start: str, size: str, bound: Bound | None = None) -> str:
    """``start : start + size``, cut to a bound that counts from ``start``."""
    end = plus(start, size)
    if bound is not None and bound.high is not None:
        end = _choose("min", end, plus(start, bound.high))
    if bound is not None and bound.low is not None:
        start = _choose("max", start, plus(start, bound.low))
    return f"{start}:{end}"


def _choose(function: str, one: str, other: str) -> str:
    """``min(one, other)`` or ``max(one, other)``: one of them, if the difference is a number."""
    apart = as_number(difference(one, other))
    if apart is None:
        return f"{function}({one}, {other})"
    return one if (apart <= 0) == (function == "min") else other


def replace_text(tensor: Tensor, name: str) -> Tensor:
    """The tensor that ``name`` holds from now on."""
    root = tensor.root or (name if tensor.shape is None and not tensor.partition else None)
    dtype = tensor.dtype or f"{name}.dtype"
    known = Tensor(name, tensor.space, tensor.shape, dtype, tensor.partition, whole=True, root=root)
    return replace(known, origin=tensor.origin)
