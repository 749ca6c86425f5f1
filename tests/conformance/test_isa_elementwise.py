"""Copies, ALU operators and activations: each instruction against its numpy meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from simulating import NUMPY, Array, Tensor, close, drawn, give, load, rounded, run, same, tile

from trnrt.nki import nisa, nl

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "float8_e4m3fn")
DTYPES = tuple(NUMPY)
SPECIAL = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3.4e38, -2.5]], np.float32)
BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}
UNARY: dict[str, Any] = {"relu": lambda x: np.where(x > 0, x, x * 0), "square": np.square, "abs": np.abs}
ACTIVATIONS: dict[str, Any] = {
    "copy": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "square": np.square,
    "abs": np.abs,
    "exp": np.exp,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def as_float32(values: Array) -> Array:
    return values.astype(np.float32)


def converted(values: Array, dtype: str) -> Array:
    """What a copy gives: the same bits in the same dtype, else through float32."""
    return values if values.dtype == NUMPY[dtype] else rounded(as_float32(values), dtype)


# Copies.
@pytest.mark.parametrize("instruction", [nisa.tensor_copy, nisa.dma_copy])
@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_convert_through_float32(dtype: str, to: str, instruction: Any) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(*a.shape, dtype=to)
        instruction(dst=dst, src=load(a))
        return give(dst)

    values = drawn(5, 7, dtype=dtype) if NUMPY[dtype].kind in "iu" else (drawn(5, 7) * 100).astype(NUMPY[dtype])
    with np.errstate(all="ignore"):
        same(run(body, values), converted(values, to))


def test_a_copy_of_integers_is_exact_in_their_dtype_only() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, kept, changed = load(a), tile(1, 2, dtype=nl.int32), tile(1, 2, dtype=nl.uint32)
        nisa.tensor_copy(dst=kept, src=x)
        nisa.tensor_copy(dst=changed, src=x)
        return give(kept), give(changed)

    kept, changed = run(body, np.array([[16777217, 2147483647]], np.int32))
    assert kept.tolist() == [[16777217, 2147483647]]
    assert changed.tolist() == [[16777216, 2147483648]]


def test_integers_saturate_and_round_to_even() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, one, other = load(a), tile(1, 8, dtype=nl.int8), tile(1, 8, dtype=nl.uint32)
        nisa.tensor_copy(dst=one, src=x)
        nisa.tensor_copy(dst=other, src=x)
        return give(one), give(other)

    one, other = run(body, np.array([[0.5, 1.5, -0.5, -2.5, 1e10, -1e10, np.inf, np.nan]], np.float32))
    assert one.tolist() == [[0, 2, 0, -2, 127, -128, 127, 0]]
    assert other.tolist() == [[0, 2, 0, 0, 4294967295, 0, 4294967295, 0]]


@pytest.mark.parametrize("instruction", [nisa.tensor_copy, nisa.dma_copy])
def test_copies_between_free_shapes_and_views(instruction: Any) -> None:
    """The elements go over in the order of each view's own dimensions."""

    def body(a: Tensor) -> tuple[Tensor, ...]:
        x = load(a)
        views = (
            x.reshape((4, 3, 8)).permute((0, 2, 1)),
            x[:, ::2].reshape((4, 3, 4)),
            x[:, 0:3].expand_dim(2).broadcast(2, 5),
            x.ap([[24, 4], [1, 5], [2, 3]], offset=1),
        )
        flats = [tile(4, view.free_size) for view in views]
        for flat, view in zip(flats, views, strict=True):
            instruction(dst=flat, src=view)
        scattered = tile(4, 2, 6)
        instruction(dst=scattered.permute((0, 2, 1)), src=x[:, 12:24])
        return (*(give(flat) for flat in flats), give(scattered))

    a = drawn(4, 24)
    got = run(body, a)
    same(got[0], a.reshape(4, 3, 8).transpose(0, 2, 1).reshape(4, 24))
    same(got[1], a[:, ::2])
    same(got[2], np.repeat(a[:, 0:3], 5, axis=1))
    same(got[3], np.stack([a[:, 1 + i : 6 + i : 2] for i in range(5)], axis=1).reshape(4, 15))
    same(got[4], a[:, 12:24].reshape(4, 6, 2).transpose(0, 2, 1))


def test_dma_moves_between_any_shapes_of_hbm() -> None:
    def body(a: Tensor) -> Tensor:
        out = nl.ndarray((6, 4), nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=out.permute((1, 0)), src=a)
        return out

    a = drawn(4, 6)
    same(run(body, a), a.T.copy())


@pytest.mark.parametrize("dtype", [*DTYPES, "bool_"])
@pytest.mark.parametrize("value", [0, 1, 2.5, -3, 1e30, np.inf, np.nan])
def test_memset(dtype: str, value: float) -> None:
    def body() -> tuple[Tensor, Tensor]:
        whole, half = tile(4, 6, dtype=dtype), tile(4, 6, dtype=dtype)
        nisa.memset(dst=whole, value=value)
        nisa.memset(dst=half, value=0)
        nisa.memset(dst=half[:, 1::2], value=value)
        return give(whole), give(half)

    whole, half = run(body)
    with np.errstate(all="ignore"):
        wanted = np.bool_(value) if dtype == "bool_" else rounded(np.full((), value, np.float32), dtype)[()]
    same(whole, np.full((4, 6), wanted, whole.dtype))
    same(half[:, 1::2], np.full((4, 3), wanted, half.dtype))
    same(half[:, ::2], np.zeros((4, 3), half.dtype))


def test_memset_does_not_pass_integers_through_float32() -> None:
    def body() -> tuple[Tensor, Tensor]:
        x, y = tile(1, 1, dtype=nl.int32), tile(1, 1, dtype=nl.uint32)
        nisa.memset(dst=x, value=16777217)
        nisa.memset(dst=y, value=4294967295)
        return give(x), give(y)

    assert [result.item() for result in run(body)] == [16777217, 4294967295]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("scalar", [False, True])
def test_tensor_copy_predicated(dtype: str, reverse: bool, scalar: bool) -> None:
    def body(a: Tensor, b: Tensor, chosen: Tensor) -> Tensor:
        dst = load(a)
        nisa.tensor_copy_predicated(dst, 0.1 if scalar else load(b), load(chosen), reverse)
        return give(dst)

    a, b = drawn(4, 6, seed=1, dtype=dtype), drawn(4, 6, seed=2, dtype=dtype)
    chosen = np.random.default_rng(3).integers(0, 3, (4, 6), dtype=np.uint8)
    other = rounded(np.full((4, 6), 0.1, np.float32), dtype) if scalar else b
    same(run(body, a, b, chosen), np.where((chosen != 0) != reverse, other, a))


# Operators.
@pytest.mark.parametrize("op", BINARY)
@pytest.mark.parametrize(
    "dtypes", [("float32",) * 3, ("bfloat16", "float16", "float8_e5m2"), ("int16", "float32", "int8")]
)
def test_tensor_tensor(op: str, dtypes: tuple[str, str, str]) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(5, 2, 6, dtype=dtypes[2])
        nisa.tensor_tensor(dst=dst, data1=load(a), data2=load(b).reshape((5, 3, 4)), op=getattr(nl, op))
        return give(dst)

    a, b = drawn(5, 12, dtype=dtypes[0]), drawn(5, 12, seed=1, dtype=dtypes[1])
    b[:, 3] = a[:, 3].astype(b.dtype)
    with np.errstate(all="ignore"):
        expected = as_float32(BINARY[op](as_float32(a), as_float32(b)))
        same(run(body, a, b), rounded(expected, dtypes[2]).reshape(5, 2, 6))


@pytest.mark.parametrize("op", BINARY)
def test_special_values_are_numpy_s(op: str) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x, y = load(a), load(b)
        nisa.tensor_tensor(dst=x, data1=x, data2=y, op=getattr(nl, op))
        return give(x)

    a, b = np.repeat(SPECIAL, 8, axis=1), np.tile(SPECIAL, 8)
    with np.errstate(all="ignore"):
        same(run(body, a, b), as_float32(BINARY[op](a, b)))


def test_tensor_tensor_of_views_in_place() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x = load(a)
        row = load(b).expand_dim(1).broadcast(1, 3)
        nisa.tensor_tensor(dst=x[:, 1:4], data1=x[:, 1:4], data2=row, op=nl.add)
        return give(x)

    a, b = drawn(4, 5, 6), drawn(4, 6, seed=1)
    expected = a.copy()
    expected[:, 1:4] += b[:, None]
    same(run(body, a, b), expected)


@pytest.mark.parametrize("engine", [nisa.engine.unknown, nisa.engine.gpsimd, nisa.engine.vector])
@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers_of_32_bits(dtype: str, engine: nisa.engine) -> None:
    """The GpSimd engine, which an unnamed one means here, is exact and wraps; the vector engine computes in float32."""

    def body(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        x, y = load(a), load(b)
        results = []
        for op in (nl.add, nl.multiply, nl.maximum, nl.less):
            dst = tile(1, 3, dtype=a.dtype)
            nisa.tensor_tensor(dst=dst, data1=x, data2=y, op=op, engine=engine)
            results.append(give(dst))
        return tuple(results)

    wanted = NUMPY[dtype]
    a, b = np.array([[16777217, 65537, 5]], wanted), np.array([[1, 65537, 7]], wanted)
    total, product, larger, less = run(body, a, b)
    if engine is nisa.engine.vector:
        assert total.tolist() == [[16777216, 131074, 12]]
        assert larger.tolist() == [[16777216, 65537, 7]]
    else:
        same(total, a + b)
        same(product, a * b)
        same(larger, np.maximum(a, b))
    assert less.tolist() == [[0, 0, 1]]


def test_integers_in_psum_are_the_vector_engine_s() -> None:
    def body(a: Tensor) -> Tensor:
        x, dst = load(a), tile(1, 1, dtype=nl.int32, buffer=nl.psum)
        nisa.tensor_tensor(dst=dst, data1=x, data2=x, op=nl.add)
        return give(dst)

    assert run(body, np.array([[16777217]], np.int32)).item() == 33554432


@pytest.mark.parametrize("op", [*BINARY, *UNARY])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["number", "column"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int16"])
def test_tensor_scalar(op: str, reverse: bool, kind: str, dtype: str) -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        dst = tile(5, 12, dtype=a.dtype)
        operand: Any = 0 if op in UNARY else 1.5 if kind == "number" else load(b)
        nisa.tensor_scalar(dst, load(a), getattr(nl, op), operand, reverse)
        return give(dst)

    a, b = drawn(5, 3, 4, dtype=dtype), drawn(5, 1, seed=1)
    x, operand = as_float32(a).reshape(5, 12), np.float32(1.5) if kind == "number" else b
    with np.errstate(all="ignore"):
        if op in UNARY:
            expected = UNARY[op](x)
        else:
            expected = BINARY[op](operand, x) if reverse else BINARY[op](x, operand)
        same(run(body, a, b, target="trn3"), rounded(as_float32(expected), dtype))  # relu and square need trn3


def test_tensor_scalar_of_two_operators_rounds_once() -> None:
    def body(a: Tensor, b: Tensor) -> Tensor:
        x = load(a)
        nisa.tensor_scalar(x, x, nl.multiply, 3.0, False, nl.subtract, load(b), True)
        return give(x)

    a, b = drawn(5, 12, dtype="bfloat16"), drawn(5, 1, seed=1)
    same(run(body, a, b), rounded(b - as_float32(a) * np.float32(3), "bfloat16"))


@pytest.mark.parametrize("column", ["number", "float32", "bfloat16", "int32"])
@pytest.mark.parametrize("reverse", [(False, False), (True, False), (False, True), (True, True)])
def test_scalar_tensor_tensor(column: str, reverse: tuple[bool, bool]) -> None:
    def body(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        dst = tile(5, 2, 6)
        operand: Any = 2.0 if column == "number" else load(c)
        nisa.scalar_tensor_tensor(dst, load(a), nl.subtract, operand, nl.subtract, load(b), *reverse)
        return give(dst)

    a, b = drawn(5, 12, dtype="float16"), drawn(5, 3, 4, seed=1, dtype="int8")
    c = drawn(5, 1, seed=2, dtype="float32" if column == "number" else column)
    operand = np.float32(2) if column == "number" else as_float32(c)
    first = operand - as_float32(a) if reverse[0] else as_float32(a) - operand
    other = as_float32(b).reshape(5, 12)
    same(run(body, a, b, c), (other - first if reverse[1] else first - other).reshape(5, 2, 6))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_reciprocal(dtype: str) -> None:
    def body(a: Tensor) -> Tensor:
        dst = tile(4, 6)
        nisa.reciprocal(dst=dst, data=load(a))
        return give(dst)

    a = drawn(4, 6, dtype=dtype)
    a[0, 0] = 0
    with np.errstate(divide="ignore"):
        same(run(body, a), np.float32(1) / as_float32(a))


# The scalar engine.
@pytest.mark.parametrize("op", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_activation(op: str, dtype: str) -> None:
    def body(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        dst = tile(5, 2, 6)
        nisa.activation(dst, getattr(nl, op), load(a), load(b), load(c))
        return give(dst)

    a, b, c = drawn(5, 12, dtype=dtype), drawn(5, 1, seed=1, dtype="float16"), drawn(5, 1, seed=2)
    a = a // 8 if dtype == "int8" else a
    x = as_float32(a) * c + as_float32(b)
    close(run(body, a, b, c), ACTIVATIONS[op](x).reshape(5, 2, 6), 8)


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activation_of_special_values(op: str) -> None:
    def body(a: Tensor) -> Tensor:
        x = load(a)
        nisa.activation(x, getattr(nl, op), x)
        return give(x)

    with np.errstate(all="ignore"):
        close(run(body, SPECIAL), ACTIVATIONS[op](SPECIAL), 8)


def test_activation_with_numbers_rounds_once() -> None:
    def body(a: Tensor) -> Tensor:
        x = load(a)
        nisa.activation(x, nl.relu, x, bias=0.1, scale=-3.0)
        return give(x)

    a = drawn(5, 12, dtype="bfloat16")
    expected = np.maximum(as_float32(a) * np.float32(-3) + np.float32(0.1), 0)
    same(run(body, a), rounded(expected, "bfloat16"))


def test_activation_reduce_sums_what_is_not_rounded_yet() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        dst, total = tile(5, 12, dtype=nl.bfloat16), tile(5, 1)
        nisa.activation_reduce(dst, nl.square, load(a), nl.add, total, 0.5, 2.0)
        return give(dst), give(total)

    a = drawn(5, 3, 4)
    dst, total = run(body, a)
    values = np.square(a.reshape(5, 12) * np.float32(2) + np.float32(0.5))
    same(dst, rounded(values, "bfloat16"))
    close(total, values.sum(axis=1, keepdims=True), 8)


def test_the_accumulators_of_the_scalar_engine() -> None:
    """Each command on the registers, and reading them with an instruction that leaves them alone."""

    def body(a: Tensor) -> tuple[Tensor, ...]:
        x, y, cmd = load(a), tile(4, 6), nisa.reduce_cmd
        results = [tile(4, 1) for _ in range(5)]
        nisa.activation(y, nl.copy, x, reduce_op=nl.add, reduce_cmd=cmd.reset_reduce)
        nisa.activation(y, nl.copy, x, scale=10.0)
        nisa.activation(y, nl.copy, x, scale=2.0, reduce_op=nl.add, reduce_res=results[0], reduce_cmd=cmd.reduce)
        nisa.activation(y, nl.copy, x, reduce_res=results[1])
        nisa.activation(y, nl.copy, x, reduce_res=results[2], reduce_cmd=cmd.reset)
        nisa.activation(y, nl.copy, x, reduce_op=nl.add, reduce_res=results[3], reduce_cmd=cmd.reset_reduce)
        nisa.activation(y[0:2], nl.copy, x[0:2], reduce_op=nl.add, reduce_cmd=cmd.reduce)
        nisa.activation(y, nl.copy, x, reduce_res=results[4])
        return tuple(give(result) for result in results)

    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    total = a.sum(axis=1, keepdims=True)
    tripled, read, cleared, once, some = run(body, a)
    same(tripled, 3 * total)
    same(read, 3 * total)
    same(cleared, 0 * total)
    same(once, total)
    same(some, total * np.array([[2], [2], [1], [1]], np.float32))


def test_accumulators_that_nothing_cleared_are_not_a_number() -> None:
    def body(a: Tensor) -> Tensor:
        total = tile(4, 1)
        nisa.activation(tile(4, 6), nl.copy, load(a), None, 1.0, nl.add, total, nisa.reduce_cmd.reduce)
        return give(total)

    assert np.isnan(run(body, drawn(4, 6))).all()


def test_accumulators_belong_to_partitions() -> None:
    def body(a: Tensor) -> Tensor:
        x, y, total = load(a), tile(64, 6), tile(64, 1)
        for start in (0, 32):
            part = slice(start, start + 32)
            nisa.activation(y[part], nl.copy, x[part], reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(y, nl.copy, x, reduce_res=total)
        return give(total)

    a = drawn(64, 6)
    close(run(body, a), a.sum(axis=1, keepdims=True), 64)
