"""Everything that the SDK's page on its NKI simulator shows, done on ours with kernels of our own.

The page: nki/guides/nki_simulator.rst of AWS's documentation (2.30 to 2.33), and ``nki.simulate`` in its API reference.
"""

from __future__ import annotations

import io
import pdb
import sys
from typing import Any

import numpy as np
import pytest
import torch_tensors
from simulating import close, drawn, same

from trnrt.nki import nisa, nki, nl
from trnrt.nki.sim.kernel import TARGET_VARIABLE

A, B = drawn(128, 512, seed=1), drawn(128, 512, seed=2)


def product(x: Any, y: Any) -> Any:
    """x * y, one tile each."""
    result = nl.multiply(nl.load(x), nl.load(y))
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, value=result)
    return out


def test_the_first_steps() -> None:
    same(nki.simulate(nki.jit(product))(A, B), A * B)


def test_a_plain_function_is_wrapped() -> None:
    same(nki.simulate(product)(A, B), A * B)


def test_numpy_and_pytorch_side_by_side() -> None:
    kernel = nki.jit(product)
    with torch_tensors.installed() as torch:
        made = nki.simulate(kernel)(torch.tensor(A), torch.tensor(B))
        again = kernel(torch.tensor(A), torch.tensor(B))  # on hardware, the page says; here it is the simulator
    assert isinstance(made, torch_tensors.Tensor)
    same(made.held, nki.simulate(kernel)(A, B))
    same(again.held, made.held)


def test_the_variable_that_asks_for_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decorated kernels run on the simulator with and without it: nothing else is here."""
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    same(nki.jit(product)(A, B), A * B)
    monkeypatch.delenv("NKI_SIMULATOR")
    same(nki.jit(product)(A, B), A * B)


@pytest.mark.parametrize(
    ("name", "generation"), [("trn1", 2), ("gen2", 2), ("trn2", 3), ("gen3", 3), ("trn3", 4), ("gen4", 4)]
)
def test_targets(name: str, generation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def kernel(x: Any) -> Any:
        seen.append(nisa.get_nc_version())
        return product(x, x)

    monkeypatch.setenv(TARGET_VARIABLE, name)
    nki.simulate(kernel)(A)
    assert seen == [getattr(nisa.nc_version, f"gen{generation}")]


@pytest.mark.parametrize(("variable", "rounded"), [("1", True), ("0", False), (None, True)])
def test_precise_floating_point(variable: str | None, rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def third(x: Any) -> Any:
        narrow = nl.ndarray(x.shape, dtype=nl.bfloat16, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=narrow, data=nl.load(x), op0=nl.multiply, operand0=1 / 3)
        wide = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=wide, src=narrow)
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, value=wide)
        return out

    if variable is None:
        monkeypatch.delenv("NKI_PRECISE_FP", raising=False)
    else:
        monkeypatch.setenv("NKI_PRECISE_FP", variable)
    made, exact = nki.simulate(third)(A), A * np.float32(1 / 3)
    if rounded:
        same(made, exact.astype(nl.bfloat16.numpy).astype(np.float32))
    else:
        close(made, exact)


def test_a_breakpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The debugger stops in the kernel, and shows a tile's values."""
    answers = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("p tile[0:2, 0:2]\nc\n"), stdout=answers, nosigint=True, readrc=False)
    monkeypatch.setattr(sys, "breakpointhook", lambda: debugger.set_trace(sys._getframe(1)))

    def kernel(x: Any) -> Any:
        tile = nl.load(x)
        breakpoint()
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=nl.add(tile, tile))
        return out

    same(nki.simulate(kernel)(A), A + A)
    assert str(A[:2, :2]) in answers.getvalue()


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: Any) -> Any:
        tile, register = nl.load(x), nisa.register_alloc(7)
        nl.device_print("from the device", tile[0:2, 0:2])
        print("from Python", tile[0:2, 0:2], register)
        return product(x, x)

    nki.simulate(kernel)(A)
    assert capsys.readouterr().out == f"from the device {A[:2, :2]}\nfrom Python {A[:2, :2]} 7\n"


def test_arrays_are_hbm_tensors_and_the_rest_passes_through() -> None:
    marker = object()

    def kernel(x: Any, y: Any, number: int, name: str, thing: object) -> Any:
        assert nl.is_hbm(x.buffer)
        assert nl.is_hbm(y.buffer)
        assert (number, name, thing) == (3, "name", marker)
        return product(x, y)

    same(nki.simulate(kernel)(A, B, 3, name="name", thing=marker), A * B)


def test_inputs_are_updated_in_place() -> None:
    def kernel(x: Any) -> None:
        nl.store(x, value=nl.multiply(nl.load(x), 2.0))

    x = A.copy()
    assert nki.simulate(kernel)(x) is None
    same(x, A * 2)
    with torch_tensors.installed() as torch:
        tensor = torch.tensor(A)
        nki.simulate(kernel)(tensor)
    same(tensor.held, A * 2)


def test_two_cores_see_one_memory() -> None:
    def kernel(x: Any, sums: Any) -> Any:
        core = nl.program_id(0)
        half = nl.load(x[core * 64 : core * 64 + 64])
        total = nl.ndarray((64, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=total, op=nl.add, data=half, axis=1)
        nl.store(sums[core * 64 : core * 64 + 64], value=total)
        nisa.core_barrier(sums, (0, 1))
        other = nl.load(sums[(1 - core) * 64 : (1 - core) * 64 + 64])
        swapped = nl.ndarray((128, 1), dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(swapped[core * 64 : core * 64 + 64], value=other)
        return swapped

    whole, sums = np.round(A), np.zeros((128, 1), np.float32)
    expected = whole.sum(axis=1, keepdims=True)
    for made in (nki.simulate(nki.jit(kernel)[2]), nki.simulate(kernel)[2]):
        same(made(whole, sums), np.roll(expected, 64, axis=0))
        same(sums, expected)
        sums[:] = 0


def test_uninitialised_memory_shows() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile[:, 0:511], src=nl.load(x)[:, 0:511])  # one column too few
        out = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
        nl.store(out, value=nl.add(tile, tile))
        return out

    made = nki.simulate(kernel)(A)
    assert np.isnan(made[:, 511]).all()
    assert not np.isnan(made[:, :511]).any()


def test_a_broken_constraint_is_an_assertion_error() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray((256, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        return x

    with pytest.raises(AssertionError, match=r"256.*128"):
        nki.simulate(kernel)(A)


@pytest.mark.usefixtures("level_0_6")
def test_any_python_runs_until_strict_mode_asks() -> None:
    factor = 3.0

    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, tile: Any) -> Any:
            return nl.multiply(tile, self.by)

    def kernel(x: Any) -> Any:
        scales = {n: Scale(n) for n in (factor, 2.0)}
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, value=scales[factor](nl.load(x)))
        return out

    same(nki.simulate(kernel)(A), A * 3)
    with pytest.raises(AssertionError, match="refuses its file"):
        nki.simulate(kernel, strict=True)
