"""Convolutions as test cases: their attributes, how the kernel is called, and what float64 gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from calling import (
    IMAGE_ACTIVATIONS,
    LOWEST,
    Array,
    Pads,
    Pair,
    Tensor,
    call,
    channels_in_sbuf,
    channels_to_hbm,
    check,
    drawn,
    hbm,
    prepared_columns,
    prepared_conv,
    result_size,
    sbuf_channels,
    windows,
)

from trnrt.kernels.conv.conv2d import conv2d
from trnrt.nki import Spec, trace
from trnrt.nki.machine.program import Program


@dataclass(frozen=True)
class Pool:
    """Max or average pooling; padding counts in an average."""

    kernel: Pair
    stride: Pair = (2, 2)
    pads: Pads = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    op: str = "max"


@dataclass(frozen=True)
class Conv:
    """A convolution of images (N, C, H, W) to ``outputs`` channels; ``pads`` are (top, left, bottom, right)."""

    images: tuple[int, int, int, int]
    outputs: int
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    pads: Pads = (1, 1, 1, 1)
    dilation: Pair = (1, 1)
    act: str = "none"
    pool: Pool | None = None
    places: Pair = (0, 0)  # source, result: 0 HBM, 1 SBUF
    target: str = "trn2"
    groups: int = 1
    band_bytes: int = 0
    way: str = "best"

    @property
    def size(self) -> Pair:
        """(rows, columns) before pooling."""
        return result_size(self.images[2:], self.kernel, self.stride, self.pads, self.dilation)

    @property
    def result(self) -> tuple[int, int, int, int]:
        """(N, O, rows, columns) of the result."""
        pool = self.pool
        size = result_size(self.size, pool.kernel, pool.stride, pool.pads, pool.dilation) if pool else self.size
        return self.images[0], self.outputs, *size

    @property
    def length(self) -> int:
        """Products in one sum."""
        return self.images[1] // self.groups * self.kernel[0] * self.kernel[1]

    @property
    def together(self) -> int:
        """How many groups the kernel computes as one."""
        if self.groups == 1:
            return 1
        return max(1, min(self.groups, 128 // max(self.images[1] // self.groups, self.outputs // self.groups)))

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """The kernel."""
        source = channels_in_sbuf(x) if self.places[0] else x
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, x.dtype)
        pool = self.pool or Pool((1, 1), (1, 1))
        conv2d(
            dst, source, w, b, self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation,
            self.act, pool.kernel, pool.stride, pool.pads[:2], pool.dilation, pool.op, self.groups,
            band_bytes=self.band_bytes, way=self.way,
        )  # fmt: skip
        return channels_to_hbm(dst, self.outputs) if self.places[1] else dst

    def run(self, x: Array, w: Array, b: Array) -> Array:
        """The kernel's answer."""
        return call(self.body, x, *self.prepared(w, b), target=self.target)

    def prepared(self, w: Array, b: Array) -> tuple[Array, Array]:
        """Weights and bias as the kernel wants them: zeros where an output does not see a channel."""
        ins, outs = self.images[1] // self.groups, self.outputs // self.groups
        parts, columns = [], []
        for g0 in range(0, self.groups, self.together):
            g1 = min(self.groups, g0 + self.together)
            dense = np.zeros((self.together * outs, self.together * ins, *self.kernel), w.dtype)
            for g in range(g1 - g0):
                o = slice((g0 + g) * outs, (g0 + g + 1) * outs)
                dense[g * outs : (g + 1) * outs, g * ins : (g + 1) * ins] = w[o]
            parts.append(prepared_conv(dense))
            column = prepared_columns(b[g0 * outs : g1 * outs])
            columns.append(np.pad(column, ((0, min(self.together * outs, 128) - column.shape[0]), (0, 0))))
        return np.concatenate(parts, axis=1), np.concatenate(columns, axis=1)

    def program(self) -> Program:
        """The kernel, traced only."""
        w, b = self.prepared(
            np.zeros((self.outputs, self.images[1] // self.groups, *self.kernel)), np.zeros(self.outputs)
        )
        specs = [Spec(shape, "float32") for shape in (self.images, w.shape, b.shape)]
        return trace(self.body, *specs, target=self.target)

    def sums(self, x: Array, w: Array) -> Array:
        """The convolution without bias, in float64."""
        seen = windows(x.astype(np.float64), self.kernel, self.stride, self.pads, self.dilation, 0.0)
        ins, outs = self.images[1] // self.groups, self.outputs // self.groups
        parts = []
        for g in range(self.groups):
            mine, weights = seen[:, g * ins : (g + 1) * ins], w[g * outs : (g + 1) * outs].astype(np.float64)
            parts.append(np.einsum("nchwij,ocij->nohw", mine, weights, optimize=True))
        return np.concatenate(parts, axis=1)

    def expected(self, x: Array, w: Array, b: Array, lowest: float) -> Array:
        """The whole in float64; ``lowest`` is what a window of padding gives."""
        y = IMAGE_ACTIVATIONS[self.act](self.sums(x, w) + b.astype(np.float64)[:, None, None])
        if self.pool is None:
            return y
        average = self.pool.op == "average"
        fill = 0.0 if average else lowest
        seen = windows(y, self.pool.kernel, self.pool.stride, self.pool.pads, self.pool.dilation, fill)
        pooled: Array = seen.mean(axis=(4, 5)) if average else seen.max(axis=(4, 5))
        return pooled


def arrays(conv: Conv, dtype: str = "float32", seed: int = 0) -> tuple[Array, Array, Array]:
    x = drawn(conv.images, seed, dtype)
    w = drawn((conv.outputs, conv.images[1] // conv.groups, *conv.kernel), seed + 1, dtype)
    return x, w, drawn((conv.outputs,), seed + 2)


def compare(conv: Conv, dtype: str = "float32", seed: int = 0) -> None:
    x, w, b = arrays(conv, dtype, seed)
    magnitude = float(conv.sums(np.abs(x), np.abs(w)).max() + np.abs(b).max())
    check(conv.run(x, w, b), conv.expected(x, w, b, LOWEST[dtype]), magnitude, conv.length, dtype)
