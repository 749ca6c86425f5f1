"""Sums beyond 2^24, where float32 doesn't hold every whole number, are those of integers, rounded once.

All scales are 1, and a float result shows each of its bits. The bytes are near 255, so that the sums become large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import trnrt
from trnrt.errors import UnsupportedModelError
from trnrt.validate.integers.sums import convolve

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(0)
ONE = {"s": np.array(1, np.float32)}
LARGE = [0, 2**24, 2**31 - 1]


def modelled(text: str, constants: dict[str, Array]) -> bytes:
    domains = '"" : 21, "com.microsoft" : 1'
    proto = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{domains}]> g {text}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return bytes(proto.SerializeToString())


def high(*shape: int) -> Array:
    return RANDOM.integers(200, 256, shape).astype(np.uint8)


def bias_of(size: int, largest: int) -> Array:
    """Numbers of both signs of about the largest magnitude."""
    return (RANDOM.choice([-1, 1], size) * RANDOM.integers(largest // 2, largest + 1, size)).astype(np.int32)


def check(text: str, constants: dict[str, Array], x: Array, sums: Array) -> trnrt.InferenceSession:
    session = trnrt.InferenceSession(modelled(text, ONE | constants))
    (made,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(made, sums.astype(np.float32))
    assert np.abs(sums).max() > 2**24 and (sums % 2).any()
    return session


@pytest.mark.parametrize("largest", LARGE)
@pytest.mark.parametrize(("settings", "turned"), [("", (False, False)), ("transA=1, transB=1", (True, True))])
def test_matrices(settings: str, turned: tuple[bool, bool], largest: int) -> None:
    x, w, bias = high(16, 700), high(700, 8), bias_of(8, largest)
    sums = x.astype(np.int64) @ w.astype(np.int64) + bias
    given = x.T.copy() if turned[0] else x
    rows, columns = given.shape
    text = f"""(uint8[{rows},{columns}] x) => (float[16,8] y) {{
        y = com.microsoft.QGemm<{settings or "alpha=1.0"}>(x, s, z, w, s, z, bias) }}"""
    zero = np.array(0, np.uint8)
    check(text, {"z": zero, "w": w.T.copy() if turned[1] else w, "bias": bias}, given, sums)


CONVOLUTIONS = {
    "channels": ((1, 80, 5, 5), (4, 80, 3, 3), 1),
    "two groups": ((1, 128, 5, 5), (4, 64, 3, 3), 2),
    "one channel": ((1, 1, 20, 20), (4, 1, 19, 19), 1),
    "each channel": ((1, 4, 20, 20), (4, 1, 19, 19), 4),
}


@pytest.mark.parametrize("largest", LARGE)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, largest: int) -> None:
    shape, kernel, groups = CONVOLUTIONS[name]
    x, w, bias = high(*shape), high(*kernel), bias_of(kernel[0], largest)
    sums = convolve(x.astype(np.int64), w.astype(np.int64), {"group": groups}) + bias.reshape(-1, 1, 1)
    text = f"""(uint8{list(shape)} x) => (float{list(sums.shape)} y) {{
        d = DequantizeLinear(x, s) v = DequantizeLinear(w, s) b = DequantizeLinear(bias, s)
        y = Conv<group={groups}>(d, v, b) }}"""
    check(text, {"w": w, "bias": bias}, x, sums)


@pytest.mark.parametrize("largest", LARGE)
@pytest.mark.parametrize(("channels", "groups"), [(300, 1), (600, 2)])
def test_transposed_convolutions(channels: int, groups: int, largest: int) -> None:
    """Kernels of 4 at strides of 2: each output sums 4 of the 16 terms of a channel."""
    x, w, bias = high(1, channels, 3, 3), high(channels, 2, 4, 4), bias_of(2 * groups, largest)
    sums = np.zeros((1, 2 * groups, 8, 8), np.int64)
    for row, column, g in np.ndindex(3, 3, groups):
        part = slice(g * channels // groups, (g + 1) * channels // groups)
        added = np.tensordot(x[0, part, row, column].astype(np.int64), w[part].astype(np.int64), 1)
        sums[0, 2 * g : 2 * g + 2, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += added
    sums += bias.reshape(-1, 1, 1)
    text = f"""(uint8[1,{channels},3,3] x) => (float[1,{2 * groups},8,8] y) {{
        d = DequantizeLinear(x, s) v = DequantizeLinear(w, s) b = DequantizeLinear(bias, s)
        y = ConvTranspose<group={groups}, strides=[2,2]>(d, v, b) }}"""
    check(text, {"w": w, "bias": bias}, x, sums)


def test_a_large_bias_makes_no_more_products() -> None:
    """A bias near 2^24 leaves little room below it: it is added behind the sums."""
    x, w, bias = high(1, 257, 2, 2), high(4, 257, 1, 1), bias_of(4, 2**24 - 1)
    sums = convolve(x.astype(np.int64), w.astype(np.int64), {}) + bias.reshape(-1, 1, 1)
    text = """(uint8[1,257,2,2] x) => (float[1,4,2,2] y) {
        d = DequantizeLinear(x, s) v = DequantizeLinear(w, s) b = DequantizeLinear(bias, s) y = Conv(d, v, b) }"""
    session = check(text, {"w": w, "bias": bias}, x, sums)
    kernels = [step.kernel for step in session.partition(1).plans[0].steps]
    assert kernels.count("conv2d") <= 2, kernels


def test_computed_weights_of_groups_are_refused() -> None:
    text = """(uint8[1,128,5,5] x, uint8[4,64,3,3] w) => (uint8[1,4,3,3] y) {
        y = QLinearConv<group=2>(x, s, z, w, s, z, s, z) }"""
    with pytest.raises(UnsupportedModelError, match="sums of up to 37454400 with computed weights"):
        trnrt.InferenceSession(modelled(text, ONE | {"z": np.array(0, np.uint8)})).partition(1)
