"""Sums of products of names, as sizes and offsets are: ``(i + 1) * n - i * n`` is ``n``.

A polynomial is a dictionary from its monomials (their factors' texts, sorted) to whole numbers. What is no sum,
difference or product is a factor as it stands.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

Poly = dict[tuple[str, ...], int]


def expand(node: ast.expr, known: Mapping[str, ast.expr] | None = None) -> Poly:
    """An expression as a polynomial; ``known`` names stand for the expressions that they were assigned."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return constant(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return scale(expand(node.operand, known), -1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        left, right = expand(node.left, known), expand(node.right, known)
        if isinstance(node.op, ast.Mult):
            return multiply(left, right)
        return add(left, right if isinstance(node.op, ast.Add) else scale(right, -1))
    if isinstance(node, ast.Name) and known and node.id in known:
        return expand(known[node.id], {name: value for name, value in known.items() if name != node.id})
    return {(ast.unparse(node),): 1}


def constant(value: int) -> Poly:
    return {(): value} if value else {}


def scale(poly: Poly, factor: int) -> Poly:
    return {monomial: factor * count for monomial, count in poly.items() if factor}


def add(one: Poly, other: Poly) -> Poly:
    total = dict(one)
    for monomial, count in other.items():
        total[monomial] = total.get(monomial, 0) + count
    return {monomial: count for monomial, count in total.items() if count}


def multiply(one: Poly, other: Poly) -> Poly:
    total: Poly = {}
    for first, count in one.items():
        for second, times in other.items():
            total = add(total, {tuple(sorted(first + second)): count * times})
    return total


def as_number(poly: Poly) -> int | None:
    """The polynomial's value if it has no names; else None."""
    if not poly:
        return 0
    return poly.get(()) if set(poly) == {()} else None


def write(poly: Poly) -> str:
    """The polynomial as Python: products of names, then the number."""
    text = ""
    for monomial, count in sorted(poly.items(), key=lambda item: (item[0] == (), item[1] < 0)):
        sign = "-" if count < 0 else "+"
        factors = [*([str(abs(count))] if abs(count) != 1 or not monomial else []), *map(_factor, monomial)]
        product = " * ".join(factors)
        text += f" {sign} {product}" if text else f"-{product}" if count < 0 else product
    return text or "0"


def _factor(text: str) -> str:
    node = ast.parse(text, mode="eval").body
    return f"({text})" if isinstance(node, (ast.BinOp, ast.IfExp, ast.BoolOp, ast.Compare, ast.UnaryOp)) else text
