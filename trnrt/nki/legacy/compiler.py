"""``neuronxcc.nki.compiler``: where tiles lie, and decorators that only AWS's compiler needs."""

from __future__ import annotations

from typing import Any

from trnrt.nki.legacy.allocating import PsumAllocator, SbufAllocator

__all__ = ["enable_stack_allocator", "force_auto_alloc", "psum", "sbuf", "skip_middle_end_transformations"]

sbuf = SbufAllocator()
psum = PsumAllocator()


def _keep(function: Any = None, **_: Any) -> Any:
    """The function as it is; also as a decorator with arguments."""
    return _keep if function is None else function


skip_middle_end_transformations = _keep
enable_stack_allocator = _keep
force_auto_alloc = _keep
