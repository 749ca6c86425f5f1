"""Batched products of two computed factors against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from calling import ACTIVATIONS, DTYPES, TARGETS, Tensor, call, check, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st
from test_budgets import peak

from trnrt.errors import KernelError
from trnrt.kernels import batched_matmul as module
from trnrt.kernels.batched_matmul import batched_matmul
from trnrt.nki import Spec, trace
from trnrt.planner.steps import WORKING_BYTES

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """(G, M, K) @ (G, K, N); ``shared`` factors, of "left" and "right", are one matrix."""

    count: int
    rows: int
    depth: int
    columns: int
    shared: tuple[str, ...] = ()
    act: str = "none"
    target: str = "trn2"

    @property
    def shapes(self) -> tuple[Shape, Shape]:
        """Both factors' shapes."""
        left, right = (1 if side in self.shared else self.count for side in ("left", "right"))
        return (left, self.rows, self.depth), (right, self.depth, self.columns)

    def body(self, left: Tensor, right: Tensor) -> Tensor:
        """The kernel."""
        dst = hbm((self.count, self.rows, self.columns), left.dtype)
        batched_matmul(dst, left, right, self.act)
        return dst


def compare(case: Product, dtype: str = "float32") -> None:
    left, right = (drawn(shape, k, dtype) for k, shape in enumerate(case.shapes))
    got = call(case.body, left, right, target=case.target)
    a, b = left.astype(np.float64), right.astype(np.float64)
    expected = np.broadcast_to(ACTIVATIONS[case.act](a @ b), got.shape)
    check(got, expected, np.broadcast_to(np.abs(a) @ np.abs(b), got.shape), case.depth, dtype)


TABLE = {
    "one number": Product(1, 1, 1, 1),
    "small matrices": Product(7, 3, 5, 4),
    "many small matrices": Product(300, 9, 17, 5),
    "matrix and vector": Product(3, 200, 130, 1),
    "vector and matrix": Product(3, 1, 130, 200),
    "no contraction": Product(3, 140, 1, 150),
    "blocks of everything": Product(2, 300, 260, 700),
    "a shared left": Product(6, 20, 33, 40, ("left",)),
    "a shared right": Product(6, 20, 33, 40, ("right",)),
    "both shared": Product(3, 20, 33, 40, ("left", "right")),
    "heads": Product(12, 197, 64, 197),
    "a long contraction": Product(2, 130, 1025, 33),
    "a longer one, more columns than a part": Product(1, 260, 2300, 1030),
}


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("act", ["none", "relu", "sigmoid", "tanh"])
def test_every_kind(name: str, act: str) -> None:
    compare(replace(TABLE[name], act=act))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["small matrices", "a shared left", "a long contraction"])
def test_dtypes_and_targets(name: str, target: str, dtype: str) -> None:
    compare(replace(TABLE[name], target=target), dtype)


SIZES = st.integers(1, 12)


@settings(max_examples=60)
@given(
    outer=st.integers(1, 3),
    inner=st.integers(1, 5),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    orders=st.tuples(st.permutations(range(4)), st.permutations(range(4))),
    repeats=st.tuples(st.tuples(st.booleans(), st.booleans()), st.tuples(st.booleans(), st.booleans())),
    start=st.integers(0, 3),
)
def test_any_place(
    outer: int,
    inner: int,
    sizes: tuple[int, int, int],
    orders: tuple[list[int], list[int]],
    repeats: tuple[tuple[bool, bool], tuple[bool, bool]],
    start: int,
) -> None:
    """Factors whose dimensions stand in any order, some repeated, from any element on."""
    rows, depth, columns = sizes
    flat, views, places = [], [], []
    for k, matrix in enumerate(((rows, depth), (depth, columns))):
        shape = (*(1 if repeat else n for repeat, n in zip(repeats[k], (outer, inner), strict=True)), *matrix)
        stored = drawn(tuple(shape[d] for d in orders[k]), k)
        view = stored.transpose(np.argsort(orders[k]))
        views.append(view.astype(np.float64))
        strides = [0 if n == 1 else step // 4 for n, step in zip(shape, view.strides, strict=True)]
        flat.append(np.concatenate([np.full(start, np.nan, np.float32), stored.reshape(-1)]))
        places.append((start, (strides[0], strides[1]), strides[2], strides[3]))

    def body(left: Tensor, right: Tensor) -> Tensor:
        dst = hbm((outer * inner, rows, columns), left.dtype)
        batched_matmul(dst, left, right, "none", depth, (outer, inner), places[0], places[1])
        return dst

    expected = np.broadcast_to(views[0] @ views[1], (outer, inner, rows, columns)).reshape(-1, rows, columns)
    magnitude = np.broadcast_to(np.abs(views[0]) @ np.abs(views[1]), (outer, inner, rows, columns))
    check(call(body, *flat), expected, magnitude.reshape(-1, rows, columns), depth)


def test_heads_side_by_side() -> None:
    """Attention's scores of two samples, three heads, as one projection makes them: q @ k.T, nothing copied."""
    batch, length, heads, size = 2, 9, 3, 16
    width = heads * size
    q, k = drawn((batch, length, width), 0), drawn((batch, length, width), 1)

    def body(left: Tensor, right: Tensor) -> Tensor:
        dst = hbm((batch * heads, length, length), left.dtype)
        at: tuple[object, ...] = (0, (length * width, size), width, 1)
        turned: tuple[object, ...] = (0, (length * width, size), 1, width)
        batched_matmul(dst, left, right, "none", size, (batch, heads), at, turned)
        return dst

    apart = [x.astype(np.float64).reshape(batch, length, heads, size).transpose(0, 2, 1, 3) for x in (q, k)]
    expected = (apart[0] @ apart[1].swapaxes(2, 3)).reshape(-1, length, length)
    magnitude = (np.abs(apart[0]) @ np.abs(apart[1]).swapaxes(2, 3)).reshape(-1, length, length)
    check(call(body, q, k), expected, magnitude, size)


def test_many_matrices_come_by_few_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Product(64, 16, 16, 16)
    loads: list[int] = []
    load = module._load_matrices

    def counted(tensor: Tensor, factor: module.Factor, count: int, *sizes: tuple[int, int]) -> Tensor:
        loads.append(count)
        return load(tensor, factor, count, *sizes)

    monkeypatch.setattr(module, "_load_matrices", counted)
    trace(case.body, *(Spec(shape, "float32") for shape in case.shapes))
    assert loads == [64, 64]


BUDGETS = {
    "most of everything": Product(1, 600, 1024, 2050),
    "a long contraction": Product(1, 300, 5000, 2000),
    "many small": Product(3000, 16, 16, 16),
    "many columns": Product(50, 16, 16, 1000),
    "many rows": Product(50, 256, 1000, 16),
    "much to contract": Product(50, 16, 1024, 16),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_working_memory(name: str) -> None:
    case = BUDGETS[name]
    assert peak(trace(case.body, *(Spec(shape, "float32") for shape in case.shapes))) <= WORKING_BYTES


def test_factors_that_do_not_match() -> None:
    def body(left: Tensor, right: Tensor) -> Tensor:
        dst = hbm((2, 3, 5), left.dtype)
        batched_matmul(dst, left, right)
        return dst

    def traced(left: Shape, right: Shape, dtype: str = "float32") -> None:
        trace(body, Spec(left, "float32"), Spec(right, dtype))

    with pytest.raises(KernelError, match=r"left is \(2, 3, 4\), right \(2, 6, 5\)"):
        traced((2, 3, 4), (2, 6, 5))
    with pytest.raises(KernelError, match=r"left is \(2, 4, 4\), dst \(2, 3, 5\)"):
        traced((2, 4, 4), (2, 4, 5))
    with pytest.raises(KernelError, match="left is float32, right bfloat16"):
        traced((2, 3, 4), (2, 4, 5), "bfloat16")
