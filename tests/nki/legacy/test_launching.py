"""Kernels with a launch grid, simulate_kernel, baremetal, benchmark, profile, and the files that they write."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from old_kernels import nl

from trnrt.nki import install, uninstall
from trnrt.nki.errors import KernelError
from trnrt.nki.installing import install_briefly
from trnrt.nki.legacy import annotating, launching
from trnrt.nki.machine.dtypes import Array

TENSOR: Any = annotating.tensor


@launching.jit
def add_one(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), 1.0))
    return out


@pytest.fixture
def x() -> Array:
    return np.random.default_rng(0).random((64, 32), np.float32)


def test_instances_of_a_grid_share_the_outputs() -> None:
    @launching.jit
    def number(x: Any) -> Any:
        out = nl.ndarray((6, 4), dtype=nl.float32, buffer=nl.shared_hbm)
        row = nl.program_id(0) * nl.num_programs(1) + nl.program_id(1)
        nl.store(out[row : row + 1, 0:4], nl.add(nl.load(x), float(row)))
        assert nl.program_ndim() == 2
        return out

    found = number[2, 3](np.zeros((1, 4), np.float32))
    np.testing.assert_array_equal(found, np.repeat(np.arange(6.0)[:, None], 4, 1))
    assert number[launching.spmd_dim(1, launching.nc(2)), 3].grid == (2, 3)
    with pytest.raises(KernelError, match="each size is at least 1"):
        number[0]


def test_instances_of_a_grid_make_the_same_outputs() -> None:
    @launching.jit
    def kernel(x: Any) -> Any:
        if nl.program_id(0) == 0:
            first = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            nl.store(first, nl.load(x))
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.load(x))
        return out

    with pytest.raises(KernelError, match=r"instance \(1,\) of the launch grid makes a tensor \(1, 4\)"):
        kernel[2](np.zeros((1, 4), np.float32))


def test_kernels_call_kernels_with_tiles_and_records() -> None:
    class Sizes(NamedTuple):
        rows: int
        factor: float

    def scale_tile(tile: Any, sizes: Sizes) -> tuple[Any, Sizes]:
        tile[0 : sizes.rows] = nl.multiply(tile[0 : sizes.rows], sizes.factor)
        return tile, sizes

    scale = launching.jit(mode="trace")(scale_tile)

    @launching.jit
    def both(x: Any) -> Any:
        scaled, sizes = scale(nl.load(x), Sizes(64, 3.0))
        outs = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2)]
        nl.store(outs[0], scaled)
        nl.store(outs[1], nl.multiply(scaled, 1 / sizes.factor))
        return outs

    x = np.random.default_rng(1).random((64, 8), np.float32)
    three, one = both(x)
    np.testing.assert_allclose(three, 3 * x, rtol=1e-6)
    np.testing.assert_allclose(one, x, rtol=1e-6)


def test_simulate_kernel_updates_what_the_kernel_writes(x: Array) -> None:
    def write(x: Any, out: Any) -> None:
        nl.store(out, nl.multiply(nl.load(x), 2.0))

    out = np.zeros_like(x)
    launching.simulate_kernel(launching.jit(write, kernel_return=False), x, out)
    np.testing.assert_array_equal(out, 2 * x)
    np.testing.assert_array_equal(launching.simulate_kernel(add_one, x), x + 1)


def test_a_benchmark_predicts(x: Array, capsys: pytest.CaptureFixture[str]) -> None:
    timed = launching.benchmark(warmup=2, iters=3)(add_one)
    timed(x)
    latency = timed.benchmark_result.nc_latency
    assert latency.is_predicted
    assert latency.predicted.least_us <= latency.get_latency_percentile(99) <= latency.predicted.most_us
    assert {latency.get_latency_percentile(p) for p in launching.PERCENTILES} == {latency.predicted.us}
    assert "add_one: predicted latency on trn2" in capsys.readouterr().out
    with pytest.raises(ValueError, match="there is no percentile 42"):
        latency.get_latency_percentile(42)


def test_a_benchmark_needs_no_data(x: Array) -> None:
    spec = TENSOR[[64, 32], nl.float32]
    timed = launching.jit(mode="benchmark")(add_one.function)
    timed(spec)
    of_spec = timed.benchmark_result.nc_latency.predicted
    timed(x)
    assert of_spec == timed.benchmark_result.nc_latency.predicted
    assert TENSOR[64, 32] is TENSOR


def test_baremetal_describes_the_run_that_it_made(x: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    traces = []

    def counted(x: Any) -> Any:
        traces.append(x)
        return add_one(x)

    run = launching.baremetal(counted, save_neff_name="a.neff", save_trace_name="a.ntff")
    np.testing.assert_array_equal(run(x), x + 1)
    assert len(traces) == 1, "the files are of the program that ran, not of a second one"
    for kind, what in (("neff", "a compiled kernel"), ("ntff", "a device's trace")):
        document = json.loads((tmp_path / f"a.{kind}").read_text())
        assert f"stand-in for {what}" in document["what"]
        assert document["kernel"] == "counted"
        assert document["low_us"] <= document["predicted_us"] <= document["high_us"]


def test_a_profile_writes_to_its_working_directory(x: Array, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    options = {"working_directory": folder, "save_neff_name": "k.neff", "save_trace_name": "k.ntff", "profile_nth": 2}
    run = launching.profile(**options)(add_one)
    np.testing.assert_array_equal(run(x), x + 1)
    assert sorted(path.name for path in folder.iterdir()) == ["k.neff", "k.ntff"]
    (folder / "k.ntff").unlink()
    assert run(TENSOR[[64, 32], nl.float32]) is None
    assert (folder / "k.ntff").exists()
    with pytest.raises(KernelError, match="it must be an absolute path"):
        launching.profile(add_one, working_directory="reports")(x)


def test_slices_may_end_beyond_with_a_mask() -> None:
    @launching.jit
    def copy(x: Any, masked: bool) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        row = nl.arange(128)[:, None]
        for k in range(2):
            mask = row + 128 * k < x.shape[0] if masked else None
            part = nl.load(x[128 * k : 128 * k + 128, 0:6], mask=mask)
            nl.store(out[128 * k : 128 * k + 128, 0:6], part, mask=mask)
        return out

    x = np.random.default_rng(2).random((160, 6), np.float32)
    np.testing.assert_array_equal(copy(x, True), x)
    with pytest.raises(KernelError, match=r"indices 128 to 255 of dimension 0 leave .*: it has 160 elements"):
        copy(x, False)


def test_index_expressions_may_have_more_dimensions_than_an_access_pattern() -> None:
    @launching.jit
    def interleave(x: Any) -> Any:
        out = nl.ndarray((16, 2, 3, 2, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        tile, made = nl.load(x), nl.ndarray((16, 2, 3, 2, 4), dtype=x.dtype)
        p, a, b, c, d, e, f = nl.mgrid[0:16, 0:2, 0:3, 0:1, 0:2, 0:2, 0:2]
        made[p, a, b, d, 2 * e + f + c] = 2.0 * tile[p, 24 * a + 8 * b + 4 * d + 2 * e + f + c] + 1.0
        nl.store(out, made)
        return out

    x = np.random.default_rng(3).random((16, 48), np.float32)
    np.testing.assert_allclose(interleave(x), 2 * x.reshape(16, 2, 3, 2, 4) + 1, rtol=1e-6)


@pytest.fixture
def installed() -> Iterator[None]:
    with install_briefly(legacy=True) as ours:
        if not ours:
            pytest.skip("AWS's nki is installed")
        yield


def test_modules_that_kernels_import(installed: None) -> None:
    nki, typing = import_module("neuronxcc.nki"), import_module("neuronxcc.nki.typing")
    sizeinbytes = import_module("neuronxcc.nki.language.constants").sizeinbytes
    assert [sizeinbytes(one) for one in (np.float32, nl.bfloat16, nl.float8_e4m3)] == [4, 2, 1]
    for annotation in (typing.mutable_tensor, typing.tensor, typing.scalar):
        assert annotation[4, 4] is annotation
    assert import_module("neuronxcc.nki.language").par_dim(5) == 5
    assert nki.tensor is typing.tensor
    assert hasattr(import_module("neuronxcc.nki.isa.constants"), "oob_mode")
    with pytest.raises(ImportError, match="nccl"):
        import_module("neuronxcc.nki.nccl")


def test_the_log_level_that_harnesses_turn_off() -> None:
    if not install(legacy=True):
        pytest.skip("AWS's nki is installed")
    import_module("neuronxcc.nki")
    assert logging.OFF > logging.CRITICAL  # type: ignore[attr-defined]
    uninstall()
    assert not hasattr(logging, "OFF")
