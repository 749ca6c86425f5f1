"""The instructions of the old namespace against numpy: selections, searches, copies, transposes, DMA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy import isa as nisa
from trnrt.nki.legacy.launching import jit

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)
LEAST = float(np.finfo(np.float32).min)


# -- Index expressions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.int16])
def test_iota_writes_an_index_expression(dtype: Any) -> None:
    def kernel() -> Any:
        i_p, i_f, i_g = nl.arange(20)[:, None, None], nl.arange(3)[None, :, None], nl.arange(5)[None, None, :]
        out = nl.ndarray((20, 3, 5), dtype=dtype, buffer=nl.shared_hbm)
        nl.store(out, nisa.iota(7 - i_p * 2 + i_f * 100 + i_g, dtype=dtype))
        return out

    p, f, g = np.ogrid[:20, :3, :5]
    np.testing.assert_array_equal(jit(kernel)(), (7 - p * 2 + f * 100 + g).astype(dtype))


def test_iota_under_a_mask_counts_on() -> None:
    def kernel() -> Any:
        i_p, i_f = nl.arange(40)[:, None], nl.arange(6)[None, :]
        made = nisa.memset((40, 6), -1, np.int32)
        made[...] = nisa.iota(i_p * 6 + i_f, dtype=np.int32, mask=(i_p >= 32) & (i_f > 1))
        out = nl.ndarray((40, 6), dtype=np.int32, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    wanted = np.full((40, 6), -1)
    wanted[32:, 2:] = np.arange(240).reshape(40, 6)[32:, 2:]
    np.testing.assert_array_equal(jit(kernel)(), wanted)


def test_iota_takes_constant_steps_only() -> None:
    with pytest.raises(KernelError, match="constant steps"):
        run(lambda a: nisa.iota(nl.arange(9)[None, :] % 4, dtype=np.int32), numbers(1, 2, 2))


@FORMAT
@pytest.mark.parametrize("relation", ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
def test_affine_select_chooses_by_one_comparison(relation: str, dtype: Any) -> None:
    x = numbers(1, 30, 50, dtype=dtype)
    compare = getattr(np, relation)

    def function(a: Any) -> Any:
        i_p, i_f = nl.mgrid[0:30, 0:50]
        pred = {
            "less": lambda: i_f < i_p + 3,
            "less_equal": lambda: i_f <= i_p + 3,
            "greater": lambda: i_f > i_p + 3,
            "greater_equal": lambda: i_f >= i_p + 3,
            "equal": lambda: i_f == i_p + 3,
            "not_equal": lambda: i_f != i_p + 3,
        }[relation]()
        return nisa.affine_select(pred=pred, on_true_tile=a[i_p, i_f], on_false_value=-9.0)

    p, f = np.ogrid[:30, :50]
    assert_close(run(function, x), np.where(compare(f, p + 3), wide(x), -9.0).astype(dtype))


def test_affine_select_under_a_mask_keeps_its_places() -> None:
    x = numbers(1, 64, 20)

    def function(a: Any) -> Any:
        i_p, i_f = nl.mgrid[0:64, 0:20]
        made = nisa.memset((64, 20), 5.0, np.float32)
        made[i_p, i_f] = nisa.affine_select(i_f < i_p - 30, a, 0.0, mask=(i_p >= 32) & (i_f >= 3))
        return made

    p, f = np.ogrid[:64, :20]
    wanted = np.where((p >= 32) & (f >= 3), np.where(f < p - 30, x, 0.0), 5.0)
    assert_close(run(function, x), wanted.astype(np.float32))


def test_affine_select_takes_one_comparison() -> None:
    def function(a: Any) -> Any:
        i_p, i_f = nl.mgrid[0:8, 0:8]
        return nisa.affine_select((i_f < i_p) & (i_f > 2), a, 0.0)

    with pytest.raises(KernelError, match="several comparisons"):
        run(function, numbers(1, 8, 8))


# -- Selections --------------------------------------------------------------------------------------------


def test_range_select_chooses_by_place() -> None:
    x, low, high = numbers(1, 40, 60), numbers(2, 40, 1, least=0, most=20), numbers(3, 40, 1, least=30, most=80)

    def function(a: Any, b: Any, c: Any) -> Any:
        most = nl.ndarray((40, 1), dtype=np.float32)
        made = nisa.range_select(
            on_true_tile=a,
            comp_op0=np.greater_equal,
            comp_op1=np.less,
            bound0=b,
            bound1=c,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_res=most,
            range_start=4,
        )
        return [made, most]

    made, most = run(function, x, low, high)
    places = 4 + np.arange(60)
    wanted = np.where((places >= low) & (places < high), x, np.float32(LEAST))
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(most, wanted.max(1, keepdims=True))


@pytest.mark.parametrize("reverse", [False, True])
def test_select_reduce_chooses_by_a_predicate(reverse: bool) -> None:
    x, other = numbers(1, 24, 31), numbers(2, 24, 1)
    chosen = np.random.default_rng(3).integers(0, 2, (24, 31)).astype(np.bool_)

    def function(a: Any, b: Any, c: Any) -> Any:
        made, most = nl.ndarray((24, 31), dtype=np.float32), nl.ndarray((24, 1), dtype=np.float32)
        nisa.select_reduce(
            dst=made,
            predicate=c,
            on_true=a,
            on_false=b,
            reduce_res=most,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
            reduce_op=nl.max,
            reverse_pred=reverse,
        )
        return [made, most]

    made, most = run(function, x, other, chosen)
    wanted = np.where(chosen != reverse, x, other)
    np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(most, wanted.max(1, keepdims=True))


@FORMAT
def test_tensor_copy_predicated_keeps_the_rest(dtype: Any) -> None:
    x, y = numbers(1, 24, 31, dtype=dtype), numbers(2, 24, 31, dtype=dtype)
    chosen = np.random.default_rng(3).integers(0, 2, (24, 31)).astype(np.uint8)

    def function(a: Any, b: Any, c: Any) -> Any:
        made = nisa.tensor_copy(b)
        nisa.tensor_copy_predicated(src=a, dst=made, predicate=c, mask=nl.arange(31)[None, :] < 20)
        return made

    wanted = np.where((chosen != 0) & (np.arange(31) < 20), wide(x), wide(y))
    np.testing.assert_array_equal(wide(run(function, x, y, chosen)), wanted)


def test_sequence_bounds_finds_segments() -> None:
    ids = np.array([[0, 1, 1, 2, 2, 2, 0, 5]], np.float32)
    got = run(lambda a: nisa.sequence_bounds(segment_ids=a), ids)
    np.testing.assert_array_equal(got[0], [[8, 1, 1, 3, 3, 3, 8, 7], [-1, 3, 3, 6, 6, 6, -1, 8]])


# -- Searches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(32, 128), (7, 9), (16, 2, 3, 2, 4)], ids=str)
def test_the_eight_largest_are_found_and_replaced(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape).astype(np.float32)

    def function(a: Any) -> Any:
        largest = nisa.max8(src=a)
        places = nisa.nc_find_index8(data=a, vals=largest)
        found = nl.ndarray((shape[0], 8), dtype=np.uint32)
        rest = nisa.nc_match_replace8(data=a, vals=largest, imm=-1.0, dst_idx=found)
        return [largest, places, rest, found]

    largest, places, rest, found = run(function, x)
    rows = x.reshape(shape[0], -1)
    order = np.argsort(-rows, axis=1)[:, :8]
    np.testing.assert_array_equal(largest, np.take_along_axis(rows, order, 1))
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(found, order)
    wanted = rows.copy()
    np.put_along_axis(wanted, order, -1.0, 1)
    np.testing.assert_array_equal(rest, wanted.reshape(shape))


def test_a_mask_limits_a_search_to_the_data() -> None:
    x = np.random.default_rng(1).permutation(40 * 60).reshape(40, 60).astype(np.float32)

    def function(a: Any) -> Any:
        mask = (nl.arange(40)[:, None] < 32) & (nl.arange(60)[None, :] < 30)
        largest, found = nisa.memset((40, 8), 0, np.float32), nisa.memset((40, 8), 0, np.uint32)
        rest = nisa.tensor_copy(a)
        largest[...] = nisa.max8(src=a, mask=mask)
        rest[...] = nisa.nc_match_replace8(data=a, vals=largest, imm=-1.0, dst_idx=found, mask=mask)
        return [largest, found, rest]

    largest, found, rest = run(function, x)
    order = np.argsort(-x[:32, :30], axis=1)[:, :8]
    wanted = x.copy()
    np.put_along_axis(wanted[:32], order, -1.0, 1)
    np.testing.assert_array_equal(found[:32], order)
    np.testing.assert_array_equal(rest, wanted)
    assert not largest[32:].any() and not found[32:].any()


def test_local_gather_takes_what_each_core_names() -> None:
    x = numbers(1, 32, 50)
    index = np.random.default_rng(2).integers(0, 46, (32, 3)).astype(np.uint16)
    got = run(lambda a, b: nisa.local_gather(a, b, 4, 40), x, index)
    assert got.shape == (32, 40, 4)
    for core in range(2):
        rows = slice(core * 16, core * 16 + 16)
        places = index[rows].flatten(order="F")[:40, None] + np.arange(4)
        np.testing.assert_array_equal(got[rows], x[rows][:, places])


def test_stream_shuffle_moves_partitions() -> None:
    x = numbers(1, 64, 10)
    order = [(p + 3) % 32 for p in range(31)] + [255]

    def function(a: Any) -> Any:
        made = nisa.memset((64, 10), 7.0, np.float32)
        nisa.nc_stream_shuffle(src=a, dst=made, shuffle_mask=order, mask=nl.arange(10)[None, :] < 8)
        return made

    wanted = np.full((64, 10), 7.0, np.float32)
    for p in range(64):
        if p % 32 != 31:
            wanted[p, :8] = x[p // 32 * 32 + order[p % 32], :8]
    np.testing.assert_array_equal(run(function, x), wanted)


@pytest.mark.parametrize("prob", [0.0, 1.0, 0.25])
def test_dropout_drops_that_share(prob: float) -> None:
    x = numbers(1, 128, 200, least=1.0, most=2.0)
    got = run(lambda a: nisa.dropout(a, prob=prob), x)
    kept = got != 0
    np.testing.assert_array_equal(got[kept], x[kept])
    assert abs(1 - kept.mean() - prob) < 0.02


# -- Copies and transposes ---------------------------------------------------------------------------------


def test_copies_from_and_to_places_that_the_device_knows() -> None:
    x, places = numbers(1, 16, 40, 3), np.array([[5, 0, 30]], np.int32)

    def function(a: Any, b: Any) -> Any:
        i_p, i_f, i_g = nl.mgrid[0:16, 0:4, 0:3]
        made, back = nl.ndarray((16, 3, 4, 3), dtype=np.float32), nisa.memset((16, 40, 3), 0, np.float32)
        for k in nl.affine_range(3):
            made[i_p, k, i_f, i_g] = nisa.tensor_copy_dynamic_src(a[i_p, b[0, k] + i_f, i_g])
            nisa.tensor_copy_dynamic_dst(dst=back[i_p, 1 + b[0, k] + i_f, i_g], src=made[i_p, k, i_f, i_g])
        return [made, back]

    made, back = run(function, x, places)
    wanted = np.zeros_like(x)
    for k, place in enumerate(places[0]):
        np.testing.assert_array_equal(made[:, k], x[:, place : place + 4])
        wanted[:, place + 1 : place + 5] = x[:, place : place + 4]
    np.testing.assert_array_equal(back, wanted)


def test_a_place_past_the_end_is_an_error_of_the_run() -> None:
    x, places = numbers(1, 16, 40), np.array([[37]], np.int32)

    def function(a: Any, b: Any) -> Any:
        i_p, i_f = nl.mgrid[0:16, 0:4]
        return nisa.tensor_copy_dynamic_src(a[i_p, b[0, 0] + i_f])

    with pytest.raises(KernelError, match="37 is out of bounds"):
        run(function, x, places)


@FORMAT
@pytest.mark.parametrize("shape", [(128, 64), (20, 128), (9, 4, 5)], ids=str)
def test_nc_transpose_by_the_tensor_engine(shape: tuple[int, ...], dtype: Any) -> None:
    x = numbers(1, *shape, dtype=dtype)
    got = run(lambda a: nisa.nc_transpose(a), x)
    np.testing.assert_array_equal(wide(got), wide(x).reshape(shape[0], -1).T)


def test_nc_transpose_by_the_vector_engine_and_to_another_format() -> None:
    x = numbers(1, 32, 7)
    got = run(lambda a: nisa.nc_transpose(a, engine=nisa.vector_engine, dtype=nl.bfloat16), x)
    assert_close(got, x.T.astype(BFLOAT16))
    with pytest.raises(KernelError, match="32"):
        run(lambda a: nisa.nc_transpose(a, engine=nisa.vector_engine), numbers(1, 33, 7))


def test_a_small_tile_in_psum_is_transposed_by_the_vector_engine() -> None:
    x, y = numbers(1, 8, 16), numbers(2, 8, 12)
    got = run(lambda a, b: nisa.nc_transpose(nisa.nc_matmul(a, b)), x, y)
    np.testing.assert_allclose(got, (x.T @ y).T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(128, 64), (32, 5, 64), (16, 3, 2, 32)], ids=str)
def test_dma_transpose_exchanges_the_ends(shape: tuple[int, ...]) -> None:
    x = numbers(1, *shape, dtype=BFLOAT16)
    order = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}[len(shape)]

    def kernel(a: Any) -> Any:
        made = nisa.dma_transpose(a, axes=order, dtype=np.float32)
        out = nl.ndarray(made.shape, dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    np.testing.assert_array_equal(jit(kernel)(x), wide(x).transpose(order))
    with pytest.raises(KernelError, match="axes"):
        run(lambda a: nisa.dma_transpose(a, axes=(0, 1)), numbers(1, 16, 16))


# -- DMA ---------------------------------------------------------------------------------------------------


def test_dma_copy_adds_to_its_destination() -> None:
    x, y = numbers(1, 32, 20), numbers(2, 32, 20)

    def function(a: Any, b: Any) -> Any:
        made = nisa.tensor_copy(b)
        nisa.dma_copy(dst=made, src=a, dst_rmw_op=np.add)
        return made

    assert_close(run(function, x, y), x + y)
    with pytest.raises(KernelError, match=r"np\.add"):
        run(lambda a: nisa.dma_copy(dst=a, src=a, dst_rmw_op=np.multiply), x)


def test_dma_copy_gathers_rows_and_skips_those_out_of_bounds() -> None:
    x = numbers(1, 40, 12)

    def kernel(a: Any) -> Any:
        rows = nisa.iota(nl.arange(20)[:, None] * 3, dtype=np.int32)
        i_p, i_f = nl.mgrid[0:20, 0:12]
        made = nisa.memset((20, 12), -1.0, np.float32)
        nisa.dma_copy(src=a[rows, i_f], dst=made[i_p, i_f], oob_mode=nisa.oob_mode.skip)
        out = nl.ndarray((20, 12), dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, made)
        return out

    wanted = np.full((20, 12), -1.0, np.float32)
    wanted[:14] = x[::3]
    np.testing.assert_array_equal(jit(kernel)(x), wanted)


def test_dma_copy_takes_a_mask() -> None:
    x = numbers(1, 30, 12)

    def function(a: Any) -> Any:
        made = nisa.memset((30, 12), 2.0, np.float32)
        nisa.dma_copy(dst=made, src=a, mask=(nl.arange(30)[:, None] >= 11) & (nl.arange(12)[None, :] < 5))
        return made

    wanted = np.full((30, 12), 2.0, np.float32)
    wanted[11:, :5] = x[11:, :5]
    np.testing.assert_array_equal(run(function, x), wanted)
