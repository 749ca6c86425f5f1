"""Convolutions with the rows of their kernel on the partitions, against the same reference as conv2d's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import (
    IMAGE_ACTIVATIONS,
    TARGETS,
    Array,
    Pair,
    Tensor,
    channels_in_sbuf,
    channels_to_hbm,
    hbm,
    sbuf_channels,
)
from convolutions import Conv, Pool, arrays, compare
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv.stacking import conv2d_stacked
from trnrt.nki.machine.program import Program

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


@dataclass(frozen=True)
class Stacked(Conv):
    """A convolution that is called with its kernel's rows stacked."""

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        pool = self.pool or Pool((1, 1), (1, 1))
        conv2d_stacked(
            dst, source, w, b, self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation,
            self.act, pool.kernel, pool.stride, pool.pads[:2], pool.dilation, pool.op,
        )  # fmt: skip
        return channels_to_hbm(dst, self.outputs) if self.places[1] else dst

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        """Row 32*u + c is channel c of kernel row u."""
        outputs, channels, rows, columns = w.shape
        stack = np.zeros((32 * (rows - 1) + channels, 1, columns, outputs), w.dtype)
        for u in range(rows):
            stack[32 * u : 32 * u + channels, 0] = w[:, :, u].transpose(1, 2, 0)
        return stack, super().prepared(w, b)[1]


TABLE = {
    "one channel": Stacked((3, 1, 8, 8), 16, act="relu", pool=Pool((2, 2))),
    "16 channels": Stacked((2, 16, 4, 4), 32, act="relu", pool=Pool((2, 2))),
    "32 channels, 4 rows": Stacked((1, 32, 6, 5), 8, (4, 3)),
    "two rows": Stacked((1, 3, 5, 5), 4, (2, 2), pads=(0, 0, 0, 0)),
    "strides and uneven pads": Stacked((2, 3, 9, 11), 8, (3, 5), (2, 3), (2, 1, 0, 2)),
    "dilation": Stacked((1, 2, 9, 9), 3, (3, 3), dilation=(2, 3), pads=(2, 3, 2, 3)),
    "dilated beyond the image": Stacked((1, 2, 4, 4), 3, (2, 3), pads=(3, 8, 4, 7), dilation=(5, 6)),
    "much padding": Stacked((1, 1, 2, 3), 2, (2, 2), (2, 1), pads=(5, 4, 3, 6)),
    "130 outputs": Stacked((1, 4, 5, 7), 130, act="sigmoid"),
    "average": Stacked((2, 3, 6, 6), 5, act="relu", pool=Pool((2, 2), op="average")),
}


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair) -> None:
    compare(replace(TABLE[name], places=places))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("act", IMAGE_ACTIVATIONS)
def test_targets_and_dtypes(act: str, target: str, dtype: str) -> None:
    compare(Stacked((2, 5, 6, 7), 9, act=act, pool=Pool((2, 2)), target=target), dtype)


@settings(max_examples=60)
@given(
    st.integers(1, 32),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(2, 4), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(*[st.integers(0, 3)] * 4),
    st.sampled_from(PLACES),
    st.sampled_from(["trn1", "trn2"]),
)
def test_any_shape(
    channels: int, image: Pair, kernel: Pair, stride: Pair, pads: tuple[int, int, int, int], places: Pair, target: str
) -> None:
    assume(image[0] + pads[0] + pads[2] >= kernel[0] and image[1] + pads[1] + pads[3] >= kernel[1])
    compare(Stacked((2, channels, *image), 3, kernel, stride, pads, places=places, target=target))


def test_what_is_no_number_reaches_only_what_sees_it() -> None:
    """Zeros between the rows' partitions, and above and below the image, are numbers."""
    conv = Stacked((1, 2, 6, 6), 3)
    x, w, b = arrays(conv)
    x[0, 0, 0, 0], x[0, 1, 5, 5] = np.nan, np.inf
    got = np.isfinite(conv.run(x, w, b))
    seen = np.ones((6, 6), bool)
    seen[0:2, 0:2] = seen[4:6, 4:6] = False
    np.testing.assert_array_equal(got, np.broadcast_to(seen, (1, 3, 6, 6)))


def test_a_kernel_s_rows_are_one_product() -> None:
    def products(conv: Conv) -> int:
        program: Program = conv.program()
        return sum(one.operation.name == "nc_matmul" for one in program.instructions)

    conv = TABLE["16 channels"]
    assert products(conv) == 3
    assert products(Conv(conv.images, conv.outputs)) >= 9


@pytest.mark.parametrize(("images", "kernel"), [((1, 33, 4, 4), (3, 3)), ((1, 4, 8, 8), (5, 3))])
def test_limits(images: tuple[int, int, int, int], kernel: Pair) -> None:
    with pytest.raises((KernelError, AssertionError), match=r"conv2d_stacked: .* the limit is"):
        Stacked(images, 4, kernel).program()
