"""The functions of each element of the old ``nki.language`` against numpy, and Python's operators on tiles."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.dtypes import Array

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)
SHAPE = (37, 5, 3)
Function = Callable[..., Any]

_erf = np.vectorize(erf)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + _erf(x / np.sqrt(2))))


def _gelu_dx(x: Array) -> Array:
    return np.asarray(0.5 * (1 + _erf(x / np.sqrt(2))) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


UNARY: dict[str, tuple[Function, float, float]] = {
    "abs": (np.abs, -3, 3),
    "arctan": (np.arctan, -9, 9),
    "ceil": (np.ceil, -9, 9),
    "cos": (np.cos, -40, 40),
    "erf": (_erf, -3, 3),
    "erf_dx": (lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), -3, 3),
    "exp": (np.exp, -3, 3),
    "floor": (np.floor, -9, 9),
    "gelu": (_gelu, -3, 3),
    "gelu_apprx_sigmoid": (lambda x: x * _sigmoid(1.702 * x), -3, 3),
    "gelu_apprx_tanh": (lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), -3, 3),
    "gelu_dx": (_gelu_dx, -3, 3),
    "log": (np.log, 0.1, 9),
    "mish": (lambda x: x * np.tanh(np.log1p(np.exp(x))), -3, 3),
    "negative": (np.negative, -3, 3),
    "reciprocal": (lambda x: 1 / x, 0.1, 9),
    "relu": (lambda x: np.maximum(x, 0), -3, 3),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.1, 9),
    "sigmoid": (_sigmoid, -3, 3),
    "sign": (np.sign, -3, 3),
    "silu": (lambda x: x * _sigmoid(x), -3, 3),
    "silu_dx": (lambda x: _sigmoid(x) * (1 + x * (1 - _sigmoid(x))), -3, 3),
    "sin": (np.sin, -40, 40),
    "softplus": (lambda x: np.log1p(np.exp(x)), -3, 3),
    "sqrt": (np.sqrt, 0.1, 9),
    "square": (np.square, -3, 3),
    "tan": (np.tan, -1.2, 1.2),
    "tanh": (np.tanh, -3, 3),
    "trunc": (np.trunc, -9, 9),
}


@FORMAT
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tile(name: str, dtype: np.dtype[Any]) -> None:
    meaning, least, most = UNARY[name]
    x = numbers(1, *SHAPE, dtype=dtype, least=least, most=most)
    got = run(lambda t: getattr(nl, name)(t), x)
    assert got.dtype == dtype
    assert_close(got, meaning(wide(x).astype(np.float64)).astype(np.float32).astype(dtype))


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tile_give_the_format_that_is_asked_for_where_the_mask_holds(name: str) -> None:
    meaning, least, most = UNARY[name]
    x = numbers(2, 37, 19, least=least, most=most)
    rows, columns = nl.arange(37)[:, None], nl.arange(19)[None, :]
    got = run(lambda t: getattr(nl, name)(t, dtype=nl.bfloat16, mask=(rows < 30) & (columns >= 4)), x)
    wanted = meaning(x.astype(np.float64)).astype(np.float32).astype(BFLOAT16)
    wanted[30:], wanted[:, :4] = np.nan, np.nan
    assert got.dtype == BFLOAT16
    assert_close(got, wanted)


BINARY: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": np.power,
    "mod": np.mod,
    "fmod": np.fmod,
}
COMPARISONS: dict[str, Function] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
# The shapes of x and y; [33, 1] and [1, 5] are repeated to [33, 5], and so on.
SHAPES = [
    ((33, 5), (33, 5)),
    ((33, 5), (33, 1)),
    ((33, 1), (33, 5)),
    ((33, 5), (1, 5)),
    ((1, 1), (33, 5)),
    ((33, 1), (1, 5)),
    ((9, 4, 3), (9, 4, 1)),
    ((9, 1, 3), (9, 4, 1)),
]


@FORMAT
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tiles(name: str, shapes: tuple[Any, Any], dtype: np.dtype[Any]) -> None:
    x, y = (numbers(seed, *shape, dtype=dtype, least=0.25, most=2) for seed, shape in enumerate(shapes))
    got = run(lambda a, b: getattr(nl, name)(a, b), x, y)
    assert got.dtype == dtype
    wanted = BINARY[name](wide(x), wide(y)).astype(dtype)
    if name in ("mod", "fmod") and dtype == BFLOAT16:  # x / y near an integer: the remainder may be 0 or y
        near = np.abs(wide(x) / wide(y) - np.rint(wide(x) / wide(y))) < 0.01
        got, wanted = np.where(near, 0, wide(got)), np.where(near, 0, wide(wanted))
        np.testing.assert_allclose(got, wanted, atol=2e-2)
        return
    assert_close(got, wanted)


@FORMAT
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_a_tile_and_a_number(name: str, dtype: np.dtype[Any]) -> None:
    """A number of Python makes the result float32: it has no format of its own."""
    x = numbers(3, 21, 11, dtype=dtype, least=0.25, most=2)
    for call, meaning in (
        (lambda t: getattr(nl, name)(t, 1.5), BINARY[name](wide(x), np.float32(1.5))),
        (lambda t: getattr(nl, name)(1.5, t), BINARY[name](np.float32(1.5), wide(x))),
    ):
        got = run(call, x)
        assert got.dtype == np.float32
        assert_close(got, meaning)


@FORMAT
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_give_bool(name: str, dtype: np.dtype[Any]) -> None:
    x, y = (np.rint(wide(numbers(seed, 33, 7))).astype(dtype) for seed in (1, 2))
    got = run(lambda a, b: getattr(nl, name)(a, b), x, y)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, COMPARISONS[name](wide(x), wide(y)))
    got = run(lambda a: getattr(nl, name)(1.0, a, dtype=nl.float32), x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, COMPARISONS[name](np.float32(1), wide(x)))


def test_logical_not_gives_bool() -> None:
    x = np.array([[0, 1, -2, 0.5]], np.float32)
    got = run(nl.logical_not, x)
    assert got.dtype == np.bool_
    assert got.tolist() == [[True, False, False, False]]


BITS: dict[str, Function] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "left_shift": np.left_shift,
    "right_shift": np.right_shift,
}


@pytest.mark.parametrize("dtype", ["int32", "uint8", "uint16"])
@pytest.mark.parametrize("name", BITS)
def test_bit_patterns(name: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 200, (19, 7)).astype(dtype)
    y = random.integers(0, 5, (19, 7)).astype(dtype)
    got = run(lambda a, b: getattr(nl, name)(a, b), x, y)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(got, BITS[name](x, y))
    np.testing.assert_array_equal(run(lambda a: getattr(nl, name)(a, 3), x), BITS[name](x, np.array(3, dtype)))


def test_invert_turns_bits_and_truth_values() -> None:
    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    np.testing.assert_array_equal(run(nl.invert, x), ~x)
    np.testing.assert_array_equal(run(lambda t: ~(t > 5), x), ~(x > 5))


OPERATORS: dict[str, Function] = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "ne", "mod")
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    function = OPERATORS[name]
    x, y = numbers(1, 9, 6, least=0.25), numbers(2, 9, 6, least=0.25)
    assert_close(run(function, x, y), function(x, y))
    assert_close(run(lambda a: function(a, 0.75), x), function(x, np.float32(0.75)))
    assert_close(run(lambda a: function(0.75, a), x), function(np.float32(0.75), x))


@FORMAT
@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv"])
def test_operators_in_place_keep_the_tile_and_its_format(name: str, dtype: np.dtype[Any]) -> None:
    function = getattr(operator, name)
    x, y = numbers(1, 9, 6, dtype=dtype, least=0.25), numbers(2, 9, 6, dtype=dtype, least=0.25)

    def change(a: Any, b: Any) -> Any:
        made = nl.copy(a)
        same = made[...]
        made = function(made, b)
        made = function(made, 2.5)
        assert made.shape == same.shape
        return same

    first = function(wide(x), wide(y)).astype(dtype)
    assert_close(run(change, x, y), function(wide(first), np.float32(2.5)).astype(dtype))


def test_operators_on_parts_write_to_the_tile() -> None:
    x = numbers(1, 8, 6)

    def change(a: Any) -> Any:
        made = nl.copy(a)
        made[:, 0:2] += 1.0
        made[:, 4:6] *= made[:, 0:2]
        return -made

    wanted = x.copy()
    wanted[:, 0:2] += 1
    wanted[:, 4:6] *= wanted[:, 0:2]
    assert_close(run(change, x), -wanted)


PROMOTED = [  # of SDK 2.26.1, nki/api/nki.api.shared.rst, NKI Type Promotion
    ("int32", "float16", "float16"),
    ("uint16", "tfloat32", "tfloat32"),
    ("float32", "tfloat32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float16", "bfloat16", "float32"),
    ("float8_e4m3", "float16", "float16"),
    ("float8_e4m3", "bfloat16", "bfloat16"),
    ("float8_e4m3", "float8_e5m2", "bfloat16"),
    ("int16", "int32", "int32"),
    ("uint8", "uint16", "uint16"),
    ("uint16", "int32", "int32"),
    ("int8", "uint8", "int16"),
    ("int8", "uint16", "int32"),
    ("int32", "uint32", "float32"),
]


@pytest.mark.parametrize(("one", "other", "wanted"), PROMOTED)
def test_formats_are_promoted(one: str, other: str, wanted: str) -> None:
    formats: list[str] = []

    def note(x: Any) -> Any:
        a, b = nl.copy(x, dtype=getattr(nl, one)), nl.copy(x, dtype=getattr(nl, other))
        formats.extend(str(made.format) for made in (nl.add(a, b), nl.maximum(b, a)))
        return x

    run(note, np.ones((2, 2), np.float32))
    assert formats == [wanted, wanted]


NUMBERS = [  # Weakly typed scalars
    ("int8", 2, "int32"),
    ("float16", 1.2, "float32"),
    ("float16", np.float16(2), "float16"),
    ("int8", np.int8(2), "int8"),
    ("bfloat16", 2, "bfloat16"),
    ("bfloat16", ml_dtypes.bfloat16(2), "bfloat16"),
    ("int8", True, "int16"),
    ("float16", np.float64(2), "float32"),
]


@pytest.mark.parametrize(("tile", "number", "wanted"), NUMBERS)
def test_formats_of_numbers(tile: str, number: Any, wanted: str) -> None:
    got = run(lambda x: nl.add(nl.copy(x, dtype=getattr(nl, tile)), number), np.ones((2, 3), np.float32))
    assert str(got.dtype) == wanted
    np.testing.assert_array_equal(wide(got), np.float32(1) + np.float32(number))


def test_quotients_of_integers_are_float32() -> None:
    x = np.arange(1, 13, dtype=np.int32).reshape(4, 3)
    for call, wanted in ((lambda t: t / 5, x / 5), (lambda t: nl.divide(7, t), 7 / x), (lambda t: t / t, x / x)):
        got = run(call, x)
        assert got.dtype == np.float32
        assert_close(got, wanted.astype(np.float32))
    assert run(lambda t: nl.divide(t, 2, dtype=nl.int32), x).dtype == np.int32


def test_integers_of_32_bits_are_exact() -> None:
    x = np.array([[2**30 + 1, -(2**30) - 3, 7]], np.int32)
    np.testing.assert_array_equal(run(lambda t: t + 5, x), x + 5)
    np.testing.assert_array_equal(run(lambda t: 5 - t, x), 5 - x)
    np.testing.assert_array_equal(run(lambda a, b: a - b, x, x[:, ::-1].copy()), x - x[:, ::-1])


def test_a_name_is_an_operator_and_a_function() -> None:
    assert repr(nl.add) == "nl.add"
    assert nl.exp.__name__ == "exp"
    x = numbers(0, 4, 4)
    assert_close(run(lambda t: nl.add(x=t, y=1.0, name="sum"), x), x + 1)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: nl.add(1.0, 2.0), "nl.add: x and y are both numbers"),
        (lambda x: nl.add(x, "2"), "nl.add: y is a str; it must be a tile"),
        (lambda x: nl.exp(nl.arange(4)[:, None]), "nl.exp: x is a Index; it must be a tile"),
        (lambda x: nl.add(x, x[:, 0:2]), r"nl.add: tiles of shape \(8, 6\) and \(8, 2\)"),
        (lambda x: nl.exp(x, dtype="float128"), "dtype: the NeuronCore has no dtype 'float128'"),
        (lambda x: nl.exp(nl.ndarray((4, nl.par_dim(8), 6), nl.float32)), "nl.exp: x has 1 block dimensions"),
        (lambda x: nl.exp(nl.ndarray((8, 6), nl.float32, buffer=nl.hbm)), "nl.exp: x is in HBM"),
        (lambda x: nl.ndarray((256, 6), nl.float32), "256 partitions"),
        (lambda x: bool(x), "no Python condition can test them"),
        (lambda x: not (x > 0), "no Python condition can test them"),
        (lambda x: nl.exp(x, mask=bool(nl.arange(4)[:, None] < 2)), "is no Python condition"),
        (lambda x: nl.exp(x, mask=nl.arange(5)[:, None] < 2), r"mask has shape \(5, 1\); it must fit a tile of"),
        (lambda x: list(x), "a tile can't be iterated over"),
        (lambda x: x[0:4, 0:6][True][False] + 1.0, r"an operand whose own mask, x\[mask\], is False is used"),
    ],
)
def test_mistakes_are_refused(function: Function, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        run(function, numbers(0, 8, 6))


def test_an_operand_with_a_mask_of_its_own() -> None:
    x = numbers(0, 8, 6)
    assert_close(run(lambda t: nl.exp(t[True]), x), np.exp(x))
    assert np.isnan(run(lambda t: nl.exp(t[False], mask=False), x)).all()
