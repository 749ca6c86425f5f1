"""Addresses that the kernel gives: `ncc.sbuf.mod_alloc` and its like, their rules, and the errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from old_kernels import assert_close, nl, numbers

from trnrt.nki.errors import KernelError, KernelMemoryError
from trnrt.nki.legacy import compiler as ncc
from trnrt.nki.legacy import isa as nisa
from trnrt.nki.legacy.launching import jit
from trnrt.nki.sim.kernel import trace

P = nl.par_dim


def _add(bases: tuple[int, int, int], places: int) -> Any:
    """A kernel that adds vectors of rows in three tensors of ``places`` places each, from these bytes on."""

    def kernel(a: Any, b: Any) -> Any:
        blocks, _, columns = a.shape
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        shape = (blocks, P(128), columns)
        left = nl.ndarray(shape, dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=bases[0], num_free_tiles=(places,)))
        right = nl.ndarray(
            shape, dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=bases[1], num_free_tiles=(places,))
        )
        total = nl.ndarray(
            shape, dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=bases[2], num_free_tiles=(places,))
        )
        for k in nl.affine_range(blocks):
            left[k] = nl.load(a[k])
            right[k] = nl.load(b[k])
            total[k] = nisa.tensor_tensor(left[k], right[k], op=nl.add)
            nl.store(out[k], value=total[k])
        return out

    return kernel


def addresses(kernel: Any, *arrays: Any) -> dict[str, tuple[int, int]]:
    """The address of each tile of a kernel, by its name."""
    program = trace(jit(kernel), *arrays)
    return {one.name: one.address for one in program.storages if one.on_chip and one.address is not None}


A, B = numbers(1, 6, 128, 100), numbers(2, 6, 128, 100)


def test_blocks_take_turns_over_the_places_of_their_tensor() -> None:
    kernel = _add((0, 800, 1600), 2)
    assert_close(jit(kernel)(A, B), A + B)
    found = addresses(kernel, A, B)
    assert [found[f"right[{k}]"] for k in range(6)] == [(0, 800), (0, 1200)] * 3
    assert found["total[5]"] == (0, 2000)


def test_tensors_over_each_other_are_an_error_that_names_all_of_them() -> None:
    with pytest.raises(KernelMemoryError) as refused:
        jit(_add((0, 0, 0), 2))(A, B)
    message = str(refused.value)
    assert message.startswith("three live tiles share SBUF bytes 0 to 400 of a partition:")
    for name in ("left[0]", "right[0]", "total[0]"):
        line = next(line for line in message.splitlines() if f" {name} " in line)
        assert "test_allocating.py:" in line and "at address (0, 0)" in line
    assert "give them addresses that do not overlap" in message


def _keep_all(places: int) -> Any:
    def kernel(a: Any) -> Any:
        blocks, _, columns = a.shape
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        kept = nl.ndarray(
            (blocks, P(128), columns),
            dtype=a.dtype,
            buffer=ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(places,)),
        )
        for k in nl.affine_range(blocks):
            kept[k] = nl.load(a[k])
        for k in nl.affine_range(blocks):
            nl.store(out[k], value=kept[k])
        return out

    return kernel


def test_more_blocks_in_use_than_places_is_an_error() -> None:
    np.testing.assert_array_equal(jit(_keep_all(6))(A), A)
    with pytest.raises(KernelMemoryError, match="more of them are in use at once than it has places") as refused:
        jit(_keep_all(2))(A)
    assert "num_free_tiles" in str(refused.value)
    assert all(f"kept[{k}]" in str(refused.value) for k in (0, 2, 4))


def test_partitions_and_several_block_dimensions_take_turns() -> None:
    def kernel() -> Any:
        grid = nl.ndarray(
            (4, 3, P(32), 10),
            dtype=np.float32,
            buffer=ncc.sbuf.mod_alloc(base_addr=64, num_par_tiles=(2, 1), num_free_tiles=(2, 3)),
        )
        out = nl.ndarray((32, 10), dtype=np.float32, buffer=nl.shared_hbm)
        for i in nl.affine_range(4):
            for j in nl.affine_range(3):
                grid[i, j] = nisa.memset((32, 10), i * 3 + j, np.float32)
                nl.store(out, value=grid[i, j])
        return out

    found = addresses(kernel)
    for i in range(4):
        for j in range(3):
            assert found[f"grid[{i}, {j}]"] == (i % 2 * 32, 64 + (i % 2 * 3 + j) * 40)


def _moving_offset(loop: Any) -> Any:
    def kernel() -> Any:
        out, offset = nl.ndarray((128, 10), dtype=np.float32, buffer=nl.shared_hbm), 0
        for i in loop(3):
            outer = nl.ndarray((P(128), 10), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=offset))
            offset += 40
            outer[...] = nisa.memset((128, 10), i, np.float32)
            for j in loop(2):
                inner = nl.ndarray((P(128), 10), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=offset))
                offset += 40
                inner[...] = nisa.tensor_scalar(outer, np.add, j)
                nl.store(out, inner)
        return out

    return kernel


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        (nl.affine_range, [0, 40, 40] * 3),
        (nl.sequential_range, [0, 40, 40] * 3),
        (nl.static_range, [40 * k for k in range(9)]),
        (range, [40 * k for k in range(9)]),
    ],
)
def test_a_loop_s_body_gives_the_addresses_of_its_first_trip(loop: Any, wanted: list[int]) -> None:
    program = trace(jit(_moving_offset(loop)))
    assert [one.address[1] for one in program.storages if one.on_chip and one.address is not None] == wanted


def test_alloc_places_blocks_by_a_function() -> None:
    asked = []

    def place(block: tuple[int, ...], partitions: int, size: int) -> tuple[int, int]:
        asked.append((block, partitions, size))
        return 64, 4096 - block[0] * size

    def kernel() -> Any:
        made = nl.ndarray((2, P(64), 7), dtype=nl.bfloat16, buffer=ncc.sbuf.alloc(place))
        out = nl.ndarray((2, 64, 7), dtype=nl.bfloat16, buffer=nl.shared_hbm)
        for k in nl.affine_range(2):
            made[k] = nisa.memset((64, 7), k + 1, nl.bfloat16)
            nl.store(out[k], value=made[k])
        return out

    assert addresses(kernel) == {"made[0]": (64, 4096), "made[1]": (64, 4082)}
    assert asked == [((0,), 64, 14), ((1,), 64, 14)]


def test_psum_blocks_take_turns_over_banks() -> None:
    x, y = numbers(1, 4, 128, 64), numbers(2, 128, 512)

    def kernel(a: Any, b: Any) -> Any:
        out = nl.ndarray((4, 64, 512), dtype=np.float32, buffer=nl.shared_hbm)
        left = nl.ndarray((P(128), 64), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=0))
        right = nl.ndarray((P(128), 512), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=256))
        copied = nl.ndarray((P(64), 512), dtype=np.float32, buffer=ncc.sbuf.mod_alloc(base_addr=256 + 2048))
        product = nl.ndarray(
            (4, P(64), 512), dtype=np.float32, buffer=ncc.psum.mod_alloc(base_bank=3, num_bank_tiles=(2,))
        )
        right[...] = nl.load(b)
        for k in nl.affine_range(4):
            left[...] = nl.load(a[k])
            product[k] = nisa.nc_matmul(left, right)
            copied[...] = nl.copy(product[k])
            nl.store(out[k], value=copied)
        return out

    np.testing.assert_allclose(jit(kernel)(x, y), np.einsum("bkm,kn->bmn", x, y), rtol=1e-4, atol=1e-3)
    found = addresses(kernel, x, y)
    assert [found[f"product[{k}]"][1] // 2048 for k in range(4)] == [3, 4, 3, 4]


def _tile(buffer: Any, shape: Any = (128, 8)) -> Any:
    def kernel() -> Any:
        made = nl.ndarray(shape, dtype=np.float32, buffer=buffer)
        out = nl.ndarray((shape[-2], shape[-1]), dtype=np.float32, buffer=nl.shared_hbm)
        nl.store(out, value=made)
        return out

    return jit(kernel)


@pytest.mark.parametrize(
    ("buffer", "shape", "says"),
    [
        (ncc.sbuf.alloc(lambda *_: (32, 0)), (96, 8), "starts at partition 32.*96 partitions starts at 0"),
        (ncc.sbuf.alloc(lambda *_: (32, 0)), (64, 8), "starts at 0 or 64"),
        (ncc.sbuf.alloc(lambda *_: (16, 0)), (16, 8), "starts at 0 or 32 or 64 or 96"),
        (ncc.sbuf.alloc(lambda *_: 5), (16, 8), "must return 2 integers"),
        (ncc.sbuf.mod_alloc(base_addr=1 << 20), (16, 8), "tile-address"),
        (ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2, 2)), (3, nl.par_dim(16), 8), "for 1 block dimensions"),
        (ncc.psum.mod_alloc(base_bank=0, base_addr=4), (16, 8), "both must be 0"),
        (ncc.psum.alloc(lambda *_: (0, 32, 0)), (16, 8), "both must be 0"),
        (ncc.psum.mod_alloc(base_bank=8), (16, 8), "tile-address"),
        (ncc.psum.mod_alloc(base_bank=0), (16, 513), "must fit a bank of 2048"),
    ],
)
def test_addresses_keep_the_guide_s_rules(buffer: Any, shape: Any, says: str) -> None:
    with pytest.raises(KernelError, match=f"(?s){says}"):
        _tile(buffer, shape)()


def _mixed() -> Any:
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        given = nl.ndarray(a.shape, dtype=a.dtype, buffer=ncc.sbuf.mod_alloc(base_addr=0))
        free = nl.ndarray(a.shape, dtype=a.dtype, buffer=ncc.sbuf.auto_alloc())
        given[...] = nl.load(a)
        free[...] = nisa.tensor_copy(given)
        nl.store(out, value=free)
        return out

    return kernel


def test_a_kernel_gives_all_of_its_tiles_addresses_or_none() -> None:
    with pytest.raises(KernelError, match="all of its tiles addresses, or none"):
        jit(_mixed())(A[0])
    np.testing.assert_array_equal(ncc.enable_stack_allocator(jit(_mixed()))(A[0]), A[0])
    np.testing.assert_array_equal(ncc.enable_stack_allocator(log_level=20)(jit(_mixed()))(A[0]), A[0])


@pytest.mark.parametrize("outside", [False, True])
def test_force_auto_alloc_ignores_given_addresses(outside: bool) -> None:
    bad = _add((0, 0, 0), 2)
    kernel = ncc.force_auto_alloc(jit(bad)) if outside else jit(ncc.force_auto_alloc(bad))
    assert_close(kernel(A, B), A + B)


def test_hints_for_aws_s_compiler_change_nothing() -> None:
    @ncc.skip_middle_end_transformations
    @jit
    def kernel(a: Any) -> Any:
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        for k in nl.sequential_range(2, directives=ncc.no_reorder()):
            for half in nl.affine_range(2, directives=ncc.multi_buffer(2)):
                rows = slice(k * 64, k * 64 + 64), slice(half * 50, half * 50 + 50)
                nl.store(out[rows], value=nl.load(a[rows]))
        return out

    np.testing.assert_array_equal(kernel(A[0]), A[0])
    with pytest.raises(KernelError, match="not document"):
        ncc.allocation_scope()
