"""Convolutions over volumes against the sum that defines them, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
from calling import DTYPES, TARGETS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_budgets import peak
from volume_convolutions import VolumeConv

from trnrt.errors import KernelError
from trnrt.kernels.conv import streaming
from trnrt.kernels.conv.streaming import VolumeShape, plan_streaming
from trnrt.planner.steps import WORKING_BYTES

WAYS = ("streamed", "stacked")
CASES = {
    "plain": VolumeConv((1, 4, 5, 6, 7), 5),
    "two volumes": VolumeConv((2, 3, 4, 5, 6), 4),
    "strides": VolumeConv((1, 3, 7, 8, 9), 4, stride=(2, 3, 2)),
    "dilations": VolumeConv((2, 3, 7, 8, 9), 4, dilation=(2, 1, 3), pads=(2, 0, 3), ends=(1, 2, 0)),
    "no padding": VolumeConv((1, 2, 4, 5, 6), 3, (2, 3, 2), pads=(0, 0, 0), ends=(0, 0, 0)),
    "planes": VolumeConv((2, 3, 4, 5, 6), 4, (1, 3, 3), pads=(0, 1, 1), ends=(0, 1, 1)),
    "depth": VolumeConv((2, 3, 6, 5, 6), 4, (3, 1, 1), pads=(1, 0, 0), ends=(1, 0, 0), stride=(2, 2, 1)),
    "points": VolumeConv((2, 3, 5, 5, 6), 4, (1, 1, 1), pads=(0, 0, 0), ends=(0, 0, 0), stride=(2, 2, 2)),
    "more padding than kernel": VolumeConv((1, 2, 3, 3, 2), 3, (2, 2, 2), pads=(3, 4, 3), ends=(3, 3, 4)),
    "padding of points": VolumeConv((1, 2, 3, 3, 2), 3, (1, 1, 1), pads=(1, 0, 2), ends=(2, 1, 0)),
    "dilation beyond the volume": VolumeConv((1, 2, 3, 3, 2), 3, dilation=(4, 5, 3), pads=(4, 5, 3), ends=(4, 5, 3)),
    "activation": VolumeConv((1, 3, 4, 5, 6), 4, act="relu"),
    "relu6": VolumeConv((1, 3, 4, 5, 6), 4, act="relu6"),
    "sum": VolumeConv((2, 3, 4, 5, 6), 4, act="relu", added=True),
    "groups": VolumeConv((2, 6, 4, 5, 6), 4, groups=2),
    "depthwise": VolumeConv((1, 5, 4, 5, 6), 5, groups=5, act="silu"),
    "many channels": VolumeConv((1, 140, 3, 4, 5), 130),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attributes(case: VolumeConv, way: str) -> None:
    replace(case, way=way).compare()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_dtypes_and_targets(way: str, dtype: str, target: str) -> None:
    case = VolumeConv((2, 7, 3, 5, 6), 9, stride=(1, 2, 1), act="relu", added=True, way=way, target=target)
    case.compare(dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> VolumeConv:
    def triple(low: int, high: int) -> tuple[int, int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high)), draw(st.integers(low, high))

    groups = draw(st.sampled_from([1, 1, 2, 3]))
    volumes = (draw(st.integers(1, 3)), groups * draw(st.integers(1, 3)), *triple(1, 8))
    case = VolumeConv(
        volumes,
        groups * draw(st.integers(1, 3)),
        triple(1, 4),
        triple(1, 3),
        triple(0, 4),
        triple(0, 4),
        triple(1, 3),
        draw(st.sampled_from(["none", "relu", "tanh"])),
        groups,
        groups == 1 and draw(st.booleans()),
        draw(st.sampled_from(WAYS)),
    )
    assume(min(case.size) > 0)
    return case


@settings(max_examples=60, deadline=None)
@given(case=convolutions(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99))
def test_any_convolution(case: VolumeConv, dtype: str, seed: int) -> None:
    case.compare(dtype, seed)


# Small budgets make boxes, rows of taps and chunks of weights of small convolutions.
BUDGETS = {
    "volumes": (VolumeConv((5, 3, 2, 3, 4), 4), {"BOX_BANKS": 1, "SEEN_BYTES": 400}),
    "slices": (VolumeConv((2, 3, 6, 5, 5), 4), {"SEEN_BYTES": 400}),
    "rows": (VolumeConv((1, 3, 6, 9, 5), 4, stride=(1, 2, 1)), {"SEEN_BYTES": 100}),
    "columns": (VolumeConv((1, 130, 2, 3, 50), 4, dilation=(1, 1, 3)), {"SEEN_BYTES": 64}),
    "chunks of weights": (VolumeConv((1, 3, 4, 5, 6), 140), {"TAP_BYTES": 1200}),
    "dilated images": (
        VolumeConv((2, 300, 1, 17, 15), 20, (1, 3, 3), pads=(0, 9, 6), ends=(0, 9, 6), dilation=(1, 9, 6)),
        {"SEEN_BYTES": 700, "TAP_BYTES": 200},
    ),
}


@pytest.mark.parametrize("case", BUDGETS.values(), ids=BUDGETS.keys())
def test_small_budgets(case: tuple[VolumeConv, dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    conv, budgets = case
    for name, value in budgets.items():
        monkeypatch.setattr(streaming, name, value)
    conv.compare()


def test_full_banks() -> None:
    """More results than eight banks hold, of several blocks of outputs."""
    VolumeConv((1, 3, 5, 30, 31), 130, (1, 3, 3), pads=(0, 1, 1), ends=(0, 1, 1)).compare()


# DeepLabV3's atrous convolutions over its last features, at the sizes of its images: (channels, image, dilation).
ATROUS = [(960, 33, 24), (960, 65, 36), (2048, 65, 24), (2048, 33, 12), (2048, 129, 36)]


@pytest.mark.parametrize(("channels", "size", "dilation"), ATROUS)
def test_atrous_convolutions_fit(channels: int, size: int, dilation: int) -> None:
    pads = (0, dilation, dilation)
    conv = VolumeConv(
        (1, channels, 1, size, size), 256, (1, 3, 3), pads=pads, ends=pads, dilation=(1, dilation, dilation), added=True
    )
    assert peak(conv.program()) <= WORKING_BYTES


def test_large_kernels_fit() -> None:
    pads = (2, 2, 2)
    conv = VolumeConv((1, 256, 9, 40, 40), 300, (5, 5, 5), stride=(1, 2, 2), pads=pads, ends=pads, added=True)
    assert peak(conv.program()) <= WORKING_BYTES


def test_weights_of_taps_that_see_nothing_are_not_loaded() -> None:
    """With a dilation of the image's size only the tap in the middle sees it."""
    pads = (0, 36, 36)
    far = VolumeConv((1, 256, 1, 33, 33), 128, (1, 3, 3), pads=pads, ends=pads, dilation=(1, 36, 36))
    near = VolumeConv((1, 256, 1, 33, 33), 128, (1, 1, 1), pads=(0, 0, 0), ends=(0, 0, 0))
    assert len(far.program().instructions) == len(near.program().instructions)


def test_boxes_fill_the_banks() -> None:
    """65 x 65 results are two boxes of whole rows; each block of channels is loaded whole."""
    how = plan_streaming((1, 1, 65, 65), VolumeShape((1, 65, 65), (1, 3, 3), (1, 1, 1), (0, 24, 24), (1, 24, 24)))
    assert (how.box, how.bank, how.by_row) == ((1, 1, 33, 65), (1, 1, 7, 65), False)


def test_rows_that_do_not_fit_are_refused() -> None:
    conv = VolumeConv((1, 2, 1, 1, 9000), 2, (1, 1, 2), pads=(0, 0, 0), ends=(0, 0, 0), dilation=(1, 1, 8500))
    with pytest.raises((KernelError, AssertionError), match="does not fit SBUF"):
        conv.program()
