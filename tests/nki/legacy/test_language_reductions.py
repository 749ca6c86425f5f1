"""Reductions of the old ``nki.language`` against numpy: along free axes, over loops, over the launch grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.launching import jit
from trnrt.nki.machine.dtypes import Array

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)
Function = Callable[..., Any]

REDUCTIONS: dict[str, Function] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "mean": np.mean,
    "var": np.var,
}
AXES = [1, (1,), [1, 2], (2,), -1, (1, 2, 3), (3, 1)]


@FORMAT
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, axis: Any, dtype: np.dtype[Any]) -> None:
    x = numbers(1, 19, 3, 4, 5, dtype=dtype, least=0.5, most=1.5)
    axes = tuple(axis) if isinstance(axis, list) else axis
    wanted = REDUCTIONS[name](wide(x).astype(np.float64), axis=axes, keepdims=True).astype(np.float32).astype(dtype)
    got = run(lambda t: getattr(nl, name)(t, axis, keepdims=True), x)
    assert got.dtype == dtype
    assert_close(got, wanted)
    flat = run(lambda t: getattr(nl, name)(t, axis=axis), x)
    kept = tuple(size for size in wanted.shape[1:] if size != 1) or (1,)
    assert_close(flat, wanted.reshape(19, *kept))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_the_elements_where_the_mask_holds(name: str) -> None:
    x = numbers(2, 24, 10, least=0.5, most=1.5)
    rows, columns = nl.arange(24)[:, None], nl.arange(10)[None, :]
    got = run(lambda t: getattr(nl, name)(t, 1, mask=(rows < 20) & (columns > 2) & (columns < 9)), x)
    wanted = REDUCTIONS[name](x.astype(np.float64)[:, 3:9], axis=1, keepdims=True).astype(np.float32)
    wanted[20:] = np.nan
    assert_close(got, wanted)


def test_a_triangular_mask_reduces_a_range_of_each_row() -> None:
    x = numbers(3, 32, 32)
    causal = nl.arange(32)[:, None] >= nl.arange(32)[None, :]

    def total(t: Any) -> Any:
        return nl.sum(t, axis=1, mask=causal)

    with pytest.raises(KernelError, match="starts at partition 1"):  # a row is an instruction; engines start at 0, 32
        run(total, x)
    columns = nl.arange(32)[None, :]
    with pytest.raises(KernelError, match="the mask holds for several ranges of the reduced axes"):
        run(lambda t: nl.sum(t, axis=1, mask=(columns < 4) | (columns > 8)), x)


def test_means_of_integers_are_float32() -> None:
    x = np.arange(24, dtype=np.int32).reshape(4, 6)
    for name in ("mean", "var"):
        got = run(lambda t, name=name: getattr(nl, name)(t, axis=1), x)
        assert got.dtype == np.float32
        assert_close(got, REDUCTIONS[name](x, axis=1, keepdims=True).astype(np.float32))


@FORMAT
def test_all_gives_bool(dtype: np.dtype[Any]) -> None:
    x = np.random.default_rng(0).integers(0, 4, (19, 2, 3)).astype(dtype)
    got = run(lambda t: nl.all(t, axis=[1, 2]), x)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, wide(x).all((1, 2)).reshape(19, 1))


def _softmax(x: Array, axis: Any) -> Array:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


@FORMAT
@pytest.mark.parametrize("axis", [-1, 1, (1, 2)], ids=str)
def test_softmax(axis: Any, dtype: np.dtype[Any]) -> None:
    x = numbers(4, 21, 6, 5, dtype=dtype)
    got = run(lambda t: nl.softmax(t, axis), x)
    assert got.dtype == dtype
    assert_close(got, _softmax(wide(x), axis).astype(dtype))
    assert run(lambda t: nl.softmax(t, axis, compute_dtype=nl.bfloat16), x).dtype == BFLOAT16


def test_softmax_where_the_mask_holds() -> None:
    x, columns = numbers(5, 16, 12), nl.arange(12)[None, :]
    got = run(lambda t: nl.softmax(t, axis=1, mask=columns < 9), x)
    wanted = np.full_like(x, np.nan)
    wanted[:, :9] = _softmax(x[:, :9], 1)
    assert_close(got, wanted)
    with pytest.raises(KernelError, match=r"nl\.softmax: the mask holds for several ranges"):
        run(lambda t: nl.softmax(t, axis=1, mask=(columns < 3) | (columns > 5)), x)


@FORMAT
def test_rms_norm(dtype: np.dtype[Any]) -> None:
    x, w = numbers(6, 25, 14, dtype=dtype), numbers(7, 1, 14, dtype=dtype)
    got = run(lambda t, weight: nl.rms_norm(t, weight, axis=1, n=14, epsilon=1e-5), x, w)
    wanted = wide(x) / np.sqrt((wide(x) ** 2).sum(1, keepdims=True) / 14 + 1e-5) * wide(w)
    assert got.dtype == dtype
    assert_close(got, wanted.astype(dtype))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: nl.sum(x, axis=0), "axis=0 of a tile .* free axes can be reduced, 1 to 1"),
        (lambda x: nl.max(x, axis=2), "axis=2 of a tile"),
        (lambda x: nl.softmax(x, axis=(1, 1)), "axis=.1, 1. of a tile"),
        (lambda x: nl.rms_norm(x, x[:, 0:3], axis=1, n=6), r"nl\.rms_norm: w is \(8, 3\)"),
        (lambda x: nl.loop_reduce(x, np.subtract, [0]), None),
        (lambda x: nl.loop_reduce(x, np.exp, [0]), r"nl\.loop_reduce: op=.* is no reduction"),
        (lambda x: nl.loop_reduce(x, np.add, []), r"loop_indices=\[\]; give the loops' indices"),
        (lambda x: nl.all_reduce(x, np.add, [1]), r"nl\.all_reduce: axis 1 of a launch grid of 0 dimensions"),
    ],
)
def test_mistakes_are_refused(function: Function, says: str | None) -> None:
    if says is None:
        run(function, numbers(0, 8, 6))
        return
    with pytest.raises(KernelError, match=says):
        run(function, numbers(0, 8, 6))


LOOPS: dict[str, Function] = {"add": np.add, "max": np.maximum, "min": np.minimum, "multiply": np.multiply}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_reduce_to_a_destination(name: str) -> None:
    """The first trip overwrites what was there, also when an outer loop uses the tile again."""
    x = numbers(8, 2, 4, 16, 6, least=0.5)

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((2, 16, 6), dtype=t.dtype, buffer=nl.shared_hbm)
        total = nl.full((16, 6), 99.0, dtype=nl.float32)
        for i in nl.affine_range(2):
            for k in nl.affine_range(4):
                total[...] = nl.loop_reduce(nl.load(t[i, k]), op=getattr(np, name), loop_indices=[k])
            nl.store(out[i], total)
        return out

    assert_close(kernel(x), LOOPS[name].reduce(x, axis=1))  # type: ignore[attr-defined]


@pytest.mark.parametrize("indices", ["affine", "python"])
def test_loop_reduce_of_parts_and_of_nested_loops(indices: str) -> None:
    x = numbers(9, 3, 2, 16, 8)
    loop = nl.affine_range if indices == "affine" else range

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((16, 8), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        total = nl.ndarray((16, 8), dtype=nl.bfloat16)
        for i in loop(3):
            for k in loop(2):
                part = nl.load(t[i, k])
                for half in loop(2):
                    columns = nl.ds(4 * half, 4)
                    total[:, columns] = nl.loop_reduce(part[:, columns], np.add, (i, k), dtype=nl.bfloat16)
        nl.store(out, total)
        return out

    got, wanted = kernel(x), x.sum((0, 1))
    np.testing.assert_allclose(wide(got), wanted, atol=0.1)


def test_loop_reduce_without_a_destination() -> None:
    x = numbers(10, 2, 4, 16, 6)

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((2, 16, 6), dtype=t.dtype, buffer=nl.shared_hbm)
        for i in nl.affine_range(2):
            for k in nl.affine_range(4):
                total = nl.loop_reduce(nl.load(t[i, k]), np.add, loop_indices=[k], name="total")
            nl.store(out[i], total)
        return out

    assert_close(kernel(x), x.sum(1))


def test_results_of_loop_reduce_have_tiles_of_their_own() -> None:
    x = numbers(10, 2, 3, 16, 6)

    @jit
    def kernel(t: Any) -> Any:
        out, totals = nl.ndarray((2, 16, 6), dtype=t.dtype, buffer=nl.shared_hbm), []
        for i in range(2):
            for k in range(3):
                total = nl.loop_reduce(nl.load(t[i, k]), np.add, [k])
            totals.append(total)
        for i in range(2):
            nl.store(out[i], totals[i])
        return out

    @jit
    def on_one_line(t: Any) -> Any:
        out = nl.ndarray((2, 16, 6), dtype=t.dtype, buffer=nl.shared_hbm)
        for k in nl.affine_range(3):
            part = nl.load(t[0, k])
            total, most = nl.loop_reduce(part, np.add, [k]), nl.loop_reduce(part, np.max, [k])
        nl.store(out[0], total)
        nl.store(out[1], most)
        return out

    assert_close(kernel(x), x.sum(1))
    assert_close(on_one_line(x), np.stack([x[0].sum(0), x[0].max(0)]))


def test_loop_reduce_begins_with_the_first_trip_that_its_mask_leaves() -> None:
    x = numbers(11, 4, 16, 6)

    @jit
    def kernel(t: Any) -> Any:
        out = nl.ndarray((16, 6), dtype=t.dtype, buffer=nl.shared_hbm)
        total = nl.ndarray((16, 6), dtype=nl.float32)
        for k in nl.affine_range(4):
            total[...] = nl.loop_reduce(nl.load(t[k]), np.add, [k], mask=k > 1)
        nl.store(out, total)
        return out

    assert_close(kernel(x), x[2:].sum(0))


def test_loop_reduce_refuses_masks_that_change_from_trip_to_trip() -> None:
    @jit
    def kernel(t: Any) -> Any:
        total = nl.ndarray((16, 6), dtype=nl.float32)
        columns = nl.arange(6)[None, :]
        for k in nl.affine_range(3):
            total[...] = nl.loop_reduce(nl.load(t[k]), np.add, [k], mask=columns <= k)
        return total

    with pytest.raises(KernelError, match="write parts of the destination that overlap and differ"):
        kernel(numbers(0, 3, 16, 6))


def test_all_reduce_is_a_copy_over_one_instance_and_refused_over_more() -> None:
    def body(t: Any) -> Any:
        out = nl.ndarray(t.shape, dtype=t.dtype, buffer=nl.shared_hbm)
        x = nl.load(t[...])
        nl.store(out, nl.all_reduce(x, op=np.add, program_axes=[0]))
        return out

    x = numbers(12, 8, 6)
    np.testing.assert_array_equal(jit(body)(x), x)
    np.testing.assert_array_equal(jit(body)[1, 2](x), x)
    with pytest.raises(KernelError, match=r"nl\.all_reduce: nl\.add over 3 instances along axes \(0,\)"):
        jit(body)[3](x)
