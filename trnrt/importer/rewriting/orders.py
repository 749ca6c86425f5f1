"""Orders of axes, and the edits that let a node work on another order.

An order says how to transpose a tensor that is stored with permuted axes: axis ``k`` of the graph's tensor is the
stored axis ``order[k]``, as in Transpose's ``perm``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnrt.importer.rewriting.editing import Editor

Order = tuple[int, ...]

CHANNELS_LAST, CHANNELS_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The Transposes of images (N, C, H, W) to (N, H, W, C), and back."""


def compose_orders(first: Order, second: Order) -> Order:
    """The order of a Transpose by ``second`` after one by ``first``."""
    return tuple(first[axis] for axis in second)


def inverse(order: Order) -> Order:
    """The order that undoes ``order``."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_kept(order: Order) -> bool:
    """True if the order leaves all axes in place."""
    return order == tuple(range(len(order)))


def moves_nothing(shape: Sequence[int], order: Order) -> bool:
    """True if a Transpose whose result has ``shape`` only moves axes of one element."""
    real = [axis for axis, size in zip(order, shape, strict=True) if size > 1]
    return real == sorted(real)


def stored_shape(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The shape in which a tensor of ``shape`` is stored."""
    return tuple(shape[axis] for axis in inverse(order))


@dataclass(frozen=True)
class NodeOrders:
    """How a node works on stored tensors: the order of each input (None: read as it is) and output, and an edit."""

    inputs: tuple[Order | None, ...]
    outputs: tuple[Order, ...]
    edit: Callable[[Editor], None] | None = None
