"""``nki.language``: load, store, views, broadcasting, gathering, choosing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same

from trnrt.errors import KernelError
from trnrt.nki import nl, trace

X, Y = drawn(128, 40, seed=1), drawn(128, 40, seed=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint32"])
def test_load_and_store(dtype: str) -> None:
    """A row and a column of tiles of a tensor, copied through SBUF."""

    def kernel(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        for start in nl.affine_range(2):
            tile = nl.load(x[start * 128 : (start + 1) * 128, :])
            assert (tile.buffer, tile.dtype) == (nl.sbuf, x.dtype)
            nl.store(out[start * 128 : (start + 1) * 128, :], tile)
        return out

    values = drawn(256, 30, dtype=dtype)
    same(run(kernel, values), values)


def test_load_and_store_convert() -> None:
    def kernel(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        nl.store(out, nl.load(x, dtype=nl.bfloat16))
        return out

    same(run(kernel, X), rounded(X, "bfloat16").astype(np.float32))


@pytest.mark.parametrize("shape", [(40, 128), (100, 300), (1, 8)])
@pytest.mark.parametrize("target", TARGETS)
def test_load_transpose2d(shape: tuple[int, int], target: str) -> None:
    values = drawn(*shape)
    same(run(lambda x: give(nl.load_transpose2d(x)), values.T.copy(), target=target), values)
    got = run(lambda x: give(nl.load_transpose2d(x, dtype=nl.bfloat16)), values.T.copy(), target=target)
    same(got, rounded(values, "bfloat16"))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (lambda x: nl.load(load(x)), "nl.load: src is in sbuf; it must be in HBM"),
        (lambda x: nl.store(x, x), "nl.store: value is in shared_hbm"),
        (lambda x: nl.store(load(x), load(x)), "nl.store: dst is in sbuf"),
        (lambda x: nl.store(x, load(x, nl.psum)), "move it to SBUF first"),
        (lambda x: nl.load(x.reshape((5120,))), "nl.load: shape (5120,) has 1 dimension; on chip the least is 2"),
        (lambda x: nl.load(x.reshape((256, 20))), "nl.load: shape (256, 20) spans 256 partitions"),
        (lambda x: nl.load_transpose2d(x.reshape((20, 256))), "nl.load_transpose2d: shape (256, 20) spans"),
        (
            lambda x: nl.ds(cast(Any, nl.load(x)), 8),
            "nl.ds: a tensor's value is known on",
        ),
        (lambda x: nl.load_transpose2d(x.reshape((128, 8, 5))), "it must have 2"),
        (
            lambda x: nl.load(3),  # type: ignore[arg-type]
            "src is a int; it must be a tensor",
        ),
        (lambda x: nl.broadcast_to(load(x), (128, 80)), "only sizes of 1 can be repeated"),
        (lambda x: nl.broadcast_to(load(x), (128, 40, 2)), "only sizes of 1 can be repeated"),
        (lambda x: nl.expand_dims(load(x), 0), "partition dimension"),
        (lambda x: nl.gather_flattened(load(x), load(x)), "they must be integers"),
        (lambda x: nl.gather_flattened(load(x), nl.zeros((128, 4), nl.uint32), axis=1), "axis=1 is not modelled"),
        (lambda x: nl.where(nl.zeros((128, 4), nl.uint8), load(x), 1.0), "x is (128, 40), condition (128, 4)"),
    ],
)
def test_what_is_refused(body: Callable[[Tensor], object], complaint: str) -> None:
    with pytest.raises(KernelError) as error:
        trace(body, X)
    assert complaint in str(error.value)


def test_expand_dims() -> None:
    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        tile = load(x)
        assert nl.expand_dims(tile, 1).shape == (128, 1, 40)
        assert nl.expand_dims(tile, 2).shape == (128, 40, 1)
        assert nl.expand_dims(tile, -1).shape == (128, 40, 1)
        return give(nl.expand_dims(tile, 1)), give(nl.expand_dims(tile, axis=-1))

    first, last = run(kernel, X)
    same(first, X[:, None])
    same(last, X[..., None])


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ((1, 40), (128, 40)),
        ((128, 1), (128, 40)),
        ((1, 1), (77, 40)),
        ((1, 3, 1), (128, 3, 5)),
        ((64, 1, 5), (64, 4, 5)),
        ((64, 4), (64, 4)),
    ],
)
def test_broadcast_to(small: tuple[int, ...], large: tuple[int, ...], dtype: str, buffer: nl.MemoryRegion) -> None:
    values = drawn(*small, dtype=dtype)
    same(run(lambda x: give(nl.broadcast_to(load(x, buffer), large)), values), np.broadcast_to(values, large))


def test_broadcast_to_gives_the_tile_itself_or_a_copy_of_another_dtype() -> None:
    def kernel(x: Tensor) -> Tensor:
        tile = load(x)
        assert nl.broadcast_to(tile, (128, 40)) is tile
        return give(nl.broadcast_to(tile, (128, 40), dtype=nl.bfloat16))

    same(run(kernel, X), rounded(X, "bfloat16"))
    got = run(lambda x: give(nl.broadcast_to(load(x), (128, 40), dtype=nl.bfloat16)), X[:1].copy())
    same(got, np.broadcast_to(rounded(X[:1], "bfloat16"), (128, 40)))


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint8"])
def test_gather_flattened(dtype: str) -> None:
    """The SDK's example: every fifth element."""

    def kernel(data: Tensor, indices: Tensor) -> Tensor:
        return give(nl.gather_flattened(load(data), load(indices)))

    indices = np.tile(np.arange(10) * 4, (128, 1))
    indices[5] = indices[5, ::-1]
    got = run(kernel, X, indices.astype(dtype))
    same(got, np.take_along_axis(X, indices, axis=1))


def test_ds_is_a_slice() -> None:
    def kernel(x: Tensor) -> Tensor:
        assert x[nl.ds(8, 16), nl.ds(4, 8)].shape == (16, 8)
        return give(load(x[nl.ds(8, 16), nl.ds(4, 8)]))

    same(run(kernel, X), X[8:24, 4:12])


def chosen(condition: Array, x: Array | float, y: Array | float) -> Array:
    """nl.where on tiles of the arrays."""
    arrays = [value for value in (condition, x, y) if isinstance(value, np.ndarray)]

    def kernel(*tensors: Tensor) -> Tensor:
        tiles = iter([load(tensor) for tensor in tensors])
        operands: list[Any] = [next(tiles) if isinstance(value, np.ndarray) else value for value in (condition, x, y)]
        return give(nl.where(*operands))

    result: Array = run(kernel, *arrays)
    return result


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int32"])
def test_where(dtype: str) -> None:
    condition = (X > 0).astype(dtype)
    same(chosen(condition, X, Y), np.where(X > 0, X, Y))
    same(chosen(condition, 1.5, Y), np.where(X > 0, np.float32(1.5), Y))
    same(chosen(condition, X, -1.5), np.where(X > 0, X, np.float32(-1.5)))
    same(chosen(condition, X, Y * np.float32(np.nan)), np.where(X > 0, X, np.float32(np.nan)))


def test_where_takes_any_condition_that_is_not_zero_and_the_dtype_of_x() -> None:
    low = rounded(X, "bfloat16")
    got = chosen(np.trunc(Y), low, Y)
    same(got, np.where(np.trunc(Y) != 0, low, rounded(Y, "bfloat16")))


@pytest.mark.parametrize(("condition", "expected"), [(1.0, 10.0), (0.0, 5.0)])
def test_where_examples_of_the_reference(condition: float, expected: float) -> None:
    def kernel() -> Tensor:
        shape = (128, 512)
        cond = nl.full(shape, condition, dtype=nl.float32, buffer=nl.sbuf)
        x = nl.full(shape, 10.0, dtype=nl.float32, buffer=nl.sbuf)
        return give(nl.where(cond, x, nl.full(shape, 5.0, dtype=nl.float32, buffer=nl.sbuf)))

    same(run(kernel), np.full((128, 512), expected, np.float32))


def test_dropout() -> None:
    def kernel(x: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        tile = load(x)
        outer = nl.dropout(tile, 0.0), nl.dropout(tile, 1.0), nl.dropout(tile, 0.25), nl.dropout(tile, load(rates))
        return tuple(give(result) for result in (*outer, nl.dropout(tile, 0.0, dtype=nl.bfloat16)))

    values = np.abs(drawn(128, 512)) + np.float32(0.5)
    rates = np.where(np.arange(128) % 2, 1, 0).astype(np.float32)[:, None]
    kept, none, most, rows, low = run(kernel, values, rates)
    same(kept, values)
    assert not none.any()
    assert abs((most == 0).mean() - 0.25) < 0.01
    same(rows[::2], values[::2])
    assert not rows[1::2].any()
    same(low, rounded(values, "bfloat16"))
