"""Index expressions of the old namespace: ``nl.arange``, ``nl.mgrid``, ``nl.ds``, and the masks made of them.

An index expression is an array of integers that grows by a constant step along each of its dimensions. Loops are
unrolled while a kernel is traced, so that a loop's index is a number, and a mask is known to the last element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import index
from typing import Any, NoReturn

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import Array

Bounds = tuple[tuple[int, int], ...]
"""The first element and the end of each dimension of a region."""

_MOST_REGIONS = 1024


@dataclass(frozen=True)
class Mask:
    """The elements for which a condition on index expressions holds: ``values``, of a shape that is broadcast.

    ``compared`` and ``relation``: the mask holds where ``compared <relation> 0``; None if it is made of several.
    """

    values: Array
    compared: Index | None = None
    relation: str = ""

    def __and__(self, other: Mask | bool) -> Mask:
        return Mask(self.values & _truth(other))

    def __or__(self, other: Mask | bool) -> Mask:
        return Mask(self.values | _truth(other))

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Mask:
        return Mask(~self.values)

    def __bool__(self) -> bool:
        raise KernelError(
            "a condition on index expressions is no Python condition: it holds for some elements only",
            hint="give it to an instruction as mask=, or to nisa.affine_select; combine several with & and |",
        )


@dataclass(frozen=True, eq=False)
class Index:
    """Element ``(i0, i1, ...)`` is ``base + sum(steps[k] * ik)``; ``steps`` is None if the values aren't of that form.

    ``array`` holds them then.
    """

    base: int
    steps: tuple[int, ...] | None
    shape: tuple[int, ...]
    array: Array | None = field(default=None, repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def values(self) -> Array:
        """The integers, as an array of ``shape``."""
        if self.steps is None:
            assert self.array is not None
            return self.array
        result: Array = np.asarray(self.base, np.int64)
        for dim, (step, size) in enumerate(zip(self.steps, self.shape, strict=True)):
            rest = (1,) * (self.ndim - dim - 1)
            result = result + (np.arange(size, dtype=np.int64) * step).reshape(size, *rest)
        return np.broadcast_to(result, self.shape)

    def __getitem__(self, key: Any) -> Index:
        """The expression with new dimensions of size 1 (None), and parts of the others."""
        return from_values(self.values[key])

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise KernelError(
            "an index expression can't be assigned to", hint="nisa.iota makes a tile of it, which can be assigned to"
        )

    def __index__(self) -> int:
        if self.shape and max(self.shape) > 1:
            raise TypeError(f"an index expression of shape {self.shape} is not one integer")
        return self.base

    def __iter__(self) -> Iterator[int]:
        raise KernelError("an index expression is no Python range", hint="loop over nl.affine_range or range")

    def __add__(self, other: Any) -> Any:
        start = getattr(other, "window", None)
        return _combine(operator.add, self, other) if start is None else RunTimeIndex(start, 1, self)

    def __radd__(self, other: Any) -> Any:
        return self + other

    def __sub__(self, other: Any) -> Index:
        return _combine(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Index:
        return _combine(operator.sub, _as_index(other), self)

    def __mul__(self, other: Any) -> Index:
        return _combine(operator.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Index:
        return _combine(operator.floordiv, self, other)

    def __mod__(self, other: Any) -> Index:
        return _combine(operator.mod, self, other)

    def __neg__(self) -> Index:
        return self * -1

    def __lt__(self, other: Any) -> Mask:
        return _compare(operator.lt, "less", self, other)

    def __le__(self, other: Any) -> Mask:
        return _compare(operator.le, "less_equal", self, other)

    def __gt__(self, other: Any) -> Mask:
        return _compare(operator.gt, "greater", self, other)

    def __ge__(self, other: Any) -> Mask:
        return _compare(operator.ge, "greater_equal", self, other)

    def __eq__(self, other: object) -> Mask:  # type: ignore[override]  # as numpy's arrays compare
        return _compare(operator.eq, "equal", self, other)

    def __ne__(self, other: object) -> Mask:  # type: ignore[override]
        return _compare(operator.ne, "not_equal", self, other)

    __hash__ = None  # type: ignore[assignment]

    def broadcast(self, shape: Sequence[int]) -> Index:
        """The expression with dimensions of size 1 repeated; ValueError if ``shape`` doesn't fit."""
        sizes = tuple(shape)
        np.broadcast_shapes(self.shape, sizes)
        if self.steps is None or len(sizes) < self.ndim:
            return from_values(np.broadcast_to(self.values, sizes))
        missing = (0,) * (len(sizes) - self.ndim)
        repeated = [step if size > 1 else 0 for step, size in zip(self.steps, self.shape, strict=True)]
        return Index(self.base, (*missing, *repeated), sizes)

    def narrow(self, bounds: Bounds) -> Index:
        """The part within bounds of each dimension."""
        return self[tuple(slice(first, end) for first, end in bounds)]

    def span(self) -> tuple[int, int]:
        """The least and the largest value."""
        if self.steps is None:
            return int(self.values.min()), int(self.values.max())
        least = most = self.base
        for step, size in zip(self.steps, self.shape, strict=True):
            if step > 0:
                most += step * (size - 1)
            else:
                least += step * (size - 1)
        return least, most


@dataclass(frozen=True, eq=False)
class RunTimeIndex:
    """``start * factor + rest``: an index that the device knows, of one element, with an index expression added."""

    start: Any
    factor: int
    rest: Index

    def __add__(self, other: Any) -> RunTimeIndex:
        return RunTimeIndex(self.start, self.factor, self.rest + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> RunTimeIndex:
        return RunTimeIndex(self.start, self.factor, self.rest - other)


def from_values(values: Array) -> Index:
    """The index expression with these values."""
    values = np.asarray(values, np.int64)
    if values.size == 0:
        raise KernelError(f"an index expression of shape {values.shape} is empty")
    base, corner = int(values.flat[0]), (0,) * values.ndim
    steps = tuple(
        int(values[(*corner[:dim], 1, *corner[dim + 1 :])]) - base if size > 1 else 0
        for dim, size in enumerate(values.shape)
    )
    affine = Index(base, steps, values.shape)
    return affine if np.array_equal(affine.values, values) else Index(base, None, values.shape, values)


def arange(*bounds: int) -> Index:
    """The integers of ``range(*bounds)`` as an index expression of one dimension."""
    numbers = range(*(index(bound) for bound in bounds))
    if not numbers:
        raise KernelError(f"nl.arange{bounds}: no integer lies between these bounds")
    return Index(numbers[0], (numbers.step if len(numbers) > 1 else 0,), (len(numbers),))


class Grid(tuple[Index, ...]):
    """The index expressions of ``nl.mgrid``: ``.p`` of the partitions, ``.x``, ``.y``, ``.z``, ``.w`` of the others."""

    __slots__ = ()

    def _dimension(self, number: int, name: str) -> Index:
        if number >= len(self):
            raise AttributeError(f"this nl.mgrid has {len(self)} dimensions, and no .{name}")
        return self[number]

    p = property(lambda self: self._dimension(0, "p"))
    x = property(lambda self: self._dimension(1, "x"))
    y = property(lambda self: self._dimension(2, "y"))
    z = property(lambda self: self._dimension(3, "z"))
    w = property(lambda self: self._dimension(4, "w"))


class MeshGrid:
    """``nl.mgrid[0:128, 0:512]``: an index expression for each dimension, which varies along that dimension only."""

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Grid:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(one, slice) and one.stop is not None for one in keys):
            raise KernelError(f"nl.mgrid takes slices with an end, as in nl.mgrid[0:128, 0:512], not {key!r}")
        lines = [arange(one.start or 0, one.stop, 1 if one.step is None else one.step) for one in keys]
        return Grid(
            Index(
                line.base, (0,) * at + (line.steps or ()) + (0,) * (len(lines) - at - 1), _one_of(len(lines), at, line)
            )
            for at, line in enumerate(lines)
        )


def _one_of(ndim: int, at: int, line: Index) -> tuple[int, ...]:
    return (1,) * at + line.shape + (1,) * (ndim - at - 1)


def regions(mask: Any, shape: Sequence[int]) -> list[Bounds | None]:
    """The rectangles of ``shape`` where the mask holds; [None] if it holds everywhere, [] if nowhere.

    KernelError if the mask's shape doesn't fit, or it has more than 1,024 rectangles.
    """
    if mask is None or (isinstance(mask, (bool, np.bool_)) and mask):
        return [None]
    if isinstance(mask, (bool, np.bool_)):
        return []
    if not isinstance(mask, Mask):
        kind = "tile, whose numbers only the device knows" if hasattr(mask, "window") else type(mask).__name__
        raise KernelError(
            f"mask is a {kind}; it must be a condition on index expressions, or a bool",
            hint="nl.where chooses elements by a tile",
        )
    try:
        values = np.broadcast_to(mask.values, tuple(shape))
    except ValueError:
        raise KernelError(f"mask has shape {mask.values.shape}; it must fit a tile of {tuple(shape)}") from None
    if values.all():
        return [None]
    found = list(_rectangles(values))
    if len(found) > _MOST_REGIONS:
        raise KernelError(
            f"mask has {len(found)} rectangles of elements; {_MOST_REGIONS} are possible",
            hint="choose elements by nl.where or nisa.affine_select",
        )
    return [*found]


def _rectangles(values: Array) -> Iterator[Bounds]:
    """The rectangles of True: of each run of equal rows, those of a row."""
    if values.ndim == 0:
        if values:
            yield ()
        return
    rows = values.reshape(values.shape[0], -1)
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    for first, end in pairwise([0, *changes.tolist(), len(rows)]):
        for inner in _rectangles(values[first]):
            yield ((first, end), *inner)


def _truth(other: object) -> Any:
    if isinstance(other, Mask):
        return other.values
    if isinstance(other, (bool, np.bool_)):
        return other
    raise KernelError(f"a mask can't be combined with a {type(other).__name__}; only with masks and bools")


def _as_index(value: Any) -> Index:
    if isinstance(value, Index):
        return value
    try:
        return Index(index(value), (), ())
    except TypeError:
        raise KernelError(
            f"an index expression can't be combined with a {type(value).__name__}; only with integers"
        ) from None


def _combine(function: Callable[[Any, Any], Any], one: Index, other: Any) -> Index:
    """``function`` of both, element by element. Sums with and products by an integer keep the steps."""
    other = _as_index(other)
    if not other.shape and one.steps is not None and function in (operator.add, operator.sub, operator.mul):
        steps = tuple(step * other.base for step in one.steps) if function is operator.mul else one.steps
        return Index(function(one.base, other.base), steps, one.shape)
    if other.base == 0 and not other.shape and function in (operator.floordiv, operator.mod):
        raise ZeroDivisionError("an index expression is divided by 0")
    return from_values(function(one.values, other.values))


def _compare(function: Callable[[Any, Any], Any], relation: str, one: Index, other: Any) -> Mask:
    other = _as_index(other)
    return Mask(np.asarray(function(one.values, other.values)), one - other, relation)
