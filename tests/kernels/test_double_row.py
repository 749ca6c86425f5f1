"""Products of 8-bit floats, two rows a partition."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from calling import Array
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.double_row import matmul_double_row
from trnrt.kernels.matmul import matmul
from trnrt.nki import Spec, profile, simulate, trace

DTYPES = {"float8_e4m3": ml_dtypes.float8_e4m3, "float8_e5m2": ml_dtypes.float8_e5m2}


def operands(depth: int, rows: int, columns: int, dtype: str, seed: int = 0) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    return random.standard_normal((depth, rows)).astype(kind), random.standard_normal((depth, columns)).astype(kind)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("depth", "rows", "columns"), [(256, 128, 512), (512, 129, 513), (256, 1, 1), (1024, 200, 2100)]
)
def test_products(target: str, dtype: str, depth: int, rows: int, columns: int) -> None:
    lhs, rhs = operands(depth, rows, columns, dtype)
    got = simulate(matmul_double_row, target)(lhs, rhs)
    expected = lhs.astype(np.float64).T @ rhs.astype(np.float64)
    magnitude = np.abs(lhs.astype(np.float64)).T @ np.abs(rhs.astype(np.float64))
    assert np.all(np.abs(got - expected) <= (depth + 2) * 2.0**-24 * magnitude)


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 300), st.integers(1, 700))
def test_any_shape(steps: int, rows: int, columns: int) -> None:
    lhs, rhs = operands(256 * steps, rows, columns, "float8_e4m3", seed=rows)
    expected = lhs.astype(np.float64).T @ rhs.astype(np.float64)
    np.testing.assert_allclose(simulate(matmul_double_row, "trn2")(lhs, rhs), expected, rtol=1e-4, atol=1e-3)


def test_what_eight_bits_lose_is_small_and_known() -> None:
    """Of normally distributed operands: half of a step of 3 bits in each factor, which averages out in the sum."""
    random = np.random.default_rng(5)
    exact = [random.standard_normal(shape) for shape in ((1024, 128), (1024, 512))]
    lhs, rhs = (array.astype(ml_dtypes.float8_e4m3) for array in exact)
    wanted = exact[0].T @ exact[1]
    error = np.linalg.norm(simulate(matmul_double_row, "trn2")(lhs, rhs) - wanted) / np.linalg.norm(wanted)
    assert 0.01 < error < 0.05


def test_twice_the_rate() -> None:
    shapes = (2048, 2048)
    eight = profile(matmul_double_row, Spec(shapes, "float8_e4m3"), Spec(shapes, "float8_e4m3"), target="trn2")
    sixteen = profile(matmul, Spec(shapes, "bfloat16"), Spec(shapes, "bfloat16"), target="trn2")
    assert eight.benchmark_us < 0.65 * sixteen.benchmark_us


def test_limits() -> None:
    with pytest.raises(KernelError, match="a contraction of 384; it takes multiples of 256 up to 8192"):
        trace(matmul_double_row, Spec((384, 128), "float8_e4m3"), Spec((384, 128), "float8_e4m3"))
    with pytest.raises(KernelError, match="double_row"):
        trace(matmul_double_row, Spec((256, 128), "float8_e4m3"), Spec((256, 128), "float8_e4m3"), target="trn1")
