"""``neuronxcc.nki.compiler``: where tiles lie, and hints to AWS's compiler.

``force_auto_alloc`` and ``enable_stack_allocator`` change what this simulator does. The others are taken and have no
effect: instructions keep the order of the program until the timing model schedules them, and predicts a range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.allocating import PsumAllocator, SbufAllocator, direct

__all__ = [
    "allocation_scope",
    "enable_stack_allocator",
    "force_auto_alloc",
    "multi_buffer",
    "no_reorder",
    "psum",
    "sbuf",
    "skip_middle_end_transformations",
]

sbuf = SbufAllocator()
psum = PsumAllocator()


def skip_middle_end_transformations(func: Any = None) -> Any:
    """Return the kernel unchanged: the simulator transforms nothing. Also as a decorator with parentheses."""
    return skip_middle_end_transformations if func is None else func


def enable_stack_allocator(func: Any = None, log_level: int = 50) -> Any:
    """Let a kernel give addresses to some tiles; the others are placed automatically."""
    return partial(enable_stack_allocator, log_level=log_level) if func is None else direct(func, "stacked")


def force_auto_alloc(func: Any = None) -> Any:
    """Place all tiles of a kernel automatically, and ignore the addresses that it gives."""
    return force_auto_alloc if func is None else direct(func, "automatic")


@dataclass(frozen=True)
class Directive:
    """A hint for a loop, as in ``nl.sequential_range(n, directives=nki.compiler.no_reorder())``."""

    name: str
    factor: int = 1


def no_reorder() -> Directive:
    """Accept the hint to keep the order of a loop's instructions; it has no effect."""
    return Directive("no_reorder")


def multi_buffer(factor: int = 2) -> Directive:
    """Accept the hint to give a loop's tiles several places: the allocator does that anyway, if there is room."""
    return Directive("multi_buffer", factor)


def allocation_scope(*_: Any, **__: Any) -> NoReturn:
    """Refuse: SDK 2.26 names it, and does not document it."""
    raise KernelError("nki.compiler.allocation_scope: SDK 2.26 does not document what it does; leave it out")
