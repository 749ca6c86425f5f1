"""Copies of windows and sums into them give numpy's own bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.nki.machine.binding import view_array
from trnrt.nki.machine.dtypes import Array, float32
from trnrt.nki.machine.program import MemoryRegion, Source, Storage, View
from trnrt.nki.machine.windows import add_call, copy_call
from trnrt.nki.sim.instructions.activation import rectified_sum
from trnrt.nki.sim.instructions.matmul import multiplication

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1.5], np.float32)


def drawn(shape: tuple[int, ...], seed: int) -> Array:
    """Numbers, among them zeros of both signs, NaN, infinity and subnormal ones."""
    generator = np.random.default_rng(seed)
    numbers = generator.standard_normal(shape).astype(np.float32)
    return np.where(generator.random(shape) < 0.2, generator.choice(SPECIAL, shape), numbers)


def window(sizes: list[int], gaps: list[int], seed: int) -> tuple[Array, View]:
    """A tile's flat array, and a view on it with gaps of these sizes before and behind."""
    shape = tuple(size + gap for size, gap in zip(sizes, gaps, strict=True))
    storage = Storage(0, shape, float32, MemoryRegion.sbuf, "tile", Source("", 0, ""))
    offset = sum(gap // 2 * stride for gap, stride in zip(gaps, storage.strides, strict=True))
    return drawn(shape, seed).reshape(-1), View(storage, tuple(sizes), storage.strides, offset)


def bits(array: Array) -> list[int]:
    return np.ascontiguousarray(array).view(np.uint32).ravel().tolist()


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_copying(sizes: list[int], seed: int, data: st.DataObject) -> None:
    def gaps() -> list[int]:
        return [data.draw(st.integers(0, 3)) for _ in sizes]

    (to, dst), (of, src) = window(sizes, gaps(), seed), window(sizes, gaps(), seed + 1)
    expected, given_numbers = to.copy(), of.copy()
    view_array(dst, expected)[...] = view_array(src, of)
    copy_call(view_array(dst, to), view_array(src, of))()
    assert bits(to) == bits(expected) and bits(of) == bits(given_numbers)


def test_copying_within_an_array() -> None:
    """As numpy: the source is read before it is overwritten."""
    array = drawn((4, 6, 5), 0)
    expected = array.copy()
    expected[:, 1:, 1:] = expected[:, :-1, 1:].copy()
    copy_call(array[:, 1:, 1:], array[:, :-1, 1:])()
    assert bits(array) == bits(expected)


def test_copying_casts() -> None:
    target = np.zeros((3, 4), np.int32)
    copy_call(target[:, 1:], np.full((3, 3), 2.7, np.float32))()
    assert target.tolist() == [[0, 2, 2, 2]] * 3


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_adding(sizes: list[int], seed: int, data: st.DataObject) -> None:
    sizes = [data.draw(st.integers(1, 3)), *sizes]
    held, view = window(sizes, [data.draw(st.integers(0, 3)) for _ in sizes], seed)
    values, expected = drawn(view.shape, seed + 1), held.copy()
    target = view_array(view, expected)
    add = add_call(view, values, lambda one: view_array(one, held))
    with np.errstate(all="ignore"):
        for _ in range(2):  # the second time on the first one's sums
            np.add(target, values, out=target)
            add()
    assert bits(held) == bits(expected)


@pytest.mark.parametrize("kind", ["usual", "gaps"])
def test_products_have_the_bits_of_matmul(kind: str) -> None:
    for number, (inner, rows, columns) in enumerate(product((1, 2, 65, 128), (1, 3, 16), (1, 2, 10, 56))):
        a, b = drawn((inner, rows), number), drawn((inner, columns), number + 1)
        whole = np.zeros((rows, columns + 3), np.float32)
        out = whole[:, :columns] if kind == "gaps" else whole[:, :columns].copy()
        with np.errstate(all="ignore"):
            multiplication(out)(a.T, b, out=out)
            assert bits(out) == bits(a.T @ b), (inner, rows, columns)


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, seed=st.integers(0, 99), data=st.data())
def test_rectified_sums(sizes: list[int], seed: int, data: st.DataObject) -> None:
    """relu(data + shift), also where the result overlaps the data; twice, as scratch is used again."""
    gaps = [data.draw(st.integers(0, 3)) for _ in sizes]
    held, view = window(sizes, gaps, seed)
    target, shift = view_array(view, held), drawn((sizes[0],) + (1,) * (len(sizes) - 1), seed + 1)
    is_same = data.draw(st.booleans())
    values = target if is_same else drawn(view.shape, seed + 2)
    known: dict[tuple[str, tuple[int, ...]], Array] = {}

    def scratch(use: str, shape: tuple[int, ...]) -> Array:
        return known.setdefault((use, shape), np.full(shape, np.nan, np.float32))

    expected = held.copy()
    rectify = rectified_sum(target, lambda: values, lambda: shift, scratch)
    with np.errstate(all="ignore"):
        for _ in range(2):
            there = view_array(view, expected)
            there[...] = np.maximum((there if is_same else values) + shift, np.float32(0))
            rectify()
    assert bits(held) == bits(expected)
