"""``nki.isa``: selections by range, predicate and affine pattern; iota; match and replace."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import pytest
from simulating import TARGETS, Array, Tensor, drawn, give, load, rounded, run, same, tile, traced, zeros

from trnrt.errors import KernelError
from trnrt.nki import nisa, nl

F32 = np.float32
LEAST = float(np.finfo(F32).min)
COMPARISONS: dict[str, Any] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
RESET, REDUCE = nisa.reduce_cmd.reset_reduce, nisa.reduce_cmd.reduce


# --- range_select


@pytest.mark.parametrize("ops", [("greater_equal", "less"), ("greater", "less_equal"), ("equal", "less")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2"])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_range_select(ops: tuple[str, str], dtype: str, target: str) -> None:
    def body(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        dst, most = tile(8, 4, 8, dtype=a.dtype), tile(8, 1)
        op0, op1 = (getattr(nl, op) for op in ops)
        nisa.range_select(dst, load(a), op0, op1, load(b), load(c), reduce_res=most, range_start=32)
        return give(dst), give(most)

    a = drawn(8, 32, dtype=dtype)
    low, high = np.arange(30, 38, dtype=F32)[:, None], np.arange(40, 80, 5, dtype=F32)[:, None]
    indices = 32 + np.arange(32, dtype=F32)
    mask = COMPARISONS[ops[0]](indices, low) & COMPARISONS[ops[1]](indices, high)
    selected = np.where(mask, a.astype(F32), F32(LEAST))
    dst, most = run(body, a, low, high, target=target)
    with np.errstate(over="ignore"):
        same(dst, rounded(selected, dtype).reshape(8, 4, 8))
    same(most, selected.max(axis=1, keepdims=True))  # float32: it is least, not -inf, where nothing was selected


def test_chained_range_selects() -> None:
    """The reference's example: only the last one writes the registers out."""

    def body(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        x, low, high, most, dst = load(a), load(b), load(c), tile(16, 1), tile(16, 64)
        for i in range(3):
            command, result = (RESET, None) if i == 0 else (REDUCE, most if i == 2 else None)
            nisa.range_select(dst, x, nl.greater_equal, nl.less, low, high, command, result, nl.maximum, 64 * i, LEAST)
            nisa.tensor_scalar(x, x, nl.add, 1.0)
        return give(most)

    a, low, high = drawn(16, 64), np.full((16, 1), 10, F32), np.full((16, 1), 150, F32)
    expected, step = np.full(16, LEAST, F32), a
    for i in range(3):
        inside = (np.arange(64) + 64 * i >= 10) & (np.arange(64) + 64 * i < 150)
        expected = np.maximum(expected, np.where(inside, step, F32(LEAST)).max(axis=1))
        step = step + F32(1)
    same(run(body, a, low, high), expected[:, None])


def test_range_select_leaves_the_registers_unknown_when_idle() -> None:
    def body(a: Tensor) -> Tensor:
        x, bound, most = load(a), zeros(4, 1), tile(4, 1)
        args = (x, x, nl.greater_equal, nl.greater_equal, bound, bound)
        nisa.range_select(*args, nisa.reduce_cmd.idle)
        nisa.range_select(*args, REDUCE, most)
        return give(most)

    assert np.isnan(run(body, drawn(4, 8))).all()


# --- select_reduce


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["number", "column"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_select_reduce(dtype: str, kind: str, reverse: bool, target: str) -> None:
    def body(p: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dst, most = tile(8, 2, 6, dtype=nl.bfloat16), tile(8, 1)
        other: Any = -2.5 if kind == "number" else load(b)
        nisa.select_reduce(dst, load(p, nl.psum), load(a), other, most, RESET, reverse_pred=reverse)
        return give(dst), give(most)

    p = (drawn(8, 12) > 0).astype(dtype) * np.dtype(dtype).type(3)
    a, b = drawn(8, 2, 6, seed=1), drawn(8, 1, seed=2)
    chosen = (p != 0) != reverse
    expected = np.where(chosen, a.reshape(8, 12), F32(-2.5) if kind == "number" else b)
    dst, most = run(body, p, a, b, target=target)
    same(dst, rounded(expected, "bfloat16").reshape(8, 2, 6))
    same(most, expected.max(axis=1, keepdims=True))


def test_select_reduce_goes_on() -> None:
    def body(p: Tensor, a: Tensor) -> Tensor:
        chosen, x, most = load(p), load(a), tile(8, 1)
        dst = tile(8, 12)
        nisa.select_reduce(dst, chosen, x, -100.0, reduce_cmd=RESET)
        nisa.select_reduce(dst, chosen, x, -100.0, most, REDUCE, reverse_pred=True)
        return give(most)

    p, a = (drawn(8, 12) > 0).astype(np.uint8), drawn(8, 12, seed=1)
    same(run(body, p, a), a.max(axis=1, keepdims=True))


def test_select_reduce_over_its_own_operand() -> None:
    def body(p: Tensor, a: Tensor) -> Tensor:
        x = load(a)
        nisa.select_reduce(x, load(p), x, LEAST)
        return give(x)

    p, a = (drawn(8, 12) > 0).astype(np.uint8), drawn(8, 12, seed=1)
    same(run(body, p, a), np.where(p != 0, a, F32(LEAST)))


def test_predicate_and_selected_are_not_both_in_psum() -> None:
    def body() -> None:
        predicate = zeros(4, 4, dtype=nl.uint8, buffer=nl.psum)
        nisa.select_reduce(tile(4, 4), predicate, zeros(4, 4, buffer=nl.psum), 0.0)

    with pytest.raises(KernelError, match="on_true and predicate are both in psum"):
        traced(body)


# --- iota and affine_select


def affine(partitions: int, pattern: list[list[int]], offset: int, multiplier: int) -> Array:
    """The pseudocode of the reference."""
    rows = []
    for channel in range(partitions):
        places = itertools.product(*[range(count) for _, count in pattern])
        steps = [sum(i * step for i, (step, _) in zip(place, pattern, strict=True)) for place in places]
        rows.append([offset + channel * multiplier + step for step in steps])
    return np.array(rows, np.int64)


PATTERNS = [
    ([[1, 12]], 0, 0),
    ([[-1, 12]], 0, 1),
    ([[2, 3], [10, 4]], 5, -7),
    ([[0, 12]], 3, 1000),
    ([[1, 1], [100, 2], [-10, 3], [1, 2]], -50, 2),
    ([[1 << 20, 12]], -(1 << 22), 1 << 18),
]


@pytest.mark.parametrize(("pattern", "offset", "multiplier"), PATTERNS)
@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(9, 12), (9, 3, 4)])
def test_iota(pattern: Any, offset: int, multiplier: int, dtype: str, shape: tuple[int, ...]) -> None:
    def body() -> Tensor:
        dst = tile(*shape, dtype=getattr(nl, dtype))
        nisa.iota(dst, pattern, offset, multiplier)
        return give(dst)

    expected = affine(9, pattern, offset, multiplier).reshape(shape)
    same(run(body), expected.astype(np.int32) if dtype == "int32" else rounded(expected.astype(F32), dtype))


def test_the_documented_iotas() -> None:
    def body() -> tuple[Tensor, Tensor, Tensor]:
        counting, channels = tile(1, 512, dtype=nl.int32), tile(128, 1, dtype=nl.uint32)
        both = tile(128, 512, dtype=nl.uint16)
        nisa.iota(counting, [[-1, 512]])
        nisa.iota(channels, [[0, 1]], offset=5, channel_multiplier=2)
        nisa.iota(both, [[1, 512]], channel_multiplier=1)
        return give(counting), give(channels), give(both)

    counting, channels, both = run(body)
    same(counting, -np.arange(512, dtype=np.int32)[None])
    same(channels, np.arange(5, 261, 2, dtype=np.uint32)[:, None])
    same(both, (np.arange(128)[:, None] + np.arange(512)).astype(np.uint16))


def test_iota_computes_in_32_bits() -> None:
    def body() -> Tensor:
        dst = tile(1, 2, dtype=nl.int32)
        nisa.iota(dst, [[1, 2]], (1 << 31) - 1)
        return give(dst)

    same(run(body), np.array([[(1 << 31) - 1, -(1 << 31)]], np.int32))


def test_iota_does_not_guess_what_does_not_fit() -> None:
    with pytest.raises(KernelError, match=r"dst is uint8, the values go from 0 to 300; .* is not documented"):
        traced(lambda: nisa.iota(tile(1, 301, dtype=nl.uint8), [[1, 301]]))
    with pytest.raises(KernelError, match="dst is uint32, the values go from -1 to 0"):
        traced(lambda: nisa.iota(tile(1, 2, dtype=nl.uint32), [[1, 2]], -1))


def test_an_offset_that_is_known_at_run_time() -> None:
    def body(start: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        register = nisa.register_alloc()
        nisa.register_load(register, load(start))
        integers, floats, x = tile(4, 6, dtype=nl.int32), tile(4, 6), load(a)
        nisa.iota(integers, [[2, 6]], register, 10)
        nisa.iota(floats, [[2, 6]], register, 10)
        nisa.affine_select(x, [[-1, 6]], 1, x, 0.0, nl.greater_equal, register)
        return give(integers), give(floats), give(x)

    a = drawn(4, 6)
    for start in (0, 3, -2):
        expected = affine(4, [[2, 6]], start, 10)
        integers, floats, selected = run(body, np.array([[start]], np.int32), a)
        same(integers, expected.astype(np.int32))
        same(floats, expected.astype(F32))
        same(selected, np.where(affine(4, [[-1, 6]], start, 1) >= 0, a, F32(0)))


def test_a_run_time_offset_does_not_guess_either() -> None:
    def body(start: Tensor) -> Tensor:
        dst, register = tile(1, 4, dtype=nl.uint8), nisa.register_alloc()
        nisa.register_load(register, load(start))
        nisa.iota(dst, [[1, 4]], register)
        return give(dst)

    same(run(body, np.array([[252]], np.int32)), np.arange(252, 256, dtype=np.uint8)[None])
    with pytest.raises(KernelError, match="dst is uint8, the values go from 253 to 256"):
        run(body, np.array([[253]], np.int32))


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize(("pattern", "offset", "multiplier"), PATTERNS[:5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_affine_select(pattern: Any, offset: int, multiplier: int, op: str, dtype: str) -> None:
    def body(a: Tensor) -> Tensor:
        x = load(a)
        nisa.affine_select(x, pattern, multiplier, x, -7.0, getattr(nl, op), offset)
        return give(x)

    a = drawn(9, 3, 4, dtype=dtype)
    chosen = COMPARISONS[op](affine(9, pattern, offset, multiplier), 0).reshape(a.shape)
    same(run(body, a), np.where(chosen, a, np.array(-7).astype(a.dtype)))


def test_a_causal_mask() -> None:
    """What attention kernels do: keys after the query are filled; the tile is cast on the way."""

    def body(a: Tensor) -> Tensor:
        dst = tile(128, 128, dtype=nl.bfloat16)
        nisa.affine_select(dst, [[-1, 128]], 1, load(a), LEAST, nl.greater_equal)
        return give(dst)

    a = drawn(128, 128)
    with np.errstate(over="ignore"):
        expected = rounded(np.where(np.tri(128, dtype=bool), a, F32(LEAST)), "bfloat16")
    same(run(body, a), expected)


def test_an_identity_matrix() -> None:
    def body() -> Tensor:
        ones, dst = tile(32, 32), tile(32, 32)
        nisa.memset(ones, 1.0)
        nisa.affine_select(dst, pattern=[[1, 32]], channel_multiplier=-1, on_true_tile=ones, on_false_value=0.0)
        return give(dst)

    same(run(body), np.eye(32, dtype=F32))


@pytest.mark.parametrize("pattern", [[], [[1, 2]] * 5, [[1]], [1, 4], "1", [[1.5, 4]]])
def test_patterns_of_another_form(pattern: Any) -> None:
    with pytest.raises(KernelError, match="rule pattern-form"):
        traced(lambda: nisa.iota(tile(1, 4, dtype=nl.int32), pattern))


# --- nc_match_replace8


def matched(row: Array, values: Array, imm: float) -> tuple[Array, list[int]]:
    """One partition: values from the last to the first, each the first element that is left."""
    left, places = row.astype(object), [-1] * 8
    replaced = row.copy()
    for slot in range(7, -1, -1):
        for i, element in enumerate(left):
            if element is not None and element == values[slot]:
                left[i], replaced[i], places[slot] = None, imm, i
                break
    return replaced, places


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("index", ["uint32", "uint16"])
def test_nc_match_replace8(dtype: str, index: str, target: str) -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        x, most, places = load(a), tile(16, 8), tile(16, 8, dtype=getattr(nl, index))
        nisa.max8(most, x)
        nisa.nc_match_replace8(x, x, most, float("-inf"), places)
        return give(x), give(places)

    a = np.round(drawn(16, 4, 25) * 4).astype(drawn(1, dtype=dtype).dtype)  # many equal ones
    rows = a.astype(F32).reshape(16, 100)
    expected = [matched(row, -np.sort(-row)[:8], -np.inf) for row in rows]
    dst, places = run(body, a, target=target)
    same(dst, rounded(np.stack([row for row, _ in expected]), dtype).reshape(a.shape))
    same(places, np.array([found for _, found in expected]).astype(index))


def test_the_documented_duplicates() -> None:
    def body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dst, places = tile(1, 11), tile(1, 8, dtype=nl.uint32)
        nisa.nc_match_replace8(dst, load(a), load(b), 0.0, places)
        return give(dst), give(places)

    data, vals = np.array([[1, 2, 3, 4] + [8] * 7], F32), np.array([[3] + [8] * 7], F32)
    dst, places = run(body, data, vals)
    same(places, np.array([[2, 10, 9, 8, 7, 6, 5, 4]], np.uint32))
    same(dst, np.array([[1, 2, 0, 4] + [0] * 7], F32))


def test_what_is_not_found_is_all_ones() -> None:
    def body(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        dst, places = tile(1, 9), tile(1, 8, dtype=nl.uint16)
        nisa.nc_match_replace8(dst, load(a), load(b), -1.0, places)
        return give(dst), give(places)

    data = np.arange(9, dtype=F32)[None]
    dst, places = run(body, data, np.array([[0, 20, 1, 1, np.nan, 30, 40, 50]], F32))
    same(places, np.array([[0, 65535, 65535, 1, 65535, 65535, 65535, 65535]], np.uint16))
    same(dst, np.array([[-1, -1, 2, 3, 4, 5, 6, 7, 8]], F32))


def test_sorting_by_eights() -> None:
    """The way in which the library's top-k kernels find more than 8: maxima out, minus infinity in."""

    def body(a: Tensor) -> Tensor:
        x, most = load(a), tile(4, 32)
        for i in range(4):
            found = most[:, 8 * i : 8 * i + 8]
            nisa.max8(found, x)
            nisa.nc_match_replace8(dst=x, data=x, vals=found, imm=float("-inf"))
        return give(most)

    a = drawn(4, 50)
    same(run(body, a), -np.sort(-a, axis=1)[:, :32])
