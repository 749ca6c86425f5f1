"""The kernels that the timing model is calibrated on compute what they say."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trnrt.calibration import cases, convolutions, kernels, products
from trnrt.nki import simulate

RNG = np.random.default_rng(0)
TARGETS = ("trn1", "trn2")


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def close(ours: Any, expected: Any, tolerance: float = 1e-4) -> bool:
    return np.allclose(np.asarray(ours, np.float32), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("target", TARGETS)
def test_additions(target: str) -> None:
    a, b = normal(9, 1), normal(9, 1)
    assert close(simulate(kernels.add_chunks, target)(a, b), a + b)
    assert close(simulate(kernels.add_chunks, target)(a, b, 3), a + b)
    a, b = normal(128, 40), normal(128, 40)
    assert close(simulate(kernels.add_columns, target)(a, b, 20), a + b)
    a, b = normal(3, 128, 4), normal(3, 128, 4)
    assert close(simulate(kernels.add_slabs, target)(a, b), a + b)


@pytest.mark.parametrize("mode", cases.MODES.values())
def test_descriptors_can_be_chosen(mode: Any) -> None:
    a, b = normal(3, 1), normal(3, 1)
    assert close(simulate(kernels.add_chunks)(a, b, dge_mode=mode), a + b)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("by_vector", [False, True])
def test_transpose(target: str, by_vector: bool) -> None:
    x = normal(256, 384)
    assert close(simulate(kernels.transpose_tiles, target)(x, by_vector), x.T)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tiled_matmul(dtype: Any) -> None:
    lhs_t, rhs = normal(256, 256, dtype=dtype), normal(256, 1024, dtype=dtype)
    expected = lhs_t.astype(np.float32).T @ rhs.astype(np.float32)
    tolerance = 1e-3 if dtype is np.float32 else 0.2
    assert close(simulate(kernels.matmul_tiled, "trn1")(lhs_t, rhs), expected, tolerance)


@pytest.mark.parametrize("blocks", [(1, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 4)])
def test_blocked_matmul(blocks: tuple[int, int, int]) -> None:
    lhs_t, rhs = normal(512, 512), normal(512, 2048)
    ours = simulate(kernels.matmul_blocked)(lhs_t, rhs, *blocks)
    assert close(ours, lhs_t.T @ rhs, 1e-3)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (products.matmul_paired, ()),
        (products.matmul_grouped, (2, 2)),
        (products.matmul_grouped, (4, 2)),
        (products.matmul_grouped, (4, 2, 2)),
        (products.matmul_grouped, (4, 2, 4, 2)),
        (products.matmul_hoisted, ()),
        (products.matmul_hoisted, (2, 2)),
    ],
)
def test_products_of_several_tiles(kernel: Any, options: tuple[int, ...]) -> None:
    lhs_t, rhs = normal(256, 512), normal(256, 2048)
    assert close(simulate(kernel, "trn1")(lhs_t, rhs, *options), lhs_t.T @ rhs, 1e-3)


def test_the_tuned_product() -> None:
    lhs_t, rhs = normal(2048, 512), normal(2048, 512)
    assert close(simulate(products.matmul_tuned)(lhs_t, rhs), lhs_t.T @ rhs, 1e-3)


@pytest.mark.parametrize("kernel", [convolutions.convolve_rows, convolutions.convolve_blocks])
@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_convolutions(kernel: Any, pool: int, dtype: Any) -> None:
    x, weights, bias = normal(256, 6, 10, dtype=dtype), normal(256, 256, 3, 3, dtype=dtype), normal(256, 1, dtype=dtype)
    ours = simulate(kernel)(x, weights, bias, pool)
    assert close(ours, convolutions.convolution(x, weights, bias, pool), 1e-3 if dtype is np.float32 else 0.2)


def test_the_meaning_of_a_convolution() -> None:
    x, weights = np.zeros((1, 4, 4), np.float32), np.zeros((1, 1, 3, 3), np.float32)
    x[0, 1, 2], weights[0, 0, 0, 1] = 3, 2  # the only product: output row 1, column 1
    bias = np.array([[0.5]], np.float32)
    assert (convolutions.convolution(x, weights, bias, 1) == [[[0.5, 0.5], [0.5, 6.5]]]).all()
    assert (convolutions.convolution(x, weights, bias, 2) == [[[6.5]]]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_silu_and_exponential(target: str) -> None:
    x = normal(256, 1024)
    assert close(simulate(kernels.silu, target)(x), x / (1 + np.exp(-x)), 1e-3)
    x = normal(4, 64, dtype=ml_dtypes.bfloat16)
    assert close(simulate(kernels.exponential, target)(x), np.exp(x.astype(np.float32)), 2e-2)
