"""The instructions of the old namespace against numpy: products, elementwise, the scalar engine, reductions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

from trnrt.nki.errors import KernelError
from trnrt.nki.legacy import isa as nisa
from trnrt.nki.legacy.launching import jit
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.sim.kernel import trace

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)
Function = Callable[..., Any]


# -- Elementwise -------------------------------------------------------------------------------------------

ELEMENTWISE: dict[str, tuple[Function, Function]] = {
    "tensor_tensor": (lambda x, y, c: nisa.tensor_tensor(x, y, op=np.subtract), lambda x, y, c: x - y),
    "tensor_scalar": (
        lambda x, y, c: nisa.tensor_scalar(x, np.multiply, c, op1=np.add, operand1=2.5),
        lambda x, y, c: x * c + 2.5,
    ),
    "tensor_scalar_reversed": (
        lambda x, y, c: nisa.tensor_scalar(x, nl.subtract, 1.0, True, nl.multiply, c),
        lambda x, y, c: (1.0 - x) * c,
    ),
    "scalar_tensor_tensor": (
        lambda x, y, c: nisa.scalar_tensor_tensor(data=x, op0=nl.subtract, operand0=c, op1=nl.multiply, operand1=y),
        lambda x, y, c: (x - c) * y,
    ),
    "scalar_tensor_tensor_reversed": (
        lambda x, y, c: nisa.scalar_tensor_tensor(
            data=x, op0=nl.add, operand0=3.0, op1=nl.subtract, operand1=y, reverse1=True
        ),
        lambda x, y, c: y - (x + 3.0),
    ),
    "activation": (
        lambda x, y, c: nisa.activation(np.square, x, bias=c, scale=2.0),
        lambda x, y, c: np.square(x * 2.0 + c),
    ),
    "activation_column_scale": (
        lambda x, y, c: nisa.activation(nl.exp, x, scale=nl.copy(c, dtype=np.float32)),
        lambda x, y, c: np.exp(x * c),
    ),
    "reciprocal": (
        lambda x, y, c: nisa.reciprocal(nisa.tensor_scalar(x, np.add, 4.0)),
        lambda x, y, c: 1.0 / wide((x + 4.0).astype(x.dtype)),
    ),
    "tensor_copy": (lambda x, y, c: nisa.tensor_copy(x, engine=nisa.vector_engine), lambda x, y, c: x),
    "memset": (lambda x, y, c: nisa.memset(x.shape, 0.25, x.dtype), lambda x, y, c: np.full_like(x, 0.25)),
}


@FORMAT
@pytest.mark.parametrize("shape", [(128, 96), (17, 33), (1, 5), (64, 3, 7)], ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_instructions_compute_their_meaning(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    function, meaning = ELEMENTWISE[name]
    x, y = numbers(1, *shape, dtype=dtype), numbers(2, *shape, dtype=dtype)
    c = numbers(3, shape[0], 1, dtype=dtype)
    column = wide(c).reshape(shape[0], *(1,) * (len(shape) - 1))
    got = run(function, x, y, c)
    assert got.dtype == dtype
    if name == "reciprocal" and dtype == BFLOAT16:
        assert_close(got, (1.0 / wide((wide(x) + 4.0).astype(dtype))).astype(dtype))
    else:
        assert_close(got, meaning(wide(x), wide(y), column).astype(dtype))


def test_a_result_has_the_format_that_is_asked_for() -> None:
    x = numbers(1, 32, 40)
    got = run(lambda a: nisa.activation(np.exp, a, dtype=nl.bfloat16), x)
    assert got.dtype == BFLOAT16
    assert_close(got, np.exp(x).astype(BFLOAT16))


def test_a_float32_result_is_rounded_once_by_its_own_instruction() -> None:
    x = numbers(1, 32, 40)

    def kernel(a: Any) -> Any:
        out = nl.ndarray((32, 40), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        made = nl.ndarray((32, 40), dtype=nl.bfloat16)
        made[...] = nisa.activation(np.exp, nl.load(a))
        nl.store(out, made)
        return out

    assert_close(jit(kernel)(x), np.exp(x).astype(BFLOAT16))
    names = [one.operation.name for one in trace(jit(kernel), x).instructions]
    assert names == ["dma_copy", "activation", "dma_copy"]


def test_a_mask_leaves_elements_unwritten() -> None:
    x, y = numbers(1, 40, 50), numbers(2, 40, 50)

    def masked(a: Any, b: Any) -> Any:
        i_p, i_f = nl.arange(40)[:, None], nl.arange(50)[None, :]
        made = nisa.memset((40, 50), -1.0, np.float32)
        made[i_p, i_f] = nisa.tensor_tensor(a, b, np.add, mask=(i_p < 32) & (i_f >= 7))
        return made

    wanted = np.full((40, 50), -1.0, np.float32)
    wanted[:32, 7:] = (x + y)[:32, 7:]
    assert_close(run(masked, x, y), wanted)


def test_a_masked_result_that_is_copied_keeps_the_rest_of_its_target() -> None:
    x, y = numbers(1, 32, 16), numbers(2, 32, 24)

    def masked(a: Any, b: Any) -> Any:
        made = nisa.memset((16, 24), 7.0, nl.bfloat16)
        made[...] = nisa.nc_matmul(a, b, mask=nl.arange(24)[None, :] < 10)
        return made

    wanted = np.full((16, 24), 7.0, np.float32)
    wanted[:, :10] = (x.T @ y)[:, :10]
    assert_close(run(masked, x, y), wanted.astype(BFLOAT16))


def test_a_masked_column_is_repeated_in_the_rows_that_it_has() -> None:
    x = numbers(1, 64, 16)

    def masked(a: Any) -> Any:
        made = nisa.memset((64, 5), 7.0, np.float32)
        made[...] = nisa.tensor_reduce(np.add, a, axis=1, mask=nl.arange(64)[:, None] < 32)
        return made

    wanted = np.full((64, 5), 7.0, np.float32)
    wanted[:32] = x[:32].sum(1, keepdims=True)
    np.testing.assert_allclose(run(masked, x), wanted, rtol=1e-5, atol=1e-5)


def test_a_mask_of_false_issues_nothing() -> None:
    x = numbers(1, 8, 8)

    def masked(a: Any) -> Any:
        made = nisa.tensor_copy(a)
        made[...] = nisa.activation(np.exp, a, mask=nl.program_ndim() > 0)
        return made

    assert_close(run(masked, x), x)


# -- Scans and the scalar engine's registers ---------------------------------------------------------------


@FORMAT
def test_a_scan_carries_its_state(dtype: Any) -> None:
    x, y, start = numbers(1, 20, 31, dtype=dtype), numbers(2, 20, 31, dtype=dtype), numbers(3, 20, 1)
    state, states = wide(start)[:, 0], []
    for left, right in zip(wide(x).T, wide(y).T, strict=True):
        state = left * state + right
        states.append(state)
    got = run(lambda a, b, c: nisa.tensor_tensor_scan(a, b, c, np.multiply, np.add, dtype=np.float32), x, y, start)
    np.testing.assert_allclose(got, np.stack(states, 1), rtol=1e-4, atol=1e-4)


def test_a_scan_starts_at_a_number_and_takes_its_operands_reversed() -> None:
    x, y = numbers(1, 5, 9), numbers(2, 5, 9)
    state, states = np.full(5, 1.0, np.float32), []
    for left, right in zip(x.T, y.T, strict=True):
        state = right - (state - left)
        states.append(state)
    got = run(lambda a, b: nisa.tensor_tensor_scan(a, b, 1.0, nl.subtract, nl.subtract, True, True), x, y)
    np.testing.assert_allclose(got, np.stack(states, 1), rtol=1e-5, atol=1e-5)


def test_activation_reduce_writes_its_sum_in_place() -> None:
    x = numbers(1, 50, 70)

    def function(a: Any) -> Any:
        total = nl.ndarray((50, 1), dtype=np.float32)
        made = nisa.activation_reduce(np.exp, a, reduce_op=np.add, reduce_res=total, scale=0.5)
        return [made, total]

    made, total = run(function, x)
    assert_close(made, np.exp(x * 0.5))
    np.testing.assert_allclose(total, np.exp(x * 0.5).sum(1, keepdims=True), rtol=1e-5)


def test_an_activation_adds_to_the_registers_of_the_one_before() -> None:
    x, y = numbers(1, 30, 40), numbers(2, 30, 20)

    def function(a: Any, b: Any) -> Any:
        total = nl.ndarray((30, 1), dtype=np.float32)
        nisa.activation(np.square, a, reduce_op=np.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(np.square, b, reduce_op=np.add, reduce_res=total, reduce_cmd=nisa.reduce_cmd.reduce)
        return total

    wanted = np.square(x).sum(1, keepdims=True) + np.square(y).sum(1, keepdims=True)
    np.testing.assert_allclose(run(function, x, y), wanted, rtol=1e-5)


# -- Reductions --------------------------------------------------------------------------------------------


@FORMAT
@pytest.mark.parametrize(
    ("op", "meaning"), [(np.add, np.sum), (np.max, np.max), (nl.minimum, np.min), (np.multiply, np.prod)]
)
def test_tensor_reduce_reduces_free_axes(op: Any, meaning: Function, dtype: Any) -> None:
    x = numbers(1, 21, 4, 6, dtype=dtype)
    got = run(lambda a: nisa.tensor_reduce(op, a, axis=(1, 2), dtype=np.float32, keepdims=True), x)
    np.testing.assert_allclose(got, meaning(wide(x), axis=(1, 2), keepdims=True), rtol=1e-4, atol=1e-4)


def test_tensor_reduce_negates() -> None:
    x = numbers(1, 33, 12)
    assert_close(run(lambda a: nisa.tensor_reduce(np.max, a, axis=[1], negate=True), x), -x.max(1, keepdims=True))


def test_tensor_scalar_reduce_writes_its_reduction_in_place() -> None:
    x = numbers(1, 40, 24)

    def function(a: Any) -> Any:
        total = nl.ndarray((40, 1), dtype=np.float32)
        made = nisa.tensor_scalar_reduce(data=a, op0=nl.multiply, operand0=3.0, reduce_op=nl.add, reduce_res=total)
        return [made, total]

    made, total = run(function, x)
    assert_close(made, x * 3.0)
    np.testing.assert_allclose(total, (x * 3.0).sum(1, keepdims=True), rtol=1e-5, atol=1e-4)


RANGES: dict[str, Function] = {
    "activation": lambda x, c, m: nisa.activation_reduce(np.exp, x, reduce_op=np.add, reduce_res=c, mask=m),
    "tensor_scalar_reduce": lambda x, c, m: nisa.tensor_scalar_reduce(
        data=x, op0=np.add, operand0=1.0, reduce_op=np.add, reduce_res=c, mask=m
    ),
    "tensor_tensor_scan": lambda x, c, m: nisa.tensor_tensor_scan(x, x, 0.0, np.multiply, np.add, mask=m),
    "bn_stats": lambda x, c, m: nisa.bn_stats(x, mask=m),
    "max8": lambda x, c, m: nisa.max8(src=x, mask=m),
    "nc_find_index8": lambda x, c, m: nisa.nc_find_index8(data=x, vals=x[:, 0:8], mask=m),
    "nc_match_replace8": lambda x, c, m: nisa.nc_match_replace8(data=x, vals=x[:, 0:8], imm=0.0, mask=m),
    "range_select": lambda x, c, m: nisa.range_select(
        on_true_tile=x,
        comp_op0=np.greater,
        comp_op1=np.less,
        bound0=c,
        bound1=c,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        reduce_res=nl.copy(c),
        mask=m,
    ),
    "select_reduce": lambda x, c, m: nisa.select_reduce(
        dst=nl.copy(x),
        predicate=nl.greater(x, 0.0, dtype=nl.uint8),
        on_true=x,
        on_false=0.0,
        reduce_res=c,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
        mask=m,
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_instructions_along_a_row_take_one_range_of_it(name: str) -> None:
    def two_ranges(x: Any) -> Any:
        columns = nl.arange(32)[None, :]
        return RANGES[name](x, nl.zeros((8, 1), nl.float32), (columns < 10) | (columns > 20))

    with pytest.raises(KernelError, match=rf"nisa\.{name}: the mask leaves several ranges of elements"):
        run(two_ranges, numbers(0, 8, 32))


def test_tensor_partition_reduce_reduces_partitions() -> None:
    x = numbers(1, 100, 6, 4)
    got = run(lambda a: nisa.tensor_partition_reduce(np.add, a), x)
    np.testing.assert_allclose(got, x.sum(0, keepdims=True), rtol=1e-5, atol=1e-4)


def test_a_mask_limits_the_partitions_that_are_reduced() -> None:
    x = numbers(1, 64, 10)

    def masked(a: Any) -> Any:
        i_p, i_f = nl.arange(64)[:, None], nl.arange(10)[None, :]
        made = nisa.memset((1, 10), 9.0, np.float32)
        made[0:1, 0:10] = nisa.tensor_partition_reduce(np.max, a, mask=(i_p < 32) & (i_f < 8))
        return made

    wanted = np.full((1, 10), 9.0, np.float32)
    wanted[0, :8] = x[:32, :8].max(0)
    assert_close(run(masked, x), wanted)


@FORMAT
def test_statistics_of_several_tiles_give_mean_and_variance(dtype: Any) -> None:
    x = numbers(1, 60, 900, dtype=dtype)

    def function(a: Any) -> Any:
        stats = nl.ndarray((60, 2 * 6), dtype=np.float32)
        for k in nl.affine_range(2):
            stats[:, k * 6 : k * 6 + 6] = nisa.bn_stats(a[:, k * 450 : (k + 1) * 450], dtype=np.float32)
        return nisa.bn_aggr(stats)

    got = run(function, x)
    np.testing.assert_allclose(got[:, 0], wide(x).mean(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got[:, 1], wide(x).var(1), rtol=1e-4, atol=1e-5)


def test_statistics_take_512_elements_at_most() -> None:
    with pytest.raises(KernelError, match=r"bn_stats.*513"):
        run(lambda a: nisa.bn_stats(a), numbers(1, 4, 513))


# -- Matrix products ---------------------------------------------------------------------------------------


@FORMAT
@pytest.mark.parametrize("sizes", [(128, 128, 512), (33, 17, 65), (1, 128, 7)], ids=str)
def test_nc_matmul_multiplies(sizes: tuple[int, int, int], dtype: Any) -> None:
    k, m, n = sizes
    x, y = numbers(1, k, m, dtype=dtype), numbers(2, k, n, dtype=dtype)
    got = run(lambda a, b: nisa.nc_matmul(a, b), x, y)
    np.testing.assert_allclose(got, wide(x).T @ wide(y), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("transpose_x", [False, True])
def test_matmul_copies_operands_from_psum(transpose_x: bool) -> None:
    x, y = numbers(1, 24, 24), numbers(2, 24, 24)

    def function(a: Any, b: Any) -> Any:
        return nl.matmul(nisa.nc_transpose(a), nisa.nc_transpose(b), transpose_x=transpose_x)

    wanted = x @ y.T if transpose_x else x.T @ y.T
    np.testing.assert_allclose(run(function, x, y), wanted, rtol=1e-4, atol=1e-4)


def test_nc_matmul_takes_a_tile_of_the_array() -> None:
    x, y = numbers(1, 64, 64), numbers(2, 64, 100)
    got = run(lambda a, b: nisa.nc_matmul(a, b, tile_position=(64, 0), tile_size=(64, 64)), x, y)
    np.testing.assert_allclose(got, x.T @ y, rtol=1e-4, atol=1e-3)


def _product(masked: Function, k: int, m: int, n: int) -> tuple[Array, Array, Array]:
    """``masked`` of both operands, in a tile of zeros; random operands with NaN where masks must cut."""

    def function(a: Any, b: Any) -> Any:
        psum = nl.zeros((m, n), np.float32, buffer=nl.psum)
        psum[...] += masked(a, b)
        return nl.copy(psum)

    x, y = numbers(1, k, m), numbers(2, k, n)
    return np.asarray(run(function, x, y)), x, y


def test_a_mask_of_a_product_limits_the_contraction() -> None:
    i_p = nl.arange(40)[:, None]
    got, x, y = _product(lambda a, b: nisa.nc_matmul(a, b, mask=i_p < 32), 40, 16, 24)
    np.testing.assert_allclose(got, x[:32].T @ y[:32], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("free", [16, 24])
def test_a_mask_of_a_product_limits_the_axis_that_it_fits(free: int) -> None:
    i_f = nl.arange(free)[None, :]
    got, x, y = _product(lambda a, b: nisa.nc_matmul(a, b, mask=i_f < 9), 40, 16, 24)
    wanted = np.zeros((16, 24), np.float32)
    kept = (slice(None, 9), slice(None)) if free == 16 else (slice(None), slice(None, 9))
    wanted[kept] = (x.T @ y)[kept]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_operands_of_a_product_have_masks_of_their_own() -> None:
    i_p, i_m, i_n = nl.arange(40)[:, None], nl.arange(16)[None, :], nl.arange(16)[None, :]
    got, x, y = _product(
        lambda a, b: nisa.nc_matmul(a[i_p, i_m][i_m < 5], b[i_p, i_n][(i_n >= 2) & (i_p < 32)]), 40, 16, 16
    )
    wanted = np.zeros((16, 16), np.float32)
    wanted[:5, 2:] = (x[:32].T @ y[:32])[:5, 2:]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_mask_that_fits_both_operands_is_refused() -> None:
    i_f = nl.arange(16)[None, :]
    with pytest.raises(KernelError, match="both operands"):
        _product(lambda a, b: nisa.nc_matmul(a, b, mask=i_f < 9), 40, 16, 16)


def test_only_products_take_masked_operands() -> None:
    i_p, i_f = nl.arange(8)[:, None], nl.arange(8)[None, :]
    with pytest.raises(KernelError, match="MaskedTile"):
        run(lambda a: nisa.activation(np.exp, a[i_p, i_f][i_f < 4]), numbers(1, 8, 8))


# -- What is no instruction of the simulator ---------------------------------------------------------------


def test_an_error_names_the_line_of_its_instruction() -> None:
    def function(a: Any) -> Any:
        made = nisa.tensor_tensor(a, a, op=np.bitwise_and)
        return nisa.tensor_copy(made)

    line = inspect.getsourcelines(function)[1] + 1
    with pytest.raises(KernelError, match=rf"bitvec-dtypes(?s:.*)test_isa\.py:{line} in function") as refused:
        run(function, numbers(1, 4, 4))
    assert "dst is the result" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("function", "shape", "says"),
    [
        (lambda a: nisa.nc_matmul(a, a), (128, 200), "200 elements a partition.*128"),
        (lambda a: nisa.nc_matmul(a[:, 0:8], a), (128, 600), "moving 600.*512"),
        (lambda a: nisa.nc_matmul(a[0:32], a), (64, 8), "spans 32 partitions, moving 64"),
        (lambda a: nisa.nc_transpose(a), (128, 300), "300 elements.*128 x 128"),
        (lambda a: nisa.memset((200, 4), 0, np.float32), (4, 4), "the result of an instruction.*200 partitions"),
    ],
)
def test_sizes_have_beta_1_s_limits(function: Function, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(KernelError, match=says):
        run(function, numbers(1, *shape))


def test_an_argument_that_nisa_does_not_have_is_refused() -> None:
    with pytest.raises(KernelError, match=r"nisa\.activation has no argument 'sclae'; it has bias, data, dtype"):
        run(lambda a: nisa.activation(np.exp, a, sclae=2.0), numbers(1, 4, 4))


def test_a_result_is_put_where_buffer_says() -> None:
    x = numbers(1, 16, 24)

    def function(a: Any) -> Any:
        made = nisa.activation(np.square, a, buffer=nl.psum, name="squares")
        assert made.buffer is nl.psum
        return nisa.tensor_copy(made, name="copied")

    assert_close(run(function, x), np.square(x))
    with pytest.raises(KernelError, match=r"must be nl\.sbuf or nl\.psum"):
        run(lambda a: nisa.activation(np.square, a, buffer=nl.shared_hbm), x)


def test_a_custom_library_is_refused() -> None:
    with pytest.raises(KernelError, match="builtin_custom_op"):
        run(lambda a: nisa.builtin_custom_op("f", "lib.so", {}, {}, [a], [a]), numbers(1, 4, 4))
