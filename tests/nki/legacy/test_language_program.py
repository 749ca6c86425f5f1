"""Loops, launch grids, constants, matrix products and names of the old ``nki.language``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from old_kernels import BFLOAT16, FORMATS, assert_close, nl, numbers, run, wide

import trnrt.nki
from trnrt.nki.errors import KernelError
from trnrt.nki.legacy.api import NAMES
from trnrt.nki.legacy.launching import jit

FORMAT = pytest.mark.parametrize("dtype", FORMATS, ids=str)


def test_loops_count_their_trips() -> None:
    for loop in (nl.affine_range, nl.sequential_range, nl.static_range):
        trips = list(loop(2, 11, 3))
        assert trips == [2, 5, 8] and len(loop(4)) == 4
        assert [one.first for one in trips] == [True, False, False]
        assert [one.last for one in trips] == [False, False, True]
        assert list(loop(0)) == []
    with pytest.raises(KernelError, match="a loop's bound is known on the device only"):
        run(lambda x: list(nl.affine_range(x[0:1, 0:1])), numbers(0, 4, 4))


def test_instances_know_their_place_in_the_grid() -> None:
    found = []

    @jit
    def kernel(x: Any) -> Any:
        out = nl.ndarray((2, 3, 4, 6), x.dtype, buffer=nl.shared_hbm)
        i, j = nl.program_id(0), nl.program_id(axis=1)
        found.append((i, j, nl.num_programs(), nl.num_programs(1), nl.num_programs([0, 1]), nl.program_ndim()))
        nl.store(out[i, j], nl.load(x) * float(10 * i + j))
        return out

    x = numbers(1, 4, 6)
    got = kernel[2, 3](x)
    for i in range(2):
        for j in range(3):
            assert_close(got[i, j], x * np.float32(10 * i + j))
    assert found == [(i, j, 6, 3, 6, 2) for i in range(2) for j in range(3)]
    with pytest.raises(KernelError, match=r"nl\.program_id: axis 1 of a launch grid of 1 dimensions"):
        kernel[6](x)


def test_a_kernel_without_a_grid_is_one_instance() -> None:
    def note(x: Any) -> Any:
        assert (nl.program_id(0), nl.num_programs(), nl.num_programs(0), nl.program_ndim()) == (0, 1, 1, 0)
        return x

    run(note, numbers(0, 4, 4))


def test_grids_over_cores() -> None:
    assert int(nl.spmd_dim(nl.nc(2), 3)) == 6
    assert nl.nc(2) * 3 == 3 * nl.nc(2) == 6


def test_constants() -> None:
    assert nl.fp32.min == float(np.finfo(np.float32).min)
    assert np.float32(nl.fp32.min).view(np.uint32) == 0xFF7FFFFF  # the SDK's bit patterns
    assert np.array(nl.bfp16.min, BFLOAT16).view(np.uint16) == 0xFF80
    assert nl.finfo(nl.bfloat16).min == ml_dtypes.finfo(ml_dtypes.bfloat16).min
    assert nl.finfo(np.float16).max == np.finfo(np.float16).max
    with pytest.raises(KernelError, match=r"nl\.finfo: dtype=int32; it must be a format of floats"):
        nl.finfo(nl.int32)
    sizes = nl.tile_size
    assert (sizes.pmax, sizes.psum_fmax, sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax) == (128, 512, 128, 512)
    assert (sizes.bn_stats_fmax, sizes.psum_min_align, sizes.sbuf_min_align) == (512, 4, 1)
    assert [one.shape for one in nl.gemm_grid()] == [(128, 1), (1, 512)]
    assert [one.shape for one in nl.gemm_stationary_grid()] == [(128, 1), (1, 128)]


@FORMAT
@pytest.mark.parametrize("shape", [(128, 128, 512), (37, 11, 5), (1, 1, 1)], ids=str)
def test_matrix_products(shape: tuple[int, int, int], dtype: np.dtype[Any]) -> None:
    k, m, n = shape
    x, y = numbers(1, k, m, dtype=dtype), numbers(2, k, n, dtype=dtype)
    wanted = wide(x).T @ wide(y)
    for got in (
        run(lambda a, b: nl.matmul(a, b, transpose_x=True), x, y),
        run(nl.matmul, np.ascontiguousarray(x.T), y),
    ):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@FORMAT
def test_transpose(dtype: np.dtype[Any]) -> None:
    x = numbers(3, 37, 128, dtype=dtype)
    np.testing.assert_array_equal(run(nl.transpose, x), x.T)
    got = run(lambda t: nl.transpose(t, dtype=nl.float32), x)
    np.testing.assert_array_equal(got, wide(x.T))


# -- The modules -------------------------------------------------------------------------------------------


@pytest.fixture
def installed() -> Iterator[Any]:
    assert trnrt.nki.install(legacy=True)
    yield importlib.import_module("neuronxcc.nki.language")
    trnrt.nki.uninstall()


def test_the_module_has_every_name(installed: Any) -> None:
    assert [name for name in NAMES["neuronxcc.nki.language"] if not hasattr(installed, name)] == []
    assert installed.float32 is np.float32 and installed.mgrid[0:4, 0:2].p.shape == (4, 1)


def test_missing_names_say_so(installed: Any) -> None:
    with pytest.raises(AttributeError, match=r"neuronxcc\.nki\.language has no 'softmaxx' in SDK 2\.26"):
        _ = installed.softmaxx
    with pytest.raises(AttributeError, match=r"neuronxcc\.starfish: of neuronxcc, trnrt's simulator has nki"):
        _ = importlib.import_module("neuronxcc").starfish
    with pytest.raises(ImportError):
        importlib.import_module("neuronxcc.nki._private")
