"""Orders of axes, and what has to change for a node to do the same in another one.

An order says how a tensor that is stored with permuted axes must be transposed to be what the graph means:
axis ``k`` of the graph's tensor is the stored axis ``order[k]``, which is what Transpose calls ``perm``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnrt.importer.rewriting.editing import Editor

Order = tuple[int, ...]


def compose_orders(first: Order, second: Order) -> Order:
    """The order of a Transpose by ``second`` after one by ``first``."""
    return tuple(first[axis] for axis in second)


def inverse(order: Order) -> Order:
    """The order that undoes ``order``."""
    return tuple(order.index(axis) for axis in range(len(order)))


def is_kept(order: Order) -> bool:
    """Does the order leave all axes where they are?"""
    return order == tuple(range(len(order)))


def moves_nothing(shape: Sequence[int], order: Order) -> bool:
    """Does a Transpose of a tensor whose result has ``shape`` only move axes of one element?"""
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
