"""Programs of element-wise operators: each operator's accuracy, odd numbers, broadcasting, tiles in SBUF."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calling import DTYPES, NUMPY, ROUNDING, TARGETS, TINY, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.compute_tiles import COLUMNS, PIECE_BYTES
from trnrt.kernels.elementwise import compute
from trnrt.nki import Spec, nisa, nl, trace
from trnrt.nki.machine.lifetimes import find_lifetimes

Function = Callable[..., Array]
Ops = tuple[tuple[Any, ...], ...]

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _celu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x / alpha))


SELU = (1.6732631921768188, 1.0507010221481323)

# name -> (numpy on float64, absolute error, relative error), float32 against it where both are finite.
UNARY: dict[str, tuple[Function, float, float]] = {
    "copy": (lambda x: x, 0, 0),
    "relu": (lambda x: np.maximum(x, 0), 0, 0),
    "sigmoid": (_sigmoid, 0, 4e-7),
    "tanh": (np.tanh, 0, 2e-7),
    "exp": (np.exp, 0, 2e-7),
    "log": (np.log, 0, 2.5e-7),
    "sqrt": (np.sqrt, 0, 1.2e-7),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0, 1.2e-7),
    "reciprocal": (lambda x: 1 / x, 0, 6e-8),
    "square": (np.square, 0, 6e-8),
    "abs": (np.abs, 0, 0),
    "neg": (np.negative, 0, 0),
    "sign": (np.sign, 0, 0),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "round": (np.rint, 0, 0),
    "erf": (_erf, 0, 1.2e-7),
    "gelu": (lambda x: x * 0.5 * _erfc(-x / math.sqrt(2)), 6e-7, 2e-7),
    "gelu_tanh": (lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)), 6e-7, 2e-7),
    "gelu_sigmoid": (lambda x: x * _sigmoid(1.702 * x), 6e-7, 2e-7),
    "silu": (lambda x: x * _sigmoid(x), 1e-30, 4e-7),
    "softplus": (_softplus, 0, 4e-7),
    "mish": (lambda x: x * np.tanh(_softplus(x)), 1e-30, 4e-7),
    "not": (lambda x: x == 0, 0, 0),
    "is_nan": (np.isnan, 0, 0),
    "is_inf": (np.isinf, 0, 0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 0, 2.4e-7),
    "hard_swish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 4e-7, 4e-7),
    "atan": (np.arctan, 0, 4e-7),
    "log1p": (np.log1p, 0, 6e-7),
}
WITH_NUMBERS: dict[tuple[Any, ...], tuple[Function, float, float]] = {
    ("leaky_relu", 0.25): (lambda x: np.where(x >= 0, x, 0.25 * x), 0, 0),
    ("leaky_relu", -2.0): (lambda x: np.where(x >= 0, x, -2 * x), 0, 0),
    ("leaky_relu", 1.5): (lambda x: np.where(x >= 0, x, 1.5 * x), 0, 6e-8),
    ("leaky_relu", 0.0): (lambda x: np.maximum(x, 0), 0, 0),
    ("elu", 1.5): (lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)), 0, 4e-7),
    ("celu", 2.0): (lambda x: _celu(x, 2.0), 0, 4e-7),
    ("selu", *SELU): (lambda x: SELU[1] * np.where(x > 0, x, SELU[0] * np.expm1(x)), 0, 4e-7),
    ("hard_sigmoid", 0.25, 0.5): (lambda x: np.clip(0.25 * x + 0.5, 0, 1), 6e-8, 0),
    ("clip", -1.0, 2.0): (lambda x: np.clip(x, -1, 2), 0, 0),
    ("clip", 3.0, 2.0): (lambda x: np.minimum(np.maximum(x, 3), 2), 0, 0),
    ("clip", -math.inf, math.inf): (lambda x: x, 0, 0),
    ("power", 2.0): (np.square, 0, 6e-8),
    ("power", 3.0): (lambda x: x**3, 0, 2e-7),
    ("power", 0.5): (lambda x: np.power(x, 0.5), 0, 1.2e-7),
    ("divide", 3.0): (lambda x: x / 3, 0, 6e-8),
    ("divide", 0.25): (lambda x: x / 0.25, 0, 0),
    ("subtract", 0.1): (lambda x: x - float(np.float32(0.1)), 0, 6e-8),
}
BINARY: dict[str, tuple[Function, float]] = {
    "add": (np.add, 6e-8),
    "subtract": (np.subtract, 6e-8),
    "multiply": (np.multiply, 6e-8),
    "divide": (np.divide, 6e-8),
    "maximum": (np.maximum, 0),
    "minimum": (np.minimum, 0),
    "power": (np.power, 2e-7),
    "mod": (np.mod, 6e-8),
    "fmod": (np.fmod, 0),
    "greater": (np.greater, 0),
    "greater_equal": (np.greater_equal, 0),
    "less": (np.less, 0),
    "less_equal": (np.less_equal, 0),
    "equal": (np.equal, 0),
    "not_equal": (np.not_equal, 0),
    "and": (np.logical_and, 0),
    "or": (np.logical_or, 0),
    "xor": (np.logical_xor, 0),
    "prelu": (lambda x, y: np.where(x >= 0, x, y * x), 6e-8),
}


def numbers() -> Array:
    """Numbers of every size, halves, and odd ones."""
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(-80, 80, 2000)) * rng.choice([-1, 1], 2000)
    halves = np.round(rng.uniform(-50, 50, 200) * 2) / 2
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1000, -1000, 200, -200, 0.49999997, 2**22 + 0.5, 8388607.5]
    odd += [-8388607.5, 2**23 + 1, -(2**23) - 1, 2**24, 2.0**-64, 2.0**64, 2.0**-65, 2.0**65, 2.0**-126, 1, -1]
    return np.concatenate([4 * rng.standard_normal(2000), sizes, halves, odd]).astype(np.float32)


def pairs() -> tuple[Array, Array]:
    """Pairs of such numbers, every odd one with every odd one; whole numbers too."""
    rng = np.random.default_rng(1)
    some = numbers()
    odd = some[-25:]
    whole = rng.integers(-40, 41, (2, 500))
    left = np.concatenate([some, np.repeat(odd, 25), whole[0]])
    right = np.concatenate([rng.permutation(some), np.tile(odd, 25), whole[1]])
    return left.astype(np.float32), right.astype(np.float32)


def computed(
    shape: tuple[int, ...], srcs: list[Array], ops: Ops, target: str = "trn2", dtype: str | None = None
) -> Array:
    """The kernel's result, its dtype that of the first source."""

    def body(*srcs: Tensor) -> Tensor:
        dst = hbm(shape, srcs[0].dtype if dtype is None else NUMPY[dtype])
        compute(dst, srcs, ops)
        return dst

    return call(body, *srcs, target=target)


def lined(x: Array) -> Array:
    """As (1, 1, 1, C)."""
    return x.reshape(1, 1, 1, -1)


def compare(got: Array, exact: Array, absolute: float, relative: float, dtype: str = "float32") -> None:
    """Finite numbers within the errors, those that are not equal; what overflows the dtype is infinite."""
    exact = exact.astype(np.float64)
    rounded = exact.astype(NUMPY[dtype]).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(exact))
    rounding = 0.0 if dtype == "float32" else ROUNDING[dtype]
    bound = absolute + (relative + rounding) * np.abs(exact) + TINY[dtype]
    near = np.isfinite(rounded) & np.isfinite(got) & (np.abs(got - exact) <= bound)
    off = ~(same | near)
    where = np.argwhere(off)
    assert not off.any(), f"{off.sum()} of {off.size} are off, at {where[0]}: {got[off][0]}, not {exact[off][0]}"


# The limits of gated functions at -inf, where the formula is 0 * inf.
GATED = ("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "mish")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, target: str) -> None:
    x = lined(numbers())
    function, absolute, relative = UNARY[name]
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
        if name in GATED:
            exact = np.where(x == -np.inf, 0, exact)
        compare(computed(x.shape, [x], ((name, 0),), target), exact, absolute, relative)


@pytest.mark.parametrize("op", WITH_NUMBERS, ids=str)
def test_with_numbers(op: tuple[Any, ...]) -> None:
    x = lined(numbers())
    function, absolute, relative = WITH_NUMBERS[op]
    with np.errstate(all="ignore"):
        compare(computed(x.shape, [x], ((op[0], 0, *op[1:]),)), function(x.astype(np.float64)), absolute, relative)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles(name: str) -> None:
    rng = np.random.default_rng(0)
    x = lined(np.concatenate([rng.uniform(-2e5, 2e5, 4000), rng.uniform(-7, 7, 4000), [0, np.nan, np.inf]]))
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = (np.sin if name == "sin" else np.cos)(x.astype(np.float64))
        compare(computed(x.shape, [x], ((name, 0),)), exact, 5e-7, 0)


def test_tangents() -> None:
    """Also next to the poles, where a tangent is as large as the angle is close."""
    rng = np.random.default_rng(0)
    poles = (np.pi / 2 * np.arange(-400, 400)[:, None] + rng.uniform(-1e-4, 1e-4, (800, 5))).reshape(-1)
    x = np.concatenate([rng.uniform(-5e4, 5e4, 4000), rng.uniform(-7, 7, 4000), poles, [0, 1e-30, np.nan, np.inf]])
    x = lined(x.astype(np.float32))
    angles = x.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = np.tan(angles)
        # How far the angle, known to a part of 4e-8 and 1e-13 of its turns, moves the tangent.
        slack = (1 + exact**2) * 1e-12 * np.maximum(np.abs(angles), 1)
        got = computed(x.shape, [x], (("tan", 0),))
        off = np.abs(got - exact) > 8e-7 * np.abs(exact) + slack
    assert not off[np.isfinite(angles)].any()
    assert np.isnan(got[~np.isfinite(angles)]).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, target: str) -> None:
    left, right = pairs()
    function, relative = BINARY[name]
    with np.errstate(all="ignore"):
        if name in ("mod", "fmod"):
            large = np.abs(left.astype(np.float64) / right) >= 2.0**24
            kept = ~(large & np.isfinite(left) & (right != 0))
            left, right = left[kept], right[kept]
        if name == "prelu":
            kept = np.isfinite(right)
            left, right = left[kept], right[kept]
        left, right = lined(left), lined(right)
        exact = function(left.astype(np.float64), right.astype(np.float64))
        got = computed(left.shape, [left, right], ((name, 0, 1),), target)
        compare(got, exact, 0, relative)


def test_quotients_are_those_of_a_division() -> None:
    rng = np.random.default_rng(0)
    left, right = (lined(rng.uniform(-1000, 1000, 20000).astype(np.float32)) for _ in range(2))
    np.testing.assert_array_equal(computed(left.shape, [left, right], (("divide", 0, 1),)), left / right)
    whole = lined(rng.integers(1, 2**24, 20000).astype(np.float32))
    by = lined(rng.integers(1, 2**12, 20000).astype(np.float32))
    ops = (("divide", 0, 1), ("floor", 2))
    np.testing.assert_array_equal(computed(whole.shape, [whole, by], ops), np.floor(whole / by))


@pytest.mark.parametrize("dtype", DTYPES)
def test_where(dtype: str) -> None:
    condition = lined(np.array([0, 1, -0.0, np.nan, 2, 0], NUMPY[dtype]))
    x = lined(np.array([np.nan, np.inf, np.nan, 1, 2, 3], NUMPY[dtype]))
    y = lined(np.array([1, np.nan, -np.inf, np.nan, np.inf, -0.0], NUMPY[dtype]))
    got = computed(x.shape, [condition, x, y], (("where", 0, 1, 2),))
    np.testing.assert_array_equal(got, np.where(condition != 0, x, y).astype(np.float64))
    got = computed(x.shape, [condition], (("where", 0, math.inf, -2.0),))
    np.testing.assert_array_equal(got, np.where(condition != 0, np.inf, -2.0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [*UNARY, "sin", "divide", "mod", "power", "prelu", "where"])
def test_dtypes(name: str, target: str, dtype: str) -> None:
    """Sources of any dtype, rows, columns and numbers; the result is rounded once."""
    x = drawn((1, 2, 70, 9), 0, dtype)
    other = np.abs(drawn((1, 1, 1, 9), 1, dtype)) + np.ones((), NUMPY[dtype])
    column = np.abs(drawn((1, 2, 70, 1), 2, dtype)) + np.ones((), NUMPY[dtype])
    functions: dict[str, Function] = {name: entry[0] for name, entry in (UNARY | BINARY).items()}
    functions |= {"sin": np.sin, "where": EXACT["where"]}
    for second, third in ((other, column), (column, other), (x[:, :1, :1, :1] + 4, column)):
        args = (x,) if name in UNARY or name == "sin" else (x, second, third)[: 3 if name == "where" else 2]
        got = computed(x.shape, list(args), ((name, *range(len(args))),), target)
        with np.errstate(all="ignore"):
            exact = functions[name](*(arg.astype(np.float64) for arg in args))
            compare(got, exact, 1e-6, 1e-6, dtype)


EXACT: dict[str, Function] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "greater": lambda x, y: np.greater(x, y).astype(np.float32),
    "where": lambda c, x, y: np.asarray(np.where(c != 0, x, y)),
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "floor": np.floor,
    "leaky_relu": lambda x, alpha: np.where(x > 0, x, x * np.float32(alpha)),
}
ARGUMENTS = {"where": 3, "neg": 1, "relu": 1, "floor": 1, "leaky_relu": 1}


def one_by_one(srcs: list[Array], ops: Ops) -> Array:
    """The program in float32, one operator after the other."""
    values: list[Any] = [src.astype(np.float32) for src in srcs]
    for name, *operands in ops:
        args = [np.float32(operand) if isinstance(operand, float) else values[operand] for operand in operands]
        values.append(EXACT[name](*args))
    result: Array = values[-1]
    return result


@st.composite
def programs(draw: Any, sources: int) -> Ops:
    """Operators whose results numpy has exactly; every one has an operand that is no number."""
    ops = []
    for number in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(EXACT)))
        operand = st.integers(0, sources + number - 1)
        first = draw(operand)
        others = [draw(operand | st.sampled_from([0.5, -2.0])) for _ in range(ARGUMENTS.get(name, 2) - 1)]
        ops.append((name, first, *others, *([0.25] if name == "leaky_relu" else [])))
    return tuple(ops)


SIZES = st.sampled_from([1, 1, 2, 3, 5, 8, 33, 130])


@settings(max_examples=150)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), target=st.sampled_from(TARGETS))
def test_any_program(data: Any, dtype: str, target: str) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), SIZES, SIZES, SIZES | st.sampled_from([700, COLUMNS + 30])))
    shape = shape if math.prod(shape) < 400_000 else (1, *shape[1:2], 3, shape[3])
    count = data.draw(st.integers(1, 3))
    keeps = st.tuples(*[st.booleans()] * 4) | st.just((True,) * 4)
    srcs = []
    for number in range(count):
        kept = data.draw(keeps)
        srcs.append(drawn(tuple(n if k else 1 for n, k in zip(shape, kept, strict=True)), number, dtype))
    ops = data.draw(programs(count))
    expected = np.broadcast_to(one_by_one(srcs, ops), shape).astype(NUMPY[dtype]).astype(np.float64)
    np.testing.assert_array_equal(computed(shape, srcs, ops, target), expected)


@pytest.mark.parametrize(
    "shape", [(128 * COLUMNS + 1,), (100, 2 * COLUMNS + 3), (3, 257, 5000), (2, 40000, 3)], ids=str
)
@pytest.mark.parametrize("side", ["row", "column", "matrix"])
def test_large(shape: tuple[int, ...], side: str) -> None:
    shape = (1,) * (4 - len(shape)) + shape
    x = drawn(shape, 0)
    y = drawn({"row": (1, 1, 1, shape[3]), "column": (*shape[:3], 1), "matrix": shape}[side], 1)
    ops = (("multiply", 0, 1), ("add", 2, 0.5), ("maximum", 3, 1))
    got = computed(shape, [x, y], ops)
    np.testing.assert_array_equal(got, np.maximum(x * y + np.float32(0.5), y))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "repeated", [(1, 200, 1, 7), (1, 200, 5, 1), (1, 200, 1, 1), (1, 1, 5, 7), (2, 1, 5, 1), (1, 1, 1, 7)]
)
def test_rows_of_images_in_one_partition(repeated: tuple[int, ...], dtype: str) -> None:
    """Rotated heads: (tokens, heads, columns), with a table of (tokens, 1, columns)."""
    shape = (2, 200, 5, 7)
    x, y, z = drawn(shape, 0, dtype), drawn(repeated, 1, dtype), drawn(shape, 2, dtype)
    ops = (("multiply", 0, 1), ("add", 3, 2), ("maximum", 4, 1))
    got = computed(shape, [x, y, z], ops)
    wide = [each.astype(np.float32) for each in (x, y, z)]
    np.testing.assert_array_equal(got, np.maximum(wide[0] * wide[1] + wide[2], wide[1]).astype(NUMPY[dtype]))


@pytest.mark.parametrize(
    ("ops", "instructions"),
    [
        ((("multiply", 0, 1), ("add", 3, 2)), 1),
        ((("multiply", 0, 1), ("subtract", 2, 3)), 1),
        ((("multiply", 0, 2.0), ("subtract", 1.0, 3), ("maximum", 4, 1), ("minimum", 5, 6.0)), 2),
        ((("multiply", 0, 2.0), ("add", 3, 3)), 2),
        ((("multiply", 0, 2.0), ("add", 3, 1.0), ("multiply", 3, 4)), 3),
        ((("subtract", 1.0, 0), ("add", 3, 1.0)), 2),
    ],
)
def test_two_operators_in_one(ops: Ops, instructions: int) -> None:
    """Two operators with numbers or columns are one instruction where nothing else takes the first one's result."""
    srcs = [drawn((1, 1, 130, 50), 0), drawn((1, 1, 130, 1), 1), drawn((1, 1, 130, 1), 2)]
    names: dict[str, Function] = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }
    values: list[Any] = list(srcs)
    for name, *operands in ops:
        args = [np.float32(operand) if isinstance(operand, float) else values[operand] for operand in operands]
        values.append(names[name](*args))
    np.testing.assert_array_equal(computed(srcs[0].shape, srcs, ops), values[-1])

    def body(*srcs: Tensor) -> Tensor:
        dst = hbm((1, 1, 128, 50), srcs[0].dtype)
        compute(dst, srcs, ops)
        return dst

    program = trace(body, *(Spec((1, 1, 128, size), "float32") for size in (50, 1, 1)))
    assert sum(one.operation.name.startswith("tensor_") for one in program.instructions) == instructions


def in_tiles(srcs: list[Array], ops: Ops, shape: tuple[int, ...], strided: bool = False, target: str = "trn2") -> Array:
    """The program on tiles in SBUF; (P, B) stay in HBM. ``strided``: the tiles are parts of larger ones."""

    def body(*srcs: Tensor) -> Tensor:
        room = (*shape[:-1], shape[-1] + 3) if strided else shape
        tiles = []
        for src in srcs:
            tile = nl.ndarray(room, src.dtype, nl.sbuf)[..., 0 : shape[-1]]
            if src.shape == shape:
                nisa.dma_copy(dst=tile, src=src)
            tiles.append(tile if src.shape == shape else src)
        dst = nl.ndarray(room, srcs[0].dtype, nl.sbuf)[..., 0 : shape[-1]]
        compute(dst, tuple(tiles), ops)
        result = hbm(shape, dst.dtype)
        nisa.dma_copy(dst=result, src=dst)
        return result

    return call(body, *srcs, target=target)


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), target=st.sampled_from(TARGETS), strided=st.booleans())
def test_any_program_in_sbuf(data: Any, dtype: str, target: str, strided: bool) -> None:
    shape = data.draw(
        st.sampled_from([(1, 1), (7, 5), (128, 3, 5), (33, 2, 3, 4, 5), (128, 2, 1, 1, 1), (5, 2, 200, 11), (9, 4200)])
    )
    count = data.draw(st.integers(1, 3))
    columns = [number > 0 and data.draw(st.booleans()) for number in range(count)]
    srcs = [drawn(shape, i, dtype) if not column else drawn(shape[:2], i) for i, column in enumerate(columns)]
    ops = data.draw(programs(count))
    spread = [src.reshape(*shape[:2], *[1] * (len(shape) - 2)) if columns[i] else src for i, src in enumerate(srcs)]
    expected = np.broadcast_to(one_by_one(spread, ops), shape).astype(NUMPY[dtype]).astype(np.float64)
    np.testing.assert_array_equal(in_tiles(srcs, ops, shape, strided, target), expected)


def test_what_is_refused() -> None:
    x = drawn((1, 1, 3, 5), 0)
    with pytest.raises(KernelError, match="there are no operators"):
        computed(x.shape, [x], ())
    with pytest.raises(KernelError, match="unknown operator swap of one value"):
        computed(x.shape, [x], (("swap", 0),))
    with pytest.raises(KernelError, match="unknown operator swap of 2 operands"):
        computed(x.shape, [x], (("swap", 0, 1.0),))
    with pytest.raises(KernelError, match="operator 0, add, are numbers"):
        computed(x.shape, [x], (("add", 1.0, 1.0),))
    with pytest.raises(KernelError, match="operand 1 of elu is a tensor"):
        computed(x.shape, [x], (("elu", 0, 0),))
    with pytest.raises(KernelError, match=r"a source \(1, 1, 2, 5\) does not repeat"):
        computed(x.shape, [x, drawn((1, 1, 2, 5), 0)], (("add", 0, 1),))
    with pytest.raises(KernelError, match=r"columns \(7, 2\) for a tile \(7, 3, 4\)"):
        in_tiles([drawn((7, 3, 4), 0), drawn((7, 2), 0)], (("add", 0, 1),), (7, 3, 4))


ROOMY: dict[str, Ops] = {
    "sums": (("add", 0, 1), ("multiply", 2, 0), ("subtract", 3, 1)),
    "quotient": (("divide", 0, 1), ("multiply", 2, 0)),
    "remainder": (("mod", 0, 1), ("add", 2, 0)),
    "logarithms": (("log", 0), ("log", 1), ("add", 2, 3)),
    "rounding": (("floor", 0), ("ceil", 1), ("round", 0), ("add", 2, 3), ("add", 4, 5)),
    "angles": (("sin", 0), ("cos", 1), ("multiply", 2, 3)),
    "tangents": (("tan", 0), ("atan", 1), ("multiply", 2, 3)),
    "near one": (("log1p", 0), ("log1p", 1), ("multiply", 2, 3)),
    "choice": (("where", 0, 1, 0), ("elu", 2, 1.0), ("selu", 3, *SELU)),
    "slopes": (("prelu", 0, 1), ("leaky_relu", 2, 0.1), ("hard_swish", 3), ("softsign", 4)),
    "many": tuple(("add", i, 0) for i in range(1, 20)) + tuple(("multiply", i, i + 19) for i in range(1, 20)),
}


@pytest.mark.parametrize("name", ROOMY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("right", [(1, 2, 200, 5000), (1, 1, 1, 5000), (1, 2, 200, 1)], ids=str)
def test_working_memory(name: str, dtype: str, right: tuple[int, ...]) -> None:
    shape = (1, 2, 200, 5000)

    def body(x: Tensor, y: Tensor) -> Tensor:
        dst = hbm(shape, x.dtype)
        compute(dst, (x, y), ROOMY[name])
        return dst

    program = trace(body, Spec(shape, dtype), Spec(right, dtype))
    spans = find_lifetimes(program)
    tiles = [s for s in program.storages if s.buffer is nl.sbuf and s.index in spans]
    most = max(
        sum(t.partition_bytes for t in tiles if spans[t.index][0] <= spans[s.index][0] <= spans[t.index][1])
        for s in tiles
    )
    assert most <= PIECE_BYTES + 1024
