"""Transposed convolutions against the sum that defines them, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import (
    DTYPES,
    IMAGE_ACTIVATIONS,
    TARGETS,
    Array,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    drawn,
    hbm,
    sbuf_channels,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_budgets import peak

from trnrt.errors import KernelError
from trnrt.kernels.conv import conv_transpose
from trnrt.kernels.conv.conv_transpose import Taps, conv_transpose2d, transpose_fits
from trnrt.kernels.conv.grouping import groups_together
from trnrt.nki import Spec, trace
from trnrt.nki.machine.program import Program
from trnrt.planner.lowering.weights import columns, conv_transpose_weight
from trnrt.planner.steps import WORKING_BYTES


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of images (N, C, H, W); ``pads`` are (top, left), ``ends`` (bottom, right) and
    ``extra`` ONNX's output_padding. ``on_chip``: whether the source, and the result, are in SBUF."""

    images: tuple[int, int, int, int]
    outputs: int
    kernel: Pair = (2, 2)
    stride: Pair = (2, 2)
    pads: Pair = (0, 0)
    ends: Pair = (0, 0)
    extra: Pair = (0, 0)
    dilation: Pair = (1, 1)
    act: str = "none"
    groups: int = 1
    target: str = "trn2"
    on_chip: tuple[bool, bool] = (False, False)

    @property
    def whole(self) -> Pair:
        """(rows, columns) before any are cut off."""
        rows, cols = (
            (self.images[2 + d] - 1) * self.stride[d] + (self.kernel[d] - 1) * self.dilation[d] + 1 for d in (0, 1)
        )
        return rows, cols

    @property
    def size(self) -> Pair:
        """(rows, columns) of the result."""
        rows, cols = (self.whole[d] + self.extra[d] - self.pads[d] - self.ends[d] for d in (0, 1))
        return rows, cols

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """The kernel."""
        dst = (sbuf_channels if self.on_chip[1] else hbm)((self.images[0], self.outputs, *self.size), x.dtype)
        src = channels_in_sbuf(x) if self.on_chip[0] else x
        conv_transpose2d(
            dst, src, w, b, self.images[1], self.kernel, self.stride, self.pads, self.dilation, self.act, self.groups
        )
        return channels_to_hbm(dst, self.outputs) if self.on_chip[1] else dst

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        """Weights and bias as the kernel wants them."""
        together = groups_together(self.images[1], self.outputs, self.groups)
        weight = conv_transpose_weight(w, self.groups, together)
        return weight, columns(b, together * self.outputs // self.groups)

    def sums(self, x: Array, w: Array) -> Array:
        """The result without bias, in float64: every pixel adds its multiple of the kernel."""
        n, c, height, width = self.images
        ins, outs = c // self.groups, self.outputs // self.groups
        room = [max(0, -p) + s + max(0, p) for p, s in zip(self.pads, self.size, strict=True)]
        room = [max(r, w + max(0, -p)) for r, w, p in zip(room, self.whole, self.pads, strict=True)]
        full = np.zeros((n, self.outputs, *room))
        top, left = max(0, -self.pads[0]), max(0, -self.pads[1])
        for g in range(self.groups):
            mine = x[:, g * ins : (g + 1) * ins].astype(np.float64)
            weights = w[g * ins : (g + 1) * ins].astype(np.float64)
            for u in range(self.kernel[0]):
                for v in range(self.kernel[1]):
                    y, z = top + u * self.dilation[0], left + v * self.dilation[1]
                    ends = y + (height - 1) * self.stride[0] + 1, z + (width - 1) * self.stride[1] + 1
                    part = np.einsum("nchw,co->nohw", mine, weights[:, :, u, v])
                    full[:, g * outs : (g + 1) * outs, y : ends[0] : self.stride[0], z : ends[1] : self.stride[1]] += (
                        part
                    )
        y, z = max(0, self.pads[0]), max(0, self.pads[1])
        return full[:, :, y : y + self.size[0], z : z + self.size[1]]


def arrays(case: Transposed, dtype: str = "float32") -> tuple[Array, Array, Array]:
    x = drawn(case.images, 0, dtype)
    w = drawn((case.images[1], case.outputs // case.groups, *case.kernel), 1, dtype)
    return x, w, drawn((case.outputs,), 2)


def compare(case: Transposed, dtype: str = "float32") -> None:
    x, w, b = arrays(case, dtype)
    got = call(case.body, x, *case.prepared(w, b), target=case.target)
    expected = IMAGE_ACTIVATIONS[case.act](case.sums(x, w) + b.astype(np.float64)[:, None, None])
    magnitude = float(case.sums(np.abs(x), np.abs(w)).max() + np.abs(b).max())
    length = case.images[1] // case.groups * case.kernel[0] * case.kernel[1]
    check(got, expected, magnitude, length, dtype)


def program(case: Transposed) -> Program:
    """The kernel, traced only."""
    w, b = case.prepared(np.zeros((case.images[1], case.outputs // case.groups, *case.kernel)), np.zeros(case.outputs))
    return trace(case.body, *(Spec(shape, "float32") for shape in (case.images, w.shape, b.shape)), target=case.target)


TABLE = {
    "one pixel": Transposed((1, 1, 1, 1), 1, (1, 1), (1, 1)),
    "twice as large": Transposed((2, 5, 6, 7), 3),
    "stride 1": Transposed((1, 3, 5, 6), 4, (3, 2), (1, 1), (1, 0), (1, 1)),
    "overlapping taps": Transposed((2, 3, 5, 4), 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "kernel below the stride": Transposed((1, 3, 4, 3), 2, (2, 1), (3, 4), extra=(2, 3)),
    "kernel 1, stride 3": Transposed((1, 3, 4, 3), 2, (1, 1), (3, 3)),
    "dilation and stride": Transposed((1, 3, 5, 6), 4, (3, 4), (2, 3), dilation=(3, 2)),
    "dilation and stride share a factor": Transposed((1, 3, 5, 6), 4, (3, 3), (4, 2), dilation=(2, 4), extra=(3, 1)),
    "dilation a multiple of the stride": Transposed((1, 3, 5, 6), 4, (3, 2), (2, 3), dilation=(4, 6)),
    "pads of each side their own": Transposed((2, 3, 5, 6), 4, (4, 5), (2, 3), (2, 1), (0, 3)),
    "pads that cut pixels off": Transposed((1, 2, 5, 6), 3, (2, 2), (2, 2), (5, 3), (1, 4)),
    "pads beyond the kernel": Transposed((1, 2, 9, 9), 3, (1, 1), (2, 2), (7, 6), (2, 3)),
    "negative pads": Transposed((1, 2, 3, 4), 3, (3, 2), (2, 2), (-3, -1), (-2, -4)),
    "output padding beyond the kernel": Transposed((1, 2, 3, 3), 3, (2, 2), (5, 4), extra=(4, 3)),
    "a row of pixels": Transposed((3, 4, 1, 11), 5, (1, 5), (1, 3), (0, 2), (0, 1), (0, 1)),
    "two groups": Transposed((2, 6, 4, 5), 4, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1), groups=2),
    "depth-wise": Transposed((2, 140, 4, 3), 140, (3, 3), (2, 2), (1, 1), (1, 1), groups=140),
    "groups of one output": Transposed((1, 12, 4, 3), 4, (2, 2), groups=4),
    "groups of 130 channels": Transposed((1, 260, 3, 3), 4, (2, 2), groups=2),
    "blocks of channels and outputs": Transposed((2, 260, 5, 4), 300, (2, 2), (2, 2)),
    "more results than a bank": Transposed((1, 3, 20, 30), 2, (4, 4), (2, 2), (1, 1), (1, 1)),
    "images together": Transposed((70, 2, 3, 3), 2, (2, 2)),
    "bands of rows": Transposed((2, 130, 40, 41), 3, (4, 4), (2, 2), (1, 1), (1, 1)),
    "bands of rows and columns": Transposed((1, 3, 3, 3000), 2, (2, 3), (3, 2), (1, 0)),
}


@pytest.mark.parametrize("act", IMAGE_ACTIVATIONS)
@pytest.mark.parametrize("name", TABLE)
def test_every_kind(name: str, act: str) -> None:
    compare(replace(TABLE[name], act=act))


ON_CHIP = [name for name, case in TABLE.items() if case.groups < 4 and "groups of 130" not in name]


@pytest.mark.parametrize("on_chip", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ON_CHIP)
def test_images_in_sbuf(name: str, on_chip: tuple[bool, bool]) -> None:
    compare(replace(TABLE[name], on_chip=on_chip, act="relu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["overlapping taps", "kernel below the stride", "two groups", "a row of pixels"])
def test_dtypes_and_targets(name: str, target: str, dtype: str) -> None:
    compare(replace(TABLE[name], target=target, act="relu"), dtype)


def test_outputs_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all outputs have their weights in SBUF; 9 x 3 x 4 bytes are one output's."""
    case = Transposed((1, 300, 3, 4), 150, (3, 3), (2, 2))
    for outputs in (1, 3, 100, 128, 140):
        monkeypatch.setattr(conv_transpose, "WEIGHT_BYTES", 27 * 4 * outputs)
        compare(case)


SIZES = st.integers(1, 4)
PAIRS = st.tuples(SIZES, SIZES)


@settings(max_examples=60)
@given(
    images=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    outputs=st.integers(1, 3),
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(st.integers(-2, 5), st.integers(-2, 5)),
    ends=st.tuples(st.integers(-2, 5), st.integers(-2, 5)),
)
def test_any_window(
    images: tuple[int, int, int, int], outputs: int, kernel: Pair, stride: Pair, dilation: Pair, pads: Pair, ends: Pair
) -> None:
    case = Transposed(images, outputs, kernel, stride, pads, ends, (0, 0), dilation)
    assume(min(case.size) > 0)
    compare(case)


@settings(max_examples=25)
@given(groups=st.integers(1, 5), ins=st.integers(1, 4), outs=st.integers(1, 4), stride=st.integers(1, 3), most=SIZES)
def test_any_groups(groups: int, ins: int, outs: int, stride: int, most: int) -> None:
    """Also where only some groups are computed together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conv_transpose, "groups_together", lambda channels, outputs, groups: min(most, groups))
        patch.setitem(globals(), "groups_together", lambda channels, outputs, groups: min(most, groups))
        compare(Transposed((1, groups * ins, 3, 2), groups * outs, (3, 2), (stride, stride), groups=groups))


BUDGETS = {
    "most weights": Transposed((1, 1024, 16, 16), 512, (3, 3), (2, 2)),
    "most weights of one output": Transposed((1, 1024, 1, 1), 2, (39, 39), (2, 2)),
    "largest band": Transposed((1, 1280, 32, 32), 64, (2, 2), (2, 2)),
    "largest results": Transposed((4, 16, 100, 100), 64, (2, 2), (2, 2)),
    "wide": Transposed((1, 64, 2, 4500), 64, (4, 4), (2, 2)),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_working_memory(name: str) -> None:
    assert peak(program(BUDGETS[name])) <= WORKING_BYTES


@pytest.mark.parametrize("on_chip", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", ["most weights", "largest band"])
def test_planned_memory(name: str, on_chip: tuple[bool, bool]) -> None:
    """The kernel takes no more than planners leave it beside the images in SBUF."""
    case = replace(BUDGETS[name], on_chip=on_chip)
    images = (case.images, (case.images[0], case.outputs, *case.size))
    held = sum(-(-i[1] // 128) * i[0] * i[2] * i[3] * 4 for i, there in zip(images, on_chip, strict=True) if there)
    taps = Taps(case.kernel, case.stride, case.pads, case.dilation)
    most = conv_transpose.transpose_tile_bytes(case.images[1], case.outputs, taps, False, *on_chip)
    assert peak(program(case)) <= held + min(WORKING_BYTES, most)


def test_a_kernel_that_does_not_fit() -> None:
    """Its weights, or its input: 1600 taps in blocks of 128 channels, 12,288 at most; 10,240 numbers of a band."""
    weights, band = Taps((40, 40), (2, 2), (0, 0), (1, 1)), Taps((40, 40), (1, 1), (0, 0), (1, 1))
    assert transpose_fits(896, weights) and not transpose_fits(897, weights)
    assert transpose_fits(768, band) and not transpose_fits(769, band)
    with pytest.raises(KernelError, match=r"conv_transpose2d: a kernel of \(40, 40\) over 1024 channels"):
        program(Transposed((1, 1024, 2, 2), 1, (40, 40), (2, 2)))
