"""``nki.isa``: the operators that instructions take, bit for bit on integers, and the scalar engine's functions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from simulating import Array, Tensor, drawn, give, load, rounded, run, same, tile, traced, zeros

from trnrt.errors import KernelError, KernelWarning
from trnrt.nki import nisa, nl, simulate
from trnrt.nki.machine.functions import Range
from trnrt.nki.machine.operators import OPERATORS

F32 = np.float32
ERF = np.vectorize(math.erf)
# Every pair of these is an operand of a bitvec operator once.
PATTERNS = np.array([0, 1, 2, 7, 8, 31, 32, 33, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF], np.int64)


def on_bits(op: str, a: Array, b: Array, width: int) -> Array:
    """The operator one element at a time, in Python's integers, kept to ``width`` bits."""
    meanings: dict[str, Callable[[int, int], int]] = {
        "bitwise_and": lambda x, y: x & y,
        "bitwise_or": lambda x, y: x | y,
        "bitwise_xor": lambda x, y: x ^ y,
        "left_shift": lambda x, y: (x << y) if y < 32 else 0,
        "right_shift": lambda x, y: x >> y if y < 32 else 0,
    }
    mask = (1 << width) - 1
    flat = [meanings[op](int(x) & mask, int(y) & mask) & mask for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    return np.array(flat, np.uint64).reshape(a.shape)


def as_dtype(values: Array, dtype: str) -> Array:
    """The low bits of integers in a dtype."""
    kind = np.dtype(dtype)
    return values.astype(f"u{kind.itemsize}").view(kind)


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_bitvec_operators(op: str, dtype: str) -> None:
    a, b = (as_dtype(grid, dtype) for grid in np.meshgrid(PATTERNS * -1, PATTERNS))
    width = 8 * np.dtype(dtype).itemsize

    def of_tiles(x: Tensor, y: Tensor) -> Tensor:
        dst = tile(*x.shape, dtype=x.dtype)
        nisa.tensor_tensor(dst, load(x), load(y), getattr(nl, op))
        return give(dst)

    def of_a_column(x: Tensor, y: Tensor) -> Tensor:
        dst = tile(*x.shape, dtype=x.dtype, buffer=nl.psum)
        nisa.tensor_scalar(dst, load(x), getattr(nl, op), load(y)[:, 0:1])
        return give(dst)

    def of_a_number(x: Tensor) -> Tensor:
        dst = tile(*x.shape, dtype=x.dtype)
        nisa.tensor_scalar(dst, load(x), getattr(nl, op), 3, reverse0=True)
        return give(dst)

    same(run(of_tiles, a, b), as_dtype(on_bits(op, a, b, width), dtype))
    same(run(of_a_column, a, b), as_dtype(on_bits(op, a, np.broadcast_to(b[:, :1], a.shape), width), dtype))
    same(run(of_a_number, a), as_dtype(on_bits(op, np.full_like(a, 3), a, width), dtype))


def test_bitvec_operators_in_turn_unpack_bytes() -> None:
    def body(packed: Tensor) -> Tensor:
        dst = tile(*packed.shape, dtype=nl.int32)
        nisa.tensor_scalar(dst, load(packed), nl.right_shift, 4, op1=nl.bitwise_and, operand1=0xF)
        return give(dst)

    packed = np.arange(256, dtype=np.uint8).reshape(4, 64)
    same(run(body, packed), (packed >> 4).astype(np.int32))


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32"])
def test_invert(dtype: str) -> None:
    def body(x: Tensor) -> Tensor:
        dst = tile(*x.shape, dtype=x.dtype)
        nisa.tensor_scalar(dst, load(x), nl.invert, 0)
        return give(dst)

    a = drawn(4, 9, dtype=dtype)
    same(run(body, a), ~a)


def test_bitvec_operators_keep_the_bits_that_float32_would_lose() -> None:
    def body(x: Tensor) -> Tensor:
        dst = tile(*x.shape, dtype=nl.int32)
        nisa.tensor_scalar(dst, load(x), nl.bitwise_or, 0)
        return give(dst)

    a = np.array([[16777217, -16777217, 2**31 - 1, -(2**31)]], np.int32)
    same(run(body, a), a)


@pytest.mark.parametrize(("op", "ufunc"), [("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or)])
def test_bitvec_reductions(op: str, ufunc: Any) -> None:
    def body(x: Tensor) -> Tensor:
        dst = tile(8, 3, dtype=x.dtype)
        nisa.tensor_reduce(dst, getattr(nl, op), load(x), 2)
        return give(dst)

    a = drawn(8, 3, 5, dtype="int32")
    same(run(body, a), ufunc.reduce(a, axis=2))


LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}


@pytest.mark.parametrize("op", LOGICAL)
def test_logical_operators_give_ones_and_zeros(op: str) -> None:
    def body(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        dst, total = tile(4, 6, dtype=nl.uint8), tile(4, 1)
        nisa.tensor_tensor(dst, load(x), load(y), getattr(nl, op))
        nisa.tensor_reduce(total, getattr(nl, op), load(x), 1, negate=True)
        return give(dst), give(total)

    a = np.array([[0, 0, 2, -1, 0.5, 0]] * 4, F32)
    b = np.array([[0, 1, 0, 3, np.inf, -2]] * 4, F32)
    single, total = run(body, a, b)
    same(single, LOGICAL[op](a, b).astype(np.uint8))
    same(total, -LOGICAL[op].reduce(a, axis=1, keepdims=True).astype(F32))


def test_power_runs_on_the_gpsimd_engine() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        dst = tile(4, 5)
        issued = nisa.tensor_tensor(dst, load(x), load(y), nl.power)
        assert issued.engine is nisa.engine.gpsimd
        return give(dst)

    a, b = np.abs(drawn(4, 5)), drawn(4, 5, seed=1)
    same(run(body, a, b), np.power(a, b))


def test_power_of_integers_is_exact() -> None:
    def body(x: Tensor, y: Tensor) -> Tensor:
        dst = tile(1, 3, dtype=nl.int32)
        nisa.tensor_tensor(dst, load(x), load(y), nl.power)
        return give(dst)

    a = np.array([[3, -7, 2]], np.int32)
    same(run(body, a, np.array([[19, 11, 0]], np.int32)), np.array([[3**19, (-7) ** 11, 1]]).astype(np.int32))
    with pytest.raises(KernelError, match="negative exponent"):
        run(body, a, np.array([[1, -1, 0]], np.int32))


def test_magnitudes_keep_their_sign() -> None:
    def body(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        most, least = tile(1, 4), tile(1, 4)
        nisa.tensor_tensor(most, load(x), load(y), nl.abs_max)
        nisa.tensor_tensor(least, load(x), load(y), nl.abs_min)
        return give(most), give(least)

    a, b = np.array([[-3, 2, 5, -1]], F32), np.array([[2, -4, -5, 1]], F32)
    most, least = run(body, a, b, target="trn3")
    same(most, np.array([[-3, -4, -5, 1]], F32))  # of equal magnitudes, the second
    same(least, np.array([[2, 2, -5, 1]], F32))


@pytest.mark.parametrize(
    ("op", "meaning"),
    [("rsqrt", lambda x: 1 / np.sqrt(x)), ("reciprocal", np.reciprocal), ("abs", np.abs), ("bypass", np.positive)],
)
def test_unary_operators_of_the_vector_engine(op: str, meaning: Any) -> None:
    def body(x: Tensor) -> Tensor:
        dst = tile(4, 6, dtype=nl.bfloat16)
        nisa.tensor_scalar(dst, load(x), getattr(nl, op), 0, op1=nl.multiply, operand1=2.0)
        return give(dst)

    a = np.abs(drawn(4, 6)) + F32(1e-30)
    same(run(body, a), rounded(meaning(a).astype(F32) * F32(2), "bfloat16"))


# --- activation functions


def activated(op: str, x: Array, dtype: object = nl.float32) -> Array:
    def body(a: Tensor) -> Tensor:
        dst = tile(*a.shape, dtype=dtype)
        nisa.activation(dst, getattr(nl, op), load(a))
        return give(dst)

    result: Array = run(body, x)
    return result


def normal(x: Array) -> Array:
    density: Array = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return density


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def shares(x: Array) -> Array:
    below: Array = (1 + ERF(x / math.sqrt(2))) / 2
    return below


MEANINGS: dict[str, Any] = {
    "copy": lambda x: x,
    "square": np.square,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "erf": ERF,
    "erf_dx": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "gelu": lambda x: x * shares(x),
    "gelu_dx": lambda x: shares(x) + x * normal(x),
    "gelu_apprx_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x * sigmoid(1.702 * x),
    "gelu_apprx_sigmoid_dx": lambda x: (s := sigmoid(1.702 * x)) + 1.702 * x * s * (1 - s),
    "silu": lambda x: x * sigmoid(x),
    "silu_dx": lambda x: (s := sigmoid(x)) + x * s * (1 - s),
    "softplus": softplus,
    "mish": lambda x: x * np.tanh(softplus(x)),
}
# Function -> its meaning and the magnitudes of its valid inputs; of both signs where the third is True.
RANGES: dict[str, tuple[Any, float, float, bool]] = {
    "log": (np.log, 2.0**-64, 2.0**64, False),
    "sqrt": (np.sqrt, 2.0**-116, 2.0**118, False),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-87, 2.0**97, False),
    "reciprocal": (np.reciprocal, 2.0**-42, 2.0**42, True),
    "arctan": (np.arctan, 0.0, math.pi / 2, True),
}


def test_every_function_is_tested() -> None:
    functions = {name for name, op in OPERATORS.items() if op.activation}
    assert functions == {*MEANINGS, *RANGES, "sin"}


@pytest.mark.parametrize("op", MEANINGS)
def test_activation_functions(op: str) -> None:
    x = np.concatenate([np.linspace(-12, 12, 4001), drawn(127) * 1e-3]).astype(F32).reshape(32, -1)
    expected = MEANINGS[op](x.astype(np.float64))
    np.testing.assert_allclose(activated(op, x), expected, rtol=3e-6, atol=4e-7)


@pytest.mark.parametrize("op", MEANINGS)
def test_functions_reach_their_limits(op: str) -> None:
    """Valid up to infinity: what a function tends to, and no NaN from infinity times zero. NaN stays NaN."""
    far = activated(op, np.array([[-np.inf, -3e38, np.inf, 3e38, np.nan]], F32))[0]
    with np.errstate(all="ignore"):
        rising = op in ("copy", "square", "abs", "relu", "exp", "gelu", "gelu_apprx_tanh", "gelu_apprx_sigmoid")
        rising |= op in ("silu", "softplus", "mish")
        high = np.inf if rising else 0 if op == "erf_dx" else 1
        low = {"copy": -np.inf, "square": np.inf, "abs": np.inf, "sign": -1, "tanh": -1, "erf": -1}.get(op, 0)
    assert far[0] == low
    assert far[2] == high
    assert np.isfinite(far[[1, 3]]).all() or high == np.inf
    assert np.isnan(far[4])


def test_erf_is_accurate() -> None:
    x = np.concatenate([np.linspace(-4.5, 4.5, 20001), np.geomspace(1e-38, 1, 999)]).astype(F32).reshape(8, -1)
    expected = ERF(x.astype(np.float64))
    error = np.abs(activated("erf", x) - expected) / np.spacing(np.abs(expected).astype(F32))
    assert error.max() < 1.5


@pytest.mark.parametrize("op", RANGES)
def test_valid_ranges(op: str) -> None:
    meaning, least, most, both = RANGES[op]
    ends = np.array([least, most], F32)
    inside = np.geomspace(max(least, 1e-3), min(most, 1e3), 62).clip(*ends).astype(F32)
    valid = np.concatenate([inside, ends])
    invalid = np.array([np.nextafter(ends[1], F32(np.inf)), np.inf, np.nan], F32)
    if least > 0:
        invalid = np.append(invalid, [np.nextafter(ends[0], F32(0)), F32(0)]).astype(F32)
    if both:
        valid, invalid = np.concatenate([valid, -valid]), np.concatenate([invalid, -invalid])
    else:
        invalid = np.append(invalid, F32(-1))
    np.testing.assert_allclose(activated(op, valid[None])[0], meaning(valid.astype(np.float64)), rtol=1e-6)
    with np.errstate(all="ignore"):
        expected = meaning(invalid)
    for value, result in zip(invalid, expected, strict=True):  # what the function is, and a warning
        with expect_range_warning(f"activation: nl.{op} of {value:g};", OPERATORS[op].valid, value):
            got = activated(op, np.array([[value]]))
        np.testing.assert_allclose(got[0], result, rtol=1e-6)


def expect_range_warning(says: str, limits: Range | None, value: Any) -> AbstractContextManager[Any]:
    """Expect the warning for a value outside its range; none for NaN."""
    if np.isnan(value):
        return nullcontext()
    return pytest.warns(
        KernelWarning, match=rf"{re.escape(f'{says} its valid input range is {limits}')}.*\n  at .*:\d+ in"
    )


def test_the_documented_ranges_are_the_operators_own() -> None:
    assert {name for name, op in OPERATORS.items() if op.valid} == {*RANGES, "sin"}
    for name, (_, least, most, both) in RANGES.items():
        limits = OPERATORS[name].valid
        assert limits is not None
        signed = name == "arctan"  # from -most to most
        assert (limits.least, limits.most, limits.magnitude) == (-most if signed else least, most, both and not signed)


RANGED: dict[str, Any] = {
    "activation": lambda dst, x: nisa.activation(dst, nl.sqrt, x, scale=2.0, bias=0.0),
    "activation_reduce": lambda dst, x: nisa.activation_reduce(dst, nl.sqrt, x, nl.add, tile(2, 1)),
    "activate2": lambda dst, x: nisa.activate2(dst, nl.sqrt, x, 2.0, 0.0, nl.multiply, nl.add),
    "nl.sqrt": lambda dst, x: nisa.tensor_copy(dst, nl.sqrt(x)),
}


@pytest.mark.parametrize("how", RANGED)
def test_a_line_warns_once_in_each_call(how: str) -> None:
    def body(a: Tensor) -> Tensor:
        x, dst = load(a), tile(*a.shape)
        for _ in range(3):
            RANGED[how](dst, x)
        return give(dst)

    kernel = simulate(body, "trn3")
    zeros, ones = np.zeros((2, 3), F32), np.ones((2, 3), F32)
    for _ in range(2):
        with pytest.warns(KernelWarning) as caught:
            assert (kernel(zeros) == 0).all()
        (told,) = caught
        assert "nl.sqrt of 0 and 5 more of 6 values" in str(told.message)
        assert told.filename == __file__
        assert f"{__file__}:{told.lineno} in" in str(told.message)
    kernel(ones)  # nothing


def test_each_function_and_line_warns_of_its_own() -> None:
    def body(a: Tensor) -> Tensor:
        x = load(a)
        return give(nl.add(nl.log(x), nl.add(nl.sqrt(x), nl.sqrt(x))))

    with pytest.warns(KernelWarning) as caught:
        simulate(body)(np.zeros((1, 1), F32))
    assert [str(told.message).split(" of ")[0] for told in caught] == ["activation: nl.log", "activation: nl.sqrt"]


def test_both_cores_warn() -> None:
    def body(a: Tensor) -> Tensor:
        out = nl.ndarray((2, *a.shape), a.dtype, nl.shared_hbm)
        nisa.dma_copy(out[nl.program_id(0)], nl.log(load(a)))
        return out

    with pytest.warns(KernelWarning) as caught:
        got = simulate(body)[2](np.zeros((1, 1), F32))
    assert len(caught) == 2
    assert (got == -np.inf).all()


def test_the_vector_and_gpsimd_engines_have_no_such_range() -> None:
    def body(a: Tensor) -> Tensor:
        return give(nl.add(nl.rsqrt(load(a)), nl.reciprocal(load(a))))

    assert (run(body, np.zeros((1, 4), F32)) == np.inf).all()


def test_sin_is_a_cubic_beyond_pi() -> None:
    x = np.linspace(-math.pi, math.pi, 64).clip(-3.1415925, 3.1415925).astype(F32)[None]
    np.testing.assert_allclose(activated("sin", x), np.sin(x.astype(np.float64)), atol=2e-7)
    with pytest.warns(KernelWarning, match="nl.sin of 9 and 2 more of 3 values; its valid input range is -pi to pi"):
        far = activated("sin", np.array([[9.0, -9.0, 3.2]], F32))
    np.testing.assert_allclose(far, [[27.65, -27.65, math.sin(3.2)]], atol=0.005)  # the reference says ~27.65
    with pytest.warns(KernelWarning, match="extrapolates a cubic"):
        ends = activated("sin", np.array([[np.inf, -np.inf]], F32))
    np.testing.assert_array_equal(ends, [[np.inf, -np.inf]])


def test_scale_and_bias_come_first_and_results_are_rounded_once() -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(4, 8, dtype=nl.bfloat16)
        nisa.activation(dst, nl.silu, load(a), bias=0.5, scale=2.0)
        return give(dst)

    a = drawn(4, 8)
    z = (a * F32(2) + F32(0.5)).astype(np.float64)
    np.testing.assert_allclose(run(body, a).astype(F32), z * sigmoid(z), rtol=2**-8)


def test_the_slope_of_prelu_is_not_guessed() -> None:
    with pytest.raises(KernelError, match="takes its slope from nisa"):
        traced(lambda: nisa.activation(tile(4, 4), nl.prelu, zeros(4, 4)))


@pytest.mark.parametrize("op", ["add", "average", "bypass", "bitwise_and"])
def test_what_is_no_activation_function(op: str) -> None:
    with pytest.raises(KernelError, match="is not an activation function of the scalar engine"):
        traced(lambda: nisa.activation(tile(4, 4), getattr(nl, op), zeros(4, 4)))


def test_a_reduction_in_dst_is_not_overwritten() -> None:
    """``reduce_res`` is written by an instruction of its own, after dst (release notes, NKI 0.6.0)."""

    def body(a: Tensor) -> Tensor:
        dst = tile(4, 8)
        nisa.activation_reduce(dst, nl.copy, load(a), nl.add, dst[:, 0:1])
        return give(dst)

    a = drawn(4, 8)
    got = run(body, a)
    np.testing.assert_allclose(got[:, 0], a.sum(axis=1), rtol=1e-5, atol=1e-6)
    same(got[:, 1:], a[:, 1:])
