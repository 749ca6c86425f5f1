"""Linear layers with weights of 8-bit floats against numpy: rounded factors, exact products, and scaled sums."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from calling import (
    ACTIVATIONS,
    Array,
    Tensor,
    call,
    channels_in_sbuf,
    features_in_sbuf,
    features_to_hbm,
    hbm,
    prepared_columns,
    prepared_linear,
    rows_to_hbm,
    sbuf_features,
    sbuf_rows,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.common import load
from trnrt.kernels.linear import LOAD_BYTES, linear_features, linear_rows
from trnrt.nki import Spec, nl, trace

FORMATS = {"float8_e4m3": ml_dtypes.float8_e4m3, "float8_e5m2": ml_dtypes.float8_e5m2}
FACTOR = 4.0


@dataclass(frozen=True)
class Narrow:
    """(N, F) @ (F, O) in ``dtype``; where the operands live: see Case in test_linear.py."""

    size: tuple[int, int, int]
    dtype: str = "float8_e4m3"
    source: str | tuple[int, int, int] = "hbm"
    result: str = "hbm"
    act: str = "none"
    held: bool = False
    target: str = "trn2"
    signed: bool = True
    load_bytes: int = LOAD_BYTES

    @property
    def most(self) -> float:
        return float(ml_dtypes.finfo(FORMATS[self.dtype]).max)

    def draw(self, seed: int = 0) -> dict[str, Array]:
        """Operands, some of the source beyond the format's largest number; the scales are powers of two."""
        random, (rows, features, outputs) = np.random.default_rng(seed), self.size
        x = random.standard_normal((rows, features)) * 2.0 ** random.integers(-3, 8, (1, features))
        return {
            "x": (x if self.signed else np.abs(x)).astype(ml_dtypes.bfloat16),
            "w": random.standard_normal((features, outputs)).astype(FORMATS[self.dtype]),
            "b": random.standard_normal(outputs).astype(np.float32),
            "scale": (2.0 ** random.integers(-8, -2, outputs)).astype(np.float32),
        }

    def body(self, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """The kernel, with its places."""
        rows, features, outputs = self.size
        positions = 1 if isinstance(self.source, str) else self.source[1] * self.source[2]
        source = self._source(x)
        if self.held:
            w, b = load(w), load(b) if self.result == "features" else b
        narrowing = (FACTOR, self.most, self.signed)
        if self.result == "features":
            tile = sbuf_features(rows, outputs, nl.float32)
            linear_features(tile, source, w, b, features // positions, outputs, self.act, self.load_bytes, narrowing)
            return features_to_hbm(tile, outputs)
        dst = hbm((rows, outputs), nl.float32) if self.result == "hbm" else sbuf_rows(rows, outputs, nl.float32)
        linear_rows(dst, source, w, b, features // positions, self.act, self.load_bytes, narrowing)
        return dst if self.result == "hbm" else rows_to_hbm(dst, rows)

    def _source(self, x: Tensor) -> Tensor:
        if self.source == "hbm":
            return x
        if isinstance(self.source, str):
            return features_in_sbuf(x).expand_dim(2)
        image = channels_in_sbuf(x.reshape((x.shape[0], *self.source)))
        return image.flatten_dims(3, 4).permute((0, 1, 3, 2))

    def arguments(self, given: dict[str, Array]) -> list[Array]:
        """The kernel's arguments."""
        positions = 1 if isinstance(self.source, str) else self.source[1] * self.source[2]
        if self.result == "features":
            bias = np.concatenate([prepared_columns(given["b"]), prepared_columns(given["scale"])], axis=1)
        else:
            bias = np.concatenate([given["b"], given["scale"]])[None]
        return [given["x"], prepared_linear(given["w"], positions), bias]

    def check(self, seed: int = 0) -> None:
        """Compare the kernel with float64."""
        given = self.draw(seed)
        x = np.clip(given["x"].astype(np.float32) * np.float32(FACTOR), -self.most, self.most)
        x, w = x.astype(FORMATS[self.dtype]).astype(np.float64), given["w"].astype(np.float64)
        scale, bias = given["scale"].astype(np.float64), given["b"].astype(np.float64)
        expected = ACTIVATIONS[self.act](x @ w * scale + bias)
        size = np.abs(x) @ np.abs(w) * scale + np.abs(bias)
        got = call(self.body, *self.arguments(given), target=self.target)
        assert (np.abs(got - expected) <= (self.size[1] + 4) * 2.0**-24 * size + 1e-6 * np.abs(expected)).all()

    def modes(self) -> list[bool]:
        """For each product of the traced kernel, True if it takes double rows."""
        specs = [Spec(a.shape, str(a.dtype)) for a in self.arguments(self.draw())]
        products = (i for i in trace(self.body, *specs, target=self.target).instructions)
        return [i["double_row"] for i in products if i.operation.name == "nc_matmul" and not i["passes_through"]]


CASES = {
    "one chunk": Narrow((3, 100, 10)),
    "a pair and a rest": Narrow((33, 384, 130)),
    "a last block of 44": Narrow((5, 300, 20)),
    "transposed": Narrow((40, 1100, 600)),
    "rows in SBUF": Narrow((130, 256, 600), result="rows", act="relu"),
    "features": Narrow((33, 512, 130), source="features", result="features", act="relu", held=True),
    "features to rows": Narrow((33, 512, 130), source="features", result="rows"),
    "an image": Narrow((4, 256 * 9, 40), source=(256, 3, 3), result="features"),
    "an image of 65 channels": Narrow((4, 65 * 9, 40), source=(65, 3, 3)),
    "several loads": Narrow((8, 2048, 520), load_bytes=4096),
    "not negative": Narrow((8, 256, 64), signed=False),
    "e5m2": Narrow((33, 384, 130), dtype="float8_e5m2", act="gelu"),
    "trn3": Narrow((33, 384, 130), target="trn3"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_float64(case: Narrow) -> None:
    case.check()


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 140),
    features=st.sampled_from((1, 63, 127, 128, 129, 256, 257, 512, 700)),
    outputs=st.integers(1, 530),
    dtype=st.sampled_from(sorted(FORMATS)),
    places=st.sampled_from((("hbm", "hbm"), ("features", "features"), ("features", "hbm"), ("hbm", "features"))),
    signed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_shape(
    rows: int, features: int, outputs: int, dtype: str, places: tuple[str, str], signed: bool, seed: int
) -> None:
    size = (rows, features, outputs)
    Narrow(size, dtype, places[0], places[1], "relu", signed=signed).check(seed)


def test_pairs() -> None:
    """Chunks pair if they have as many features; a pair takes one product."""
    assert CASES["a pair and a rest"].modes() == [True, False]
    assert CASES["a last block of 44"].modes() == [True, False]
    assert CASES["features"].modes() == [True] * 4
    assert CASES["an image"].modes() == [True] * 9
    assert CASES["an image of 65 channels"].modes() == [True] * 4 + [False]
    assert CASES["one chunk"].modes() == [False]


def test_limits() -> None:
    with pytest.raises(KernelError, match="trn1"):
        Narrow((33, 384, 130), target="trn1").check()
