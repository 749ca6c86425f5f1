"""Attention in the graph: the nodes that compute it, whoever wrote them.

It is softmax(scale * q @ k + terms) @ v. The terms may be added, or chosen by Where; the product may have its items and
heads joined in one axis, or the items apart in two; several heads of queries may share one of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import maker
from trnrt.importer.values import constant_array, static_shape
from trnrt.planner.lowering.walk import Lowering, attribute, node_name
from trnrt.planner.plan import Array

Shape = tuple[int, ...]

# A number that Where writes in place of a score counts as one that is added to it if the score is lost beside it.
_MOST_FILL = -1e9
# They give the same elements in the same order.
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Term:
    """A term of the scores: ``value``; with a ``fill``, that number where the value is ``hides``, and 0 elsewhere.

    ``shape`` is the scores' where it is added: (..., queries, keys). ``under``: terms that are added elsewhere only, as
    the fill replaces them, too."""

    value: ir.Value
    shape: Shape
    fill: float | None = None
    hides: bool = True
    under: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Heads:
    """Queries, keys or values: ``value``, with its axes in ``order``, then the last two ``turned``, times ``scale``.

    ``order`` is () if they keep theirs. If ``shared`` isn't 1, the value is (items, heads, 1, rows, columns), and
    ``shared`` heads of queries use each head of it. ``nodes`` make the operand of the product of it."""

    value: ir.Value
    order: tuple[int, ...] = ()
    turned: bool = False
    shared: int = 1
    scale: float = 1.0
    nodes: tuple[ir.Node, ...] = ()


@dataclass(frozen=True)
class Found:
    """One attention: softmax(scale * q @ k + terms) @ v. ``nodes`` compute it, the last one gives the result.

    ``empty_is_zero``: a row of which every key is masked gives 0, not NaN.
    """

    nodes: tuple[ir.Node, ...]
    q: Heads
    k: Heads
    v: Heads
    terms: tuple[Term, ...]
    scale: float
    empty_is_zero: bool


@dataclass(frozen=True)
class _Scores:
    """scale * product + terms, and the nodes that compute it."""

    product: ir.Node
    nodes: tuple[ir.Node, ...]
    scale: float = 1.0
    terms: tuple[Term, ...] = ()


def find_all(lowering: Lowering) -> list[Found]:
    """The attentions of a graph, each of nodes that nothing else reads."""
    places = {node: number for number, node in enumerate(lowering.graph)}
    found = []
    for node in lowering.graph:
        match = _match(lowering, node) if node.op_type == "Softmax" and node.domain == "" else None
        if match is not None:
            found.append(replace(match, nodes=tuple(sorted(match.nodes, key=places.__getitem__))))
    return found


def _match(lowering: Lowering, softmax: ir.Node) -> Found | None:
    """The attention around a softmax, if there is one."""
    shape = static_shape(softmax.outputs[0])
    axis = attribute(softmax, "axis", -1 if lowering.opset >= 13 else 1)
    if shape is None or len(shape) < 3 or axis not in (-1, len(shape) - 1):
        return None
    scores = _read_scores(lowering, softmax.inputs[0])
    if scores is None or (static_shape(scores.product.outputs[0]) or ())[-2:] != shape[-2:]:
        return None
    behind, empty_is_zero = _read_weights(lowering, softmax, scores.terms)
    weighted = behind[-1] if behind else None
    sides = (*scores.product.inputs[:2], None if weighted is None else weighted.inputs[1])
    if weighted is None or any(side is None or len(static_shape(side) or ()) not in (3, 4) for side in sides):
        return None
    q, k, v = (_read_heads(lowering, side) for side in sides if side is not None)
    if v.scale != 1.0:
        v = Heads(weighted.inputs[1] or v.value)
    nodes = (*scores.nodes, *q.nodes, *k.nodes, *v.nodes, softmax, *behind)
    inner = {made for node in nodes if node is not weighted for made in node.outputs}
    read = {reader for made in inner for reader, _ in made.uses()}
    fused = {node_name(node) for node in nodes if node is not scores.product}
    if any(made.is_graph_output() for made in inner) or not read <= set(nodes) or fused & set(lowering.no_fuse):
        return None
    scale = scores.scale * q.scale * k.scale
    return Found(nodes, q, k, v, scores.terms, scale, empty_is_zero)


def _is_inner(value: ir.Value | None) -> bool:
    """True if one node reads a value."""
    return value is not None and len(value.uses()) == 1 and not value.is_graph_output()


# -- From the softmax up to the product ----------------------------------------------------------------


def _read_scores(lowering: Lowering, value: ir.Value | None) -> _Scores | None:
    """A value as the product of computed matrices, with its scale and terms; None if it is something else."""
    node = maker(value, "MatMul", "Mul", "Div", "Add", "Where", *_RESHAPES)
    shape = static_shape(value)
    if node is None or value is None or not _is_inner(value) or shape is None or len(shape) < 3:
        return None
    if node.op_type == "MatMul":
        return None if any(given is None or given.const_value is not None for given in node.inputs) else _start(node)
    if node.op_type in ("Mul", "Div"):
        return _read_scaled(lowering, node, shape)
    if node.op_type == "Add":
        return _read_sum(lowering, node, shape)
    if node.op_type == "Where":
        return _read_choice(lowering, node, shape)
    inner = _read_scores(lowering, node.inputs[0]) if _keeps_matrices(static_shape(node.inputs[0]), shape) else None
    return None if inner is None else replace(inner, nodes=(*inner.nodes, node))


def _keeps_matrices(before: Shape | None, after: Shape | None) -> bool:
    """True if two shapes of the same elements have the same matrices last, but for axes of size 1."""
    if before is None or after is None:
        return False
    without = [[size for size in shape if size != 1] for shape in (before, after)]
    return before[-2:] == after[-2:] or (without[0][-2:] == without[1][-2:] and len(without[0]) > 1)


def _start(product: ir.Node) -> _Scores:
    return _Scores(product, (product,))


def _read_scaled(lowering: Lowering, node: ir.Node, shape: Shape) -> _Scores | None:
    """Scores times one positive number, before anything is added to them."""
    side, factor = _read_factor(lowering, node)
    inner = None if factor is None else _read_scores(lowering, node.inputs[side])
    if inner is None or factor is None or inner.terms or static_shape(node.inputs[side]) != shape:
        return None
    return replace(inner, nodes=(*inner.nodes, node), scale=inner.scale * factor)


def _read_factor(lowering: Lowering, node: ir.Node) -> tuple[int, float | None]:
    """(the input that a Mul or Div multiplies, with what positive number); None if it isn't one."""
    constants = [lowering.constant(given) for given in node.inputs]
    side = 0 if constants[1] is not None else 1
    factor = constants[1 - side]
    if factor is None or factor.size != 1 or (node.op_type == "Div" and side == 1):
        return side, None
    number = float(factor.reshape(()))
    if not 0 < number < np.inf:
        return side, None
    return side, 1 / number if node.op_type == "Div" else number


def _read_sum(lowering: Lowering, node: ir.Node, shape: Shape) -> _Scores | None:
    for side in (0, 1):
        other = node.inputs[1 - side]
        if static_shape(node.inputs[side]) != shape or other is None:
            continue
        inner = _read_scores(lowering, node.inputs[side])
        if inner is not None:
            return replace(inner, nodes=(*inner.nodes, node), terms=(*inner.terms, Term(other, shape)))
    return None


def _read_choice(lowering: Lowering, node: ir.Node, shape: Shape) -> _Scores | None:
    """Scores that a Where replaces by a number which hides them."""
    condition = node.inputs[0]
    for side in (1, 2):
        fill, written = lowering.constant(node.inputs[3 - side]), constant_array(node.inputs[3 - side])
        if fill is None or written is None or fill.size != 1 or static_shape(node.inputs[side]) != shape:
            continue
        hides = float(written.reshape(())) <= _MOST_FILL and condition is not None
        inner = _read_scores(lowering, node.inputs[side]) if hides else None
        if inner is None or condition is None:
            continue
        number = float(fill.reshape(()))
        under = tuple(term for term in inner.terms if not _is_lost(lowering, term, number))
        if any(term.shape != shape for term in under):
            return None
        beside = tuple(term for term in inner.terms if term not in under)
        chosen = Term(condition, shape, number, hides=side == 2, under=under)
        return replace(inner, nodes=(*inner.nodes, node), terms=(*beside, chosen))
    return None


def _is_lost(lowering: Lowering, term: Term, number: float) -> bool:
    """True if a term makes no difference to a number that hides a key."""
    array = lowering.constant(term.value)
    if np.isneginf(number) or array is None or term.fill is not None:
        return bool(np.isneginf(number))
    with np.errstate(over="ignore"):
        return bool((array.astype(np.float32) + np.float32(number) == np.float32(number)).all())


# -- From the softmax down to the second product -------------------------------------------------------


def _read_weights(lowering: Lowering, softmax: ir.Node, terms: tuple[Term, ...]) -> tuple[list[ir.Node], bool]:
    """The nodes from a softmax to its product with values, and whether they replace NaN by 0; none if there is none."""
    value, empty_is_zero, nodes = softmax.outputs[0], False, list[ir.Node]()
    while True:
        readers = list(dict.fromkeys(node for node, _ in value.uses()))
        if any(node.domain != "" for node in readers) or value.is_graph_output():
            return [], False
        choosing = next((node for node in readers if node.op_type == "Where"), None)
        if choosing is not None:
            found = _read_replaced(lowering, value, choosing, readers, terms)
            if found is None:
                return [], False
            nodes += found[0]
            empty_is_zero |= found[1]
            value = choosing.outputs[0]
            continue
        reader = readers[0] if len(readers) == 1 else None
        if reader is None or reader.inputs[0] is not value:
            return [], False
        nodes.append(reader)
        if reader.op_type == "MatMul":
            return nodes, empty_is_zero
        shapes = static_shape(value), static_shape(reader.outputs[0])
        if reader.op_type not in _RESHAPES or not _keeps_matrices(*shapes):
            return [], False
        value = reader.outputs[0]


def _read_replaced(
    lowering: Lowering, value: ir.Value, choosing: ir.Node, readers: list[ir.Node], terms: tuple[Term, ...]
) -> tuple[list[ir.Node], bool] | None:
    """The nodes that put 0 in the place of rows whose keys are all masked, and whether there may be such rows."""
    zero, condition = lowering.constant(choosing.inputs[1]), choosing.inputs[0]
    if choosing.inputs[2] is not value or zero is None or zero.any() or condition is None:
        return None
    others = [node for node in readers if node is not choosing]
    testing = maker(condition, "IsNaN")
    if testing is not None and testing.inputs[0] is value:
        return ([testing, choosing], True) if others == [testing] else None
    matrices = (static_shape(value) or ())[-2:]
    if others or any(term.shape[-2:] != matrices for term in terms):
        return None
    known = lowering.constant(condition)
    if known is not None:
        empty = _empty_rows(lowering, terms)
        if not known.any():
            return [choosing], False
        return ([choosing], True) if empty is not None and (known == empty).all() else None
    nodes = _read_empty_test(lowering, condition, terms)
    return None if nodes is None else ([*nodes, choosing], True)


def _empty_rows(lowering: Lowering, terms: tuple[Term, ...]) -> Array | None:
    """Which rows (..., queries, 1) a constant term masks whole."""
    mask = lowering.constant(terms[0].value) if len(terms) == 1 and terms[0].fill is None else None
    return None if mask is None else np.asarray(np.isneginf(mask).all(-1, keepdims=True))


def _read_empty_test(lowering: Lowering, condition: ir.Value, terms: tuple[Term, ...]) -> list[ir.Node] | None:
    """The nodes of ``max(term) == -inf`` along the keys, as ONNX's definition of Attention has them."""
    equal = maker(condition, "Equal")
    largest = None if equal is None else maker(equal.inputs[0], "ReduceMax")
    if equal is None or largest is None or not _is_inner(condition) or not _is_inner(equal.inputs[0]):
        return None
    other = lowering.constant(equal.inputs[1])
    mask = next((term for term in terms if term.value is largest.inputs[0] and term.fill is None), None)
    axes = lowering.constant(largest.inputs[1]) if len(largest.inputs) > 1 else attribute(largest, "axes", None)
    if other is None or not np.isneginf(other).all() or mask is None or axes is None or len(terms) != 1:
        return None
    rank = len(static_shape(mask.value) or ())
    is_last = [int(axis) % rank for axis in np.asarray(axes).reshape(-1)] == [rank - 1]
    return [largest, equal] if is_last and attribute(largest, "keepdims", 1) else None


# -- Queries, keys and values --------------------------------------------------------------------------


def _read_heads(lowering: Lowering, value: ir.Value) -> Heads:
    """The heads in an operand of a product, before scales, turns, repetition, and the joining of items with heads.

    Only nodes that nothing else reads are passed; a turn at the end is left to the views."""
    found = at = Heads(value)
    while True:
        node = maker(at.value, "Mul", "Div", "Transpose", "Reshape")
        shape = static_shape(at.value)
        if node is None or shape is None or not _is_inner(at.value):
            return found
        if node.op_type == "Transpose":
            order = tuple(attribute(node, "perm", ()))
            source = node.inputs[0]
            if source is None:
                return found
            if order != (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2):
                return _pass_scaled_order(lowering, node, at) or found
            at = replace(at, value=source, turned=not at.turned, nodes=(*at.nodes, node))
            continue
        passed = _pass_scale(lowering, node, at, shape) if node.op_type != "Reshape" else _pass_reshape(node, at, shape)
        if passed is None:
            return found
        found = at = passed
        if at.shared > 1:
            return found


def _pass_scaled_order(lowering: Lowering, turn: ir.Node, at: Heads) -> Heads | None:
    """Heads before a Transpose of any order that follows a scale: where rewrites have moved it."""
    scaled = turn.inputs[0]
    node, shape = maker(scaled, "Mul", "Div"), static_shape(scaled)
    if node is None or scaled is None or shape is None or not _is_inner(scaled):
        return None
    return _pass_scale(
        lowering, node, replace(at, order=tuple(attribute(turn, "perm", ())), nodes=(*at.nodes, turn)), shape
    )


def _pass_scale(lowering: Lowering, node: ir.Node, at: Heads, shape: Shape) -> Heads | None:
    side, factor = _read_factor(lowering, node)
    source = node.inputs[side]
    if factor is None or source is None or static_shape(source) != shape:
        return None
    return replace(at, value=source, scale=at.scale * factor, nodes=(*at.nodes, node))


def _pass_reshape(node: ir.Node, at: Heads, shape: Shape) -> Heads | None:
    """Heads before they were joined with the items, or repeated."""
    source = node.inputs[0]
    before = static_shape(source)
    if source is None or before is None or before[-2:] != shape[-2:]:
        return None
    if len(shape) == 3 and len(before) == 4:
        return replace(at, value=source, nodes=(*at.nodes, node))
    repeating = maker(source, "Expand") if len(shape) == 4 and len(before) == 5 else None
    once = None if repeating is None else repeating.inputs[0]
    kept = static_shape(once)
    if repeating is None or once is None or kept is None or not _is_inner(source):
        return None
    if before[0] != shape[0] or kept != (*before[:2], 1, *before[3:]):
        return None
    return replace(at, value=once, shared=before[2], nodes=(*at.nodes, node, repeating))
