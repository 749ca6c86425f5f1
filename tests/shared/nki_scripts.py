"""Scripts with kernels, and ``trnrt nki`` called on them in this process."""

from __future__ import annotations

import signal
from pathlib import Path
from textwrap import dedent

import commanding
from commanding import Outcome

KERNELS = """
import sys
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def add(a, b, times=1, name="add"):
    assert times > 0
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    y = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a)
    nisa.dma_copy(dst=y, src=b)
    for _ in range(times):
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.add)
    nisa.dma_copy(dst=out, src=x)
    return out


@nki.jit
def huge(a):
    x = nl.ndarray((128, 100000), dtype=nl.float32, buffer=nl.sbuf)
    return a


"""
ONES = "ones = np.ones((128, 64), np.float32)\n"


def trnrt(*arguments: str | Path) -> Outcome:
    """Call ``trnrt nki`` in this process; an error that isn't handled fails the test."""
    return commanding.trnrt("nki", *arguments)


def script(folder: Path, text: str, kernels: str = KERNELS) -> Path:
    path = folder / "my_kernel.py"
    path.write_text(kernels + dedent(text), encoding="utf-8")
    return path


def line_of(path: Path, code: str) -> int:
    """The only line that holds ``code``."""
    (line,) = [n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if code in text]
    return line


def heed_interrupts() -> None:
    """End a child process on SIGINT, also where the tests run in a background job: its children ignore the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
