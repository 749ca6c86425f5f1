"""The labs' convolution, weights in HBM as they are, against float64; and its bars, as the timing model predicts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, call, check, drawn, windows
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv.labs_conv import conv2d_bias_pool
from trnrt.nki import Spec, profile, trace
from trnrt.nki.machine.timing import predict

Shape = tuple[int, int, int, int]


def expected(x: Array, w: Array, bias: Array, pool: int) -> Array:
    seen = windows(x.astype(np.float64), w.shape[2:], (1, 1), (0, 0, 0, 0), (1, 1), 0.0)
    y: Array = np.einsum("nchwij,ocij->nohw", seen, w.astype(np.float64), optimize=True)
    y += bias.astype(np.float64)[:, None, None]
    maxima: Array = windows(y, (pool, pool), (pool, pool), (0, 0, 0, 0), (1, 1), 0.0).max(axis=(4, 5))
    return maxima


def compare(images: Shape, outputs: int, kernel: tuple[int, int], pool: int, dtype: str, target: str) -> None:
    x, w = drawn(images, 0, dtype), drawn((outputs, images[1], *kernel), 1, dtype)
    bias = drawn((outputs,), 2, dtype)
    got = call(lambda x, w, bias: conv2d_bias_pool(x, w, bias, pool), x, w, bias, target=target)
    magnitude = float(expected(np.abs(x), np.abs(w), np.abs(bias), 1).max())
    length = images[1] * kernel[0] * kernel[1]
    check(got, expected(x, w, bias, pool), magnitude, length, dtype)


CASES = {
    "one pixel": ((1, 1, 1, 1), 1, (1, 1), 1),
    "of the labs": ((4, 128, 32, 16), 256, (3, 3), 2),
    "of the labs, 5 x 5": ((2, 256, 12, 12), 128, (5, 5), 1),
    "129 to 130": ((2, 129, 7, 9), 130, (3, 3), 2),
    "rows left out by the pool": ((3, 5, 8, 9), 7, (2, 3), 3),
    "batch of 65": ((65, 3, 5, 5), 16, (3, 3), 1),
    "few channels of a large image": ((1, 3, 70, 66), 32, (7, 5), 2),
    "kernel of one column": ((2, 131, 11, 3), 3, (7, 1), 1),
    "weights that do not fit": ((1, 257, 12, 12), 40, (11, 11), 1),
    "weights that are held, but not turned": ((1, 200, 12, 12), 20, (11, 11), 1),
    "weights in two parts": ((1, 500, 9, 8), 500, (3, 3), 2),
    "weights in three parts": ((1, 129, 9, 8), 300, (7, 7), 2),
    "more images than fit at once": ((24, 129, 20, 20), 129, (3, 3), 1),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_shapes(name: str, target: str) -> None:
    compare(*CASES[name], "float32", target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, target: str) -> None:
    compare((3, 130, 9, 8), 132, (3, 3), 2, dtype, target)


@settings(max_examples=100)
@given(
    images=st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 3, 63, 129]), st.integers(1, 20), st.integers(1, 20)),
    outputs=st.sampled_from([1, 3, 128, 131]),
    kernel=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    pool=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_any_shape(images: Shape, outputs: int, kernel: tuple[int, int], pool: int, dtype: str, target: str) -> None:
    assume(images[2] - kernel[0] + 1 >= pool and images[3] - kernel[1] + 1 >= pool)
    compare(images, outputs, kernel, pool, dtype, target)


def test_what_does_not_go_together() -> None:
    with pytest.raises(KernelError, match="3 channels, but weights for 4"):
        compare_weights = drawn((2, 4, 3, 3), 0)
        call(conv2d_bias_pool, drawn((1, 3, 5, 5), 0), compare_weights, drawn((2,), 0))
    with pytest.raises(KernelError, match=r"no window of 2 in results of \(1, 3\)"):
        compare((1, 3, 3, 5), 2, (3, 3), 2, "float32", "trn2")


# Target, dtype, (N, C, H, W), pool, and what the prediction may not exceed: benchmark and share of the tensor engine's
# time at its full rate, or the profiler's total.
BARS = [
    ("trn2", "float16", (1, 256, 224, 224), 1, 775.0, 0.95),
    ("trn2", "float16", (1, 256, 224, 224), 2, 775.0, 0.95),
    ("trn2", "float32", (1, 256, 224, 224), 1, 3040.0, 0.97),
    ("trn2", "float32", (1, 256, 224, 224), 2, 3040.0, 0.97),
    ("trn1", "float16", (1, 256, 224, 224), 1, 790.0, 0.0),
    ("trn1", "float32", (1, 256, 224, 224), 1, 3100.0, 0.0),
]


@pytest.mark.parametrize(("target", "dtype", "images", "pool", "most", "share"), BARS)
def test_large_images_are_as_fast_as_asked(
    target: str, dtype: str, images: Shape, pool: int, most: float, share: float
) -> None:
    found = profile(
        conv2d_bias_pool, Spec(images, dtype), Spec((256, 256, 3, 3), dtype), Spec((256,), dtype), pool, target=target
    )
    cycles = images[0] * (images[2] - 2) * (images[3] - 2) * 9 * 4 * (4 if dtype == "float32" else 1)
    peak = cycles / (2800 if target == "trn1" else 2400)
    assert found.benchmark_us <= most
    assert peak / found.benchmark_us >= share


@pytest.mark.parametrize(("dtype", "most"), [("float16", 32.0), ("float32", 49.5)])
def test_small_images_are_as_fast_as_asked(dtype: str, most: float) -> None:
    specs = (Spec((1, 256, 32, 16), dtype), Spec((256, 256, 3, 3), dtype), Spec((256,), dtype))
    assert profile(conv2d_bias_pool, *specs, 1, target="trn2").profiler_us <= most


# On trn1: dtype, (N, C, H, W), (O, C, T, T), the most microseconds, and the fewest products: full banks.
SMALL = [
    ("float16", (16, 128, 32, 32), (128, 128, 5, 5), 152.9, 25 * 25),
    ("float32", (4, 128, 32, 32), (256, 128, 3, 3), 131.5, 2 * 9 * 8),
    ("float32", (4, 256, 32, 32), (256, 256, 5, 5), 555.0, 2 * 2 * 25 * 7),
]


@pytest.mark.parametrize(("dtype", "images", "weights", "most", "products"), SMALL)
def test_small_images_fill_the_banks_of_trn1(
    dtype: str, images: Shape, weights: Shape, most: float, products: int
) -> None:
    """The gap between passes counts there. The tensor engine transposes few weights: at most one tile in float32."""
    specs = (Spec(images, dtype), Spec(weights, dtype), Spec((weights[0],), dtype))
    program = trace(conv2d_bias_pool, *specs, target="trn1")
    made = Counter((one.operation.name, one.engine.name) for one in program.instructions)
    assert made["nc_matmul", "tensor"] == products
    assert made["nc_transpose", "tensor"] <= (1 if dtype == "float32" else 8)
    assert predict(program).benchmark.us <= most
