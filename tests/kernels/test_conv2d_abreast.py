"""Convolutions that sum several blocks of outputs abreast, as their weights arrive, against numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calling import (
    ACTIVATIONS,
    TARGETS,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    drawn,
    prepared_columns,
    prepared_conv,
    sbuf_channels,
)
from convolutions import Conv, arrays
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.kernels.common import load
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.nki import Spec, trace

Tensor = Any


def body(conv: Conv) -> Any:
    """The kernel, of images, weights, biases and another tensor (or None) in SBUF."""

    def kernel(x: Tensor, w: Tensor, b: Tensor, r: Tensor = None) -> Tensor:
        dst = sbuf_channels(conv.result, x.dtype)
        added = None if r is None else channels_in_sbuf(r)
        sizes = (conv.images[1], conv.size, conv.kernel, conv.stride, conv.pads[:2], conv.dilation, conv.act)
        conv2d(dst, channels_in_sbuf(x), load(w), load(b), *sizes, added=added)
        return channels_to_hbm(dst, conv.outputs)

    return kernel


def compare(conv: Conv, dtype: str, is_added: bool) -> None:
    x, w, b = arrays(conv, dtype)
    r = drawn(conv.result, 9, dtype) if is_added else np.zeros(conv.result, x.dtype)
    more = (r,) if is_added else ()
    got = call(body(conv), x, prepared_conv(w), prepared_columns(b), *more, target=conv.target)
    r64, b64 = r.astype(np.float64), b.astype(np.float64)[:, None, None]
    sizes = conv.sums(np.abs(x), np.abs(w)) + np.abs(b64) + np.abs(r64)
    check(got, ACTIVATIONS[conv.act](conv.sums(x, w) + b64 + r64), sizes, conv.length + 2, dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("is_added", [False, True], ids=["plain", "added"])
def test_every_dtype(is_added: bool, dtype: str, target: str) -> None:
    compare(Conv((2, 300, 5, 4), 700, act="relu", target=target), dtype, is_added)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_first_band_abreast_and_others_not(dtype: str) -> None:
    """The first band is small, and has one stretch of results; the others have several."""
    compare(Conv((1, 150, 40, 32), 700, (3, 3), pads=(1, 1, 1, 1)), dtype, False)


CONVS = st.builds(
    lambda images, channels, rows, cols, outputs, kernel, act: Conv(
        (images, channels, rows, cols), outputs, (kernel, kernel), pads=(kernel // 2,) * 4, act=act
    ),
    st.integers(1, 3),
    st.integers(120, 400),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(120, 800),
    st.sampled_from([1, 3]),
    st.sampled_from(["none", "relu", "sigmoid"]),
)


@settings(max_examples=25)
@given(CONVS, st.sampled_from(["float32", "bfloat16"]), st.booleans())
def test_any_convolution(conv: Conv, dtype: str, is_added: bool) -> None:
    compare(conv, dtype, is_added)


def test_all_outputs_begin_before_the_last_channels() -> None:
    """Then all that waits for the last weights are the products of the last block of channels."""
    conv = Conv((1, 384, 7, 7), 512)
    specs = [Spec(shape, "bfloat16") for shape in (conv.images, (128, 3, 9, 512))]
    program = trace(body(conv), *specs, Spec((128, 4), "float32"))
    products = [i for i in program.instructions if i.operation.name == "nc_matmul"]
    banks = [id(i["dst"].storage) for i in products]
    assert len(products) == 3 * 9 * 4
    assert len(set(banks[: 2 * 9 * 4])) == 4 == len(set(banks))
    assert banks[2 * 9 * 4 :] == sorted(banks[2 * 9 * 4 :], key=banks.index)
