"""Loops, the launch grid, constants of number formats and of the tensor engine's tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from operator import index
from typing import Any

import ml_dtypes
import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.indexing import Grid, MeshGrid
from trnrt.nki.legacy.lang.common import named_format
from trnrt.nki.legacy.session import active_session, begin_loop, end_loop, instance
from trnrt.nki.legacy.tiles import Tile
from trnrt.nki.machine.dtypes import tfloat32
from trnrt.nki.machine.program import Register
from trnrt.nki.sim.lang.sizes import TileSize

__all__ = [
    "LoopIndex",
    "affine_range",
    "bfp16",
    "finfo",
    "fp32",
    "gemm_grid",
    "gemm_stationary_grid",
    "num_programs",
    "program_id",
    "program_ndim",
    "sequential_range",
    "static_range",
]


_RUNS = count()


class LoopIndex(int):
    """The index of an unrolled loop. ``first`` and ``last``: it is that of the first or the last trip; ``run``: the
    number of the loop's run, in the order of their begins."""

    first: bool
    last: bool
    run: int

    def __new__(cls, value: int, *, first: bool, last: bool, run: int) -> LoopIndex:
        made = super().__new__(cls, value)
        made.first, made.last, made.run = first, last, run
        return made


@dataclass(frozen=True)
class Trips:
    """The indices of an unrolled loop. ``traced_once``: AWS's compiler runs the body's Python for one trip only."""

    numbers: range
    traced_once: bool = True

    def __iter__(self) -> Iterator[LoopIndex]:
        last, run = len(self.numbers) - 1, next(_RUNS)
        loop, early = begin_loop() if self.traced_once else None, False
        try:
            for at, number in enumerate(self.numbers):
                if loop is not None:
                    loop.begin(first=at == 0)
                early = at < last
                yield LoopIndex(number, first=at == 0, last=at == last, run=run)
        finally:
            if loop is not None:
                end_loop(loop, early=early)

    def __len__(self) -> int:
        return len(self.numbers)


def affine_range(*bounds: Any, **_: Any) -> Trips:
    """The trips of a loop, which is unrolled; ``range(*bounds)``."""
    if any(isinstance(bound, (Register, Tile)) for bound in bounds):
        raise KernelError(
            "a loop's bound is known on the device only; loops are unrolled, and take integers",
            hint="compute the largest bound on the host, and mask the rest",
        )
    return Trips(range(*(index(bound) for bound in bounds)))


sequential_range = affine_range


def static_range(*bounds: Any, **_: Any) -> Trips:
    """The trips of a loop that AWS's compiler unrolls, too; ``range(*bounds)``."""
    return replace(affine_range(*bounds), traced_once=False)


def program_id(axis: int) -> int:
    """The number of this instance along an axis of the launch grid."""
    return instance("nl.program_id", axis)[0]


def num_programs(axes: Any = None) -> int:
    """The number of instances along an axis, or several axes, of the launch grid; along all of them for None."""
    if axes is None:
        return prod(active_session("nl.num_programs").grid)
    chosen = axes if isinstance(axes, (tuple, list)) else (axes,)
    return prod(instance("nl.num_programs", index(axis))[1] for axis in chosen)


def program_ndim() -> int:
    """The number of dimensions of the launch grid."""
    return len(active_session("nl.program_ndim").grid)


class Constants:
    """``nl.fp32`` and ``nl.bfp16``: ``min``, the number that a bit pattern stands for."""

    def __init__(self, least: float) -> None:
        self.min = least


fp32 = Constants(float(np.finfo(np.float32).min))
bfp16 = Constants(float("-inf"))  # the bit pattern 0xff80, as the SDK has it
"""Source: SDK 2.26.1, nki/api/nki/language, classes fp32 and bfp16."""


def finfo(dtype: Any) -> Any:
    """The limits of a float dtype, as in ``numpy.finfo``."""
    wanted = named_format(dtype)
    if not wanted.is_float or wanted is tfloat32:
        raise KernelError(f"nl.finfo: dtype={wanted}; it must be a format of floats that numpy has")
    return ml_dtypes.finfo(wanted.numpy)


def gemm_grid() -> Grid:
    """The index expressions of the largest tile that a matrix product gives, and takes as ``moving``."""
    return MeshGrid()[0 : TileSize.pmax, 0 : TileSize.gemm_moving_fmax]


def gemm_stationary_grid() -> Grid:
    """The index expressions of the largest tile that a matrix product takes as ``stationary``."""
    return MeshGrid()[0 : TileSize.pmax, 0 : TileSize.gemm_stationary_fmax]
