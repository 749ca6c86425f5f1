"""Replaying programs: unwritten memory, weights that stay, results that are the caller's own."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from simulating import Array, Tensor, drawn, give, load, run, same, spec, tile, zeros

from trnrt.errors import KernelError
from trnrt.nki import Spec, nisa, nl, simulate, trace
from trnrt.nki.machine.execute import Executor, from_host


def executor(body: Any, *specs: Any, target: str = "trn2") -> Executor:
    return Executor(trace(body, *specs, target=target))


@pytest.mark.parametrize(("dtype", "value"), [("float32", np.nan), ("bfloat16", np.nan), ("int32", 4), ("uint8", 4)])
def test_memory_that_nothing_wrote(dtype: str, value: float) -> None:
    def body() -> Tensor:
        return give(tile(4, 6, dtype=dtype))

    expected = np.full((4, 6), value, np.float64)
    np.testing.assert_array_equal(run(body).astype(np.float64), expected)


def test_outputs_that_nothing_wrote() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        out, half = (nl.ndarray((4, 6), nl.float32, nl.shared_hbm) for _ in range(2))
        nisa.dma_copy(dst=half[:, 0:3], src=a[:, 0:3])
        return out, half

    call = simulate(body)
    a = drawn(4, 6)
    for _ in range(2):
        out, half = call(a)
        assert np.isnan(out).all()
        same(half[:, 0:3], a[:, 0:3])
        assert np.isnan(half[:, 3:]).all()


def test_a_partly_written_tile_does_not_show_another_tile_or_an_earlier_run() -> None:
    """Host arrays are shared by tiles whose lives do not overlap, as SBUF is."""

    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        full = load(a)
        first = give(full)
        part = tile(4, 6)
        nisa.tensor_copy(dst=part[:, 0:3], src=full[:, 0:3])
        again = tile(4, 6)
        nisa.tensor_copy(dst=again, src=part)
        return first, give(again)

    call = simulate(body)
    for seed in range(3):
        a = drawn(4, 6, seed=seed)
        _, again = call(a)
        same(again[:, 0:3], a[:, 0:3])
        assert np.isnan(again[:, 3:]).all()


def test_an_overlapping_write_does_not_count_as_a_whole_one() -> None:
    """As many elements as the tile, but some of them twice: the others stay unwritten."""

    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        full = load(a)
        first = give(full)
        dst = tile(4, 6)
        nisa.tensor_copy(dst=dst.ap([[6, 4], [1, 3], [1, 2]]), src=full)
        return first, give(dst)

    call = simulate(body)
    for seed in range(2):
        _, got = call(drawn(4, 6, seed=seed))
        assert np.isnan(got[:, 4:]).all()
        assert not np.isnan(got[:, :4]).any()


def test_reading_before_writing_reads_nothing_on_every_run() -> None:
    def body(a: Tensor) -> Tensor:
        x = tile(4, 6)
        early = tile(4, 6)
        nisa.tensor_copy(dst=early, src=x)
        nisa.dma_copy(dst=x, src=a)
        use = tile(4, 6)
        nisa.tensor_copy(dst=use, src=x)
        return give(early)

    call = simulate(body)
    for _ in range(3):
        assert np.isnan(call(drawn(4, 6))).all()


def test_in_place_on_unwritten_memory() -> None:
    def body(a: Tensor) -> Tensor:
        give(load(a))
        x = tile(4, 6)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.multiply, operand0=0.0)
        return give(x)

    call = simulate(body)
    for _ in range(2):
        assert np.isnan(call(drawn(4, 6))).all()


def test_a_predicated_copy_keeps_what_is_unwritten() -> None:
    def body(a: Tensor, chosen: Tensor) -> Tensor:
        give(load(a))
        x = tile(4, 6)
        nisa.tensor_copy_predicated(dst=x, src=1.0, predicate=load(chosen))
        return give(x)

    chosen = np.zeros((4, 6), np.uint8)
    chosen[:, 0] = 1
    call = simulate(body)
    for _ in range(2):
        got = call(drawn(4, 6), chosen)
        assert (got[:, 0] == 1).all()
        assert np.isnan(got[:, 1:]).all()


def add(a: Tensor, b: Tensor) -> Tensor:
    x = load(a)
    nisa.tensor_tensor(dst=x, data1=x, data2=load(b), op=nl.add)
    return give(x)


def test_weights_stay_until_they_are_replaced() -> None:
    replay = executor(add, spec(4, 6), spec(4, 6))
    a, b, c = (drawn(4, 6, seed=seed) for seed in range(3))
    replay.load(1, b)
    same(replay.run([a])[0], a + b)
    same(replay.run([c, None])[0], c + b)
    same(replay.run([None, a])[0], c + a)
    same(replay.run([])[0], c + a)


def test_an_argument_that_was_never_given_is_unwritten_memory() -> None:
    assert np.isnan(executor(add, spec(4, 6), spec(4, 6)).run([drawn(4, 6)])[0]).all()


def test_the_same_input_gives_the_same_bits() -> None:
    def body(a: Tensor, w: Tensor) -> Tensor:
        dst, y = tile(64, 100, buffer=nl.psum), tile(64, 100, dtype=nl.bfloat16)
        nisa.nc_matmul(dst=dst, stationary=load(w), moving=load(a))
        nisa.activation(dst=y, op=nl.exp, data=dst)
        return give(y)

    a, w = drawn(100, 100), drawn(100, 64, seed=1)
    call = simulate(body)
    first = call(a, w).tobytes()
    call(drawn(100, 100, seed=2), w)
    assert call(a, w).tobytes() == first
    assert simulate(body)(a, w).tobytes() == first


def test_results_are_the_caller_s_own() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        out = give(load(a))
        return out, out

    call = simulate(body)
    a = drawn(4, 6)
    kept = a.copy()
    one, other = call(a)
    one[:] = 7
    same(other, kept)
    same(a, kept)
    later, _ = call(drawn(4, 6, seed=1))
    same(other, kept)
    assert not np.shares_memory(later, one)


def test_inputs_may_have_any_layout() -> None:
    a = drawn(6, 4).T
    read_only = drawn(4, 6, seed=1)
    read_only.flags.writeable = False
    same(run(add, a, read_only), a + read_only)
    big_endian = a.astype(">f4")
    same(run(add, a, read_only), executor(add, spec(4, 6), spec(4, 6)).run([big_endian, read_only])[0])


def test_views_of_hbm_are_returned_as_they_are_seen() -> None:
    def body(a: Tensor) -> tuple[Tensor, Tensor]:
        return give(load(a)).permute((1, 0))[1:3], a

    a = drawn(4, 6)
    seen, itself = run(body, a)
    same(seen, a.T[1:3].copy())
    same(itself, a)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3", "tfloat32", "float32"])
def test_arguments_are_rounded_to_their_dtype(dtype: str) -> None:
    """A weight in float32 for an argument in bfloat16 is what bfloat16 holds of it."""

    def body(a: Tensor) -> Tensor:
        out = nl.ndarray(a.shape, nl.float32, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=a)
        return out

    values = drawn(4, 6)
    expected = {
        "bfloat16": values.astype(ml_dtypes.bfloat16),
        "float8_e4m3": values.astype(ml_dtypes.float8_e4m3),
        "tfloat32": (np.round(values.view(np.uint32) / 8192).astype(np.uint32) * 8192).view(np.float32),
        "float32": values,
    }[dtype]
    same(executor(body, spec(4, 6, dtype=dtype)).run([values])[0], expected.astype(np.float32))


def test_a_single_number_fits_an_argument_of_one_element() -> None:
    assert executor(lambda a: a, spec(1)).run([np.array(2.5, np.float32)])[0].tolist() == [2.5]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (drawn(4, 5), r"argument 'a' takes float32 of shape \(4, 6\); it was given float32 of shape \(4, 5\)"),
        (drawn(6, 4), r"it was given float32 of shape \(6, 4\)"),
        (np.float32(1).reshape(()), r"it was given float32 of shape \(\)"),
        (drawn(4, 6, dtype="int32"), "it was given int32"),
        (np.zeros((4, 6)), "the NeuronCore has no dtype dtype\\('float64'\\)"),
    ],
)
def test_arguments_that_do_not_fit(given: Array, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        executor(add, spec(4, 6), spec(4, 6)).load(0, given)


def test_programs_share_nothing() -> None:
    one, other = executor(add, spec(4, 6), spec(4, 6)), executor(add, spec(4, 6), spec(4, 6))
    a, b = drawn(4, 6), drawn(4, 6, seed=1)
    one.load(1, a)
    other.load(1, b)
    same(one.run([a])[0], a + a)
    same(other.run([a])[0], a + b)


def test_instructions_share_their_scratch() -> None:
    """Hundreds of products of one shape must not hold hundreds of arrays; nor disturb each other."""

    def body(a: Tensor, w: Tensor) -> Tensor:
        x, y, out = load(a), load(w), zeros(4, 6)
        for _ in range(50):
            dst = tile(4, 6, buffer=nl.psum)
            for _ in range(3):
                nisa.nc_matmul(dst=dst, stationary=y, moving=x[:, ::2])
            nisa.tensor_tensor(dst=out, data1=dst, data2=out, op=nl.maximum)
        return give(out)

    a, w = drawn(8, 12), drawn(8, 4, seed=1)
    replay = executor(body, spec(8, 12), spec(8, 4))
    np.testing.assert_allclose(replay.run([a, w])[0], np.maximum(3 * (w.T @ a[:, ::2]), 0), rtol=1e-5, atol=1e-5)
    arrays = {id(array) for array in replay._memory._scratch.values()}
    assert len(arrays) <= 3


def test_without_rounding_narrow_tiles_hold_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(src: Tensor) -> Tensor:
        out = nl.ndarray(src.shape, nl.bfloat16, nl.shared_hbm)
        narrow = tile(*src.shape, dtype=nl.bfloat16)
        nisa.tensor_scalar(dst=narrow, data=load(src), op0=nl.multiply, operand0=3.0)
        nisa.dma_copy(dst=out, src=narrow)
        return out

    data = drawn(8, 16)
    rounded, exact = simulate(kernel)(data), simulate(kernel, precise=False)(data)
    assert rounded.dtype == ml_dtypes.bfloat16 and exact.dtype == np.float32
    np.testing.assert_array_equal(exact, data * np.float32(3))
    np.testing.assert_array_equal(rounded, exact.astype(ml_dtypes.bfloat16))
    assert not np.array_equal(rounded.astype(np.float32), exact)
    monkeypatch.setenv("NKI_PRECISE_FP", "0")
    np.testing.assert_array_equal(simulate(kernel)(data), exact)


def test_loads_that_need_no_copy_read_the_argument_of_the_run_at_hand() -> None:
    def kernel(src: Tensor) -> Tensor:
        out = nl.ndarray((6, 8), nl.float32, nl.shared_hbm)
        whole = load(src[2:8, 1:9])
        result = tile(6, 8)
        nisa.tensor_tensor(dst=result, data1=whole, data2=whole, op=nl.add)
        nisa.tensor_copy(dst=result[:, 2:5], src=whole[:, 4:7])
        nisa.tensor_copy(dst=result[0:1, 7:8], src=whole[0:1, 0:1])
        nisa.dma_copy(dst=out, src=result)
        return out

    compiled = executor(kernel, spec(10, 12))
    for seed in (1, 2):
        data = drawn(10, 12, seed=seed)
        part = data[2:8, 1:9]
        expected = part * 2
        expected[:, 2:5] = part[:, 4:7]
        expected[0, 7] = part[0, 0]
        np.testing.assert_array_equal(compiled.run([data])[0], expected)


@pytest.mark.parametrize("early", [False, True])
def test_loads_in_pieces_need_no_copy_either(early: bool) -> None:
    """But where something is read before all of it is there: that must stay what nothing wrote."""

    def kernel(src: Tensor) -> Tensor:
        out = nl.ndarray((6, 6), nl.float32, nl.shared_hbm)
        whole, result = tile(6, 9), tile(6, 6)
        nisa.dma_copy(dst=whole[:, 0:4], src=src[:, 0:4])
        if early:
            nisa.tensor_copy(dst=result[:, 0:3], src=whole[:, 4:7])
        nisa.dma_copy(dst=whole[:, 4:8], src=src[:, 4:8])
        nisa.dma_copy(dst=whole[:, 8:9], src=src[:, 8:9])
        part = whole[:, 3:9].reshape((6, 2, 3))
        if not early:
            nisa.tensor_copy(dst=result[:, 0:3], src=part[:, 1])
        nisa.tensor_copy(dst=result[:, 3:6], src=part[:, 0])
        nisa.dma_copy(dst=out, src=result)
        return out

    compiled = executor(kernel, spec(6, 9))
    held = {s.index for s in compiled.program.storages if s.shape == (6, 9)} & set(compiled._memory.sources)
    assert bool(held) == (not early)
    for seed in (1, 2):
        data = drawn(6, 9, seed=seed)
        (got,) = compiled.run([data])
        np.testing.assert_array_equal(got[:, 3:], data[:, 3:6])
        assert np.isnan(got[:, :3]).all() if early else (got[:, :3] == data[:, 6:9]).all()


def test_pieces_of_elsewhere_are_copied() -> None:
    """A tile whose pieces lie differently from their argument's, or come from two arguments."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        out = nl.ndarray((3, 4, 6), nl.float32, nl.shared_hbm)
        for number, (first, second) in enumerate(
            ((a[:, 3:6], a[:, 0:3]), (a[:, 0:3], b[:, 3:6]), (a[:, 0:3], a[:, 0:3]))
        ):
            data = tile(4, 6)
            nisa.dma_copy(dst=data[:, 0:3], src=first)
            nisa.dma_copy(dst=data[:, 3:6], src=second)
            nisa.dma_copy(dst=out[number], src=data)
        return out

    a, b = drawn(4, 6), drawn(4, 6, seed=1)
    got = simulate(kernel)(a, b)
    np.testing.assert_array_equal(got[0], np.concatenate([a[:, 3:], a[:, :3]], axis=1))
    np.testing.assert_array_equal(got[1], np.concatenate([a[:, :3], b[:, 3:]], axis=1))
    np.testing.assert_array_equal(got[2], np.concatenate([a[:, :3], a[:, :3]], axis=1))


def test_given_arguments_are_read_where_they_are() -> None:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        total = tile(*x.shape)
        nisa.tensor_tensor(dst=total, data1=load(x), data2=load(w), op=nl.add)
        nisa.dma_copy(dst=out, src=total)
        return out

    program = trace(kernel, spec(4, 6), spec(4, 6))
    x, w = drawn(4, 6), drawn(4, 6, seed=1)
    compiled = Executor(program, given={1: w})
    assert np.shares_memory(compiled._memory.held[program.inputs[1].index], w)
    np.testing.assert_array_equal(compiled.run([x])[0], x + w)
    narrow = Executor(program, given={1: w.astype(np.float16)})
    np.testing.assert_array_equal(narrow.run([x])[0], x + w.astype(np.float16).astype(np.float32))


def test_a_given_argument_that_is_written_to_is_copied() -> None:
    def kernel(w: Tensor) -> Tensor:
        out, ones = nl.ndarray(w.shape, nl.float32, nl.shared_hbm), tile(*w.shape)
        nisa.dma_copy(dst=out, src=w)
        nisa.memset(dst=ones, value=1.0)
        nisa.dma_copy(dst=w, src=ones)
        return out

    w = drawn(4, 6)
    before = w.copy()
    compiled = Executor(trace(kernel, spec(4, 6)), given={0: w})
    np.testing.assert_array_equal(compiled.run([None])[0], before)
    np.testing.assert_array_equal(w, before)


def test_a_load_is_copied_where_the_argument_changes() -> None:
    def kernel(src: Tensor) -> Tensor:
        out = nl.ndarray(src.shape, nl.float32, nl.shared_hbm)
        before, ones = load(src), tile(*src.shape)
        nisa.memset(dst=ones, value=1.0)
        nisa.dma_copy(dst=src, src=ones)
        nisa.dma_copy(dst=out, src=before)
        return out

    data = drawn(4, 6)
    np.testing.assert_array_equal(simulate(kernel)(data), drawn(4, 6))
    np.testing.assert_array_equal(data, np.ones((4, 6)))


@pytest.mark.usefixtures("level_0_6")
def test_a_load_in_a_loop_that_runs_no_time_loads_nothing() -> None:
    def kernel(src: Tensor) -> Tensor:
        out, data = nl.ndarray(src.shape, nl.float32, nl.shared_hbm), tile(*src.shape)
        for _ in nl.dynamic_range(nisa.register_alloc(0)):
            nisa.dma_copy(dst=data, src=src)
        nisa.dma_copy(dst=out, src=data)
        return out

    assert np.isnan(simulate(kernel)(drawn(4, 6))).all()


def test_what_fills_unread_tiles_does_not_run() -> None:
    def kernel(x: Tensor) -> Tensor:
        out, blank = nl.ndarray(x.shape, nl.float32, nl.shared_hbm), tile(4, 4)
        nisa.memset(dst=blank, value=0.0)
        for _ in range(3):
            nisa.nc_transpose(dst=nl.ndarray((4, 4), nl.float32, nl.psum), data=blank)
        nisa.dma_copy(dst=out, src=load(x))
        return out

    compiled = executor(kernel, spec(4, 6))
    assert len(compiled.program.instructions) == 6
    assert sum(map(len, compiled.segments)) == 1
    np.testing.assert_array_equal(compiled.run([drawn(4, 6)])[0], drawn(4, 6))


@pytest.mark.parametrize("between", [0, 1, 2, 3])
def test_what_fills_a_tile_that_something_reads_runs(between: int) -> None:
    """Also through other tiles, and if only an argument is written."""

    def kernel(x: Tensor) -> None:
        last = tile(4, 6)
        nisa.memset(dst=last, value=1.0)
        for _ in range(between):
            copied = tile(4, 6)
            nisa.tensor_copy(dst=copied, src=last)
            last = copied
        nisa.dma_copy(dst=x, src=last)

    compiled = executor(kernel, spec(4, 6))
    compiled.run([drawn(4, 6)])
    np.testing.assert_array_equal(compiled.argument(0), np.ones((4, 6)))
    assert sum(map(len, compiled.segments)) == 2 + between


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "tfloat32", "int32"])
def test_arguments_are_loaded_alike_in_every_dtype(dtype: str) -> None:
    """Arrays that need no conversion are copied as they are; others, as floats of another width, are rounded."""

    def kernel(x: Tensor) -> Tensor:
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(dst=out, src=load(x))
        return out

    compiled = executor(kernel, Spec((4, 6), dtype))
    given = np.arange(24, dtype=np.float32).reshape(4, 6) * np.float32(1.001)
    arrays = [given.astype(np.int32)] if dtype == "int32" else [given, given.astype(np.float16)]
    for array in arrays:
        held = from_host(array, compiled.program.inputs[0]).reshape(4, 6)
        np.testing.assert_array_equal(compiled.run([array])[0].astype(np.float32), held.astype(np.float32))
    with pytest.raises(KernelError, match="it was given"):
        compiled.run([given.T])
