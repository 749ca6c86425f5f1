"""``nki.language``: the elementwise functions against numpy, and the examples of the API reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same

from trnrt.errors import KernelError, KernelWarning
from trnrt.nki import nisa, nl, trace

X, Y = drawn(128, 40, seed=1), drawn(128, 40, seed=2)
POSITIVE = np.abs(X) + np.float32(0.1)
ANGLES = X * np.float32(100)
WHOLE = np.arange(-512, 512, dtype=np.int32).reshape(128, 8)
BITS = drawn(128, 8, seed=3, dtype="uint32")
ERF = np.vectorize(math.erf)
Function = Callable[..., Any]


def named(function: Function) -> str:
    """The function's name in NKI, for the test's."""
    return repr(function) if repr(function).startswith("nl.") else f"nl.{function.__name__}"


def applied(function: Function, *arrays: Array, target: str = "trn2") -> Array:
    """What ``function`` makes of tiles of the arrays."""

    def kernel(*tensors: Tensor) -> Tensor:
        return give(function(*[load(tensor) for tensor in tensors]))

    result: Array = run(kernel, *arrays, target=target)
    return result


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def normal_density(x: Array) -> Array:
    result: Array = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return result


def normal_share(x: Array) -> Array:
    result: Array = (1 + ERF(x / math.sqrt(2))) / 2
    return result


def gelu_tanh(x: Array) -> Array:
    result: Array = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return result


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


UNARY: dict[Function, tuple[Array, Function]] = {
    nl.abs: (X, np.abs),
    nl.arctan: (X * 4, np.arctan),
    nl.ceil: (X * 4, np.ceil),
    nl.copy: (X, np.positive),
    nl.cos: (ANGLES, np.cos),
    nl.erf: (X, ERF),
    nl.erf_dx: (X, lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x)),
    nl.exp: (X, np.exp),
    nl.floor: (X * 4, np.floor),
    nl.gelu: (X, lambda x: x * normal_share(x)),
    nl.gelu_apprx_sigmoid: (X, lambda x: x * sigmoid(1.702 * x)),
    nl.gelu_apprx_tanh: (X, gelu_tanh),
    nl.gelu_dx: (X, lambda x: normal_share(x) + x * normal_density(x)),
    nl.log: (POSITIVE, np.log),
    nl.logical_not: ((X > 0).astype(np.float32), np.logical_not),
    nl.mish: (X, lambda x: x * np.tanh(softplus(x))),
    nl.negative: (X, np.negative),
    nl.reciprocal: (X, np.reciprocal),
    nl.relu: (X, lambda x: np.maximum(x, 0)),
    nl.rsqrt: (POSITIVE, lambda x: 1 / np.sqrt(x)),
    nl.sigmoid: (X, sigmoid),
    nl.sign: (np.trunc(X), np.sign),
    nl.silu: (X, lambda x: x * sigmoid(x)),
    nl.silu_dx: (X, lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
    nl.sin: (ANGLES, np.sin),
    nl.softplus: (X, softplus),
    nl.sqrt: (POSITIVE, np.sqrt),
    nl.square: (X, np.square),
    nl.tan: (ANGLES, np.tan),
    nl.tanh: (X, np.tanh),
    nl.trunc: (X * 4, np.trunc),
    nl.gelu_apprx_sigmoid_dx: (
        X,
        lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * (1 - sigmoid(1.702 * x))),
    ),
}
BINARY: dict[Function, Function] = {
    nl.add: np.add,
    nl.subtract: np.subtract,
    nl.multiply: np.multiply,
    nl.divide: np.divide,
    nl.maximum: np.maximum,
    nl.minimum: np.minimum,
    nl.mod: np.mod,
    nl.fmod: np.fmod,
    nl.equal: np.equal,
    nl.not_equal: np.not_equal,
    nl.greater: np.greater,
    nl.greater_equal: np.greater_equal,
    nl.less: np.less,
    nl.less_equal: np.less_equal,
    nl.logical_and: np.logical_and,
    nl.logical_or: np.logical_or,
    nl.logical_xor: np.logical_xor,
}
BITWISE: dict[Function, Function] = {
    nl.bitwise_and: np.bitwise_and,
    nl.bitwise_or: np.bitwise_or,
    nl.bitwise_xor: np.bitwise_xor,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", UNARY, ids=named)
def test_one_tile(function: Function, target: str) -> None:
    values, meaning = UNARY[function]
    got = applied(function, values, target=target)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, meaning(values.astype(np.float64)), rtol=3e-6, atol=5e-7)


@pytest.mark.parametrize("function", UNARY, ids=named)
def test_the_result_has_the_dtype_asked_for(function: Function) -> None:
    values, meaning = UNARY[function]
    got = applied(lambda x: function(x, dtype=nl.bfloat16), values)
    assert got.dtype.name == "bfloat16"
    np.testing.assert_allclose(got.astype(np.float64), meaning(values.astype(np.float64)), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize(
    "function", [nl.abs, nl.exp, nl.floor, nl.rsqrt, nl.sin, nl.cos, nl.copy, nl.softplus], ids=named
)
def test_the_result_has_the_dtype_of_the_tile_by_default(function: Function) -> None:
    values, meaning = UNARY[function]
    low = values.astype(nl.float16.numpy)
    got = applied(function, low)
    np.testing.assert_allclose(got.astype(np.float64), meaning(low.astype(np.float64)), rtol=2e-3, atol=1e-3)
    assert got.dtype == np.float16


@pytest.mark.parametrize("function", BINARY, ids=named)
def test_two_tiles(function: Function) -> None:
    got = applied(function, X, Y)
    np.testing.assert_allclose(got, BINARY[function](X, Y).astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("function", BINARY, ids=named)
def test_a_tile_and_a_number(function: Function) -> None:
    meaning, number = BINARY[function], np.float32(0.75)
    got = applied(lambda x: function(x, 0.75), X)
    np.testing.assert_allclose(got, meaning(X, number).astype(np.float32), rtol=1e-6)
    got = applied(lambda x: function(0.75, x), X)
    np.testing.assert_allclose(got, meaning(number, X).astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize("function", BITWISE, ids=named)
def test_bits(function: Function) -> None:
    meaning = BITWISE[function]
    same(applied(function, BITS, BITS[::-1].copy()), meaning(BITS, BITS[::-1]))
    same(applied(lambda x: function(x, 0x0F0F), BITS), meaning(BITS, np.uint32(0x0F0F)))


def test_bits_turned_and_shifted() -> None:
    same(applied(nl.invert, WHOLE), ~WHOLE)
    same(applied(lambda x: nl.left_shift(x, 3), BITS), BITS << np.uint32(3))
    same(applied(lambda x: nl.right_shift(x, 3), BITS), BITS >> np.uint32(3))
    counts = (BITS % 32).astype(np.uint32)
    same(applied(nl.right_shift, BITS, counts), BITS >> counts)


def test_powers() -> None:
    np.testing.assert_allclose(applied(nl.power, POSITIVE, Y), POSITIVE**Y, rtol=1e-6)
    np.testing.assert_allclose(applied(lambda x: nl.power(x, 3.0), X), X**3, rtol=1e-6)
    np.testing.assert_allclose(applied(lambda x: nl.power(2.0, x), X), 2**X, rtol=1e-6)
    nines = np.full((4, 2), 9, np.int32)
    same(applied(lambda x: nl.power(x, 1.5), nines), np.full((4, 2), 27, np.int32))


def test_the_larger_and_the_smaller_magnitude() -> None:
    """The reference's examples: a column of float32 is no broadcasting, of equal ones it is y."""

    def kernel(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return give(nl.abs_max(load(a), load(b))), give(nl.abs_min(load(a), load(b)))

    column = np.full((128, 1), 3, np.float32)
    most, least = run(kernel, np.full((128, 8), -5, np.float32), column, target="trn3")
    assert np.all(most == -5)
    assert np.all(least == 3)
    most, least = run(kernel, np.full((128, 8), 3, np.float32), -column, target="trn3")
    assert np.all(most == -3)
    assert np.all(least == -3)
    got = applied(nl.abs_max, X, Y, target="trn3")
    same(got, np.where(np.abs(X) > np.abs(Y), X, Y))
    with pytest.raises(KernelError):
        applied(nl.abs_max, X, Y, target="trn2")


def test_comparisons_give_the_dtype_of_the_tile_or_the_one_asked_for() -> None:
    assert applied(lambda x: nl.less(x, 0.5, dtype=nl.uint8), X).dtype == np.uint8
    same(applied(nl.equal, WHOLE, WHOLE), np.ones_like(WHOLE))


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "float32"),
        ("int32", "float16", "float16"),
        ("bfloat16", "float16", "float32"),
        ("int8", "int16", "int16"),
        ("uint16", "int16", "int32"),
    ],
)
def test_the_dtype_of_two_tiles(one: str, other: str, result: str) -> None:
    got = applied(nl.maximum, drawn(4, 8, dtype=one), drawn(4, 8, dtype=other))
    assert got.dtype.name == result


def test_32_bit_integers_are_exact() -> None:
    large = np.array([[2**30 + 1, -(2**30) - 1, 2**31 - 2]], np.int32)
    same(applied(nl.add, large, large[:, ::-1].copy()), large + large[:, ::-1])
    same(applied(lambda x: nl.add(x, 1), large), large + 1)
    same(applied(lambda x: nl.subtract(1, x), large), 1 - large)
    same(applied(nl.negative, large), -large)


def test_fractions_of_integers_round_to_even() -> None:
    sevens = np.full((4, 2), 7, np.int32)
    same(applied(nl.divide, sevens, np.full((4, 2), 2, np.int32)), np.full((4, 2), 4, np.int32))
    same(applied(lambda x: nl.multiply(x, 0.5, dtype=nl.float32), sevens), np.full((4, 2), 3.5, np.float32))


@pytest.mark.parametrize("shape", [(128, 1), (1, 40), (1, 1)])
def test_sizes_of_one_are_broadcast(shape: tuple[int, int]) -> None:
    small = Y[: shape[0], : shape[1]].copy()
    same(applied(nl.add, X, small), X + small)
    same(applied(nl.subtract, small, X), small - X)
    same(applied(nl.multiply, X[:, :1].copy(), Y[:1].copy()), X[:, :1] * Y[:1])


def test_what_can_not_be_broadcast_is_refused() -> None:
    with pytest.raises(KernelError, match="one shape, or sizes of 1"):
        applied(nl.add, X, Y[:, :20].copy())
    with pytest.raises(KernelError, match="one of them must be a tile"):
        applied(lambda x: nl.add(1, 2), X)
    with pytest.raises(KernelError, match=r"bring it in with nl\.load"):
        trace(lambda x: nl.add(x, 1.0), X)
    with pytest.raises(KernelError, match="y is None; it must be a tile or a number"):
        applied(lambda x: nl.add(x, None), X)
    with pytest.raises(KernelError, match="is a float; it must be a tensor"):
        applied(lambda x: nl.exp(1.0), X)


@pytest.mark.parametrize(("function", "meaning"), [(nl.floor, np.floor), (nl.ceil, np.ceil), (nl.trunc, np.trunc)])
def test_rounding_at_its_edges(function: Function, meaning: Function) -> None:
    values = [0.5, -0.5, 1.5, 2.5, -2.5, 0.0, 8388607.5, 8388609.0, 3e9, -3e38, np.inf, -np.inf, np.nan, 1 - 2**-24]
    row = np.array([values], np.float32)
    same(applied(function, row), meaning(row))
    same(applied(function, WHOLE), WHOLE)
    low = X.astype(nl.bfloat16.numpy)
    same(applied(function, low), meaning(low.astype(np.float32)).astype(low.dtype))


def test_angles_at_their_edges() -> None:
    row = np.array([[np.pi, -np.pi, np.pi / 2, 9.0, 1e-20, 1e5, -4e5, 0.0]], np.float32)
    wide = row.astype(np.float64)
    np.testing.assert_allclose(applied(nl.sin, row), np.sin(wide), atol=5e-7, rtol=0)
    np.testing.assert_allclose(applied(nl.cos, row), np.cos(wide), atol=5e-7, rtol=0)
    beyond = np.array([[np.inf, -np.inf, np.nan]], np.float32)
    for function in (nl.sin, nl.cos, nl.tan):
        assert np.isnan(applied(function, beyond)).all()
    np.testing.assert_allclose(applied(nl.arctan, beyond)[:, :2], [[math.pi / 2, -math.pi / 2]], rtol=1e-6)


def test_the_instruction_s_sine_is_not_the_function_s() -> None:
    """The reference's own number: outside of its range the scalar engine extrapolates a cubic."""

    def kernel(x: Tensor) -> Tensor:
        dst = nl.ndarray(x.shape, nl.float32)
        nisa.activation(dst, nl.sin, load(x))
        return give(dst)

    nine = np.full((1, 1), 9, np.float32)
    with pytest.warns(KernelWarning, match="nl.sin of 9; its valid input range is -pi to pi"):
        assert abs(float(run(kernel, nine)[0, 0]) - 27.65) < 0.5
    assert abs(float(applied(nl.sin, nine)[0, 0]) - math.sin(9)) < 1e-6


def test_operators_stay_arguments_of_instructions() -> None:
    assert repr(nl.add) == "nl.add"
    for function in (nl.prelu, nl.bypass, nl.average):
        with pytest.raises(KernelError, match=f"{function} is an argument of nisa instructions"):
            applied(function, X)


def test_results_of_psum_tiles() -> None:
    """Two tiles in PSUM: the second is copied, as PSUM delivers one input of an instruction."""

    def kernel(x: Tensor) -> Tensor:
        tile = load(x, nl.psum)
        return give(nl.add(tile, tile))

    same(run(kernel, X), X + X)


def test_rsqrt_does_not_read_psum() -> None:
    with pytest.raises(KernelError, match="GpSimd"):
        run(lambda x: give(nl.rsqrt(load(x, nl.psum))), POSITIVE)


EXAMPLES: list[tuple[Function, tuple[float, ...], float]] = [
    (nl.add, (3, 2), 5),
    (nl.subtract, (10, 3), 7),
    (nl.multiply, (3, 4), 12),
    (nl.maximum, (3, 5), 5),
    (nl.minimum, (3, 5), 3),
    (nl.power, (3, 2), 9),
    (nl.abs, (-1,), 1),
    (nl.square, (3,), 9),
    (nl.exp, (0,), 1),
    (nl.log, (1,), 0),
    (nl.sqrt, (4,), 2),
    (nl.rsqrt, (4,), 0.5),
    (nl.reciprocal, (4,), 0.25),
    (nl.sin, (0,), 0),
    (nl.cos, (0,), 1),
    (nl.tan, (0,), 0),
    (nl.arctan, (0,), 0),
    (nl.ceil, (3.2,), 4),
    (nl.ceil, (-3.7,), -3),
    (nl.floor, (3.7,), 3),
    (nl.floor, (-3.2,), -4),
    (nl.trunc, (3.7,), 3),
    (nl.trunc, (-3.7,), -3),
    (nl.negative, (5,), -5),
    (nl.negative, (-3,), 3),
    (nl.sign, (-5,), -1),
]


@pytest.mark.parametrize(("function", "operands", "expected"), EXAMPLES, ids=[f"{named(f)}{a}" for f, a, _ in EXAMPLES])
def test_examples_of_the_reference(function: Function, operands: tuple[float, ...], expected: float) -> None:
    def kernel() -> Tensor:
        tiles = [nl.full((128, 512), operand, dtype=nl.float32, buffer=nl.sbuf) for operand in operands]
        result = function(*tiles)
        wanted = nl.full((128, 512), expected, dtype=nl.float32, buffer=nl.sbuf)
        return give(nl.equal(result, wanted))

    assert np.all(run(kernel) == 1)


def test_low_precision_is_rounded_once() -> None:
    low = rounded(X, "bfloat16")
    same(applied(nl.add, low, low), (low.astype(np.float32) * 2).astype(low.dtype))
