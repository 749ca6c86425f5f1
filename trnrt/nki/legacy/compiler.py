"""``neuronxcc.nki.compiler``: where tiles lie, and decorators that only AWS's compiler needs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from trnrt.nki.legacy.allocating import PsumAllocator, SbufAllocator

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


def _keep(function: Any = None, **_: Any) -> Any:
    """The function as it is; also as a decorator with arguments."""
    return _keep if function is None else function


skip_middle_end_transformations = _keep
enable_stack_allocator = _keep
force_auto_alloc = _keep


def multi_buffer(factor: int = 2) -> None:
    """A directive of a loop: how many places its tiles rotate over. The allocator chooses that itself."""


def allocation_scope() -> nullcontext[None]:
    """A region of AWS's stack allocator; ours frees each tile after its last use."""
    return nullcontext()


def no_reorder() -> nullcontext[None]:
    """A region whose instructions AWS's compiler keeps in order. A prediction is for orders that keep the result."""
    return nullcontext()
