"""The masks of an attention as its kernel reads them: (items or fewer, heads or 1, queries or 1, keys).

Constants are added up when the model is planned. A condition becomes numbers by a step of its own, in its own shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from trnrt.operators.attention_graph import Term
from trnrt.operators.programs import Program, Register, add_program
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, value_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Operand

Shape = tuple[int, ...]

# The kernel adds two masks. Of a sum of constants, which may be larger than each, this many elements are kept at most.
_MOST_MASKS = 2
_MOST_SUMMED = 16 * 1024 * 1024
# A key with less than this added to its score has no weight beside one with more than that.
_HIDDEN, _SEEN = -1e9, -1e6


@dataclass(frozen=True)
class Mask:
    """A summand of the scores, of ``shape`` (M, G, R, T): item n adds matrix n % M. A constant, or a tensor."""

    shape: Shape
    array: Array | None = None
    view: View | None = None

    def place(self, lowering: Lowering, name: str) -> Operand:
        """The mask as a stored tensor."""
        if self.array is not None:
            array = np.ascontiguousarray(self.array, np.float32)
            known = (key for key, other in lowering.tensors.items() if other.size == array.size)
            same = next((key for key in known if np.array_equal(lowering.tensors[key].ravel(), array.ravel())), None)
            return Operand(same or lowering.constant_operand(f"{name}.mask", array).value, self.shape)
        assert self.view is not None
        return Operand(lowering.operand_of(self.view).value, self.shape)


def read_masks(lowering: Lowering, terms: tuple[Term, ...], sizes: Shape) -> list[Mask] | None:
    """The masks of scores of ``sizes`` (items, heads, queries, keys); None if the kernel can't add the terms."""
    constants: list[Array] = []
    computed: list[Mask] = []
    for term in terms:
        array = _constant_of(lowering, term)
        shape = _kernel_shape(_own_shape(lowering, term), term.shape, sizes)
        if array is not None and not array.any():
            continue
        if shape is None:
            return None
        if array is not None:
            constants = _add_constant(constants, array.reshape(shape))
        else:
            computed.append(_read_computed(lowering, term, shape))
    masks = [*(Mask(array.shape, array=array) for array in constants), *computed]
    return masks if len(masks) <= _MOST_MASKS else None


def _constant_of(lowering: Lowering, term: Term) -> Array | None:
    """The numbers that a term adds, if they are constant."""
    array = lowering.constant(term.value)
    if array is None or term.fill is None:
        return array
    under = np.zeros((), np.float32)
    for one in term.under:
        added = _constant_of(lowering, one)
        if added is None:
            return None
        with np.errstate(over="ignore"):
            under = under + added
    return np.where(array.astype(bool) == term.hides, np.float32(term.fill), under)


def _own_shape(lowering: Lowering, term: Term) -> Shape:
    """The shape of the numbers that a term adds, before they are repeated."""
    return np.broadcast_shapes(lowering.shape(term.value), *(_own_shape(lowering, one) for one in term.under))


def _kernel_shape(own: Shape, scores: Shape, sizes: Shape) -> Shape | None:
    """The shape (M, G, R, T) of a term of shape ``own``, added to scores of shape ``scores``.

    Heads are the last axis before queries and keys, or joined with the items in one; items may have several axes."""
    items, heads, queries, keys = sizes
    own = (1,) * (len(scores) - len(own)) + own
    *lead, rows, columns = own
    if len(own) != len(scores) or scores[-2:] != (queries, keys) or columns != keys:
        return None
    if scores[:-2] == (items * heads,):
        split = (1, 1) if lead == [1] else (items, heads)
        return (*split, rows, columns)
    if len(lead) < 2 or scores[-3] != heads or prod(scores[:-3]) != items:
        return None
    *outer, group = lead
    while outer and outer[0] == 1:
        outer.pop(0)
    is_repeated = tuple(outer) == scores[len(scores) - 3 - len(outer) : -3]
    return (prod(outer), group, rows, columns) if is_repeated else None


def _add_constant(constants: list[Array], array: Array) -> list[Array]:
    """The constants and one more, added to one of them unless the sum is too large."""
    for k, other in enumerate(constants):
        first, second = sorted((other, array), key=lambda each: each.shape[0])
        times = second.shape[0] // first.shape[0]
        shape = np.broadcast_shapes(first.shape[1:], second.shape[1:])
        if second.shape[0] % first.shape[0] == 0 and second.shape[0] * prod(shape) <= _MOST_SUMMED:
            with np.errstate(over="ignore"):
                constants[k] = np.tile(first, (times, 1, 1, 1)) + second
            return constants
    return [*constants, array]


def _read_computed(lowering: Lowering, term: Term, shape: Shape) -> Mask:
    """A term that is computed: without repeated elements, and as numbers if it is a condition."""
    if term.fill is None:
        view = lowering.view_of(term.value)
    else:
        program = Program()
        _write_term(lowering, program, term)
        name = lowering.spare_name(f"{value_name(term.value)}.added")
        node = next(node for node, _ in term.value.uses() if node.op_type == "Where")
        view = View.whole(name, _own_shape(lowering, term))
        add_program(lowering, node, program, name, view.shape)
    view = view.broadcast((1,) * (len(term.shape) - len(view.shape)) + view.shape)
    dense = view.reshape(shape)
    if dense is None:
        dense = View.whole(lowering.operand_of(view).value, view.shape).reshape(shape)
    assert dense is not None
    for axis in range(3):
        if dense.strides[axis] == 0 and shape[axis] > 1:
            dense = dense.slice(axis, 0, 1)
    return Mask(dense.shape, view=dense)


def _write_term(lowering: Lowering, program: Program, term: Term) -> Register:
    """Append the operations that make the numbers that a term adds."""
    array = lowering.constant(term.value)
    operand = lowering.operand(term.value, short_integers=True) if array is None else array.astype(np.float32)
    value = program.source(operand)
    if term.fill is None:
        return value
    under: Register | float = 0.0
    for one in term.under:
        added = _write_term(lowering, program, one)
        under = added if under == 0.0 else program.apply("add", under, added)
    choices = (term.fill, under) if term.hides else (under, term.fill)
    return program.apply("where", value, *choices)


def find_ends(masks: list[Mask], queries: int) -> tuple[int, ...]:
    """The keys that each 128 queries see, if a constant mask hides the later ones from them; () if it doesn't.

    A second mask may hide the keys that the constant one lets a query see: then all those of finite numbers count."""
    mask = next((mask.array for mask in masks if mask.array is not None), None)
    if mask is None or mask.shape[2] != queries or not (mask.max(-1) > _SEEN).all():
        return ()
    seen: Array = np.asarray((mask > (_HIDDEN if len(masks) == 1 else -np.inf)).any((0, 1)))
    keys = seen.shape[1]
    last = keys - np.argmax(seen[:, ::-1], 1)
    ends = tuple(int(last[first : first + 128].max()) for first in range(0, queries, 128))
    return ends if min(ends) < keys else ()
