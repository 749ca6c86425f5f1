"""The feed-forward net against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from calling import ACTIVATIONS, DTYPES, FUNCTION, NUMPY, ROUNDING, TARGETS, TINY, Array, drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.feed_forward import forward, predict
from trnrt.nki import Spec, profile, simulate, trace

Sizes = tuple[int, int, int, int]

# (N, F, H, O): one of everything; partial tiles; more hidden units than are made at once (x is turned once then).
SIZES = [(1, 1, 1, 1), (129, 13, 7, 513), (1, 513, 129, 3), (130, 257, 300, 10), (40, 129, 1100, 17), (7, 130, 3100, 5)]
# More rows than trn1 turns, and finds the classes of, at once.
TALL = [(1100, 140, 1100, 9), (600, 1900, 1100, 300), (1700, 33, 2100, 140)]


class Net:
    """A drawn net and input; the weights are small enough for sums of about 1."""

    def __init__(self, sizes: Sizes, dtype: str = "float32", seed: int = 0) -> None:
        rows, features, hidden, outputs = sizes
        self.dtype = dtype
        self.x = drawn((rows, features), seed, dtype)
        self.w1 = (drawn((features, hidden), seed + 1) / np.sqrt(features)).astype(NUMPY[dtype])
        self.b1 = drawn((1, hidden), seed + 2)
        self.w2 = (drawn((hidden, outputs), seed + 3) / np.sqrt(hidden)).astype(NUMPY[dtype])
        self.b2 = drawn((1, outputs), seed + 4)

    @property
    def operands(self) -> tuple[Array, ...]:
        return self.x, self.w1, self.b1, self.w2, self.b2

    def logits(self, act: str) -> tuple[Array, Array]:
        """What the second layer sums to, and how far off a sum of float32 with hidden units of the dtype may be."""
        x, w1, b1, w2, b2 = (a.astype(np.float64) for a in self.operands)
        hidden = ACTIVATIONS[act](x @ w1 + b1)
        off = (x.shape[1] + 2) * 2.0**-24 * (np.abs(x) @ np.abs(w1) + np.abs(b1)) + FUNCTION
        off += 1.01 * ROUNDING[self.dtype] * np.abs(hidden) + TINY[self.dtype]
        summed = (np.abs(hidden) + off) @ np.abs(w2) + np.abs(b2)
        return hidden @ w2 + b2, off @ np.abs(w2) + (w2.shape[0] + 2) * 2.0**-24 * summed


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    result: Array = e / e.sum(axis=1, keepdims=True)
    return result


def check_forward(net: Net, act: str, out_act: str, target: str) -> None:
    got = simulate(forward, target)(*net.operands, act=act, out_act=out_act).astype(np.float64)
    logits, off = net.logits(act)
    if out_act == "softmax":
        expected = softmax(logits)
        # Logits that are off by d change a probability p by 2 d p at most, to the first order.
        bound = expected * np.expm1(2 * off.max(axis=1, keepdims=True)) + (logits.shape[1] + 8) * FUNCTION * expected
    else:
        expected = ACTIVATIONS[out_act](logits)
        bound = off + FUNCTION
    bound = bound + 1.01 * ROUNDING[net.dtype] * np.abs(expected) + TINY[net.dtype]
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= bound).all()


def check_predict(net: Net, act: str, target: str) -> None:
    """The class is numpy's but where the two best are closer than the sums are exact."""
    got = simulate(predict, target)(*net.operands, act=act)
    logits, off = net.logits(act)
    assert got.shape == (len(logits), 1)
    assert got.dtype == np.uint32
    best = logits.argmax(axis=1)
    rows = np.arange(len(logits))
    chosen = got[:, 0].astype(np.int64)
    near = logits[rows, best] - logits[rows, chosen] <= off[rows, best] + off[rows, chosen]
    assert near.all()
    assert net.dtype != "float32" or (chosen == best).mean() > 0.98


@pytest.mark.parametrize("out_act", [*ACTIVATIONS, "softmax"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward(sizes: Sizes, out_act: str) -> None:
    check_forward(Net(sizes), "relu", out_act, "trn2")


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_targets_and_dtypes(act: str, target: str, dtype: str) -> None:
    net = Net((130, 70, 150, 20), dtype)
    check_forward(net, act, "softmax", target)
    check_predict(net, act, target)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_predict(sizes: Sizes, target: str) -> None:
    check_predict(Net(sizes), "relu", target)


def test_predict_takes_the_first_of_equals() -> None:
    net = Net((5, 3, 4, 12))
    net.w2[:] = 0
    net.b2[:] = 1
    net.b2[:, [7, 9]] = 2
    assert (simulate(predict, "trn2")(*net.operands) == 7).all()


def test_weights_that_do_not_fit_each_other() -> None:
    specs = [Spec(shape, "float32") for shape in ((2, 3), (4, 5), (1, 5), (5, 6), (1, 6))]
    with pytest.raises(KernelError, match=r"w1 is \(4, 5\), expected \(3, 5\)"):
        trace(forward, *specs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", TALL, ids=str)
def test_strips_and_chunks_of_trn1(sizes: Sizes, dtype: str) -> None:
    check_predict(Net(sizes, dtype), "relu", "trn1")


@pytest.mark.parametrize(("dtype", "limit_ms"), [("float32", 10.6), ("bfloat16", 2.8)])
def test_predicted_time_of_the_lab_s_net(dtype: str, limit_ms: float) -> None:
    x, w1, w2 = Spec((2048, 4096), dtype), Spec((4096, 8192), dtype), Spec((8192, 2048), dtype)
    b1, b2 = Spec((1, 8192), "float32"), Spec((1, 2048), "float32")
    assert profile(predict, x, w1, b1, w2, b2, target="trn1").benchmark_us <= limit_ms * 1000


@settings(max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 140), st.integers(1, 200), st.integers(1, 200), st.integers(1, 600)),
    act=st.sampled_from(list(ACTIVATIONS)),
    out_act=st.sampled_from([*ACTIVATIONS, "softmax"]),
    target=st.sampled_from(TARGETS),
    dtype=st.sampled_from(DTYPES),
)
def test_any_net(sizes: Sizes, act: str, out_act: str, target: str, dtype: str) -> None:
    net = Net(sizes, dtype, seed=sizes[0])
    check_forward(net, act, out_act, target)
    check_predict(net, act, target)
