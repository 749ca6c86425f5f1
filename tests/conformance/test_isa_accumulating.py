"""``nki.isa``: instructions that reduce into accumulator registers, and scans, against the reference's pseudocode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same, tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

F32 = np.float32
RESET, REDUCE, LOAD, IDLE = (
    nisa.reduce_cmd.reset_reduce,
    nisa.reduce_cmd.reduce,
    nisa.reduce_cmd.load_reduce,
    nisa.reduce_cmd.idle,
)
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": lambda a, b: F32(a < b),
}
IDENTITY = {"add": 0, "subtract": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}


def near(got: Array, expected: Array) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


# --- tensor_scalar_reduce


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("negate", [False, True])
def test_tensor_scalar_reduce(op: str, negate: bool, target: str) -> None:
    def body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dst, total = tile(6, 3, 4, dtype=nl.bfloat16), tile(6, 1, buffer=nl.psum)
        nisa.tensor_scalar_reduce(dst, load(a), nl.multiply, load(b), getattr(nl, op), total, reduce_res_negate=negate)
        return give(dst), give(total)

    a, b = drawn(6, 3, 4), drawn(6, 1, seed=1)
    product = a * b[:, None]
    dst, total = run(body, a, b, target=target)
    same(dst, rounded(product, "bfloat16"))
    ufunc = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}[op]
    expected = ufunc.reduce(product.reshape(6, -1), axis=1, keepdims=True)  # of what was not rounded yet
    near(total, -expected if negate else expected)


def test_absolute_maximum_of_a_row() -> None:
    """The way in which kernels find a quantisation scale."""

    def body(a: Tensor) -> Tensor:
        dst, most = tile(8, 16), tile(8, 1)
        nisa.tensor_scalar_reduce(
            dst=dst, data=load(a), op0=nl.abs, operand0=0.0, reduce_op=nl.maximum, reduce_res=most
        )
        return give(most)

    a = drawn(8, 16)
    same(run(body, a), np.abs(a).max(axis=1, keepdims=True))


def test_chained_reductions() -> None:
    def body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, y, first, last = load(a), load(b), tile(8, 1), tile(8, 1)
        nisa.tensor_scalar_reduce(x, x, nl.add, 0.0, nl.maximum)
        nisa.tensor_scalar_reduce(y, y, nl.add, 0.0, nl.maximum, first, reduce_cmd=REDUCE, reduce_res_negate=True)
        nisa.tensor_scalar_reduce(y, y, nl.add, 0.0, nl.maximum, last, reduce_cmd=REDUCE)
        return give(first), give(last)

    a, b = drawn(8, 16), drawn(8, 16, seed=1)
    first, last = run(body, a, b)
    most = np.maximum(a.max(axis=1), b.max(axis=1))[:, None]
    same(first, -most)
    same(last, most)  # what is read out is negated, the registers are not


@pytest.mark.parametrize("kind", ["number", "column"])
def test_loaded_registers(kind: str) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x, total = load(a), tile(8, 1)
        init: Any = 2.5 if kind == "number" else load(b)
        nisa.tensor_scalar_reduce(x, x, nl.add, 1.0, nl.add, total, reduce_cmd=LOAD, reduce_init=init)
        return give(total)

    a, b = drawn(8, 16), drawn(8, 1, seed=1)
    near(run(body, a, b), (a + 1).sum(axis=1, keepdims=True) + (2.5 if kind == "number" else b))


def test_partitions_have_their_own_registers() -> None:
    def body(a: Tensor) -> Tensor:
        x, total = load(a), tile(64, 1)
        nisa.tensor_scalar_reduce(x[32:64], x[32:64], nl.add, 0.0, nl.add)
        nisa.tensor_scalar_reduce(x[0:32], x[0:32], nl.multiply, 0.0, nl.add)
        nisa.tensor_scalar_reduce(x[32:64], x[32:64], nl.multiply, 0.0, nl.add, total[32:64], reduce_cmd=REDUCE)
        nisa.memset(total[0:32], 0.0)
        return give(total)

    a = drawn(64, 8)
    near(run(body, a)[32:], a.sum(axis=1, keepdims=True)[32:])


def test_registers_that_nothing_reset_are_unknown() -> None:
    def body(a: Tensor) -> Tensor:
        x, total = load(a), tile(8, 1)
        nisa.tensor_scalar_reduce(x, x, nl.add, 0.0, nl.add, total, reduce_cmd=REDUCE)
        return give(total)

    assert np.isnan(run(body, drawn(8, 4))).all()


# --- tensor_scalar_cumulative


def cumulated(values: Array, op1: str, start: Array) -> Array:
    """The pseudocode of the reference."""
    states, register = np.empty_like(values), start.astype(F32)
    for i in range(values.shape[1]):
        register = BINARY[op1](values[:, i], register).astype(F32)
        states[:, i] = register
    return states


@pytest.mark.parametrize("op0", ["add", "multiply", "maximum", "less"])
@pytest.mark.parametrize("op1", ["add", "subtract", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("start", ["reset", "load", "column"])
def test_tensor_scalar_cumulative(op0: str, op1: str, start: str) -> None:
    def body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, first, then = load(a), tile(6, 17), tile(6, 17)
        ops = getattr(nl, op0), getattr(nl, op1)
        if start == "reset":
            nisa.tensor_scalar_cumulative(first, x, *ops, 0.75)
        else:
            nisa.tensor_scalar_cumulative(first, x, *ops, 0.75, 1.5 if start == "load" else load(b), LOAD)
        nisa.tensor_scalar_cumulative(then, x, *ops, 0.75, reduce_cmd=REDUCE)
        return give(first), give(then)

    a, b = drawn(6, 17), drawn(6, 1, seed=1)
    begin = {"reset": np.full(6, IDENTITY[op1], F32), "load": np.full(6, 1.5, F32), "column": b[:, 0]}[start]
    values = BINARY[op0](a, F32(0.75)) if op0 != "less" else (a < F32(0.75)).astype(F32)
    first, then = run(body, a, b)
    expected = cumulated(values, op1, begin)
    same(first, expected)
    same(then, cumulated(values, op1, expected[:, -1]))


def test_cumulative_counts_past_what_dst_can_hold() -> None:
    """The register is float32; what is written is rounded."""

    def body(a: Tensor) -> Tensor:
        dst = tile(1, 300, dtype=nl.uint8)
        nisa.tensor_scalar_cumulative(dst, load(a), nl.add, nl.add, 0.0)
        return give(dst)

    got = run(body, np.ones((1, 300), np.uint8))
    same(got, np.minimum(np.arange(1, 301), 255).astype(np.uint8)[None])


# --- tensor_tensor_scan


@pytest.mark.parametrize("ops", [("multiply", "add"), ("add", "maximum"), ("subtract", "multiply"), ("less", "add")])
@pytest.mark.parametrize("reverse", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("initial", ["number", "column"])
def test_tensor_tensor_scan(ops: tuple[str, str], reverse: tuple[bool, bool], initial: str) -> None:
    def body(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        dst = tile(6, 2, 9)
        start: Any = 0.5 if initial == "number" else load(c)
        op0, op1 = (getattr(nl, op) for op in ops)
        nisa.tensor_tensor_scan(dst, load(a, nl.psum), load(b), start, op0, op1, *reverse)
        return give(dst)

    a, b, c = drawn(6, 18), drawn(6, 2, 9, seed=1), drawn(6, 1, seed=2)
    state = np.full(6, 0.5, F32) if initial == "number" else c[:, 0]
    expected = np.empty((6, 18), F32)
    (op0, op1), (flip0, flip1) = ([BINARY[op] for op in ops], reverse)
    for i in range(18):
        left, right = (state, a[:, i]) if flip0 else (a[:, i], state)
        state = np.asarray(left < right if ops[0] == "less" else op0(left, right), F32)
        left, right = (b.reshape(6, 18)[:, i], state) if flip1 else (state, b.reshape(6, 18)[:, i])
        state = op1(left, right)
        expected[:, i] = state
    same(run(body, a, b, c), expected.reshape(6, 2, 9))


def test_a_scan_in_two_parts() -> None:
    """The reference's example: the second part starts where the first one ended."""

    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y, c = load(a), load(b), tile(128, 1024)
        nisa.tensor_tensor_scan(c[:, 0:512], x[:, 0:512], y[:, 0:512], 0, nl.multiply, nl.add)
        nisa.tensor_tensor_scan(c[:, 512:], x[:, 512:], y[:, 512:], c[:, 511], nl.multiply, nl.add)
        return give(c)

    a, b = drawn(128, 1024), drawn(128, 1024, seed=1)
    a *= F32(0.3)
    state, expected = np.zeros(128, F32), np.empty((128, 1024), F32)
    for i in range(1024):
        state = expected[:, i] = a[:, i] * state + b[:, i]
    same(run(body, a, b), expected)


def test_a_scan_is_computed_in_float32_and_may_overwrite_its_data() -> None:
    def body(a: Tensor) -> Tensor:
        x, ones = load(a), tile(4, 300, dtype=nl.bfloat16)
        nisa.memset(ones, 1.0)
        nisa.tensor_tensor_scan(x, ones, x, 0.0, nl.multiply, nl.add)
        return give(x)

    a = np.ones((4, 300), F32).astype(rounded(np.zeros(1, F32), "bfloat16").dtype)
    same(run(body, a), rounded(np.broadcast_to(np.arange(1, 301, dtype=F32), (4, 300)), "bfloat16"))


def test_a_scan_reads_one_input_from_psum() -> None:
    def body() -> None:
        x = zeros(4, 8, buffer=nl.psum)
        nisa.tensor_tensor_scan(tile(4, 8), x, x, 0.0, nl.multiply, nl.add)

    with pytest.raises(KernelError, match="data0 and data1 are both in psum"):
        traced(body)


# --- exponential


def test_exponential() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, most, dst, total = load(a), tile(8, 1), tile(8, 16, dtype=nl.bfloat16), tile(8, 1)
        nisa.tensor_reduce(most, nl.maximum, x, 1)
        nisa.exponential(dst, x, most, total, RESET)
        return give(dst), give(total)

    a = drawn(8, 16)
    shares = np.exp(a - a.max(axis=1, keepdims=True))
    dst, total = run(body, a, target="trn3")
    same(dst, rounded(shares, "bfloat16"))
    near(total, shares.sum(axis=1, keepdims=True))


def test_exponential_sums_on() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, both, loaded = load(a), tile(8, 1), tile(8, 1)
        dst = tile(8, 16)
        nisa.exponential(dst, x, reduce_cmd=RESET)
        nisa.exponential(dst, x, 1.0, both, REDUCE)
        nisa.exponential(dst, x, reduce_res=loaded, reduce_cmd=LOAD, reduce_init=3.0)
        return give(both), give(loaded)

    a = drawn(8, 16)
    once = np.exp(a).sum(axis=1, keepdims=True)
    both, loaded = run(body, a, target="trn3")
    near(both, once * F32(1 + math.exp(-1)))
    near(loaded, once + 3)


def test_idle_leaves_the_registers_unknown() -> None:
    def body(a: Tensor) -> Tensor:
        x, total = load(a), tile(8, 1)
        nisa.tensor_scalar_reduce(x, x, nl.add, 0.0, nl.add)
        nisa.exponential(x, x)
        nisa.tensor_scalar_reduce(x, x, nl.add, 0.0, nl.add, total, reduce_cmd=REDUCE)
        return give(total)

    assert np.isnan(run(body, drawn(8, 4), target="trn3")).all()


def test_exponential_takes_no_initial_value_without_loading() -> None:
    with pytest.raises(KernelError, match=r"reduce_init is 1.0 with reduce_cmd=reduce_cmd.reset_reduce"):
        traced(lambda: nisa.exponential(tile(4, 4), zeros(4, 4), reduce_cmd=RESET, reduce_init=1.0), target="trn3")


# --- activate2


PIPELINES = [
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", "bypass"),
    ("add", "bypass"),
    ("subtract", "bypass"),
    ("bypass", "bypass"),
]


@pytest.mark.parametrize("ops", PIPELINES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["number", "column"])
def test_activate2(ops: tuple[str, str], reverse: bool, kind: str) -> None:
    flips = [reverse and op != "bypass" for op in ops]

    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(8, 16)
        imm0: Any = 2.0 if kind == "number" else load(b)[:, 0]
        imm1: Any = 0.5 if kind == "number" else load(b)[:, 1]
        op0, op1 = (getattr(nl, op) for op in ops)
        nisa.activate2(dst, nl.square, load(a), imm0, imm1, op0, op1, 0.0, flips[0], flips[1])
        return give(dst)

    a, b = drawn(8, 16), drawn(8, 2, seed=1)
    value = a
    for i, op in enumerate(ops):
        immediate = F32([2.0, 0.5][i]) if kind == "number" else b[:, i : i + 1]
        if op != "bypass":
            value = BINARY[op](immediate, value) if flips[i] else BINARY[op](value, immediate)
    same(run(body, a, b, target="trn3"), np.square(value))


@pytest.mark.parametrize("kind", ["number", "column"])
def test_prelu(kind: str) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(8, 16)
        slope: Any = 0.25 if kind == "number" else load(b)
        nisa.activate2(dst, nl.prelu, load(a), 0.0, 0.0, nl.bypass, nl.bypass, slope)
        return give(dst)

    a, b = drawn(8, 16), drawn(8, 1, seed=1)
    slope = F32(0.25) if kind == "number" else b
    same(run(body, a, b, target="trn3"), np.where(a > 0, a, slope * a))


@pytest.mark.parametrize("op", ["add", "maximum", "minimum", "abs_max", "abs_min"])
def test_activate2_reduces(op: str) -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, first, both = load(a), tile(8, 1), tile(8, 1)
        dst, plain, reduce_op = tile(8, 16), (nl.multiply, nl.bypass), getattr(nl, op)
        nisa.activate2(dst, nl.copy, x, 1.0, 0.0, *plain, reduce_op=reduce_op, reduce_res=first, reduce_cmd=RESET)
        nisa.activate2(dst, nl.copy, x, 0.5, 0.0, *plain, reduce_op=reduce_op, reduce_cmd=REDUCE)
        nisa.activate2(dst, nl.copy, x, 9.0, 0.0, *plain, reduce_res=both)  # idle: reads, and changes nothing
        return give(first), give(both)

    a = drawn(8, 16)
    meanings: dict[str, Callable[[Any, Any], Any]] = {
        "add": lambda s, x: s + x,
        "maximum": max,
        "minimum": min,
        "abs_max": lambda s, x: s if abs(s) > abs(x) else x,
        "abs_min": lambda s, x: s if abs(s) < abs(x) else x,
    }
    start = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf, "abs_max": 0.0, "abs_min": np.inf}[op]
    expected = np.empty((8, 2))
    for p in range(8):
        state: Any = start
        for part in range(2):
            for value in a[p] * [1.0, 0.5][part]:
                state = meanings[op](state, value)
            expected[p, part] = state
    first, both = run(body, a, target="trn3")
    near(np.concatenate([first, both], axis=1), expected.astype(F32))


def test_scalar_and_vector_engine_have_registers_of_their_own() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, scalars, vectors = load(a), tile(8, 1), tile(8, 1)
        dst = tile(8, 16)
        nisa.activation(dst, nl.copy, x, reduce_op=nl.add, reduce_cmd=RESET)
        nisa.tensor_scalar_reduce(dst, x, nl.add, 0.0, nl.maximum, vectors)
        nisa.activation(dst, nl.copy, x, reduce_op=nl.add, reduce_cmd=REDUCE, reduce_res=scalars)
        return give(scalars), give(vectors)

    a = drawn(8, 16)
    scalars, vectors = run(body, a)
    near(scalars, 2 * a.sum(axis=1, keepdims=True))
    same(vectors, a.max(axis=1, keepdims=True))
