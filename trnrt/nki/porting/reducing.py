"""Reductions: today's take the last free axes; others are brought there by a view."""

from __future__ import annotations

import ast
from dataclasses import replace

from trnrt.nki.porting.marks import UntranslatedError
from trnrt.nki.porting.tensors import Tensor, tuple_text


def arrange_axes(data: Tensor, axis: ast.expr) -> tuple[Tensor, list[str]]:
    """The tile with the axes to reduce at its end, and their numbers."""
    old = _numbers(axis)
    if old is None:
        return data, [ast.unparse(axis)]
    rank = None if data.shape is None else len(data.shape)
    axes = sorted(data.new_dim(dim) for dim in old)
    if 0 in axes or (axes[0] < 0 and rank is not None):
        raise UntranslatedError(
            "a reduction along the partitions", "multiply by ones on the tensor engine, or transpose"
        )
    if rank is None or axes == list(range(rank - len(axes), rank)):
        return data, [str(dim) for dim in axes]
    kept = [dim for dim in range(rank) if dim not in axes]
    assert data.shape is not None
    shape = tuple(data.shape[dim] for dim in kept + axes)
    text = f"{data.text}.permute({tuple_text([str(dim) for dim in kept + axes])})"
    return replace(data, text=text, shape=shape, partition=0, whole=False), [str(dim) for dim in range(len(kept), rank)]


def _numbers(axis: ast.expr) -> list[int] | None:
    items = axis.elts if isinstance(axis, (ast.Tuple, ast.List)) else [axis]
    found = []
    for item in items:
        sign = -1 if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub) else 1
        value = item.operand if isinstance(item, ast.UnaryOp) else item
        if not isinstance(value, ast.Constant) or not isinstance(value.value, int):
            return None
        found.append(sign * value.value)
    return found


def reduced_shape(data: Tensor, axes: list[str], keepdims: bool) -> Tensor:
    """The result of a reduction: the axes disappear, or have size 1; a tile keeps two dimensions."""
    first = axes[0]
    numeric = first.lstrip("-").isdigit()
    if data.shape is not None and numeric:
        kept = list(data.shape[: int(first)])
        ones = len(axes) if keepdims else 1 if len(kept) < 2 else 0
        shape = (*kept, *["1"] * ones)
        if all(size is not None for size in shape):
            return Tensor(None, "sbuf", shape)
        prefix = f"{data.text}.shape[:{first}]"
        return Tensor(None, "sbuf", shape, likeness=f"{prefix} + ({'1, ' * ones})" if ones else prefix)
    if first == "1":
        return Tensor(None, "sbuf", (None, "1"), likeness=f"({data.text}.shape[0], 1)")
    if first == "-1":
        raise UntranslatedError(
            "a reduction along the last axis of a tile of unknown rank", "name the axis from the front"
        )
    raise UntranslatedError("a reduction of a tile of unknown rank", "allocate the result, and pass it as dst")
