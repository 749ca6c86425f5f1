"""Convolutions over volumes as test cases: their attributes, and what float64 gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from calling import IMAGE_ACTIVATIONS, Array, call, check, drawn, hbm

from trnrt.kernels.conv.grouping import groups_together
from trnrt.kernels.conv.streaming import conv3d_streamed
from trnrt.kernels.conv.volumes import conv3d_stacked
from trnrt.nki import Spec, nl, trace
from trnrt.nki.machine.program import Program
from trnrt.planner.lowering.weights import columns, stacked_volume_weight, volume_weight

Triple = tuple[int, int, int]
Tensor = nl.NkiTensor


@dataclass(frozen=True)
class VolumeConv:
    """A convolution of volumes (N, C, D, H, W) to ``outputs`` channels; ``pads`` are at both ends of each axis.

    ``way``: "streamed" or "stacked".
    """

    volumes: tuple[int, int, int, int, int]
    outputs: int
    kernel: Triple = (3, 3, 3)
    stride: Triple = (1, 1, 1)
    pads: Triple = (1, 1, 1)
    ends: Triple = (1, 1, 1)
    dilation: Triple = (1, 1, 1)
    act: str = "none"
    groups: int = 1
    added: bool = False
    way: str = "streamed"
    target: str = "trn2"

    @property
    def size(self) -> Triple:
        """(slices, rows, columns) of the result."""
        spans = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        whole = (s + a + b for s, a, b in zip(self.volumes[2:], self.pads, self.ends, strict=True))
        depth, rows, cols = ((w - span) // s + 1 for w, span, s in zip(whole, spans, self.stride, strict=True))
        return depth, rows, cols

    @property
    def result(self) -> tuple[int, ...]:
        return (self.volumes[0], self.outputs, *self.size)

    def body(self, x: Tensor, w: Tensor, b: Tensor, a: Tensor | None = None) -> Tensor:
        """The kernel."""
        dst = hbm(self.result, x.dtype)
        kernel = conv3d_streamed if self.way == "streamed" else conv3d_stacked
        kernel(
            dst, x, w, b, self.kernel, self.stride, self.pads, self.dilation, self.act, self.groups, a
        )  # fmt: skip
        return dst

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        """Weights and bias as the kernel wants them."""
        if self.way == "streamed":
            return volume_weight(w, self.groups), columns(b, self.outputs // self.groups)
        together = groups_together(self.volumes[1] * self.kernel[0], self.outputs, self.groups)
        return stacked_volume_weight(w, self.groups, together), columns(b, together * self.outputs // self.groups)

    def arrays(self, dtype: str, seed: int) -> list[Array]:
        """Volumes, weights, bias and, if one is added, another tensor."""
        w = drawn((self.outputs, self.volumes[1] // self.groups, *self.kernel), seed + 1, dtype)
        found = [drawn(self.volumes, seed, dtype), w, drawn((self.outputs,), seed + 2)]
        return [*found, drawn(self.result, seed + 3, dtype)] if self.added else found

    def sums(self, x: Array, w: Array) -> Array:
        """The convolution without bias, in float64: every tap adds its product."""
        ends = [(0, 0), (0, 0), *zip(self.pads, self.ends, strict=True)]
        padded = np.pad(x.astype(np.float64), ends)
        weights, made = w.astype(np.float64), np.zeros(self.result)
        ins, outs = self.volumes[1] // self.groups, self.outputs // self.groups
        for tap in np.ndindex(*self.kernel):
            starts = [t * d for t, d in zip(tap, self.dilation, strict=True)]
            steps = zip(starts, self.size, self.stride, strict=True)
            place = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in steps)
            seen = padded[:, :, *place]
            for g in range(self.groups):
                mine, own = slice(g * ins, (g + 1) * ins), slice(g * outs, (g + 1) * outs)
                made[:, own] += np.einsum("ncdhw,oc->nodhw", seen[:, mine], weights[own, :, *tap], optimize=True)
        return made

    def compare(self, dtype: str = "float32", seed: int = 0) -> None:
        """Compare the kernel's answer with float64's."""
        x, w, b, *added = self.arrays(dtype, seed)
        got = call(self.body, x, *self.prepared(w, b), *added, target=self.target)
        more = added[0].astype(np.float64) if added else 0.0
        expected = IMAGE_ACTIVATIONS[self.act](self.sums(x, w) + b.astype(np.float64)[:, None, None, None] + more)
        magnitude = float((self.sums(np.abs(x), np.abs(w)) + np.abs(more)).max() + np.abs(b).max())
        length = self.volumes[1] // self.groups * int(np.prod(self.kernel)) + len(added)
        check(got, expected, magnitude, length, dtype)

    def program(self) -> Program:
        """The kernel, traced only, in float32."""
        weight = np.zeros((self.outputs, self.volumes[1] // self.groups, *self.kernel), np.float32)
        w, b = self.prepared(weight, np.zeros(self.outputs, np.float32))
        shapes = [self.volumes, w.shape, b.shape, *([self.result] if self.added else [])]
        return trace(self.body, *(Spec(shape, "float32") for shape in shapes), target=self.target)
