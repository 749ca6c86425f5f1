"""Integers of inputs: arithmetic as onnxruntime does it, within the range that is checked when the session runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from planning import compare, drawn, modelled, onnxruntimes, planned

from trnrt import InferenceSession
from trnrt.errors import InputError, UnsupportedModelError
from trnrt.operators.integers import divide_whole
from trnrt.operators.programs import Program, Register

Array = NDArray[Any]
SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")


def two(kind: str, most: int, op: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    low = 0 if kind in UNSIGNED else -most
    a, b = (rng.integers(low, most + 1, (5, 40)).astype(kind) for _ in range(2))
    if op in ("Div", "Mod"):
        b = np.where(b == 0, 1, b).astype(kind)
    if op == "Sub" and kind in ("uint32", "uint64"):
        a, b = np.maximum(a, b), np.minimum(a, b)
    return a, b


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Mod", "Mod<fmod=1>"])
def test_arithmetic(kind: str, op: str) -> None:
    graph = f"({kind}[5, 40] a, {kind}[5, 40] b) => ({kind}[5, 40] y) {{ y = {op}(a, b) }}"
    compare(modelled(graph), dict(zip("ab", two(kind, 4000, op.split("<")[0]), strict=True)))


def evaluate(program: Program, x: Array) -> Array:
    """A program of one source and numbers, rounded to float32 after each operation."""
    functions: dict[str, Any] = {"multiply": np.multiply, "add": np.add, "subtract": np.subtract}
    made: list[Array] = []
    for name, terms in program.operations:
        values = [
            np.float32(one) if not isinstance(one, Register) else x if one.is_source else made[one.index]
            for one in terms
        ]
        made.append(functions[name](*values).astype(np.float32))
    return made[-1]


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 80, 91, 1203, 65535, 2**20 - 1, 2**20])
def test_a_product_gives_whole_quotients(divisor: int) -> None:
    program, x = Program(), np.arange(2**21 + 1)
    divide_whole(program, program.source(x.astype(np.float32)), float(divisor))
    np.testing.assert_array_equal(evaluate(program, x.astype(np.float32)), x // divisor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("divisor", [1, 3, 80])
def test_places_are_divided_by_a_number(divisor: int, dtype: str) -> None:
    """TopK's indices are known to be small, and not negative."""
    graph = """(float[2, 240] x) => (int64[2, 240] q, int64[2, 240] r) {
        v, i = TopK<axis=1>(x, k)  q = Div(i, d)  r = Mod(i, d) }"""
    model = modelled(graph, {"k": np.array([240]), "d": np.array(divisor)})
    x = np.stack([np.random.default_rng(row).permutation(240) for row in range(2)]).astype(np.float32)
    plan = compare(model, {"x": x}, dtype=dtype)
    assert all(name not in plan.source for name in ("divide", "'mod'", '"mod"', "floor"))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_short_integers_wrap_around(kind: str, op: str) -> None:
    """Checked against numpy, as onnxruntime computes few of these types."""
    graph = f"({kind}[5, 40] a, {kind}[5, 40] b) => ({kind}[5, 40] y) {{ y = {op}(a, b) }}"
    if op == "Mul" and kind.endswith("16"):
        with pytest.raises(UnsupportedModelError, match="may wrap around"):
            planned(modelled(graph), {"a": (5, 40), "b": (5, 40)})
        return
    a, b = two(kind, int(np.iinfo(kind).max), op)
    got = InferenceSession(modelled(graph).SerializeToString(), cache=False).run(None, {"a": a, "b": b})[0]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, {"Add": a + b, "Sub": a - b, "Mul": a * b}[op])


@pytest.mark.parametrize("op", ["Abs", "Neg", "Sign", "Relu"])
def test_unary(op: str) -> None:
    graph = f"(int64[5, 40] a) => (int64[5, 40] y) {{ y = {op}(a) }}"
    kind = "int32" if op == "Relu" else "int64"
    compare(modelled(graph.replace("int64", kind)), {"a": two(kind, 2**24, op)[0]})


@pytest.mark.parametrize("op", ["Equal", "Greater", "Less"])
def test_comparisons(op: str) -> None:
    graph = f"(int64[N] i) => (bool[N] y) {{ y = {op}(i, c) }}"
    numbers = np.array([2**24, 2**24 - 1, 5, 0, -(2**24)])
    compare(modelled(graph, {"c": np.array(2**24 - 1, np.int64)}), {"i": numbers})


def test_masks() -> None:
    """As transformers use them: to truth, to floats, inverted, chosen by, and counted."""
    graph = """(int64[N, 6] m, float[N, 6] x) => (float[N, 6] y, float[N, 6] z, int64[N, 1] n, int64[N, 6] k) {
        b = Cast<to=9>(m)  y = Where(b, x, low)  f = Cast<to=1>(m)  i = Sub(one, f)  z = Mul(i, x)
        n = ReduceSum<keepdims=1>(m, axis)  k = Where(b, m, minus) }"""
    constants: dict[str, Array] = {
        "low": np.array(-1e9, np.float32),
        "one": np.array(1, np.float32),
        "axis": np.array([1]),
        "minus": np.array(-100),
    }
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 1, 1, 1, 1, 1]])
    compare(modelled(graph, constants), {"m": mask, "x": drawn(2, 6)})


def test_truth_needs_no_range() -> None:
    graph = "(int64[N] m) => (bool[N] y) { y = Cast<to=9>(m) }"
    compare(modelled(graph), {"m": np.array([0, 1, 2**60, -(2**62)])})


def test_the_range_is_checked() -> None:
    session = InferenceSession(modelled("(int64[N] i) => (bool[N] y) { y = Equal(i, i) }").SerializeToString())
    session.run(None, {"i": np.array([2**24, -(2**24)])})
    for wrong in (2**24 + 1, -(2**24) - 1, 2**62):
        with pytest.raises(InputError, match=rf"input 'i' holds {wrong}; .* exactly up to 16777216"):
            session.run(None, {"i": np.array([3, wrong])})


def test_arithmetic_narrows_the_range() -> None:
    """Products of two numbers are exact up to 2^24: each may have 2^12."""
    model = modelled("(int64[N] a, int64[N] b) => (int64[N] y) { y = Mul(a, b) }")
    session = InferenceSession(model.SerializeToString(), cache=False)
    feeds = {"a": np.array([4096, -4096]), "b": np.array([4096, 4095])}
    np.testing.assert_array_equal(session.run(None, feeds)[0], onnxruntimes(model, feeds)[0])
    with pytest.raises(InputError, match=r"input 'b' holds 4097; .* exactly up to 4096"):
        session.run(None, feeds | {"b": np.array([0, 4097])})


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 256), ("float16", 2048)])
def test_sixteen_bits_hold_less(dtype: str, most: int) -> None:
    model = modelled("(int64[N] i) => (bool[N] y) { y = Equal(i, c) }", {"c": np.array(7, np.int64)})
    session = InferenceSession(model.SerializeToString(), dtype=dtype, cache=False)
    np.testing.assert_array_equal(session.run(None, {"i": np.array([7, most, 6])})[0], [True, False, False])
    with pytest.raises(InputError, match=f"exactly up to {most}"):
        session.run(None, {"i": np.array([7, most + 1])})


@pytest.mark.parametrize("nodes", ["y = ArgMax<axis=1>(i)", "c = Cast<to=6>(i)  y = ArgMin<axis=0, keepdims=0>(c)"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_search_among_ids_needs_no_bits_of_the_dtype(dtype: str, nodes: str) -> None:
    """CLIP takes the embedding of the token with the highest id."""
    made = "int64[5, 1]" if "axis=1" in nodes else "int64[9]"
    model = modelled(f"(int64[5, 9] i) => ({made} y) {{ {nodes} }}")
    ids = np.random.default_rng(0).integers(40_000, 49_408, (5, 9))
    session = InferenceSession(model.SerializeToString(), dtype=dtype, cache=False)
    np.testing.assert_array_equal(session.run(None, {"i": ids})[0], onnxruntimes(model, {"i": ids})[0])
    with pytest.raises(InputError, match="exactly up to 16777216"):
        session.run(None, {"i": ids + 2**24})


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("c = Cast<to=7>(x)  y = Add(c, c)", "integers of unknown size"),
        ("p = Mul(i, i)  q = Mul(p, p)  r = Mul(q, q)  y = Mul(r, r)", "integers of up to"),
    ],
)
def test_what_may_not_be_exact_is_refused(nodes: str, reason: str) -> None:
    graph = f"(float[N] x, int64[N] i) => (int64[N] y) {{ {nodes} }}"
    with pytest.raises(UnsupportedModelError, match=reason):
        compare(modelled(graph), {"x": drawn(4), "i": np.arange(4)})
