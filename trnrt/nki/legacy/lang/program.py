"""Loops, the launch grid, sizes of tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.session import active_session, instance
from trnrt.nki.machine.program import Register

__all__ = [
    "LoopIndex",
    "affine_range",
    "num_programs",
    "program_id",
    "program_ndim",
    "sequential_range",
    "static_range",
]


class LoopIndex(int):
    """The index of an unrolled loop. ``first`` and ``last``: it is that of the first or the last trip."""

    first: bool
    last: bool

    def __new__(cls, value: int, *, first: bool, last: bool) -> LoopIndex:
        made = super().__new__(cls, value)
        made.first, made.last = first, last
        return made


@dataclass(frozen=True)
class Trips:
    """The indices of an unrolled loop."""

    numbers: range

    def __iter__(self) -> Iterator[LoopIndex]:
        last = len(self.numbers) - 1
        for at, number in enumerate(self.numbers):
            yield LoopIndex(number, first=at == 0, last=at == last)

    def __len__(self) -> int:
        return len(self.numbers)


def affine_range(*bounds: Any, **_: Any) -> Trips:
    """The trips of a loop, which is unrolled; ``range(*bounds)``."""
    if any(isinstance(bound, Register) or hasattr(bound, "view") for bound in bounds):
        raise KernelError(
            "a loop's bound is known on the device only; loops are unrolled, and take integers",
            hint="compute the largest bound on the host, and mask the rest",
        )
    return Trips(range(*(index(bound) for bound in bounds)))


sequential_range = affine_range
static_range = affine_range


def program_id(axis: int) -> int:
    """The number of this instance along an axis of the launch grid."""
    return instance("nl.program_id", axis)[0]


def num_programs(axes: Any = None) -> Any:
    """The number of instances along an axis of the launch grid, along several as a tuple; all of it for None."""
    grid = active_session("nl.num_programs").grid
    if axes is None:
        count = 1
        for size in grid:
            count *= size
        return count
    if isinstance(axes, (tuple, list)):
        return tuple(instance("nl.num_programs", axis)[1] for axis in axes)
    return instance("nl.num_programs", axes)[1]


def program_ndim() -> int:
    """The number of dimensions of the launch grid."""
    return len(active_session("nl.program_ndim").grid)
