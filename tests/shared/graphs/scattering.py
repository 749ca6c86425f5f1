"""Writing at constant places: ScatterND, ScatterElements, Scatter."""

from __future__ import annotations

from math import prod

import numpy as np

from graphs.draft import Draft
from graphs.noise import MOVES, SMOOTH, Array, Dropped


def pick_data(draft: Draft, rank: int = 1) -> str:
    source = draft.pick(lambda array: array.ndim >= rank)
    if draft.batched(source):
        raise Dropped("the batch stays")
    return source


def updates_for(draft: Draft, shape: tuple[int, ...]) -> str:
    """A value of the shape, or constants."""
    if draft.chance(0.6):
        try:
            return draft.pick(lambda array: array.shape == shape)
        except Dropped:
            pass
    return draft.weight(draft.numbers(shape))


def reduction_of(draft: Draft) -> str | None:
    """How updates are combined: without a reduction each place is written once."""
    known = [
        None,
        "none",
        *(["add", "mul"] if draft.opset >= 16 else []),
        *(["max", "min"] if draft.opset >= 18 else []),
    ]
    found: str | None = draft.choice(known)
    return found


def draw_scatter_nd(draft: Draft) -> None:
    """Parts of a tensor, each with its index."""
    draft.since(11)
    source = pick_data(draft)
    shape = draft.shape(source)
    depth = draft.between(1, len(shape))
    places, reduction = prod(shape[:depth]), reduction_of(draft)
    count = draft.between(1, min(places, 6))
    if reduction in (None, "none"):
        flat = draft.generator.permutation(places)[:count]
    else:
        flat = draft.generator.integers(0, places, count)
    indices = np.stack(np.unravel_index(flat, shape[:depth]), -1)
    if not draft.opened:  # another number of rows would make another place of it
        indices = np.where(draft.generator.random(indices.shape) < 0.2, indices - np.array(shape[:depth]), indices)
    updates = updates_for(draft, (count, *shape[depth:]))
    kind = MOVES if reduction in (None, "none", "max", "min") else SMOOTH
    draft.add("ScatterND", [source, draft.fixed(indices), updates], kind, reduction=reduction)


def draw_scatter_elements(draft: Draft) -> None:
    """Elements along an axis; of part of the others."""
    source = pick_data(draft)
    shape = draft.shape(source)
    axis = draft.between(0, len(shape) - 1)
    old = draft.opset < 11
    reduction = None if old else reduction_of(draft)
    grid = [draft.between(1, size) for size in shape]
    draft.since(10)  # trnrt writes scatters as Slices of later opsets
    indices = draw_places(draft, grid, axis, shape[axis], once=reduction in (None, "none"))
    updates = updates_for(draft, tuple(grid))
    kind = MOVES if reduction in (None, "none", "max", "min") else SMOOTH
    named = axis - len(shape) if draft.chance(0.3) else axis
    op = "Scatter" if old else "ScatterElements"
    draft.add(op, [source, draft.fixed(indices), updates], kind, axis=named, reduction=reduction)


def draw_places(draft: Draft, grid: list[int], axis: int, size: int, *, once: bool) -> Array:
    """Indices along an axis, none twice in a line where each is written ``once``; some from the end."""
    found = draft.generator.integers(0, size, grid)
    if once:
        ways = draft.generator.random([size if k == axis else length for k, length in enumerate(grid)])
        found = np.argsort(ways, axis).take(range(grid[axis]), axis)
    if draft.opset < 11 or draft.opened:  # another number of rows would make another place of it
        return found
    return np.where(draft.generator.random(found.shape) < 0.2, found - size, found)
