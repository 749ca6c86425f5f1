"""Einsum as Transpose, Reshape, ReduceSum, MatMul and Mul; a diagonal is a GatherND.

Operands are joined from left to right. Letters that nothing after a step needs are summed up there: in a MatMul where
both sides have them, else in a ReduceSum before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.naming import node_text
from trnrt.importer.rewriting.editing import Editor, shape_of
from trnrt.importer.values import static_shape

# A letter stands for a dimension; those of "..." get numbers instead, counted from the last one.
Label = str | int


@dataclass(frozen=True)
class _Operand:
    value: ir.Value
    labels: tuple[Label, ...]


def spread_einsums(editor: Editor) -> list[str]:
    """Write each Einsum of known shapes in plain operators."""
    notes = []
    for node in list(editor.graph):
        if node.domain != "" or node.op_type != "Einsum":
            continue
        parsed = _parse(node)
        if parsed is None:
            continue
        notes.append(f"{node_text(node)} made plain products and sums")
        _Writer(editor, node).write(*parsed)
    return notes


def _parse(node: ir.Node) -> tuple[list[_Operand], tuple[Label, ...]] | None:
    """The operands with their letters, and the result's; None if shapes are unknown or don't fit the equation."""
    sources, _, target = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    terms = sources.split(",")
    if len(terms) != len(node.inputs):
        return None
    operands, sizes, hidden = [], dict[Label, int](), 0
    for term, value in zip(terms, node.inputs, strict=True):
        shape = static_shape(value)
        if value is None or shape is None:
            return None
        more = len(shape) - len(term.replace("...", ""))
        labels = _labels(term, more)
        if len(labels) != len(shape) or any(sizes.setdefault(a, n) != n for a, n in zip(labels, shape, strict=True)):
            return None
        hidden = max(hidden, more if "..." in term else 0)
        operands.append(_Operand(value, labels))
    if "->" in node.attributes.get_string("equation", ""):
        result = _labels(target, hidden)
    else:
        once = sorted({a for a in sources if a.isalpha() and sources.count(a) == 1})
        result = (*_labels("...", hidden), *once)
    known = len(set(result)) == len(result) and all(label in sizes for label in result)
    return (operands, result) if known else None


def _labels(term: str, hidden: int) -> tuple[Label, ...]:
    before, dots, after = term.partition("...")
    return (*before, *(range(hidden, 0, -1) if dots else ()), *after)


class _Writer:
    """Adds nodes before an Einsum, and puts their result in its place."""

    def __init__(self, editor: Editor, node: ir.Node) -> None:
        self.editor, self.node = editor, node
        self.like = node.outputs[0].name or ""

    def write(self, operands: Sequence[_Operand], result: tuple[Label, ...]) -> None:
        """Join the operands, and order the result's dimensions."""
        left, *others = [self._take_diagonals(operand) for operand in operands]
        for k, right in enumerate(others):
            needed = {*result, *(label for other in others[k + 1 :] for label in other.labels)}
            left = self._join(
                self._sum(left, {*needed, *right.labels}), self._sum(right, {*needed, *left.labels}), needed
            )
        made = self._order(self._sum(left, set(result)), result)
        if made.value.producer() is None or made.value in self.node.inputs:
            made = replace(made, value=self._add("Identity", [made.value], shape_of(made.value)))
        self.editor.bypass(self.node, made.value)

    def _add(self, op: str, inputs: Sequence[ir.Value], shape: Sequence[int], **attributes: object) -> ir.Value:
        made = self.editor.result(f"{self.like}_{op.lower()}", self.node.inputs[0].dtype, shape)  # type: ignore[union-attr]
        name = self.editor.node_name(f"{self.node.name}_{op.lower()}")
        self.editor.graph.insert_before(self.node, ir.node(op, inputs, attributes, outputs=[made], name=name))
        return made

    def _constant(self, numbers: Sequence[int] | np.ndarray) -> ir.Value:
        return self.editor.constant(np.array(numbers, np.int64), f"{self.like}_numbers")

    def _take_diagonals(self, operand: _Operand) -> _Operand:
        """The elements whose indices of a letter that comes twice are equal."""
        for label in dict.fromkeys(operand.labels):
            places = [d for d, other in enumerate(operand.labels) if other == label]
            if len(places) < 2:
                continue
            others = [d for d in range(len(operand.labels)) if d not in places]
            shape = shape_of(operand.value)
            turned = self._turn(operand.value, [*places, *others])
            size = shape[places[0]]
            indices = self._constant(np.repeat(np.arange(size)[:, None], len(places), axis=1))
            made = self._add("GatherND", [turned, indices], (size, *(shape[d] for d in others)))
            operand = _Operand(made, (label, *(operand.labels[d] for d in others)))
        return operand

    def _turn(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        if list(order) == list(range(len(order))):
            return value
        shape = shape_of(value)
        return self._add("Transpose", [value], [shape[d] for d in order], perm=list(order))

    def _order(self, operand: _Operand, labels: Sequence[Label]) -> _Operand:
        order = [operand.labels.index(label) for label in labels]
        return _Operand(self._turn(operand.value, order), tuple(labels))

    def _sum(self, operand: _Operand, needed: set[Label]) -> _Operand:
        """The sums over letters that nothing needs any more."""
        axes = [d for d, label in enumerate(operand.labels) if label not in needed]
        if not axes:
            return operand
        shape = shape_of(operand.value)
        kept = [d for d in range(len(shape)) if d not in axes]
        sizes = [shape[d] for d in kept]
        if self.editor.opset < 13:
            made = self._add("ReduceSum", [operand.value], sizes, axes=axes, keepdims=0)
        else:
            made = self._add("ReduceSum", [operand.value, self._constant(axes)], sizes, keepdims=0)
        return _Operand(made, tuple(operand.labels[d] for d in kept))

    def _join(self, left: _Operand, right: _Operand, needed: set[Label]) -> _Operand:
        """The product of two operands, summed over the letters of both that nothing else needs."""
        both = [label for label in left.labels if label in right.labels]
        summed = [label for label in both if label not in needed]
        shared = [label for label in both if label in needed]
        rows = [label for label in left.labels if label not in both]
        columns = [label for label in right.labels if label not in both]
        sizes = dict(zip((*left.labels, *right.labels), (*shape_of(left.value), *shape_of(right.value)), strict=True))
        groups = [prod(sizes[label] for label in some) for some in (rows, summed, columns)]
        outer = [sizes[label] for label in shared]
        if summed:
            one = self._group(left, (shared, rows, summed), (*outer, groups[0], groups[1]))
            other = self._group(right, (shared, summed, columns), (*outer, groups[1], groups[2]))
            made = self._add("MatMul", [one, other], (*outer, groups[0], groups[2]))
        else:
            one = self._group(left, (shared, rows), (*outer, *(sizes[k] for k in rows), *(1,) * len(columns)))
            other = self._group(right, (shared, columns), (*outer, *(1,) * len(rows), *(sizes[k] for k in columns)))
            made = self._add("Mul", [one, other], (*outer, *(sizes[label] for label in (*rows, *columns))))
        labels = (*shared, *rows, *columns)
        return _Operand(self._reshape(made, [sizes[label] for label in labels]), labels)

    def _group(self, operand: _Operand, groups: Sequence[Sequence[Label]], shape: Sequence[int]) -> ir.Value:
        """The dimensions in the order of the groups, in another shape."""
        ordered = self._order(operand, [label for group in groups for label in group])
        return self._reshape(ordered.value, shape)

    def _reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        if tuple(shape) == shape_of(value):
            return value
        return self._add("Reshape", [value, self._constant(shape)], shape)
