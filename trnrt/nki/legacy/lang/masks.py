"""Masks of matrix products, which have three axes: the contraction's, stationary's and moving's free ones.

Reference: SDK 2.26.1, nki/api/nki.api.shared.rst, NKI API Masking. A condition in ``mask=`` is about the contraction in
its first dimension, and about the free axes of the operand that it fits in the others; ``tile[condition]`` masks one
operand alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Bounds, Mask, regions
from trnrt.nki.legacy.lang.common import require_tile
from trnrt.nki.legacy.tiles import MaskedTile, Tile


class Part(Tile):
    """An operand that a mask has cut already."""

    __slots__ = ()

    def narrow(self, bounds: Bounds) -> Tile:
        return self


def mask_product(
    what: str, stationary: Any, moving: Any, mask: Any, shape: tuple[int, ...]
) -> tuple[Tile, Tile, Mask | bool | None]:
    """The parts of the operands that the masks leave, and the mask of the result, of ``shape``."""
    a, b = operand_tile(what, stationary, "stationary"), operand_tile(what, moving, "moving")
    conditions = [
        (operand.mask, at) for at, operand in enumerate((stationary, moving)) if isinstance(operand, MaskedTile)
    ]
    if not conditions and not isinstance(mask, Mask):
        return a, b, mask
    if a.ndim != 2 or b.ndim != len(shape):
        raise KernelError(
            f"{what}: masks for operands of shape {a.shape} and {b.shape}; stationary must have 2 dimensions"
        )
    conditions.append((mask, _masked_operand(what, mask, a, b)))
    boxes = [[(0, size) for size in one.shape] for one in (a, b)]
    for condition, at in conditions:
        found = _rectangle(what, condition, (a, b)[at].shape)
        if found is None:
            return a, b, False
        boxes[at] = [_meet(one, other) for one, other in zip(boxes[at], found, strict=True)]
    contraction = _meet(boxes[0][0], boxes[1][0])
    if any(first >= end for first, end in (contraction, *boxes[0][1:], *boxes[1][1:])):
        return a, b, False
    kept = np.zeros(shape, bool)
    kept[tuple(slice(first, end) for first, end in (boxes[0][1], *boxes[1][1:]))] = True
    left, right = (one.narrow((contraction, *box[1:])) for one, box in zip((a, b), boxes, strict=True))
    return Part(left.window), Part(right.window), Mask(kept)


def operand_tile(what: str, operand: Any, argument: str) -> Tile:
    """The tile of an operand, without its mask."""
    return require_tile(what, operand.tile if isinstance(operand, MaskedTile) else operand, argument)


def _masked_operand(what: str, mask: Any, stationary: Tile, moving: Tile) -> int:
    """The operand whose free axes a mask is about: 0 is stationary, 1 moving."""
    if not isinstance(mask, Mask) or all(size == 1 for size in mask.values.shape[1:]):
        return 1
    fits = [_fits(mask, one.shape) for one in (stationary, moving)]
    if all(fits):
        raise KernelError(
            f"{what}: mask is about a free axis of {moving.shape[1:]} elements, and both operands have that",
            hint="mask the operand: nisa.nc_matmul(x[i_p, i_x][i_x < m], y[i_p, i_y][i_y < n])",
        )
    return 0 if fits[0] else 1


def _fits(mask: Mask, shape: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(mask.values.shape, shape) == shape
    except ValueError:
        return False


def _rectangle(what: str, mask: Any, shape: tuple[int, ...]) -> Bounds | None:
    """The bounds of the one rectangle where a mask holds; None if there is none."""
    found = regions(mask, shape)
    if len(found) > 1:
        raise KernelError(
            f"{what}: mask leaves {len(found)} rectangles of an operand {shape}; a matrix product takes one",
            hint="write the elements that don't count as zeros: nl.where, nisa.affine_select",
        )
    if not found:
        return None
    return tuple((0, size) for size in shape) if found[0] is None else found[0]


def _meet(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])
