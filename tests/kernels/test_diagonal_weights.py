"""Depthwise convolutions whose weights come without zeros, which the kernel makes on chip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from calling import DTYPES, TARGETS, Array, Pair, Tensor
from convolutions import Conv, Pool, compare
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels.common import load
from trnrt.nki.machine.program import Program
from trnrt.planner.lowering import weights

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


class Diagonal(Conv):
    """A convolution with a group for each channel."""

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        plain, bias = super().prepared(w, b)
        return weights.diagonals(plain), bias


class Held(Diagonal):
    """The same with weights in SBUF."""

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return super().body(x, load(w), load(b))


def depthwise(channels: int, size: Pair, kernel: Pair = (3, 3), made: type[Diagonal] = Held) -> Diagonal:
    top, left = kernel[0] // 2, kernel[1] // 2
    pads = (top, left, top, left)
    return made((2, channels, *size), channels, kernel, pads=pads, groups=channels)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("made", [Diagonal, Held])
def test_targets_and_dtypes(made: type[Diagonal], target: str, dtype: str) -> None:
    compare(replace(depthwise(200, (6, 5), made=made), target=target, places=(1, 1)), dtype)


def test_pooled_results() -> None:
    compare(replace(depthwise(140, (8, 9)), act="relu", pool=Pool((2, 2))))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 300),
    st.tuples(st.integers(5, 10), st.integers(5, 10)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(["none", "silu", "relu6"]),
    st.sampled_from(PLACES),
    st.sampled_from([Diagonal, Held]),
)
def test_any_shape(
    channels: int, size: Pair, kernel: Pair, stride: Pair, act: str, places: Pair, made: type[Diagonal]
) -> None:
    compare(replace(depthwise(channels, size, kernel, made), stride=stride, act=act, places=places))


def test_the_zeros_are_not_loaded() -> None:
    """384 channels by 7x7: three blocks of 49 matrices of 32 KiB in 16 bits."""

    def loaded(conv: Conv) -> int:
        program: Program = conv.program()
        return sum(one["dst"].size for one in program.instructions if one.operation.name == "dma_copy")

    few = depthwise(384, (7, 7), (7, 7))
    dense = Conv(few.images, few.outputs, few.kernel, pads=few.pads, groups=few.groups)
    assert loaded(replace(few, places=(1, 1))) + 384 * 49 * 127 < loaded(replace(dense, places=(1, 1))) + 384


@pytest.mark.parametrize(("channels", "kernel"), [(130, (3, 3)), (96, (1, 5))])
def test_diagonals(channels: int, kernel: Pair) -> None:
    plain = np.random.default_rng(0).normal(size=(channels, 1, *kernel)).astype(np.float32)
    laid = weights.diagonals(weights.conv_weight(plain, channels, min(channels, 128)))
    taps = plain.reshape(channels, -1)
    for block in range(laid.shape[1]):
        own = taps[block * 128 : (block + 1) * 128]
        np.testing.assert_array_equal(laid[: len(own), block, :, 0], own)
