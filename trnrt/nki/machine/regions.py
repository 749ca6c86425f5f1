"""Regions: the part of a storage that a view touches, and whether two of them overlap.

A region is a box in the storage's own dimensions if the view is one (a slice, a slice with steps, dimensions merged or
reordered), else a range of its elements. A region that is not known exactly is too large, never too small: the model
may wait when the hardware need not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from trnrt.nki.machine.program import Storage, View

Box = tuple[tuple[int, int, int], ...]  # (first, last, step) of each dimension of the storage


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A part of one storage. ``first`` and ``last`` bound it in elements of a partition (on chip) or of all (HBM).

    ``bounds`` are (first, last) of each dimension of the storage, empty if it is ``whole``.
    """

    box: Box | None
    first: int
    last: int
    whole: bool
    bounds: tuple[tuple[int, int], ...]
    levels: tuple[int, ...] = field(init=False)  # each extent is at most 2 to the power of its level
    corner: tuple[int, ...] = field(init=False)  # the cell of its first element in the grid of its levels

    def __post_init__(self) -> None:
        levels = tuple([(high - low).bit_length() for low, high in self.bounds])
        corner = tuple([low >> level for (low, _), level in zip(self.bounds, levels, strict=True)])
        object.__setattr__(self, "levels", levels)
        object.__setattr__(self, "corner", corner)

    def corners(self, levels: tuple[int, ...]) -> list[range]:
        """For each dimension, the corners of regions of these levels that may overlap this one."""
        return [
            range((low >> level) - 1, (high >> level) + 1)
            for (low, high), level in zip(self.bounds, levels, strict=True)
        ]

    def overlaps(self, other: Region) -> bool:
        """True if the two may have an element in common."""
        if self.whole or other.whole:
            return True
        if self.box is None or other.box is None:
            return self.first <= other.last and other.first <= self.last
        # Called for every part near another: a loop takes less than half the time of all().
        for (low, high, step), (other_low, other_high, other_step) in zip(self.box, other.box, strict=True):
            if low > other_high or other_low > high:
                return False
            if step == other_step != 1 and (other_low - low) % step:
                return False
        return True

    def covers(self, other: Region) -> bool:
        """True if it is certain to have every element of ``other``."""
        if self.whole:
            return True
        if self.box is None or other.box is None:
            return False
        return all(
            low <= other_low and other_high <= high and (step == 1 or (low, high, step) == (other_low, other_high, s))
            for (low, high, step), (other_low, other_high, s) in zip(self.box, other.box, strict=True)
        )


EVERYTHING = Region(None, 0, 0, True, ())
"""All of any storage."""


def region_of(view: View) -> Region:
    """The region that a view touches."""
    storage = view.storage
    if view.dynamic is not None or not storage.shape:
        return EVERYTHING
    box = None if view.cast is not None else _box(view)
    if box is None:
        return _range(view)
    sized = zip(box, storage.shape, strict=True)
    whole = all((low, high, step) == (0, size - 1, 1) for (low, high, step), size in sized)
    dims = list(zip(box, storage.strides, strict=True))[1 if storage.on_chip else 0 :]
    first = sum(low * stride for (low, _, _), stride in dims)
    last = sum(high * stride for (_, high, _), stride in dims)
    return Region(box, first, last, whole, () if whole else tuple([(low, high) for low, high, _ in box]))


def _range(view: View) -> Region:
    """The elements from the first to the last that the view touches, counted in the storage's dtype."""
    storage, offset = view.storage, view.offset
    dims = list(zip(view.strides, view.shape, strict=True))
    if storage.on_chip:
        dims, offset = dims[1:], offset % max(1, view.partition_elements)
    first = offset + sum(stride * (size - 1) for stride, size in dims if stride < 0)
    last = offset + sum(stride * (size - 1) for stride, size in dims if stride > 0)
    here, there = view.dtype.itemsize, storage.dtype.itemsize
    first, last = max(0, first) * here // there, ((max(0, last) + 1) * here - 1) // there
    return Region(None, first, last, False, _bounds(storage, first, last))


def _bounds(storage: Storage, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """The part of each dimension that may have the elements from ``first`` to ``last``."""
    bounds = [(0, size - 1) for size in storage.shape]
    for d in range(1 if storage.on_chip else 0, len(bounds)):
        stride = storage.strides[d]
        bounds[d] = first // stride, last // stride
        if first // stride != last // stride:
            break
        first, last = first % stride, last % stride
    return tuple(bounds)


def _box(view: View) -> Box | None:
    """The view as (first, last, step) of each dimension of its storage; None if it is no box."""
    shape, strides = view.storage.shape, view.storage.strides
    low = view.storage.coordinates(view.offset)
    high, step = list(low), [1] * len(shape)
    used = [False] * len(shape)
    for stride, size in _merge_dims(view):
        if stride < 0 or not _extend(size, stride, shape, strides, high, step, used):
            return None
    return tuple(zip(low, high, step, strict=True))


def _merge_dims(view: View) -> list[tuple[int, int]]:
    """(stride, size) of the view's dimensions, longest stride first, contiguous ones merged."""
    merged: list[tuple[int, int]] = []
    dims = [(stride, size) for stride, size in zip(view.strides, view.shape, strict=True) if size != 1 and stride]
    for stride, size in sorted(dims, reverse=True):
        if merged and merged[-1][0] == stride * size:
            merged[-1] = stride, size * merged[-1][1]
        else:
            merged.append((stride, size))
    return merged


def _extend(
    size: int,
    stride: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    high: list[int],
    step: list[int],
    used: list[bool],
) -> bool:
    """Widen the box by one dimension of a view, which may run over several dimensions of the storage."""
    d = next((d for d, own in enumerate(strides) if own <= stride and shape[d] > 1), len(shape) - 1)
    while True:
        if used[d] or stride % strides[d]:
            return False
        hop = stride // strides[d]
        used[d] = True
        if high[d] + hop * (size - 1) < shape[d]:
            high[d] += hop * (size - 1)
            step[d] = hop
            return True
        count = shape[d] // hop  # in each row, where one of its first elements is in the view
        if shape[d] % hop or high[d] >= hop or size % count or d == 0:
            return False
        high[d] += hop * (count - 1)
        step[d] = hop
        size, stride = size // count, strides[d - 1]
        d -= 1
