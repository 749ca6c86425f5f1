"""Ranges of unrolled loops, regions of fixed order, and the place of the kernel in its launch grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trnrt.errors import KernelError
from trnrt.nki.sim.trace import active_tracer


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's ``range``: an unrolled loop."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = affine_range
static_range = affine_range


@contextmanager
def no_reorder() -> Iterator[None]:
    """A region whose instructions stay in program order. This model never reorders any."""
    active_tracer("nl.no_reorder")
    yield


def program_id(axis: int = 0) -> int:
    """The number of this instance in the launch grid; 0 on one core."""
    _check_axis("program_id", axis)
    return 0


def num_programs(axes: int = 0) -> int:
    """How many instances the launch grid has; 1 on one core."""
    _check_axis("num_programs", axes)
    return 1


def program_ndim() -> int:
    """How many dimensions the launch grid has; 0 without one."""
    active_tracer("nl.program_ndim")
    return 0


def _check_axis(what: str, axis: int) -> None:
    active_tracer(f"nl.{what}")
    if axis != 0:
        raise KernelError(f"nl.{what}: axis {axis} of a launch grid; it has at most one, 0")
