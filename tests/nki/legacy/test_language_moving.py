"""Loads, stores, copies, new tensors, gathers and choices of the old ``nki.language`` against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.launching import jit
from trnrt.nki.machine.dtypes import Array

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)
Function = Callable[..., Any]


def filled(make: Function, shape: tuple[int, ...], dtype: Any = None) -> Any:
    """The numbers of the tile that ``make`` returns in a kernel, stored to a tensor of this shape."""

    @jit
    def kernel() -> Any:
        made = make()
        out = nl.ndarray(shape, dtype=made.dtype if dtype is None else dtype, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    return kernel()


# -- New tensors -------------------------------------------------------------------------------------------


@FORMAT
@pytest.mark.parametrize("buffer", ["sbuf", "psum"])
def test_new_tensors(buffer: str, dtype: np.dtype[Any]) -> None:
    where, shape = getattr(nl, buffer), (7, 3, 2)
    assert_close(filled(lambda: nl.zeros(shape, dtype, buffer=where), shape), np.zeros(shape, dtype))
    assert_close(filled(lambda: nl.ones(shape, dtype, buffer=where), shape), np.ones(shape, dtype))
    assert_close(filled(lambda: nl.full(shape, 2.5, dtype, buffer=where), shape), np.full(shape, 2.5, dtype))
    made = lambda: nl.zeros_like(nl.ndarray(shape, dtype, buffer=where))  # noqa: E731
    assert_close(filled(made, shape), np.zeros(shape, dtype))


def test_tensors_like_another() -> None:
    @jit
    def kernel(x: Any) -> Any:
        out = nl.empty_like(x, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        tile = nl.empty_like(nl.ndarray((4, 2), nl.float16, buffer=nl.psum), dtype=nl.int8)
        assert (tile.buffer, tile.dtype, tile.shape, tile.itemsize) == (nl.psum, np.int8, (4, 2), 1)
        assert tile.assert_shape((4, 2)) is tile
        return out

    x = numbers(0, 8, 6, dtype=BFLOAT16)
    np.testing.assert_array_equal(kernel(x), x)


def test_a_new_tile_is_unwritten() -> None:
    """It reads as NaN; `trnrt nki check` finds such reads."""
    assert np.isnan(filled(lambda: nl.copy(nl.ndarray((4, 2), nl.float32)), (4, 2))).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nl.zeros((3, 128, 512), nl.float32, buffer=nl.shared_hbm), r"nl\.full: .* no instruction fills HBM"),
        (lambda: nl.full((4, 2), nl.ones((4, 2), nl.float32), nl.float32), "fill_value is a Tile"),
        (lambda: nl.ndarray((4, 2), nl.float32, buffer="sbuf"), "buffer='sbuf' is no memory"),
        (lambda: nl.ndarray((4, 2), np.complex64), "the NeuronCore has no dtype"),
        (lambda: nl.shared_constant(np.float32(1)), r"nl\.shared_constant: shape \(\)"),
        (lambda: nl.shared_constant(np.arange(3)), r"nl\.shared_constant: the NeuronCore has no dtype .*int64"),
        (lambda: nl.shared_identity_matrix(0), "n=0; it must be at least 1"),
        (lambda: nl.ones((4, 2), nl.float32).assert_shape((4, 3)), r"has shape \(4, 2\); it should be \(4, 3\)"),
    ],
)
def test_mistakes_of_new_tensors_are_refused(make: Function, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        filled(make, (4, 2))


def test_constants() -> None:
    table = np.arange(12).reshape(4, 3)
    got = filled(lambda: nl.load(nl.shared_constant(table, dtype=nl.bfloat16)), (4, 3))
    np.testing.assert_array_equal(got, table.astype(BFLOAT16))
    part = lambda: nl.load(nl.shared_constant(table.astype(np.int32))[1:3])  # noqa: E731
    assert filled(part, (2, 3)).tolist() == table[1:3].tolist()
    got = filled(lambda: nl.load(nl.shared_identity_matrix(5, dtype=nl.float32)), (5, 5))
    np.testing.assert_array_equal(got, np.eye(5, dtype=np.float32))
    assert filled(lambda: nl.load(nl.shared_identity_matrix(9)), (9, 9)).dtype == np.uint8


def test_random_numbers() -> None:
    def drawn(seed: Any) -> Function:
        def make() -> Any:
            nl.random_seed(seed() if callable(seed) else seed)
            return nl.rand((64, 100), dtype=nl.float32)

        return make

    one = filled(drawn(42), (64, 100))
    assert ((one >= 0) & (one < 1)).all() and abs(float(one.mean()) - 0.5) < 0.02
    np.testing.assert_array_equal(one, filled(drawn(lambda: nl.full((128, 2), 42, nl.int32)), (64, 100)))
    assert (one != filled(drawn(43), (64, 100))).mean() > 0.99
    assert filled(lambda: nl.rand((4, 2)), (4, 2)).dtype == np.float32


@FORMAT
def test_dropout(dtype: np.dtype[Any]) -> None:
    x = numbers(1, 64, 100, dtype=dtype, least=1)
    for rate in (0.25, lambda: nl.full((1, 1), 0.25, nl.float32), lambda: nl.full((64, 1), 0.25, nl.float32)):
        got = wide(run(lambda t, rate=rate: nl.dropout(t, rate() if callable(rate) else rate), x))
        assert set(np.unique(got == 0).tolist()) == {True, False}
        np.testing.assert_array_equal(got[got != 0], wide(x)[got != 0])
        assert abs(float((got == 0).mean()) - 0.25) < 0.03
    with pytest.raises(KernelError, match=r"nl\.dropout: rate has shape \(64, 100\)"):
        run(lambda t: nl.dropout(t, t), x)


# -- Loads, stores, copies ---------------------------------------------------------------------------------


def store_to(shape: tuple[int, ...], store: Function, *arrays: Array, dtype: Any = np.float32) -> Any:
    """A tensor of zeros in HBM that ``store(out, *tensors)`` has changed."""

    @jit
    def kernel(*tensors: Any) -> Any:
        out = nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm)
        for first in range(0, shape[0], 128):
            nl.store(out[first : min(first + 128, shape[0])], value=0)
        store(out, *tensors)
        return out

    return kernel(*arrays)


@FORMAT
def test_loads_and_stores_convert(dtype: np.dtype[Any]) -> None:
    x = numbers(2, 37, 5, dtype=dtype)
    got = store_to((37, 5), lambda out, t: nl.store(out, nl.load(t, dtype=nl.float16)), x, dtype=np.float16)
    np.testing.assert_array_equal(got, x.astype(np.float16))


def test_loads_and_stores_where_the_mask_holds() -> None:
    """Rows beyond the tensor, as tiles of 128 have them, are cut off."""
    x = numbers(3, 300, 10)

    def move(out: Any, t: Any) -> None:
        for i in nl.affine_range(3):
            rows, columns = i * 128 + nl.arange(128)[:, None], nl.arange(10)[None, :]
            mask = (rows < 300) & (columns < 8)
            tile = nl.load(t[rows, columns], mask=mask)
            nl.store(out[rows, columns], nl.exp(tile, mask=mask), mask=mask)

    wanted = np.exp(x)
    wanted[:, 8:] = 0
    assert_close(store_to((300, 10), move, x), wanted)


def test_stores_of_numbers_columns_and_tiles_of_psum() -> None:
    x = numbers(4, 16, 4)

    def move(out: Any, t: Any) -> None:
        nl.store(out[0:16, 0:4], value=7.5)
        nl.store(out[16:32, 0:4], nl.load(t[:, 0:1]))
        nl.store(out[32:48, 0:4], nl.copy(nl.load(t), dtype=nl.float32) + nl.zeros((16, 4), nl.float32, buffer=nl.psum))
        nl.store(out[48:64, 0:4], value=7.5)
        rows, columns = nl.mgrid[0:16, 0:4]
        nl.store(out[48 + rows, columns], nl.load(t[:, 0:1]), mask=columns < 2)

    got = store_to((64, 4), move, x)
    assert (got[:16] == 7.5).all()
    np.testing.assert_array_equal(got[16:32], np.broadcast_to(x[:, :1], (16, 4)))
    np.testing.assert_array_equal(got[32:48], x)
    np.testing.assert_array_equal(got[48:], np.where(np.arange(4) < 2, x[:, :1], np.float32(7.5)))


def test_indirect_loads_and_stores_where_the_mask_holds() -> None:
    x, rows = numbers(5, 50, 6), np.array([[7], [0], [33], [49], [12]], np.int32)

    def move(out: Any, t: Any, at: Any) -> None:
        i, j = nl.arange(5)[:, None], nl.arange(6)[None, :]
        index = nl.load(at)
        tile = nl.load(t[index[i, 0], j], mask=(i < 4) & (j >= 2))
        nl.store(out[index[i, 0], j], tile, mask=(i < 4) & (j >= 2))

    wanted = np.zeros_like(x)
    wanted[rows[:4, 0], 2:] = x[rows[:4, 0], 2:]
    np.testing.assert_array_equal(store_to((50, 6), move, x, rows), wanted)


@FORMAT
def test_load_transpose2d(dtype: np.dtype[Any]) -> None:
    x = numbers(6, 37, 11, dtype=dtype)
    np.testing.assert_array_equal(
        store_to((11, 37), lambda out, t: nl.store(out, nl.load_transpose2d(t)), x, dtype=dtype), x.T
    )
    rows = nl.arange(37)[:, None]
    got = store_to(
        (11, 30), lambda out, t: nl.store(out, nl.load_transpose2d(t, mask=rows < 30)[:, 0:30]), x, dtype=dtype
    )
    np.testing.assert_array_equal(got, x.T[:, :30])


@FORMAT
def test_gather_flattened(dtype: np.dtype[Any]) -> None:
    x = numbers(7, 16, 5, 4, dtype=dtype)
    at = np.random.default_rng(0).integers(0, 20, (16, 3, 2)).astype(np.uint32)
    wanted = np.take_along_axis(x.reshape(16, -1), at.reshape(16, -1).astype(int), 1).reshape(at.shape)
    np.testing.assert_array_equal(run(nl.gather_flattened, x, at), wanted)
    narrow = at.astype(np.int16)
    got = run(
        lambda data, i: nl.gather_flattened(data=data, indices=i, mask=nl.arange(16)[:, None, None] < 9), x, narrow
    )
    np.testing.assert_array_equal(got[:9], wanted[:9])
    assert np.isnan(wide(got[9:])).all()


def test_atomic_rmw() -> None:
    x, v = numbers(8, 20, 6), numbers(9, 5, 6)
    rows = np.array([[3], [0], [7], [19], [4]], np.int32)

    def add(out: Any, t: Any, values: Any, at: Any) -> None:
        nl.store(out, nl.load(t))
        index, j = nl.load(at), nl.arange(6)[None, :]
        nl.atomic_rmw(out[index, j], value=nl.load(values), op=np.add)
        nl.atomic_rmw(out[index, j], value=1.0, op=np.add, mask=nl.arange(5)[:, None] < 2)

    wanted = x.copy()
    np.add.at(wanted, rows[:, 0], v)
    wanted[rows[:2, 0]] += 1
    assert_close(store_to((20, 6), add, x, v, rows), wanted)
    rows[4] = 3
    with pytest.raises(KernelError, match=r"row 3 of .* is selected 2 times by one instruction that adds to it"):
        store_to((20, 6), add, x, v, rows)


# -- Other shapes and formats ------------------------------------------------------------------------------


@FORMAT
def test_broadcast_to(dtype: np.dtype[Any]) -> None:
    x = numbers(10, 1, 6, dtype=dtype)
    wanted = np.broadcast_to(x, (33, 6))
    np.testing.assert_array_equal(run(lambda t: nl.broadcast_to(t, shape=(33, 6)), x), wanted)
    np.testing.assert_array_equal(run(lambda t: t.broadcast_to([33, 6]), x), wanted)
    column = numbers(11, 9, 1, 2, dtype=dtype)
    got = run(lambda t: nl.copy(nl.broadcast_to(t, shape=(9, 3, 2))), column)
    np.testing.assert_array_equal(got, np.broadcast_to(column, (9, 3, 2)))
    assert run(lambda t: t if t.broadcast_to((1, 6)) is t else t + 1, x).tolist() == x.tolist()
    with pytest.raises(KernelError, match=r"nl\.broadcast_to: src has shape \(1, 6\); only sizes of 1"):
        run(lambda t: nl.broadcast_to(t, shape=(4, 12)), x)


def test_expand_dims_reshape_and_view() -> None:
    x = numbers(12, 9, 6)
    assert_close(run(lambda t: nl.expand_dims(t, 2), x), x[:, :, None])
    assert_close(run(lambda t: t.expand_dims((1, 3)), x), x[:, None, :, None])
    assert_close(run(lambda t: t.reshape((9, 2, 3)), x), x.reshape(9, 2, 3))
    assert_close(run(lambda t: t.reshape(9, 3, 2), x), x.reshape(9, 3, 2))
    np.testing.assert_array_equal(run(lambda t: t.view(nl.int32), x), x.view(np.int32))
    np.testing.assert_array_equal(run(lambda t: t.view(np.uint8), x), x.view(np.uint8))
    with pytest.raises(KernelError, match="partition dimension"):
        run(lambda t: nl.expand_dims(t, 0), x)
    with pytest.raises(KernelError, match="the partition dimension must stay 9"):
        run(lambda t: t.reshape((18, 3)), x)


def test_casts_of_tiles_arrays_and_numbers() -> None:
    x = numbers(13, 9, 6)
    np.testing.assert_array_equal(run(lambda t: nl.static_cast(t, nl.bfloat16), x), x.astype(BFLOAT16))
    np.testing.assert_array_equal(run(lambda t: t.astype(nl.float16), x), x.astype(np.float16))
    cast = nl.static_cast(x, nl.float8_e4m3)
    assert cast.dtype == np.dtype(ml_dtypes.float8_e4m3)
    np.testing.assert_array_equal(nl.static_cast(cast, "float32"), cast.astype(np.float32))
    assert nl.static_cast(2.6, np.int32) == 2
    with pytest.raises(KernelError, match="numpy has no tfloat32"):
        nl.static_cast(x, nl.tfloat32)


@FORMAT
def test_where(dtype: np.dtype[Any]) -> None:
    x, y = numbers(14, 19, 6, dtype=dtype), numbers(15, 19, 6, dtype=dtype)
    condition = (np.random.default_rng(0).random((19, 6)) > 0.5).astype(np.uint8)
    wanted = np.where(condition, x, y)
    np.testing.assert_array_equal(run(nl.where, condition, x, y), wanted)
    np.testing.assert_array_equal(run(lambda c, a, b: nl.where(c > 0, a, b), condition, x, y), wanted)
    np.testing.assert_array_equal(run(nl.where, condition.astype(dtype), x, y), wanted)
    got = run(lambda c, a: nl.where(c, a, -7.5), condition, x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.where(condition, wide(x), np.float32(-7.5)))
    got = run(lambda c, b: nl.where(c[:, 0:1], 2.5, b, dtype=nl.float32), condition, y)
    np.testing.assert_array_equal(got, np.where(condition[:, :1], np.float32(2.5), wide(y)))


def test_where_in_place_and_where_the_mask_holds() -> None:
    x, condition = numbers(16, 19, 6), np.tile(np.array([[1, 0, 1, 0, 0, 1]], np.uint8), (19, 1))

    def choose(c: Any, t: Any) -> Any:
        made = nl.copy(t)
        made[...] = nl.where(c, made, 0.0)
        columns = nl.arange(6)[None, :]
        made[...] = nl.where(c, 1.0, made, mask=columns < 2)
        return made

    wanted = np.where(condition, x, 0)
    wanted[:, 0] = 1
    np.testing.assert_array_equal(run(choose, condition, x), wanted)


def test_device_print_shows_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    def show(t: Any) -> Any:
        nl.device_print("the corner", t, mask=(nl.arange(8)[:, None] < 2) & (nl.arange(6)[None, :] < 2))
        return t

    run(show, np.full((8, 6), 1.25, np.float32))
    printed = capsys.readouterr().out
    assert "the corner" in printed
    assert printed.count("1.25") == 4


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: nl.load(x), r"nl\.load: src is in sbuf; it must be in HBM"),
        (lambda x: nl.store(x, x), r"nl\.store: dst is in sbuf; it must be in HBM"),
        (lambda x: nl.copy(nl.shared_identity_matrix(4)), r"nl\.copy: src is in HBM"),
        (lambda x: nl.store(nl.ndarray((9, 9), nl.float32, buffer=nl.hbm), x), "sizes must agree"),
        (
            lambda x: nl.atomic_rmw(nl.ndarray((9, 6), nl.float32, buffer=nl.hbm), x, np.add),
            "dst is .* it must be rows",
        ),
        (lambda x: nl.where(nl.arange(8)[:, None] < 3, x, x), "is a condition on index expressions"),
        (lambda x: nl.gather_flattened(x, x), "indices are float32; they must be integers"),
        (lambda x: nl.load_transpose2d(nl.ndarray((2, 3, 4), nl.float32, buffer=nl.hbm)), "src has 3 dimensions"),
        (lambda x: nl.ones((4, 6), nl.float32)[...].broadcast_to((4,)), "can't be repeated"),
    ],
)
def test_mistakes_are_refused(function: Function, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        run(function, numbers(0, 8, 6))
