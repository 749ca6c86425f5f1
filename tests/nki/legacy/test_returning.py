"""Returns inside loops, which AWS's compiler traces once: every trip counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from old_kernels import nl, numbers

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.launching import jit
from trnrt.nki.sim.kernel import trace

X = numbers(0, 6, 8, 5)
FACTOR = 3.0


@jit
def in_two_loops(x: Any, scale: float = 2.0, *, more: float = 1.0) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        for j in nl.sequential_range(3):
            nl.store(out[3 * i + j], nl.load(x[3 * i + j]) * (scale * more * FACTOR))
            return out
    nl.store(out, 0.0)  # never reached
    return out


def closing_over(factor: float) -> Any:
    offset = 1.0

    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        if factor > 0:
            for i in nl.affine_range(x.shape[0]):
                nl.store(out[i], nl.load(x[i]) * factor + offset)
                return out
        return out

    return kernel


def test_all_trips_run_before_a_return_at_the_end_of_a_loop() -> None:
    np.testing.assert_allclose(in_two_loops(X), X * 6, rtol=1e-6)
    np.testing.assert_allclose(in_two_loops(X, 1.0, more=5.0), X * 15, rtol=1e-6)
    np.testing.assert_allclose(closing_over(4.0)(X), X * 4 + 1, rtol=1e-6)


def test_its_instructions_name_their_lines() -> None:
    lines = {instruction.source.line for instruction in trace(in_two_loops, X).instructions}
    first = in_two_loops.function.__code__.co_firstlineno
    assert len(lines) == 1 and lines.pop() == first + 4


def test_a_loop_of_python_is_left_by_its_return() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((8, 5), dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.static_range(x.shape[0]):
            nl.store(out, nl.load(x[i]))
            return out
        return out

    np.testing.assert_array_equal(kernel(X), X[0])


@pytest.mark.parametrize("by_return", [True, False])
def test_a_loop_that_is_left_in_another_way_is_refused(by_return: bool) -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(x.shape[0]):
            nl.store(out[i], nl.load(x[i]))
            if i == 2:
                if by_return:
                    return out
                break
        return out

    with pytest.raises(KernelError, match=r"before its last trip(?s:.)*test_returning\.py") as caught:
        kernel(X)
    assert "nl.static_range" in str(caught.value.hint)


def test_an_error_in_a_loop_is_its_own() -> None:
    @jit
    def kernel(x: Any) -> Any:
        for _ in nl.affine_range(2):
            raise ValueError("no")

    with pytest.raises(KernelError, match="ValueError: no"):
        kernel(X)
