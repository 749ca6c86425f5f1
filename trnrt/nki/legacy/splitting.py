"""Instructions on more dimensions than an access pattern has, as several on fewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from trnrt.nki.sim.tensor import NkiTensor

MOST_DIMENSIONS = 5  # of an access pattern: machine/rules/access.py


def split_ranks(dst: NkiTensor, operands: Sequence[Any]) -> Iterator[tuple[NkiTensor, list[Any]]]:
    """An instruction's views, one after the other for its smallest free dimensions if it has too many of them.

    An access pattern has at most 5 dimensions, index expressions may have more.
    """
    views = [one for one in operands if isinstance(one, NkiTensor) and one.free_size > 1]
    surplus = dst.ndim - MOST_DIMENSIONS
    if surplus <= 0 or any(one.shape != dst.shape for one in views):
        yield dst, list(operands)
        return
    dims = sorted(range(1, dst.ndim), key=lambda dim: dst.shape[dim])[:surplus]
    for place in product(*(range(dst.shape[dim]) for dim in dims)):
        at = dict(zip(dims, place, strict=True))
        yield (
            _fix(dst, at),
            [_fix(one, at) if isinstance(one, NkiTensor) and one.free_size > 1 else one for one in operands],
        )


def _fix(view: NkiTensor, at: Mapping[int, int]) -> NkiTensor:
    """The view at these indices of some of its dimensions, without those dimensions."""
    offset = view.offset + sum(place * view.strides[dim] for dim, place in at.items())
    left = [dim for dim in range(view.ndim) if dim not in at]
    shape, strides = tuple(view.shape[dim] for dim in left), tuple(view.strides[dim] for dim in left)
    return replace(view, shape=shape, strides=strides, offset=offset)
