"""Convolutions whose adjacent rows share the partitions against the sum that defines them, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from calling import (
    DTYPES,
    IMAGE_ACTIVATIONS,
    TARGETS,
    Array,
    Pair,
    Tensor,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    hbm,
    sbuf_channels,
)
from convolutions import Conv, arrays
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_budgets import peak

from trnrt.kernels.conv import depthwise
from trnrt.kernels.conv.packing import ConvShape, leading
from trnrt.nki import Spec, trace
from trnrt.nki.machine.program import Program
from trnrt.planner.lowering.weights import columns, conv_weight, depthwise_weight


@dataclass(frozen=True)
class Depthwise(Conv):
    """A convolution with as many outputs as channels, and ``rows`` together of full blocks, and of a last one."""

    rows: Pair = (2, 2)

    @property
    def shape(self) -> ConvShape:
        pads = (self.pads[0], self.pads[1])
        return ConvShape(self.images[1], self.size, self.kernel, self.stride, pads, self.dilation)

    @property
    def is_possible(self) -> bool:
        """True if the case is within the kernel's limits."""
        return min(self.size) > 0 and leading(self.images[3], self.shape, 1) >= 0

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        depthwise.depthwise2d(
            dst, source, w, b, self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation,
            self.act, self.rows,
        )  # fmt: skip
        return channels_to_hbm(dst, self.outputs) if self.places[1] else dst

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        dense = conv_weight(w, self.groups, self.together)
        each = self.together * self.outputs // self.groups
        return depthwise_weight(dense, self.shape, self.rows), columns(b, each)

    def program(self) -> Program:
        weight = np.zeros((self.outputs, self.images[1] // self.groups, *self.kernel), np.float32)
        w, b = self.prepared(weight, np.zeros(self.outputs, np.float32))
        return trace(self.body, *(Spec(s, "float32") for s in (self.images, w.shape, b.shape)), target=self.target)


def compare(case: Depthwise, dtype: str = "float32", seed: int = 0) -> None:
    x, w, b = arrays(case, dtype, seed)
    magnitude = case.sums(np.abs(x), np.abs(w)) + np.abs(b.astype(np.float64))[:, None, None]
    expected = IMAGE_ACTIVATIONS[case.act](case.sums(x, w) + b.astype(np.float64)[:, None, None])
    check(case.run(x, w, b), expected, magnitude, case.length, dtype)


def depthwise_case(channels: int, size: Pair, images: int = 1, **options: object) -> Depthwise:
    return Depthwise((images, channels, *size), channels, groups=channels, **options)  # type: ignore[arg-type]


PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
TABLE = {
    "16 channels in fours": depthwise_case(16, (9, 7), rows=(1, 4), act="relu6"),
    "32 channels in fours": depthwise_case(32, (12, 5), rows=(1, 4), act="sigmoid"),
    "32 channels in fours, both engines": depthwise_case(32, (13, 5), rows=(1, 4), act="relu6"),
    "24 channels in fours, evacuated together": depthwise_case(24, (13, 5), 2, rows=(1, 4), act="silu"),
    "blocks in pairs and fours, evacuated together": depthwise_case(144, (10, 6), rows=(2, 4), act="silu"),
    "64 channels in pairs": depthwise_case(64, (7, 9), 3, rows=(1, 2)),
    "a full block in pairs, and 16 in fours": depthwise_case(144, (10, 6), rows=(2, 4), act="relu"),
    "a full block apart, and 64 in pairs": depthwise_case(192, (6, 6), 2, rows=(1, 2)),
    "a full block in fours, and a rest apart": depthwise_case(140, (6, 6), rows=(4, 1)),
    "5x5, stride 2": depthwise_case(96, (14, 15), kernel=(5, 5), stride=(2, 2), pads=(2, 2, 2, 2), rows=(1, 4)),
    "7x7": depthwise_case(40, (11, 13), kernel=(7, 7), pads=(3, 3, 3, 3), rows=(1, 4)),
    "dilated": depthwise_case(33, (11, 9), dilation=(2, 3), pads=(2, 3, 2, 3), rows=(1, 2)),
    "fewer rows than together": depthwise_case(20, (3, 8), rows=(1, 4)),
    "several bands": depthwise_case(32, (70, 90), 2, rows=(1, 4)),
    "groups of 4": Depthwise((2, 64, 8, 8), 64, groups=16, rows=(1, 4)),
}


@pytest.mark.parametrize("places", PLACES, ids=["hbm-hbm", "hbm-sbuf", "sbuf-hbm", "sbuf-sbuf"])
@pytest.mark.parametrize("name", TABLE)
def test_every_place(name: str, places: Pair) -> None:
    case = TABLE[name]
    compare(Depthwise(**(vars(case) | {"places": places})))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["a full block in pairs, and 16 in fours", "5x5, stride 2"])
def test_targets_and_dtypes(name: str, target: str, dtype: str) -> None:
    compare(Depthwise(**(vars(TABLE[name]) | {"target": target, "places": (1, 1)})), dtype)


@st.composite
def cases(draw: st.DrawFn) -> Depthwise:
    def pair(low: int, high: int) -> Pair:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    group = draw(st.sampled_from([1, 1, 2, 4]))
    channels = group * draw(st.integers(2, 40 if group > 1 else 150))
    if channels > 128:
        channels = channels // group * group
    images = (draw(st.integers(1, 3)), channels, *pair(3, 12))
    kernel, pads = pair(1, 5), (*pair(0, 3), *pair(0, 3))
    rows = (draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])))
    return Depthwise(
        images, channels, kernel, pair(1, 3), pads, pair(1, 2), draw(st.sampled_from(list(IMAGE_ACTIVATIONS))),
        places=draw(st.sampled_from(PLACES)), groups=channels // group, rows=rows,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_case(case: Depthwise, seed: int) -> None:
    assume(case.is_possible)
    compare(case, seed=seed)


@pytest.mark.parametrize("name", TABLE)
def test_tiles_fit_what_planners_expect(name: str) -> None:
    case = Depthwise(**(vars(TABLE[name]) | {"places": (1, 1)}))
    weight = np.zeros((case.outputs, case.images[1] // case.groups, *case.kernel), np.float32)
    prepared, _ = case.prepared(weight, np.zeros(case.outputs, np.float32))
    given = 4 * (prepared[0].size + 2 * case.images[0] * -(-case.outputs // 128) * int(np.prod(case.images[2:])))
    size = (case.images[2], case.images[3])
    limit = depthwise.depthwise_tile_bytes(case.shape, case.images[0], size, case.rows, False)
    assert peak(case.program()) <= limit + given + 4096


@pytest.mark.parametrize(("act", "times"), [("silu", 1), ("none", 4)])
def test_one_instruction_evacuates_the_rows_of_a_product(act: str, times: int) -> None:
    """If only the scalar engine computes the activation."""
    program = depthwise_case(32, (16, 16), rows=(1, 4), act=act, places=(1, 1)).program()
    columns = sum(one["dst"].free_size for one in program.instructions if one.operation.name == "activation")
    assert columns == times * 4 * 16


def test_choice() -> None:
    """Few channels and tall kernels share the partitions; small images and full blocks of 3x3 need not."""
    assert choice(32, (112, 112), (3, 3)) == (1, 4)
    assert choice(240, (28, 28), (5, 5))[0] > 1
    assert choice(128, (7, 7), (3, 3)) == (1, 1)
    assert choice(33, (112, 112), (3, 3), group=3) == (1, 1)


def choice(channels: int, size: Pair, kernel: Pair, group: int = 1) -> Pair:
    """The rows together of a convolution that keeps the image's size."""
    shape = ConvShape(channels, size, kernel, (1, 1), (kernel[0] // 2, kernel[1] // 2), (1, 1))
    return depthwise.choose_block_rows(shape, size[1], group, 1, 2)
