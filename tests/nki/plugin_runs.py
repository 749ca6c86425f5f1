"""Kernels, and runs of pytest on tests of them, for the tests of the pytest plugin."""

from __future__ import annotations

import pytest

# What the plugin imports when it is used must be there before: pytester forgets the modules that a run imports.
from trnrt.nki.sim.instructions import OPERATIONS  # noqa: F401
from trnrt.nki.testing import budgets, running  # noqa: F401

PLUGIN = "trnrt.nki.testing.plugin"
KERNELS = '''
import nki
import nki.isa as nisa
import nki.language as nl

def load(a):
    a_sb = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf, name="loaded")
    nisa.dma_copy(dst=a_sb, src=a)
    return a_sb

@nki.jit
def double(a, by=2.0):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    a_sb = load(a)
    nisa.tensor_scalar(dst=a_sb, data=a_sb, op0=nl.multiply, operand0=by, name="doubling")
    nisa.dma_copy(dst=out, src=a_sb)
    return out

@nki.jit
def split(a):
    """The halves of a's columns."""
    half = a.shape[1] // 2
    left = nl.ndarray((a.shape[0], half), dtype=a.dtype, buffer=nl.shared_hbm)
    right = nl.ndarray((a.shape[0], half), dtype=a.dtype, buffer=nl.shared_hbm)
    a_sb = load(a)
    nisa.dma_copy(dst=left, src=a_sb[:, :half])
    nisa.dma_copy(dst=right, src=a_sb[:, half:])
    return left, right

@nki.jit
def fill(dst, count, a):
    """dst = 2 a, count = 3; returns nothing."""
    a_sb = load(a)
    nisa.tensor_scalar(dst=a_sb, data=a_sb, op0=nl.multiply, operand0=2.0)
    nisa.dma_copy(dst=dst, src=a_sb)
    three = nl.ndarray(count.shape, dtype=count.dtype, buffer=nl.sbuf)
    nisa.memset(dst=three, value=3)
    nisa.dma_copy(dst=count, src=three)

@nki.jit
def leaves_rows_out(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out[:2], src=load(a)[:2])
    return out

@nki.jit
def copies_unwritten(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    a_sb = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.sbuf, name="half")
    nisa.dma_copy(dst=a_sb[:, :2], src=a[:, :2])
    nisa.dma_copy(dst=out, src=a_sb)  # half
    return out

@nki.jit
def broken(a):
    a_sb = load(a)
    nisa.dma_copy(dst=a, src=a_sb[:, 1:])
'''
OLD = """
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def add(a, b):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    total = nl.add(nl.load(a), nl.load(b))
    nl.store(out, total)
    return out

@nki.baremetal
def add_bare(a, b):
    return add(a, b)
"""
HEAD = """
import numpy as np
import pytest
from kernels import *

A = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
B = np.arange(32, dtype=np.float32).reshape(4, 8)
"""


class Run:
    """Runs tests of kernels.py in a pytest of their own, in this process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        (pytester.path / "kernels.py").write_text(KERNELS)
        pytester.syspathinsert()

    def __call__(self, text: str, *options: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_it=HEAD + text)
        return self.pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", *options)


def lines_of(result: pytest.RunResult) -> list[str]:
    """The lines of the error, without pytest's mark."""
    return [line[1:].strip() for line in result.outlines if line.startswith("E ")]


def place_of(code: str) -> str:
    """The file and line of kernels.py that ``code`` begins on."""
    return f"kernels.py:{KERNELS[: KERNELS.index(code)].count(chr(10)) + 1}"
