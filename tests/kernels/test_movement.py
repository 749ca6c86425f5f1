"""Movement by access patterns: any parts of any sources, fills, and how few transfers they take."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from calling import DTYPES, NUMPY, TARGETS, Array, Tensor, call, drawn, hbm
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt.errors import KernelError
from trnrt.kernels.movement import FILL_COLUMNS, dimensions, move, stage_dims
from trnrt.nki import Spec, nl, trace

Part = tuple[int, int, tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense tensor."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def moved(
    shape: tuple[int, ...], srcs: list[Array], parts: tuple[Part, ...], fill: float | None = None, **options: Any
) -> Array:
    """The kernel's result, its dtype that of ``dtype`` or of the first source."""
    dtype = options.pop("dtype", None)

    def body(*srcs: Tensor) -> Tensor:
        dst = hbm(shape, srcs[0].dtype if dtype is None else NUMPY[dtype])
        move(dst, srcs, parts, fill)
        return dst

    return call(body, *srcs, **options)


def places(offset: int, strides: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The numbers of the elements that a pattern touches, in its order."""
    index = np.indices(shape).reshape(len(shape), prod(shape))
    return offset + np.asarray(strides, int).reshape(1, -1) @ index


def expected(shape: tuple[int, ...], srcs: list[Array], parts: tuple[Part, ...], fill: float | None) -> Array:
    """One element after the other."""
    result = np.full(prod(shape), 0 if fill is None else fill, np.float64)
    for number, start, strides, to, dst_strides, size in parts:
        source = srcs[number].reshape(-1).astype(np.float64)
        result[places(to, dst_strides, size)] = source[places(start, strides, size)]
    return result.reshape(shape)


def transfers(shape: tuple[int, ...], srcs: list[tuple[int, ...]], parts: tuple[Part, ...]) -> int:
    """How many DMA instructions a movement takes."""

    def body(*srcs: Tensor) -> Tensor:
        dst = hbm(shape, nl.float32)
        move(dst, srcs, parts)
        return dst

    program = trace(body, *(Spec(src, "float32") for src in srcs))
    return sum(instruction.operation.name == "dma_copy" for instruction in program.instructions)


@st.composite
def parts_of_a_result(draw: Any) -> tuple[int, list[int], tuple[Part, ...]]:
    """(elements of dst, of each source, parts that do not meet): blocks of dst one after the other, each with gaps."""
    to, parts, sizes = 0, [], []
    for number in range(draw(st.integers(1, 3))):
        rank = draw(st.integers(0, 8))
        shape = tuple(draw(st.lists(st.integers(1, 4 if rank < 6 else 2), min_size=rank, max_size=rank)))
        order = draw(st.permutations(range(rank)))
        strides, step = [0] * rank, 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim] + draw(st.integers(0, 1))
        backwards = [draw(st.booleans()) and draw(st.booleans()) for _ in range(rank)]
        start = to + sum(s * (n - 1) for s, n, back in zip(strides, shape, backwards, strict=True) if back)
        dst_strides = tuple(-s if back else s for s, back in zip(strides, backwards, strict=True))
        src_strides = tuple(draw(st.lists(st.integers(-6, 6), min_size=rank, max_size=rank)))
        least = sum(min(0, s * (n - 1)) for s, n in zip(src_strides, shape, strict=True))
        most = sum(max(0, s * (n - 1)) for s, n in zip(src_strides, shape, strict=True))
        parts.append((number, -least, src_strides, start, dst_strides, shape))
        sizes.append(most - least + 1)
        to += step
    return to, sizes, tuple(parts)


@settings(max_examples=150)
@given(
    case=parts_of_a_result(),
    fill=st.sampled_from([0.0, -1.5, float("inf")]),
    dtype=st.sampled_from(DTYPES),
    target=st.sampled_from(TARGETS),
)
def test_any_parts(case: Any, fill: float, dtype: str, target: str) -> None:
    size, sizes, parts = case
    srcs = [drawn((n,), number, dtype) for number, n in enumerate(sizes)]
    got = moved((size,), srcs, parts, fill, target=target)
    np.testing.assert_array_equal(got, expected((size,), srcs, parts, fill))


@pytest.mark.parametrize(
    "size", [1, 127, 128, 1000, 128 * FILL_COLUMNS, 128 * FILL_COLUMNS + 129, 3 * 128 * FILL_COLUMNS - 1]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_fill(size: int, dtype: str) -> None:
    got = moved((size,), [drawn((1,), 0, dtype)], (), -2.5)
    np.testing.assert_array_equal(got, np.full(size, -2.5))


def test_concat_pad_slice_tile_and_reverse() -> None:
    x, y = drawn((2, 3, 5), 0), drawn((2, 4, 5), 1)
    parts = (
        (0, 0, dense(x.shape), 0, (35, 5, 1), x.shape),
        (1, 0, dense(y.shape), 15, (35, 5, 1), y.shape),
    )
    np.testing.assert_array_equal(moved((2, 7, 5), [x, y], parts), np.concatenate([x, y], 1))
    padded = ((0, 0, dense(x.shape), 7 + 1, (5 * 7, 7, 1), x.shape),)
    np.testing.assert_array_equal(
        moved((2, 5, 7), [x], padded, 9.0), np.pad(x, ((0, 0), (1, 1), (1, 1)), constant_values=9)
    )
    tiled = ((0, 0, (0, 15, 0, 5, 1), 0, dense((2, 2, 3, 3, 5)), (2, 2, 3, 3, 5)),)
    np.testing.assert_array_equal(moved((4, 9, 5), [x], tiled), np.tile(x, (2, 3, 1)))
    turned = ((0, 14, (15, -5, -1), 0, dense(x.shape), x.shape),)
    np.testing.assert_array_equal(moved(x.shape, [x], turned), x[:, ::-1, ::-1])


def test_dtypes_are_converted() -> None:
    x = drawn((3, 5), 0)
    got = moved((5, 3), [x], ((0, 0, (1, 5), 0, (3, 1), (5, 3)),), dtype="bfloat16")
    np.testing.assert_array_equal(got, x.T.astype(NUMPY["bfloat16"]).astype(np.float64))


def test_neighbours_are_joined() -> None:
    assert dimensions((60, 20, 5, 1), (120, 40, 10, 1), (2, 3, 4, 5)) == [(24, 5, 10), (5, 1, 1)]
    assert dimensions((1, 5), (4, 1), (5, 4)) == [(5, 1, 4), (4, 5, 1)]
    assert dimensions((4, 2, 1), (1, 2, 4), (2, 2, 2)) == [(2, 1, 4), (2, 2, 2), (2, 4, 1)]
    assert dimensions((7,), (3,), (1,)) == []


def test_few_transfers() -> None:
    shape = (2, 3, 4, 5, 6, 7)
    assert transfers(shape, [shape], ((0, 0, dense(shape), 0, dense(shape), shape),)) == 1
    turned = tuple(reversed(dense(tuple(reversed(shape)))))
    assert transfers(shape, [shape], ((0, 0, turned, 0, dense(shape), shape),)) == 2


# (shape of dst, of the source, source strides, destination strides, shape) that fall into packets of an element.
SCATTERED = {
    "resize": ((20, 80, 80), (20, 40, 40), (1600, 40, 0, 1, 0), (6400, 160, 80, 2, 1), (20, 40, 2, 40, 2)),
    "depth to space": ((5, 80, 96), (20, 40, 48), (1920, 48, 19200, 1, 9600), (7680, 192, 96, 2, 1), (5, 40, 2, 48, 2)),
    "turned": ((300, 30, 9), (9, 300, 30), (30, 1, 9000), (270, 9, 1), (300, 30, 9)),
    "turned twice": ((2, 150, 40, 9), (2, 40, 9, 150), (54000, 1, 1350, 150), (54000, 360, 9, 1), (2, 150, 40, 9)),
    "matrix": ((3136, 64), (64, 3136), (1, 3136), (64, 1), (3136, 64)),
    "matrix back": ((64, 3136), (3136, 64), (1, 64), (3136, 1), (64, 3136)),
    "with gaps": ((33, 80, 50), (33, 40, 24), (960, 24, 1, 0), (4000, 100, 2, 1), (33, 40, 24, 2)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SCATTERED)
def test_scattered_elements_go_through_sbuf(name: str, target: str, dtype: str) -> None:
    shape, source, src_strides, dst_strides, size = SCATTERED[name]
    x = drawn(source, 0, dtype)
    parts = ((0, 0, src_strides, 0, dst_strides, size),)
    dims = dimensions(src_strides, dst_strides, size)
    assert stage_dims(dims, x.itemsize)[1] > 0
    np.testing.assert_array_equal(moved(shape, [x], parts, 7.0, target=target), expected(shape, [x], parts, 7.0))


@settings(max_examples=100)
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_any_order_of_dimensions(data: Any, dtype: str) -> None:
    rank = data.draw(st.integers(2, 5))
    source = tuple(data.draw(st.sampled_from([2, 3, 5, 12, 40])) for _ in range(rank))
    order = data.draw(st.permutations(range(rank)))
    repeats = data.draw(st.sampled_from([0, 0, 2, 3]))
    shape = tuple(source[dim] for dim in order)
    strides = tuple(dense(source)[dim] for dim in order)
    if repeats:
        at = data.draw(st.integers(0, rank))
        shape, strides = (*shape[:at], repeats, *shape[at:]), (*strides[:at], 0, *strides[at:])
    if prod(shape) > 600_000:
        return
    x = drawn(source, 0, dtype)
    parts = ((0, 0, strides, 0, dense(shape), shape),)
    np.testing.assert_array_equal(moved(shape, [x], parts), expected(shape, [x], parts, None))


def test_a_destination_is_written_once() -> None:
    with pytest.raises(KernelError, match="destination stride 0 over 3 elements"):
        moved((3,), [drawn((3,), 0)], ((0, 0, (1,), 0, (0,), (3,)),))
