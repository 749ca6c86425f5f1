"""Harnesses in the courses' style, run unchanged by `trnrt nki run`: a reference, baremetal, a benchmark, a profile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import ROOT
from benchmarks.courses.working import NEURON_PROFILE

KERNELS = """
import neuronxcc.nki as nki
import neuronxcc.nki.compiler as ncc
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.compiler.skip_middle_end_transformations
@nki.jit
def conv_rows(x, w, bias, pool=1):
    # x: (channels, height, width); w: (out, channels, 3, 3); a row of output at a time
    channels, height, width = x.shape
    outs = w.shape[0]
    rows, columns = height - 2, width - 2
    out = nl.ndarray((outs, rows, columns), dtype=x.dtype, buffer=nl.hbm)
    weights = nl.ndarray((channels, 3, 3, outs), dtype=w.dtype, buffer=nl.sbuf)
    for i in nl.affine_range(3):
        for j in nl.affine_range(3):
            tap = nl.ndarray((outs, channels), dtype=w.dtype, buffer=nl.sbuf)
            nisa.dma_copy(src=w[:, :, i, j], dst=tap)
            weights[:, i, j, :] = nisa.nc_transpose(tap)
    offsets = nl.load(bias.reshape((outs, 1)))
    for row in nl.affine_range(rows):
        psum = nl.zeros((outs, columns), nl.float32, buffer=nl.psum)
        for i in nl.affine_range(3):
            line = nl.load(x[:, row + i, :])
            for j in nl.affine_range(3):
                psum += nisa.nc_matmul(weights[:, i, j, :], line[:, j : j + columns])
        nl.store(out[:, row, :], nisa.tensor_scalar(psum, nl.add, offsets))
    return out


@nki.jit
def over_each_other(a):
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    places = ncc.sbuf.mod_alloc(base_addr=0, num_free_tiles=(2,))
    one = nl.ndarray((2, nl.par_dim(128), 64), dtype=a.dtype, buffer=places)
    two = nl.ndarray((2, nl.par_dim(128), 64), dtype=a.dtype, buffer=places)
    for k in nl.affine_range(2):
        one[k] = nl.load(a[k])
        two[k] = nl.load(a[k])
        nl.store(out[k], nisa.tensor_tensor(one[k], two[k], op=nl.add))
    return out
"""

HARNESS = """
import logging
import subprocess
import sys

import neuronxcc.nki as nki
import numpy as np
from kernels import conv_rows, over_each_other
from neuronxcc.nki import baremetal, benchmark

logging.disable(logging.OFF)


def reference(x, w, bias):
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    return np.einsum("chwij,ocij->ohw", windows, w) + bias[:, None, None]


rng = np.random.default_rng(0)
x, w, bias = (rng.random(shape).astype(np.float32) for shape in ((128, 12, 10), (64, 128, 3, 3), (64,)))
if "--bad" in sys.argv:
    baremetal(over_each_other)(rng.random((2, 128, 64)).astype(np.float32))
kernel = (lambda *a: nki.simulate_kernel(conv_rows, *a)) if "--simulate" in sys.argv else baremetal(conv_rows)
good = np.allclose(kernel(x, w, bias), reference(x, w, bias), rtol=1e-4, atol=1e-4)
print("Passed" if good else "Failed")
timed = benchmark(warmup=5, iters=20, save_neff_name="conv.neff", additional_compile_opt="--disable-dge")(conv_rows)
timed(x, w, bias)
print(f"Execution Time: {timed.benchmark_result.nc_latency.get_latency_percentile(99)} us")
if "--profile" in sys.argv:
    subprocess.run(["neuron-profile", "capture", "-n", "conv.neff", "-s", "conv.ntff"], check=True)
sys.exit(0 if good else 3)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "harness.py").write_text(HARNESS)
    tool = folder / "neuron-profile"
    tool.write_text(NEURON_PROFILE)
    tool.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TRNRT_NKI": "simulator"}
    command = [sys.executable, "-m", "trnrt", "nki", "run", "harness.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_harness_passes_and_leaves_its_files(tmp_path: Path) -> None:
    done = run(tmp_path, "--profile")
    assert done.returncode == 0, done.stderr
    assert "Passed" in done.stdout
    stated = float(done.stdout.rpartition("Execution Time: ")[2].split()[0])
    neff, ntff = (json.loads((tmp_path / f"conv.{kind}").read_text()) for kind in ("neff", "ntff"))
    assert stated == neff["predicted_us"] == ntff["predicted_us"]
    assert "nothing was measured" in ntff["what"]
    assert "Passed" in run(tmp_path, "--simulate").stdout


def test_tiles_over_each_other_are_named(tmp_path: Path) -> None:
    done = run(tmp_path, "--bad")
    assert done.returncode == 1
    lines = [number for number, line in enumerate(KERNELS.splitlines(), 1) if "buffer=places" in line]
    assert len(lines) == 2
    assert all(f"kernels.py:{number}" in done.stderr for number in lines), done.stderr
    assert "--bad" not in done.stderr


PROFILED = """
import sys
import numpy as np
from neuronxcc import nki
import neuronxcc.nki.language as nl

@nki.profile(working_directory=sys.argv[1])
def double(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x) * 2)
    return out

print(double(np.ones((8, 4), np.float32)).sum())
"""


def test_a_profile_leaves_our_report(tmp_path: Path) -> None:
    script = tmp_path / "double.py"
    script.write_text(PROFILED, encoding="utf-8")
    command = [sys.executable, "-m", "trnrt", "nki", "run", str(script), str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "64.0\n"
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["file.neff", "profile.html", "profile.ntff"]
    assert "double on trn2" in (tmp_path / "made" / "profile.html").read_text(encoding="utf-8")
