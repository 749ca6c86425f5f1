"""Convolutions with rows of the image and of the result on the partitions, against the same reference as conv2d's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import ACTIVATIONS, TARGETS, Array, Pair, Tensor, channels_in_sbuf, channels_to_hbm, hbm, sbuf_channels
from convolutions import Conv, Pool, arrays, compare
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.conv.packing import ConvShape, leading
from trnrt.kernels.conv.row_groups import GROUPED_ROWS, RowGroups, choose_row_groups
from trnrt.nki.machine.program import Program
from trnrt.planner.lowering import weights

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]


@dataclass(frozen=True)
class Grouped(Conv):
    """A convolution that is called with ``rows`` (of the image, of the result) in groups; ``adds`` its images."""

    rows: Pair = (2, 2)
    adds: bool = False

    @property
    def shape(self) -> ConvShape:
        return ConvShape(self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation)

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        pool = self.pool or Pool((1, 1), (1, 1))
        conv2d(
            dst, source, w, b, self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation,
            self.act, pool.kernel, pool.stride, pool.pads[:2], pool.dilation, pool.op,
            added=source if self.adds else None, band_bytes=self.band_bytes, row_groups=self.rows,
        )  # fmt: skip
        return channels_to_hbm(dst, self.outputs) if self.places[1] else dst

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        plain, bias = super().prepared(w, b)
        return weights.row_group_weight(plain, RowGroups(self.shape, self.outputs, *self.rows)), bias

    def sums(self, x: Array, w: Array) -> Array:
        return super().sums(x, w) + (x if self.adds else 0)


TABLE = {
    "64 to 64": Grouped((1, 64, 12, 9), 64, act="relu"),
    "64 to 128, a stride of 2": Grouped((2, 64, 13, 9), 128, stride=(2, 2), rows=(2, 1)),
    "64 to 256": Grouped((1, 64, 6, 5), 256, act="relu"),
    "two blocks of channels to 64": Grouped((2, 130, 7, 6), 64, rows=(1, 2)),
    "32 to 32": Grouped((1, 32, 11, 7), 32, act="relu", rows=(4, 4)),
    "gaps between channels and outputs": Grouped((1, 17, 9, 7), 19, rows=(4, 2), stride=(2, 1)),
    "added": Grouped((2, 64, 10, 7), 64, act="relu", adds=True),
    "pooled": Grouped((2, 48, 12, 10), 40, act="relu", pool=Pool((2, 2))),
    "pooled by padded windows": Grouped((1, 64, 11, 9), 64, act="relu", pool=Pool((3, 3), pads=(1, 1, 1, 1))),
    "averages": Grouped((1, 33, 8, 6), 64, pool=Pool((2, 2), op="average")),
    "few rows": Grouped((1, 32, 3, 8), 16, rows=(4, 4)),
    "many bands": Grouped((1, 64, 40, 70), 64, act="relu", band_bytes=4096),
    "evacuated together": Grouped((2, 32, 13, 7), 32, act="silu", rows=(4, 4)),
    "evacuated together, with gaps": Grouped((1, 24, 9, 11), 17, act="gelu", rows=(1, 4)),
    "evacuated together, a kernel of one": Grouped((1, 48, 10, 9), 64, (1, 1), pads=(0, 0, 0, 0), act="silu"),
    "evacuated together and pooled": Grouped((1, 48, 12, 10), 40, act="silu", pool=Pool((2, 2))),
    "added before silu": Grouped((2, 64, 10, 7), 64, act="silu", adds=True),
    "few channels": Grouped((1, 8, 12, 9), 16, act="silu", rows=(4, 4)),
}


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair) -> None:
    compare(replace(TABLE[name], places=places))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_targets_and_dtypes(act: str, target: str, dtype: str) -> None:
    compare(Grouped((2, 32, 6, 7), 33, act=act, pool=Pool((2, 2)), target=target), dtype)


@st.composite
def grouped_rows(draw: st.DrawFn) -> tuple[Pair, int, int]:
    """Rows in groups, a number of channels that fits them, and the stride of rows."""
    seen, made = draw(st.sampled_from(GROUPED_ROWS)), draw(st.sampled_from(GROUPED_ROWS[1:]))
    channels = draw(st.integers(1, 140 if seen == 1 else 128 // seen))
    strides = [stride for stride in (1, 2, 3, 4) if made * stride % seen == 0]
    return (seen, made), channels, draw(st.sampled_from(strides))


@settings(max_examples=60)
@given(
    grouped_rows(),
    st.integers(1, 128),
    st.tuples(st.integers(4, 12), st.integers(5, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.integers(1, 3),
    st.tuples(*[st.integers(0, 2)] * 4),
    st.sampled_from(PLACES),
    st.sampled_from(["trn1", "trn2"]),
    st.sampled_from(["none", "silu"]),
)
def test_any_shape(
    drawn: tuple[Pair, int, int],
    outputs: int,
    image: Pair,
    kernel: Pair,
    step: int,
    pads: tuple[int, int, int, int],
    places: Pair,
    target: str,
    act: str,
) -> None:
    rows, channels, stride = drawn
    images = (2, channels, *image)
    conv = Grouped(images, outputs, kernel, (stride, step), pads, act=act, places=places, target=target, rows=rows)
    grouped = RowGroups(conv.shape, outputs, *rows).grouped_shape()
    assume(leading(image[1], conv.shape, 1) >= 0)
    assume(rows[0] > 1 or leading(image[0], grouped, 0) >= 0)
    compare(conv)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("act", ["none", "relu", "tanh"])
@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
def test_a_tensor_is_added_to_sums_of_one_product(places: Pair, act: str, dtype: str, target: str) -> None:
    """Where that is faster, the tensor engine adds it."""
    conv = Grouped((2, 96, 7, 6), 96, (1, 1), pads=(0, 0, 0, 0), act=act, adds=True, rows=(1, 1), places=places)
    compare(replace(conv, target=target), dtype)


def test_what_is_no_number_reaches_only_groups_that_see_it() -> None:
    """Zeros above and below the image, and of channels that do not exist, are numbers."""
    conv = Grouped((1, 17, 12, 6), 3)
    x, w, b = arrays(conv)
    x[0, 0, 0, 0], x[0, 1, 11, 5] = np.nan, np.inf
    got = np.isfinite(conv.run(x, w, b))
    seen = np.ones((12, 6), bool)
    seen[0:2, 0:2] = seen[10:12, 4:6] = False
    np.testing.assert_array_equal(got, np.broadcast_to(seen, (1, 3, 12, 6)))


def test_groups_take_fewer_products() -> None:
    def columns(conv: Conv) -> int:
        program: Program = conv.program()
        return sum(one["dst"].free_size for one in program.instructions if one.operation.name == "nc_matmul")

    plain = Conv((1, 64, 16, 16), 64, places=(1, 1), way="taps")
    assert columns(Grouped(plain.images, plain.outputs, places=(1, 1))) * 2.7 < columns(plain)


def test_one_instruction_evacuates_the_rows_of_a_product() -> None:
    """The scalar engine takes as long for 32 partitions as for 128."""

    def columns(conv: Conv) -> int:
        program: Program = conv.program()
        return sum(one["dst"].free_size for one in program.instructions if one.operation.name == "activation")

    plain = Conv((1, 32, 16, 16), 32, act="silu", places=(1, 1), way="taps")
    assert columns(Grouped(plain.images, 32, act="silu", places=(1, 1), rows=(1, 4))) * 4 == columns(plain)


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "act", "rows"),
    [
        (32, 32, 1, "silu", (1, 4)),
        (48, 64, 1, "silu", (1, 2)),
        (8, 16, 3, "silu", (4, 4)),
        (64, 256, 1, "silu", None),
        (32, 32, 1, "relu", None),
        (3, 16, 3, "silu", None),
    ],
)
def test_what_the_scalar_engine_evacuates_is_chosen_by_time(
    channels: int, outputs: int, kernel: int, act: str, rows: Pair | None
) -> None:
    pad = kernel // 2
    shape = ConvShape(channels, (160, 160), (kernel, kernel), (1, 1), (pad, pad), (1, 1))
    chosen = choose_row_groups(shape, 1, (160, 160), outputs, 2, act)
    assert (None if chosen is None else (chosen.seen, chosen.made)) == rows


@pytest.mark.parametrize(
    ("channels", "outputs", "stride", "rows"),
    [(64, 64, 1, (2, 2)), (64, 128, 2, (2, 1)), (128, 64, 1, (1, 2)), (32, 32, 1, (4, 4)), (128, 128, 1, None)],
)
def test_the_fewest_products_are_chosen(channels: int, outputs: int, stride: int, rows: Pair | None) -> None:
    shape = ConvShape(channels, (112, 112), (3, 3), (stride, stride), (1, 1), (1, 1))
    chosen = choose_row_groups(shape, 1, (112 * stride, 112 * stride), outputs, 2)
    assert (None if chosen is None else (chosen.seen, chosen.made)) == rows
