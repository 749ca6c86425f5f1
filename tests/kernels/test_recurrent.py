"""Recurrent layers against their numpy meaning in float64, step by step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import ACTIVATIONS, DTYPES, NUMPY, ROUNDING, TARGETS, Array, Tensor, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.recurrent import RECURRENT_BYTES, STATES, recurrent, recurrent_bytes
from trnrt.kernels.recurrent_steps import GATES
from trnrt.nki import Spec, nl, simulate, trace
from trnrt.operators.recurrent import lay_out_recurrent

DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}


@dataclass(frozen=True)
class Layer:
    """A recurrent layer: ``steps``, ``rows``, ``features``, ``hidden`` units, and what the kernel offers."""

    kind: str
    steps: int = 5
    rows: int = 3
    features: int = 7
    hidden: int = 20
    backwards: tuple[bool, ...] = (False,)
    acts: tuple[str, ...] = ()
    clip: float = 0.0
    resets_product: bool = False
    peepholes: bool = False
    starts: bool = False
    lengths: bool = False
    halved: bool = False
    trip: int = 0
    dtype: str = "float32"
    target: str = "trn2"
    seed: int = 0

    @property
    def functions(self) -> tuple[str, ...]:
        return self.acts or DEFAULTS[self.kind]


@dataclass(frozen=True)
class Arrays:
    """A layer's numbers: w (D, G*H, I), r (D, G*H, H), b and rb (D, G*H), p (D, 3*H)."""

    x: Array
    w: Array
    r: Array
    b: Array
    rb: Array
    p: Array
    h: Array
    c: Array
    ends: Array


def drawn_layer(layer: Layer) -> Arrays:
    rng = np.random.default_rng(layer.seed)
    count, gates, kind = len(layer.backwards), GATES[layer.kind], NUMPY[layer.dtype]

    def draw(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * scale).astype(kind)

    scale = 1 / np.sqrt(layer.hidden)
    return Arrays(
        draw(layer.steps, layer.rows, layer.features),
        draw(count, gates * layer.hidden, layer.features, scale=scale),
        draw(count, gates * layer.hidden, layer.hidden, scale=scale),
        draw(count, gates * layer.hidden, scale=0.3).astype(np.float32),
        draw(count, gates * layer.hidden, scale=0.3).astype(np.float32),
        draw(count, 3 * layer.hidden, scale=0.5).astype(np.float32),
        draw(count, layer.rows, layer.hidden),
        draw(count, layer.rows, layer.hidden),
        rng.integers(0, layer.steps + 1, layer.rows).astype(np.float32),
    )


def compute(layer: Layer, a: Arrays) -> Array:
    """dst, in float64."""
    out = []
    for d, backwards in enumerate(layer.backwards):
        h = a.h[d].astype(np.float64) if layer.starts else np.zeros((layer.rows, layer.hidden))
        c = a.c[d].astype(np.float64) if layer.starts else np.zeros((layer.rows, layer.hidden))
        made = np.zeros((layer.steps, layer.rows, layer.hidden))
        for t in range(layer.steps)[:: -1 if backwards else 1]:
            h_new, c_new = step(layer, a, d, a.x[t].astype(np.float64), h, c)
            runs = (t < a.ends)[:, None] if layer.lengths else np.full((layer.rows, 1), True)
            h, c = np.where(runs, h_new, h), np.where(runs, c_new, c)
            made[t] = np.where(runs, h_new, 0)
        out.append(np.concatenate([made, h[None], *([c[None]] if layer.kind == "lstm" else [])]))
    return np.stack(out)


def step(layer: Layer, a: Arrays, d: int, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """The states after a step."""
    w, r, b, rb = (array[d].astype(np.float64) for array in (a.w, a.r, a.b, a.rb))
    parts = np.split(a.p[d].astype(np.float64) if layer.peepholes else np.zeros(3 * layer.hidden), 3)
    act = [ACTIVATIONS[name] for name in layer.functions]
    inputs, recurred = x @ w.T + b, h @ r.T + rb

    def limited(z: Array) -> Array:
        return np.clip(z, -layer.clip, layer.clip) if layer.clip else z

    if layer.kind == "rnn":
        return act[0](limited(inputs + recurred)), c
    n = layer.hidden
    if layer.kind == "gru":
        z, reset = (act[0](limited((inputs + recurred)[:, k * n : (k + 1) * n])) for k in (0, 1))
        if layer.resets_product:
            last = reset * recurred[:, 2 * n :]
        else:
            last = (reset * h) @ r[2 * n :].T + rb[2 * n :]
        made = act[1](limited(inputs[:, 2 * n :] + last))
        return (1 - z) * made + z * h, c
    i, o, f, g = (inputs + recurred)[:, :n], *((inputs + recurred)[:, k * n : (k + 1) * n] for k in (1, 2, 3))
    i, f = act[0](limited(i + parts[0] * c)), act[0](limited(f + parts[2] * c))
    c_new = f * c + i * act[1](limited(g))
    return act[0](limited(o + parts[1] * c_new)) * act[2](c_new), c_new


def run(layer: Layer, a: Arrays) -> Array:
    """dst of the kernel."""
    count, n = len(layer.backwards), layer.hidden
    options = {"resets_product": layer.resets_product, "couples": False, "halved": layer.halved}

    def lay_out(array: Array, key: str) -> list[Array]:
        laid = [lay_out_recurrent(array, key, d, layer.kind, n, **options) for d in range(count)]
        return [one.astype(array.dtype) for one in laid]

    shape = (count, layer.steps + STATES[layer.kind], layer.rows, n)

    def body(
        x: Tensor,
        h: Tensor,
        c: Tensor,
        ends: Tensor,
        w: list[Tensor],
        r: list[Tensor],
        b: list[Tensor],
        m: list[Tensor],
    ) -> Tensor:
        dst = hbm(shape, x.dtype)
        recurrent(
            dst,
            x,
            h if layer.starts else None,
            c if layer.starts and layer.kind == "lstm" else None,
            ends if layer.lengths else None,
            tuple(w),
            tuple(r),
            tuple(b),
            tuple(m) if m else (None,) * count,
            layer.backwards,
            layer.kind,
            layer.functions,
            layer.clip,
            layer.resets_product,
            layer.halved,
            layer.trip,
        )
        return dst

    result: Array = simulate(body, layer.target)(
        a.x,
        a.h,
        a.c,
        a.ends[None],
        lay_out(a.w, "w"),
        lay_out(a.r, "r"),
        lay_out(np.concatenate([a.b, a.rb], axis=1), "b"),
        lay_out(a.p, "m") if layer.peepholes else [],
    )
    return result.astype(np.float64)


def check_layer(layer: Layer) -> None:
    a = drawn_layer(layer)
    got, expected = run(layer, a), compute(layer, a)
    assert got.shape == expected.shape
    # An error of a state reaches the next ones; gates and tanh never enlarge it by much at these weights.
    allowed = 60 * (layer.steps + 1) * ROUNDING[layer.dtype] * max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, rtol=0, atol=allowed)


KINDS = [
    Layer("rnn"),
    Layer("rnn", acts=("relu",), starts=True),
    Layer("lstm"),
    Layer("lstm", starts=True, peepholes=True),
    Layer("lstm", starts=True, clip=0.2),
    Layer("lstm", backwards=(True,), lengths=True, starts=True),
    Layer("lstm", backwards=(False, True), lengths=True),
    Layer("lstm", peepholes=True, clip=0.3, backwards=(False, True)),
    Layer("lstm", steps=40, rows=2, hidden=130, features=200),  # padded blocks, several parts of the sequence
    Layer("lstm", steps=3, rows=200, hidden=64),  # groups of rows
    Layer("lstm", halved=True, starts=True, backwards=(False, True), lengths=True),
    Layer("lstm", halved=True, hidden=260, rows=5, steps=20),
    Layer("gru", halved=True, starts=True, lengths=True, backwards=(True,)),
    Layer("gru", halved=True, resets_product=True, hidden=130, backwards=(False, True)),
    Layer("gru"),
    Layer("gru", resets_product=True, starts=True),
    Layer("gru", backwards=(False, True), lengths=True, starts=True),
    Layer("gru", hidden=256, resets_product=True, clip=0.5),
    Layer("rnn", rows=130, steps=2, hidden=300, backwards=(False, True)),
    Layer("lstm", rows=300, steps=3, hidden=130, halved=True, lengths=True, starts=True),  # lanes, several groups
    Layer("lstm", rows=70, steps=2, hidden=1000, halved=True, dtype="bfloat16"),  # all groups, parts of the batch
    Layer("gru", rows=70, steps=4, hidden=600, features=1600, halved=True, resets_product=True),  # W isn't kept in SBUF
    Layer("gru", rows=40, steps=17, trip=8, hidden=600, features=1800, halved=True, backwards=(True,)),  # nor in a loop
    Layer("lstm", steps=23, trip=5, backwards=(False, True), lengths=True, starts=True, peepholes=True),
    Layer("lstm", steps=20, trip=5, halved=True, backwards=(True,), starts=True, hidden=130),
    Layer("gru", steps=17, trip=4, backwards=(False, True), lengths=True, starts=True, halved=True),
    Layer("gru", steps=17, trip=8, resets_product=True, halved=True, backwards=(False, True), dtype="bfloat16"),
    Layer("rnn", steps=50, trip=20, rows=130, hidden=140, backwards=(False, True), lengths=True),
    Layer("rnn", steps=7, trip=5),  # a single trip: unrolled
]


@pytest.mark.parametrize("layer", KINDS, ids=str)
def test_kinds(layer: Layer) -> None:
    assert np.ptp(compute(layer, drawn_layer(layer))) > 0.1
    check_layer(layer)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", GATES)
def test_dtypes(kind: str, dtype: str, target: str) -> None:
    check_layer(Layer(kind, dtype=dtype, target=target, starts=True, rows=2, halved=kind != "rnn"))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_random_layers(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(GATES)))
    halved = kind != "rnn" and data.draw(st.booleans())
    layer = Layer(
        kind,
        halved=halved,
        steps=data.draw(st.integers(1, 12)),
        rows=data.draw(st.integers(1, 9)),
        features=data.draw(st.sampled_from([1, 5, 128, 129])),
        hidden=data.draw(st.sampled_from([1, 8, 127, 128, 129])),
        backwards=data.draw(st.sampled_from([(False,), (True,), (False, True)])),
        clip=0.0 if halved else data.draw(st.sampled_from([0.0, 0.4])),
        resets_product=kind == "gru" and data.draw(st.booleans()),
        peepholes=kind == "lstm" and not halved and data.draw(st.booleans()),
        starts=data.draw(st.booleans()),
        lengths=data.draw(st.booleans()),
        trip=data.draw(st.integers(0, 6)),
        seed=data.draw(st.integers(0, 99)),
    )
    check_layer(layer)


def test_directions_follow_one_another_where_their_weights_do_not_fit_together() -> None:
    hidden = 768
    assert RECURRENT_BYTES // 2 < recurrent_bytes("lstm", hidden, 4) <= RECURRENT_BYTES
    check_layer(Layer("lstm", steps=2, rows=2, hidden=hidden, backwards=(False, True)))


def test_too_many_hidden_units() -> None:
    layer = replace(Layer("lstm"), hidden=1100, steps=1)
    with pytest.raises(KernelError, match=r"weights of \d+ bytes a partition; the limit is 131072"):
        run(layer, drawn_layer(layer))


def test_a_step_takes_few_instructions() -> None:
    """With a state of one block: 5 products, and 7 instructions of the vector and scalar engine."""

    def body(x: Tensor, w: Tensor, r: Tensor, b: Tensor) -> Tensor:
        dst = hbm((1, x.shape[0] + 2, x.shape[1], 128), x.dtype)
        acts = ("sigmoid", "tanh", "tanh")
        recurrent(dst, x, None, None, None, (w,), (r,), (b,), (None,), (False,), "lstm", acts, 0.0, False, True)
        return dst

    def count(steps: int) -> int:
        shapes = ((steps, 1, 16), (16, 512), (128, 512), (128, 4))
        return len(trace(body, *(Spec(shape, nl.float32) for shape in shapes), target="trn2").instructions)

    assert count(12) - count(11) == 12
