"""Ranges of unrolled loops, regions of fixed order, and the place of the kernel in its launch grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trnrt.nki.errors import KernelError
from trnrt.nki.sim.trace import Tracer, active_tracer

__all__ = [
    "affine_range",
    "no_reorder",
    "num_programs",
    "program_id",
    "program_ndim",
    "sequential_range",
    "static_range",
]


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Python's ``range``: an unrolled loop."""
    return range(start) if stop is None else range(start, stop, step)


sequential_range = affine_range
static_range = affine_range


@contextmanager
def no_reorder() -> Iterator[None]:
    """A region whose instructions stay in program order; the compiler may reorder others (``timing``).

    Device loops are refused.
    """
    instructions = active_tracer("nl.no_reorder").program.instructions
    start = len(instructions)
    yield
    if any(instruction.operation.name == "loop_begin" for instruction in instructions[start:]):
        raise KernelError(
            "nl.no_reorder: a device loop is in the region, which can't hold one; unroll it, or move it out"
        )
    for instruction in instructions[start:]:
        instruction.in_order = True


def program_id(axis: int = 0) -> int:
    """The number of this instance in the launch grid: which core it runs on; 0 without a grid."""
    return _instance("program_id", axis).core


def num_programs(axes: int = 0) -> int:
    """The number of instances in the launch grid: 2 for ``kernel[2]``, 1 without a grid."""
    return _instance("num_programs", axes).cores


def program_ndim() -> int:
    """The number of dimensions of the launch grid; 0 without one."""
    return 1 if active_tracer("nl.program_ndim").cores > 1 else 0


def _instance(what: str, axis: int) -> Tracer:
    tracer = active_tracer(f"nl.{what}")
    if axis != 0:
        raise KernelError(f"nl.{what}: axis {axis} of a launch grid; it has at most one, 0")
    return tracer
