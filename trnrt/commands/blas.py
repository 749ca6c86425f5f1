"""Choose numpy's matrix kernels and their threads. Both must be set before numpy is imported.

A row's result must not depend on its place in a batch. The NeuronCore sums every element of a product in the same
order; the simulator computes products with numpy's BLAS. OpenBLAS has a set of kernels for each kind of CPU. Those for
AVX2 ("Haswell" and "Zen") sum some rows and columns of a product in another order than the rest: rows 0 to 5 of a 128 x
128 x 512 product differ in their last bits from rows 6 to 11. Those for AVX ("Sandybridge") and AVX-512 don't. On a CPU
with AVX2 and without AVX-512, take AVX's: they reach 61 GFLOP/s where AVX2's reach 70 (one core of an AMD EPYC, 128 x
128 x 512, OpenBLAS 0.3.31).

A command lets the BLAS use one thread in all that it does, and so do the processes that it starts; ``trnrt.nki.blas``
says why, and limits the runs of programs elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from trnrt.nki.blas import THREAD_VARIABLES, threads_are_set

_KERNELS = "OPENBLAS_CORETYPE"


def choose_blas_kernels(cpu: Path = Path("/proc/cpuinfo")) -> None:
    """Set ``OPENBLAS_CORETYPE`` where OpenBLAS would sum by place; call it before numpy is imported.

    A value set by the user stays. ``cpu`` lists the CPU's features; without it (not Linux) nothing is set.
    """
    try:
        features = set(cpu.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return
    if "avx2" in features and "avx512f" not in features:
        os.environ.setdefault(_KERNELS, "Sandybridge")


def limit_blas_threads() -> None:
    """Let numpy's BLAS use one thread, unless the user has set one of its variables; call it before numpy is there."""
    if not threads_are_set():
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
