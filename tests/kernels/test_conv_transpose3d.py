"""Transposed convolutions over volumes against the sum that defines them, in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import DTYPES, IMAGE_ACTIVATIONS, TARGETS, Array, Tensor, call, check, drawn, hbm
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt.kernels.conv.volumes import conv_transpose3d
from trnrt.planner.lowering.weights import columns, volume_transpose_weight

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution of volumes (N, C, D, H, W); ``pads`` are cut off at the beginning of each axis, ``ends``
    at its end; negative ones are added."""

    volumes: tuple[int, int, int, int, int]
    outputs: int
    kernel: Triple = (2, 2, 2)
    stride: Triple = (2, 2, 2)
    pads: Triple = (0, 0, 0)
    ends: Triple = (0, 0, 0)
    dilation: Triple = (1, 1, 1)
    act: str = "none"
    groups: int = 1
    target: str = "trn2"

    @property
    def whole(self) -> Triple:
        """(slices, rows, columns) before any are cut off."""
        sizes = zip(self.volumes[2:], self.stride, self.kernel, self.dilation, strict=True)
        depth, rows, cols = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in sizes)
        return depth, rows, cols

    @property
    def size(self) -> Triple:
        """(slices, rows, columns) of the result."""
        depth, rows, cols = (w - a - b for w, a, b in zip(self.whole, self.pads, self.ends, strict=True))
        return depth, rows, cols

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """The kernel."""
        dst = hbm((self.volumes[0], self.outputs, *self.size), x.dtype)
        conv_transpose3d(dst, x, w, b, self.kernel, self.stride, self.pads, self.dilation, self.act)
        return dst

    def sums(self, x: Array, w: Array) -> Array:
        """The result without bias, in float64: every voxel adds its multiple of the kernel."""
        n, ins, outs = self.volumes[0], self.volumes[1] // self.groups, self.outputs // self.groups
        before, after = ([max(0, -p) for p in ends] for ends in (self.pads, self.ends))
        room = [a + w + b for a, w, b in zip(before, self.whole, after, strict=True)]
        full = np.zeros((n, self.outputs, *room))
        for tap in np.ndindex(*self.kernel):
            corner = [a + t * d for a, t, d in zip(before, tap, self.dilation, strict=True)]
            steps = zip(corner, self.volumes[2:], self.stride, strict=True)
            place = tuple(slice(a, a + (size - 1) * s + 1, s) for a, size, s in steps)
            for g in range(self.groups):
                mine, own = slice(g * ins, (g + 1) * ins), slice(g * outs, (g + 1) * outs)
                seen, weights = x[:, mine].astype(np.float64), w[mine, :, *tap].astype(np.float64)
                full[:, own, *place] += np.einsum("ncdhw,co->nodhw", seen, weights)
        starts = [max(0, p) for p in self.pads]
        kept = tuple(slice(a, a + size) for a, size in zip(starts, self.size, strict=True))
        return full[:, :, *kept]

    def compare(self, dtype: str = "float32") -> None:
        """Compare the kernel's answer with float64's."""
        x = drawn(self.volumes, 0, dtype)
        w = drawn((self.volumes[1], self.outputs // self.groups, *self.kernel), 1, dtype)
        b = drawn((self.outputs,), 2)
        depth = (self.size[0], self.stride[0], self.pads[0], self.dilation[0])
        got = call(self.body, x, volume_transpose_weight(w, self.groups, *depth), columns(b), target=self.target)
        expected = IMAGE_ACTIVATIONS[self.act](self.sums(x, w) + b.astype(np.float64)[:, None, None, None])
        magnitude = float(self.sums(np.abs(x), np.abs(w)).max() + np.abs(b).max())
        check(got, expected, magnitude, self.volumes[1] * int(np.prod(self.kernel)), dtype)


CASES = {
    "doubled": Transposed((2, 3, 3, 4, 5), 4),
    "overlapping": Transposed((1, 3, 4, 3, 5), 4, (3, 3, 3), pads=(1, 1, 1), ends=(0, 1, 0)),
    "stride 1": Transposed((1, 3, 4, 3, 5), 4, (3, 2, 3), (1, 1, 1), pads=(1, 0, 2)),
    "gaps": Transposed((2, 3, 3, 4, 2), 2, (2, 1, 2), (4, 3, 3), act="relu"),
    "dilated": Transposed((1, 3, 3, 4, 2), 2, (3, 2, 3), (2, 3, 1), dilation=(2, 2, 3)),
    "dilated over gaps": Transposed((1, 3, 3, 4, 2), 2, (2, 2, 2), (4, 2, 2), dilation=(2, 1, 1), act="tanh"),
    "padding added": Transposed((1, 2, 3, 2, 2), 3, pads=(-2, -1, 0), ends=(-3, 0, -1)),
    "fewer slices than the stride": Transposed((1, 2, 1, 3, 3), 3, (2, 3, 3), (3, 2, 2)),
    "groups": Transposed((1, 6, 3, 3, 3), 4, (3, 3, 3), groups=2),
    "many channels": Transposed((1, 140, 2, 3, 3), 130),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attributes(case: Transposed) -> None:
    case.compare()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_targets(dtype: str, target: str) -> None:
    replace(CASES["overlapping"], act="relu", target=target).compare(dtype)


@st.composite
def transposed(draw: st.DrawFn) -> Transposed:
    def triple(low: int, high: int) -> Triple:
        return draw(st.integers(low, high)), draw(st.integers(low, high)), draw(st.integers(low, high))

    groups = draw(st.sampled_from([1, 1, 2]))
    case = Transposed(
        (draw(st.integers(1, 2)), groups * draw(st.integers(1, 3)), *triple(1, 4)),
        groups * draw(st.integers(1, 3)),
        triple(1, 3),
        triple(1, 3),
        triple(-1, 2),
        triple(-1, 2),
        triple(1, 2),
        draw(st.sampled_from(["none", "relu"])),
        groups,
    )
    assume(min(case.size) > 0)
    return case


@settings(max_examples=40, deadline=None)
@given(case=transposed(), dtype=st.sampled_from(DTYPES))
def test_any_transposed_convolution(case: Transposed, dtype: str) -> None:
    case.compare(dtype)
