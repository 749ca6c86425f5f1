"""Kernels on the simulator in a process of their own, beside AWS's nki."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trnrt.errors import BackendError, KernelError
from trnrt.neuron.elsewhere import simulate_elsewhere
from trnrt.nki.machine.dtypes import as_dtype

KERNELS = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scaled(x, factor):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=float(factor))
    nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def failing(x):
    raise ValueError("of its own")


def sleeping(x):
    import time
    time.sleep(600)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of kernels, on a machine that has AWS's nki: one that the simulator must not get."""
    package = tmp_path / "site" / "nki"
    package.mkdir(parents=True)
    for name in ("__init__", "language", "isa"):
        (package / f"{name}.py").write_text("AWS = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    path = tmp_path / "my_kernels.py"
    path.write_text(KERNELS, encoding="utf-8")
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_file_that_imports_nki_is_simulated(dtype: str, kernels: Path) -> None:
    x = np.arange(12).reshape(4, 3).astype(as_dtype(dtype).numpy)
    (result,) = simulate_elsewhere(kernels, "scaled", [x, 3], target="trn2")
    assert (result.dtype, result.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(result.astype(np.float32), x.astype(np.float32) * 3)


def test_what_fails_there_is_told_here(kernels: Path) -> None:
    with pytest.raises(KernelError, match=r"failing of .*my_kernels.py failed on the simulator: [^$]*of its own"):
        simulate_elsewhere(kernels, "failing", [np.ones((4, 3), np.float32)], target="trn2")
    with pytest.raises(BackendError, match=r"no result in 0\.1 s"):
        simulate_elsewhere(kernels, "sleeping", [np.ones(1, np.float32)], target="trn2", limit_s=0.1)
