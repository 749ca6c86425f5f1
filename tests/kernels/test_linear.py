"""The linear kernels against ``act(x @ w + b)``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from calling import (
    ACTIVATIONS,
    DTYPES,
    TARGETS,
    Array,
    Tensor,
    call,
    channels_in_sbuf,
    check,
    drawn,
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
from trnrt.kernels.linear import ACTIVATION_BYTES, LOAD_BYTES, MAX_FEATURES, linear_features, linear_rows
from trnrt.nki import Spec, nl, profile, trace

# (N, F, O): one of everything; partial blocks of rows, features, outputs; more than a PSUM bank of outputs and of rows;
# more features than one transposing load (2048), and more weights than one load.
SHAPES = [
    (1, 1, 1),
    (1, 64, 10),
    (33, 3, 5),
    (33, 129, 130),
    (128, 128, 512),
    (130, 257, 600),
    (513, 130, 257),
    (5, 2100, 1100),
    (1025, 7, 3),
]


@dataclass(frozen=True)
class Case:
    """Where the operands live: ``source`` hbm, features or an image's shape; ``result`` hbm, rows or features."""

    source: str | tuple[int, int, int] = "hbm"
    result: str = "hbm"
    act: str = "none"
    target: str = "trn2"
    held: bool = False  # the weights are in SBUF
    load_bytes: int = LOAD_BYTES

    def run(self, x: Array, w: Array, b: Array) -> Array:
        """act(x @ w + b), by the kernel."""
        rows, features, outputs = x.shape[0], *w.shape
        by_features = self.result == "features"
        positions = 1 if isinstance(self.source, str) else self.source[1] * self.source[2]

        def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            source = self._source(x)
            if self.held:
                w, b = load(w), load(b) if by_features else b
            if by_features:
                tile = sbuf_features(rows, outputs, x.dtype)
                linear_features(tile, source, w, b, features // positions, outputs, self.act, self.load_bytes)
                return features_to_hbm(tile, outputs)
            dst = hbm((rows, outputs), x.dtype) if self.result == "hbm" else sbuf_rows(rows, outputs, x.dtype)
            linear_rows(dst, source, w, b, features // positions, self.act, self.load_bytes)
            return dst if self.result == "hbm" else rows_to_hbm(dst, rows)

        bias = prepared_columns(b) if by_features else b.astype(np.float32).reshape(1, -1)
        return call(body, x, prepared_linear(w, positions), bias, target=self.target)

    def _source(self, x: Tensor) -> Tensor:
        if self.source == "hbm":
            return x
        if isinstance(self.source, str):
            return features_in_sbuf(x).expand_dim(2)
        image = channels_in_sbuf(x.reshape((x.shape[0], *self.source)))
        return image.flatten_dims(3, 4).permute((0, 1, 3, 2))


def compare(case: Case, rows: int, features: int, outputs: int, dtype: str = "float32", seed: int = 0) -> None:
    x, w = drawn((rows, features), seed, dtype), drawn((features, outputs), seed + 1, dtype)
    b = drawn((outputs,), seed + 2)
    x64, w64, b64 = (a.astype(np.float64) for a in (x, w, b))
    expected = ACTIVATIONS[case.act](x64 @ w64 + b64)
    check(case.run(x, w, b), expected, np.abs(x64) @ np.abs(w64) + np.abs(b64), features, dtype)


@pytest.mark.parametrize("source", ["hbm", "features"])
@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_place(shape: tuple[int, int, int], source: str, result: str) -> None:
    compare(Case(source, result), *shape)


@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(act: str, result: str) -> None:
    compare(Case("hbm", result, act), 33, 65, 130)


@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("image", [(1, 1, 1), (3, 5, 7), (129, 2, 3), (130, 1, 1)], ids=str)
def test_a_flattened_image(image: tuple[int, int, int], result: str) -> None:
    compare(Case(image, result), 33, int(np.prod(image)), 10)


@pytest.mark.parametrize("source", ["hbm", "features"])
@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights_in_sbuf(shape: tuple[int, int, int], source: str, result: str) -> None:
    compare(Case(source, result, held=True), *shape)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("size", [1, 2048, 8192, 65536])
@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_loads_of_any_size(shape: tuple[int, int, int], result: str, size: int, target: str) -> None:
    compare(Case("hbm", result, target=target, load_bytes=size), *shape)


def test_larger_loads_are_fewer() -> None:
    def loads(size: int) -> int:
        def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            dst = hbm((1, 512), x.dtype)
            linear_rows(dst, x, w, b, 2048, load_bytes=size)
            return dst

        specs = [Spec(shape, "float32") for shape in ((1, 2048), (128, 16 * 512), (1, 512))]
        return sum(i.operation.name == "dma_copy" for i in trace(body, *specs, target="trn2").instructions)

    assert loads(4096) == loads(8192) + 4 == loads(16384) + 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
def test_targets_and_dtypes(result: str, target: str, dtype: str) -> None:
    compare(Case("hbm", result, "tanh", target), 130, 129, 20, dtype)


@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("features", [ACTIVATION_BYTES // 4, ACTIVATION_BYTES // 4 + 1, 3 * ACTIVATION_BYTES // 4])
def test_a_batch_of_long_rows_is_taken_in_parts(features: int, result: str) -> None:
    """From 12,289 features on, fewer than 128 rows are held at once, and blocks of rows are filled in parts."""
    compare(Case("hbm", result), 130, features, 2)


@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("target", TARGETS)
def test_nan_and_infinity_stay_in_their_row(target: str, result: str) -> None:
    x, w, b = drawn((130, 257), 0), drawn((257, 20), 1), drawn((20,), 2)
    plain = Case("hbm", result, target=target).run(x, w, b)
    x[3, 5], x[129, 256] = np.nan, np.inf
    got = Case("hbm", result, target=target).run(x, w, b)
    assert np.isnan(got[3]).all()
    assert (got[129] == np.where(w[256] > 0, np.inf, -np.inf)).all()
    rest = [r for r in range(130) if r not in (3, 129)]
    assert (got[rest] == plain[rest]).all()


def test_relu_keeps_nan() -> None:
    x, w, b = np.full((2, 3), np.nan, np.float32), drawn((3, 4), 1), drawn((4,), 2)
    for result in ("hbm", "features"):
        assert np.isnan(Case("hbm", result, "relu").run(x, w, b)).all()


def limit(features: int) -> None:
    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((2, 1), nl.float32)
        linear_rows(dst, x, w, b, features)
        return dst

    chunks = -(-features // 128)
    trace(body, Spec((2, features), "float32"), Spec((128, chunks), "float32"), Spec((1, 1), "float32"))


def test_rows_of_too_many_features() -> None:
    limit(MAX_FEATURES)
    with pytest.raises(KernelError, match=rf"rows of {MAX_FEATURES + 1} features; the limit is {MAX_FEATURES}"):
        limit(MAX_FEATURES + 1)


def test_unknown_activation() -> None:
    with pytest.raises(KernelError, match="unknown activation swish"):
        Case(act="swish").run(drawn((1, 2), 0), drawn((2, 2), 1), drawn((2,), 2))


@settings(max_examples=60)
@given(
    rows=st.integers(1, 140),
    features=st.integers(1, 300),
    outputs=st.integers(1, 150),
    source=st.sampled_from(["hbm", "features"]),
    result=st.sampled_from(["hbm", "rows", "features"]),
    act=st.sampled_from(list(ACTIVATIONS)),
    target=st.sampled_from(TARGETS),
    dtype=st.sampled_from(DTYPES),
)
def test_any_linear(
    rows: int, features: int, outputs: int, source: str, result: str, act: str, target: str, dtype: str
) -> None:
    compare(Case(source, result, act, target), rows, features, outputs, dtype, seed=rows)


def test_rows_are_turned_by_the_tensor_engine_on_trn1() -> None:
    """By DMA, element by element, 1024 rows of 1024 features took 4.7 ms."""

    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((1024, 512), nl.float32)
        linear_rows(dst, x, w, b, 1024)
        return dst

    specs = Spec((1024, 1024), "float32"), Spec((128, 8 * 512), "float32"), Spec((1, 512), "float32")
    assert profile(body, *specs, target="trn1").benchmark_us < 1.5 * profile(body, *specs, target="trn2").benchmark_us


@pytest.mark.parametrize(("rows", "stores"), [(1, 1), (16, 1), (128, 2)])
def test_few_results_leave_in_one_store(rows: int, stores: int) -> None:
    def body(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        dst = hbm((rows, 1000), x.dtype)
        linear_rows(dst, x, w, b, 256)
        return dst

    specs = [Spec(shape, "float32") for shape in ((rows, 256), (128, 2 * 1000), (1, 1000))]
    instructions = trace(body, *specs, target="trn2").instructions
    assert sum(i.operation.name == "dma_copy" and not i["dst"].storage.on_chip for i in instructions) == stores


@pytest.mark.parametrize("added", ["hbm", "features"])
@pytest.mark.parametrize("result", ["hbm", "rows", "features"])
@pytest.mark.parametrize("act", ["none", "gelu"])
@pytest.mark.parametrize("target", TARGETS)
def test_another_tensor_is_added(added: str, result: str, act: str, target: str) -> None:
    rows, features, outputs = 150, 140, 200
    x, w, r = drawn((rows, features), 0), drawn((features, outputs), 1), drawn((rows, outputs), 2)

    def body(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        more = features_in_sbuf(r).expand_dim(2) if added == "features" else r
        if result == "features":
            tile = sbuf_features(rows, outputs, x.dtype)
            linear_features(tile, x, w, b, features, outputs, act, added=more)
            return features_to_hbm(tile, outputs)
        dst = hbm((rows, outputs), x.dtype) if result == "hbm" else sbuf_rows(rows, outputs, x.dtype)
        linear_rows(dst, x, w, b, features, act, added=more)
        return dst if result == "hbm" else rows_to_hbm(dst, rows)

    b = drawn((outputs,), 3)
    bias = prepared_columns(b) if result == "features" else b.reshape(1, -1)
    got = call(body, x, prepared_linear(w), bias, r, target=target)
    x64, w64, b64, r64 = (a.astype(np.float64) for a in (x, w, b, r))
    magnitude = np.abs(x64) @ np.abs(w64) + np.abs(b64) + np.abs(r64)
    check(got, ACTIVATIONS[act](x64 @ w64 + b64) + r64, magnitude, features + 1)


def test_nan_that_is_added_stays_in_its_row() -> None:
    r = drawn((130, 64), 2)
    r[7, 3] = np.nan

    def body(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
        dst = hbm((130, 64), x.dtype)
        linear_rows(dst, x, w, b, 20, added=features_in_sbuf(r).expand_dim(2))
        return dst

    got = call(body, drawn((130, 20), 0), prepared_linear(drawn((20, 64), 1)), drawn((1, 64), 3), r, target="trn1")
    assert np.argwhere(np.isnan(got)).tolist() == [[7, 3]]
