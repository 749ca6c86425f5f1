"""Activations, binary operators, and chains of them, element by element."""

from __future__ import annotations

from collections.abc import Callable

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
    channels_to_hbm,
    check,
    drawn,
    features_in_sbuf,
    features_to_hbm,
    hbm,
    rows_in_sbuf,
    rows_to_hbm,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.elementwise import COLUMNS, activate, binary, chain
from trnrt.nki import nl

SHAPES = [(1, 1), (1, 7), (33, 3), (128, COLUMNS), (129, COLUMNS + 1), (257, 5), (1, 2 * COLUMNS + 3)]
OPERATORS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
}
# How a matrix gets to SBUF, and how a tile like it gets back.
LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, tuple[int, ...]], Tensor]]] = {
    "rows": (rows_in_sbuf, lambda tile, shape: rows_to_hbm(tile, shape[0])),
    "features": (features_in_sbuf, lambda tile, shape: features_to_hbm(tile, shape[1])),
    "channels": (channels_in_sbuf, lambda tile, shape: channels_to_hbm(tile, shape[1])),
}


def activated(x: Array, act: str, layout: str = "hbm", target: str = "trn2") -> Array:
    """The kernel's activation."""

    def body(x: Tensor) -> Tensor:
        if layout == "hbm":
            dst = hbm(x.shape, x.dtype)
            activate(dst, x, act)
            return dst
        bring, fetch = LAYOUTS[layout]
        source = bring(x)
        tile = nl.ndarray(source.shape, x.dtype, nl.sbuf)
        activate(tile, source, act)
        return fetch(tile, x.shape)

    return call(body, x, target=target)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_activation(shape: tuple[int, int], act: str) -> None:
    x = 4 * drawn(shape, 0)
    check(activated(x, act), ACTIVATIONS[act](x.astype(np.float64)), 0.0, 0)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("rows", (130, 7)), ("features", (7, 130)), ("channels", (3, 130, 2, 5)), ("channels", (1, 1, 1, 1))],
)
def test_activation_in_sbuf(layout: str, shape: tuple[int, ...]) -> None:
    x = drawn(shape, 0)
    check(activated(x, "tanh", layout), np.tanh(x.astype(np.float64)), 0.0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activation_targets_and_dtypes(act: str, target: str, dtype: str) -> None:
    x = drawn((130, 9), 0, dtype)
    check(activated(x, act, target=target), ACTIVATIONS[act](x.astype(np.float64)), 0.0, 0, dtype)


def test_activations_of_what_is_no_number() -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30]], np.float32)
    with np.errstate(over="ignore"):
        for act, function in ACTIVATIONS.items():
            expected = function(x.astype(np.float64))
            np.testing.assert_array_equal(activated(x, act), expected.astype(np.float32))


def test_unknown_names() -> None:
    with pytest.raises(KernelError, match="unknown activation gelu"):
        activated(drawn((1, 1), 0), "gelu")
    with pytest.raises(KernelError, match="unknown operator power"):
        combined(drawn((1, 1, 1, 1), 0), drawn((1, 1, 1, 1), 0), "power")


def combined(
    left: Array, right: Array, op: str, act: str = "none", *, in_sbuf: bool = False, target: str = "trn2"
) -> Array:
    """The kernel's binary operator."""
    shape = np.broadcast_shapes(left.shape, right.shape)

    def body(left: Tensor, right: Tensor) -> Tensor:
        if not in_sbuf:
            dst = hbm(shape, left.dtype)
            binary(dst, left, right, op, act)
            return dst
        tiles = [rows_in_sbuf(side) for side in (left, right)]
        tile = nl.ndarray(tiles[0].shape, left.dtype, nl.sbuf)
        binary(tile, tiles[0], tiles[1], op, act)
        return rows_to_hbm(tile, shape[0])

    return call(body, left, right, target=target)


def compare(left: Array, right: Array, op: str, act: str = "none", *, in_sbuf: bool = False) -> None:
    """One rounding of the operator's result, then the activation."""
    got = combined(left, right, op, act, in_sbuf=in_sbuf)
    exact = OPERATORS[op](left.astype(np.float64), right.astype(np.float64))
    check(got, ACTIVATIONS[act](exact), np.abs(exact), 1)


BROADCASTS = [
    ((1, 1, 1, 1), (1, 1, 1, 1)),
    ((1, 1, 33, 7), (1, 1, 33, 7)),
    ((1, 1, 33, 7), (1, 1, 1, 7)),
    ((1, 1, 33, 7), (1, 1, 33, 1)),
    ((1, 1, 33, 7), (1, 1, 1, 1)),
    ((1, 1, 1, 7), (1, 1, 33, 7)),
    ((1, 1, 33, 1), (1, 1, 1, 7)),
    ((1, 3, 130, 5), (1, 1, 130, 1)),
    ((2, 3, 130, 5), (1, 3, 1, 5)),
    ((2, 3, 130, 5), (2, 1, 130, 1)),
    ((1, 1, 130, 5), (2, 3, 1, 1)),
    ((1, 2, 129, COLUMNS + 1), (1, 1, 129, 1)),
]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(("left", "right"), BROADCASTS, ids=str)
def test_binary(left: tuple[int, ...], right: tuple[int, ...], op: str) -> None:
    compare(drawn(left, 0), drawn(right, 1), op)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("in_sbuf", [False, True], ids=["hbm", "sbuf"])
def test_binary_with_activation(act: str, in_sbuf: bool) -> None:
    shape = (130, 9) if in_sbuf else (1, 1, 130, 9)
    compare(drawn(shape, 0), drawn(shape, 1), "add", act, in_sbuf=in_sbuf)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", OPERATORS)
def test_binary_targets_and_dtypes(op: str, target: str, dtype: str) -> None:
    left, right = drawn((2, 3, 130, 9), 0, dtype), drawn((1, 3, 130, 1), 1, dtype)
    exact = OPERATORS[op](left.astype(np.float64), right.astype(np.float64))
    check(combined(left, right, op, target=target), exact, np.abs(exact), 1, dtype)


def test_binary_of_what_is_no_number() -> None:
    left = np.array([[[[np.nan, np.inf, np.inf, 1]]]], np.float32)
    right = np.array([[[[1, -np.inf, np.inf, np.nan]]]], np.float32)
    np.testing.assert_array_equal(combined(left, right, "add", "relu"), [[[[np.nan, np.nan, np.inf, np.nan]]]])


def chained(x: Array, others: list[Array], ops: tuple[str, ...], target: str = "trn2") -> Array:
    """The kernel's chain."""

    def body(x: Tensor, *others: Tensor) -> Tensor:
        dst = hbm(x.shape, x.dtype)
        chain(dst, x, others, ops)
        return dst

    return call(body, x, *others, target=target)


def one_by_one(x: Array, others: list[Array], ops: tuple[str, ...]) -> Array:
    """What is between two operators is float32; the result has x's dtype."""
    value, rest = x.astype(np.float32), [other.astype(np.float32) for other in others]
    for op in ops:
        if op in OPERATORS:
            value = OPERATORS[op](value, rest.pop(0))
        else:
            value = ACTIVATIONS[op](value)
    result: Array = value.astype(x.dtype).astype(np.float64)
    return result


# Whether a right side has the chain's rows and its columns, else one.
SIDES = {"matrix": (True, True), "row": (False, True), "column": (True, False), "number": (False, False)}


def side_shape(side: str, shape: tuple[int, int]) -> tuple[int, int]:
    """The shape of a right side."""
    rows, columns = SIDES[side]
    return shape[0] if rows else 1, shape[1] if columns else 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("shape", [*SHAPES, (130, 8193)], ids=str)
def test_chain(shape: tuple[int, int], side: str) -> None:
    x, other = drawn(shape, 0), drawn(side_shape(side, shape), 1)
    ops = ("subtract", "relu", "multiply", "none", "add")
    others = [other, other + 1, other - 1]
    np.testing.assert_array_equal(chained(x, others, ops), one_by_one(x, others, ops))


def test_chain_of_functions() -> None:
    x, bias = drawn((130, 2 * COLUMNS + 1), 0), drawn((1, 2 * COLUMNS + 1), 1)
    expected = np.tanh((x + bias).astype(np.float64))
    check(chained(x, [bias], ("add", "tanh")), expected, 0.0, 0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, COLUMNS + 100)),
    steps=st.lists(
        st.tuples(st.sampled_from([*OPERATORS, "relu"]), st.sampled_from(sorted(SIDES))), min_size=1, max_size=5
    ),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_any_chain(shape: tuple[int, int], steps: list[tuple[str, str]], dtype: str, target: str) -> None:
    sides = [side for op, side in steps if op in OPERATORS]
    others = [drawn(side_shape(side, shape), number + 1, dtype) for number, side in enumerate(sides)]
    x, ops = drawn(shape, 0, dtype), tuple(op for op, _ in steps)
    np.testing.assert_array_equal(chained(x, others, ops, target), one_by_one(x, others, ops))


def test_chain_of_nothing() -> None:
    with pytest.raises(KernelError, match="chain: there are no operators"):
        chained(drawn((1, 1), 0), [], ())
