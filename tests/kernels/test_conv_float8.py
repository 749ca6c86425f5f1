"""Convolutions of 8-bit floats: pairs of terms in one product, and scaled results, against float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from calling import ACTIVATIONS, Array, Tensor, call, channels_in_sbuf, channels_to_hbm, hbm, sbuf_channels
from convolutions import Conv
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.conv.conv2d import conv2d
from trnrt.kernels.conv.packing import ConvShape
from trnrt.kernels.conv.row_groups import RowGroups
from trnrt.nki import Spec, nl, trace
from trnrt.planner.lowering import weights

FLOATS = {
    "float8_e4m3": (np.dtype(ml_dtypes.float8_e4m3), 2.0**-4, 2.0**-10),
    "float8_e5m2": (np.dtype(ml_dtypes.float8_e5m2), 2.0**-3, 2.0**-17),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), 2.0**-8, 0.0),
    "float32": (np.dtype(np.float32), 2.0**-24, 0.0),
}
"""The numpy dtype, half the distance between neighbours relative to them, and half the smallest number."""


@dataclass(frozen=True)
class Eights(Conv):
    """A convolution of 8-bit floats with a result of ``made``; ``adds`` a tensor of 16 bits."""

    dtype: str = "float8_e4m3"
    made: str = "bfloat16"
    adds: bool = False
    rows: tuple[int, int] = (1, 1)
    places: tuple[int, int] = (1, 1)

    def compute(self, x: Tensor, w: Tensor, b: Tensor, more: Tensor) -> Tensor:
        """The kernel, with its places, and a tensor to add."""
        source, added = (channels_in_sbuf(t) if self.places[0] else t for t in (x, more))
        dst = (sbuf_channels if self.places[1] else hbm)(self.result, getattr(nl, self.made))
        conv2d(
            dst, source, w, b, self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation,
            self.act, added=added if self.adds else None, row_groups=self.rows,
        )  # fmt: skip
        return channels_to_hbm(dst, self.outputs) if self.places[1] else dst

    def draw(self, seed: int = 0) -> dict[str, Array]:
        """Operands; the scales are powers of two."""
        random, eight = np.random.default_rng(seed), FLOATS[self.dtype][0]
        return {
            "x": random.standard_normal(self.images).astype(eight),
            "w": random.standard_normal((self.outputs, self.images[1], *self.kernel)).astype(eight),
            "b": random.standard_normal(self.outputs).astype(np.float32),
            "more": random.standard_normal(self.result).astype(ml_dtypes.bfloat16),
            "scale": np.float32(2.0) ** random.integers(-8, -2, self.outputs),
        }

    def arguments(self, given: dict[str, Array]) -> list[Array]:
        """The kernel's arguments."""
        w, _ = self.prepared(given["w"], given["b"])
        if self.rows != (1, 1):
            shape = ConvShape(self.images[1], self.size, self.kernel, self.stride, self.pads[:2], self.dilation)
            w = weights.row_group_weight(w, RowGroups(shape, self.outputs, *self.rows))
        return [given["x"], w, weights.scaled_columns(given["b"], given["scale"]), given["more"]]

    def check(self, seed: int = 0) -> None:
        """Compare the kernel with float64."""
        given = self.draw(seed)
        wide = {name: array.astype(np.float64) for name, array in given.items()}
        scale, more = wide["scale"][:, None, None], wide["more"] if self.adds else 0.0
        expected = ACTIVATIONS[self.act](self.sums(wide["x"], wide["w"]) * scale + wide["b"][:, None, None] + more)
        size = self.sums(np.abs(wide["x"]), np.abs(wide["w"])) * scale + np.abs(wide["b"])[:, None, None] + np.abs(more)
        got = call(self.compute, *self.arguments(given), target=self.target)
        _, rounding, tiny = FLOATS[self.made]
        bound = (self.length + 4) * 2.0**-24 * size + 1.01 * rounding * np.abs(expected) + tiny
        assert (np.abs(got - expected) <= bound).all()

    def modes(self) -> list[bool]:
        """For each product of the traced kernel, True if it takes double rows."""
        specs = [Spec(a.shape, str(a.dtype)) for a in self.arguments(self.draw())]
        products = (i for i in trace(self.compute, *specs, target=self.target).instructions)
        return [i["double_row"] for i in products if i.operation.name == "nc_matmul"]


CASES = {
    "two blocks, 1x1": Eights((2, 256, 5, 6), 130, (1, 1), pads=(0, 0, 0, 0), act="relu"),
    "two blocks, 3x3": Eights((1, 256, 9, 7), 64),
    "one block, 3x3": Eights((2, 128, 9, 7), 64, act="relu"),
    "64 channels": Eights((1, 64, 9, 7), 128, (5, 5), pads=(2, 2, 2, 2)),
    "a last block of 44": Eights((1, 300, 6, 6), 20, act="relu"),
    "three blocks, 1x1": Eights((1, 384, 6, 6), 20, (1, 1), pads=(0, 0, 0, 0)),
    "a stride": Eights((2, 256, 9, 9), 64, stride=(2, 2), act="relu"),
    "a stride, no tap leads": Eights((1, 128, 3, 3), 32, (5, 3), stride=(2, 2), pads=(3, 2, 3, 2)),
    "a dilation": Eights((1, 128, 11, 9), 32, dilation=(2, 1), pads=(2, 1, 2, 1)),
    "several banks": Eights((3, 256, 20, 21), 16, act="relu"),
    "to 8 bits": Eights((2, 256, 20, 20), 140, act="relu", made="float8_e4m3"),
    "to 8 bits, linear": Eights((1, 128, 20, 20), 32, made="float8_e4m3"),
    "to float32": Eights((1, 128, 20, 40), 32, act="relu", made="float32"),
    "added": Eights((2, 256, 20, 20), 140, (1, 1), pads=(0, 0, 0, 0), act="relu", adds=True),
    "added, of one product": Eights((1, 64, 5, 5), 256, (1, 1), pads=(0, 0, 0, 0), act="relu", adds=True),
    "silu": Eights((1, 256, 5, 5), 16, act="silu"),
    "rows in groups": Eights((2, 64, 10, 9), 64, act="relu", rows=(2, 2)),
    "rows in groups, added": Eights((1, 64, 10, 9), 64, act="relu", rows=(2, 2), adds=True),
    "images in HBM": Eights((2, 256, 9, 7), 64, act="relu", places=(0, 0)),
    "e5m2": Eights((1, 256, 9, 7), 64, act="relu", dtype="float8_e5m2", made="float8_e5m2"),
    "trn3": Eights((1, 256, 9, 7), 64, act="relu", target="trn3"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_float64(case: Eights) -> None:
    case.check()


@settings(max_examples=30, deadline=None)
@given(
    channels=st.sampled_from((1, 63, 64, 127, 128, 129, 255, 256, 300, 384, 512)),
    outputs=st.integers(1, 140),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.integers(0, 2),
    seed=st.integers(0, 99),
    adds=st.booleans(),
    made=st.sampled_from(("bfloat16", "float32", "float8_e5m2")),
)
def test_any_shape(
    channels: int,
    outputs: int,
    height: int,
    width: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    pads: int,
    seed: int,
    adds: bool,
    made: str,
) -> None:
    size = (max(height, kernel[0]), max(width, kernel[1]))
    case = Eights((1, channels, *size), outputs, kernel, stride, (pads,) * 4, act="relu", adds=adds, made=made)
    case.check(seed)


def test_pairs() -> None:
    """Blocks pair under each tap, whatever results it sees; the taps of one block if the same results see them."""
    assert CASES["two blocks, 3x3"].modes() == [True] * 9
    assert CASES["two blocks, 1x1"].modes() == [True] * 2
    assert CASES["rows in groups"].modes() == [True] * 3
    assert CASES["three blocks, 1x1"].modes() == [True, False]
    taps = CASES["one block, 3x3"]
    assert sorted(replace(taps, pads=(0, 0, 0, 0)).modes()) == [False] + [True] * 4
    assert all(a <= b for a, b in pairwise(sorted(taps.modes())))


def test_limits() -> None:
    with pytest.raises(KernelError, match="trn1 has no performance mode"):
        replace(CASES["two blocks, 1x1"], target="trn1").check()
