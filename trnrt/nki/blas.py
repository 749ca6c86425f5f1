"""One thread for numpy's BLAS while a program runs.

The products of a program are small (128 x 128 x 512 at most): a second thread gains nothing, and waits in a loop for
CPUs that others use. Outside of runs the process keeps its number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""The environment variables that set a BLAS's number of threads: if one of them is set, it decides."""


def threads_are_set() -> bool:
    """True if the environment sets the number of threads."""
    return any(name in os.environ for name in THREAD_VARIABLES)


_limiting = Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let numpy's BLAS use one thread in a with block, unless the environment sets another number.

    The number belongs to the process. Of runs at the same time, the first sets and restores it, in its own thread:
    another one might restore what the first has set.
    """
    if threads_are_set() or not _limiting.acquire(blocking=False):
        yield
        return
    changed = [(library, count) for library in _blas_libraries() if (count := library.num_threads) != 1]
    try:
        for library, _ in changed:
            library.set_num_threads(1)
        yield
    finally:
        for library, count in changed:
            library.set_num_threads(count)
        _limiting.release()


def keep_one_blas_thread() -> None:
    """Let numpy's BLAS use one thread from now on, whatever the environment says.

    For a process that also answers requests: threads that wait in a loop for the next product take its CPU.
    """
    for library in _blas_libraries():
        library.set_num_threads(1)


@cache
def _blas_libraries() -> Any:
    """The BLAS libraries of this process. Numpy must be imported; looking for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers
