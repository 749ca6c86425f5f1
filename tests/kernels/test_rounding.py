"""Quotients rounded to whole numbers within limits: at every tie and beside it, exactly as a division gives them."""

from __future__ import annotations

import numpy as np
import pytest
from calling import TARGETS, Array
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_compute import computed, lined

from trnrt.operators.quantiser import find_quantiser

LIMITS = [(-128.0, 127.0), (0.0, 255.0), (-255.0, 0.0), (-3.0, 252.0), (0.0, 0.0)]
scales = st.floats(2.0**-20, 1024.0, width=32)


def floats_beside(x: Array, steps: int) -> Array:
    """Floats, and as many on either side of each."""
    found = [x]
    for towards in (-np.inf, np.inf):
        beside = x
        for _ in range(steps):
            beside = np.nextafter(beside, np.float32(towards))
            found.append(beside)
    return np.concatenate(found)


def numerators(scale: np.float32) -> Array:
    """Floats about every tie from -300 to 300, and elsewhere."""
    halves = np.arange(-600, 601) / 2 * np.float64(scale)
    rng = np.random.default_rng(0)
    anywhere = np.concatenate([rng.uniform(-400, 400, 2000) * scale, np.exp(rng.uniform(-60, 60, 200)), [np.inf]])
    return np.concatenate([floats_beside(halves.astype(np.float32), 12), anywhere.astype(np.float32)])


def quantised(x: Array, scale: np.float32, limits: tuple[float, float]) -> Array:
    """As ONNX has it, less the zero point."""
    with np.errstate(over="ignore"):
        made: Array = np.clip(np.rint(x / scale), *limits)
    return made


@settings(max_examples=60, deadline=None)
@given(scale=scales, limits=st.sampled_from(LIMITS))
@example(scale=float.fromhex("0x1.83fffep0"), limits=LIMITS[0])  # one ulp below 97 / 64
@example(scale=float.fromhex("0x1.9ffffep-1"), limits=LIMITS[1])
def test_quotients_about_ties(scale: float, limits: tuple[float, float]) -> None:
    found, by = find_quantiser(scale, *limits), np.float32(scale)
    if found is not None:
        x = numerators(by)
        np.testing.assert_array_equal(found.apply(x), quantised(x, by, limits))


def test_most_scales_have_a_quantiser() -> None:
    drawn = np.exp(np.random.default_rng(3).uniform(-12, 3, 300)).astype(np.float32)
    assert all(find_quantiser(float(scale), -128.0, 127.0) for scale in drawn)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernel(target: str, dtype: str) -> None:
    for scale, limits in zip(np.array([0.0173, 0.9, 37.1], np.float32), LIMITS[:3], strict=True):
        found = find_quantiser(float(scale), *limits)
        assert found is not None
        x = numerators(scale)
        made = computed(lined(x).shape, [lined(x)], (("quantise", 0, *found.numbers),), target, dtype)
        np.testing.assert_array_equal(made.reshape(-1), quantised(x, scale, limits))
