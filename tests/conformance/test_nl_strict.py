"""Strict mode: what a simulator can compute and the hardware can't, is refused with what to write instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from simulating import Tensor, drawn, give, load, same

from trnrt.errors import KernelError
from trnrt.nki import nl, simulate, trace

X, Y = drawn(128, 64, seed=1), drawn(128, 64, seed=2)

REFUSED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "divide": (lambda x, y: nl.divide(x, y), "nl.multiply(x, nl.reciprocal(y))"),
    "mod": (lambda x, y: nl.mod(x, y), "nl.floor"),
    "fmod": (lambda x, y: nl.fmod(x, 2.0), "nl.trunc"),
    "exponent": (lambda x, y: nl.power(x, 2.0), "a tile in the place of the number"),
    "base": (lambda x, y: nl.power(2.0, x), "x is a number"),
    "broadcasting": (lambda x, y: nl.add(x, y[:, 0:1]), "nisa.tensor_scalar"),
    "partitions": (lambda x, y: nl.multiply(x[0:1], y), "nl.broadcast_to"),
    "matmul": (lambda x, y: nl.matmul(x[0:64], y[0:64]), "transpose_x=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_fails_on_hardware(name: str) -> None:
    body, instead = REFUSED[name]

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return give(body(load(x), load(y)))

    assert simulate(kernel)(X, Y).shape
    with pytest.raises(KernelError) as error:
        trace(kernel, X, Y, strict=True)
    assert "which fails on hardware; write" in str(error.value)
    assert instead in str(error.value)
    assert "test_nl_strict.py" in str(error.value)
    with pytest.raises(KernelError):
        simulate(kernel, strict=True)(X, Y)


def test_what_does_not_fail_is_not_refused() -> None:
    def kernel(x: Tensor, y: Tensor) -> Tensor:
        x_tile, y_tile = load(x), load(y)
        wide = nl.abs_max(x_tile, nl.zeros((128, 1), nl.float32))
        assert nl.matmul(x_tile, y_tile, transpose_x=True).shape == (64, 64)
        return give(nl.add(nl.multiply(nl.power(nl.abs(x_tile), y_tile), 2.0), wide))

    assert simulate(kernel, "trn3", strict=True)(X, Y).shape == X.shape


def module(path: Path, source: str) -> ModuleType:
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


HEADER = """
from trnrt.nki import nki, nl, nisa

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
"""
ILLEGAL = """
    sizes = [size for size in x.shape]
    try:
        nl.store(out, nl.load(x))
    except ValueError:
        pass
    return out
"""
LEGAL = """
    nl.store(out, nl.load(x))
    return out
"""


def test_the_file_of_the_kernel_is_checked(tmp_path: Path) -> None:
    """Every finding at once, with its line and what to write instead."""
    kernel = module(tmp_path / "illegal.py", HEADER + ILLEGAL).kernel
    same(simulate(kernel)(X), X)
    with pytest.raises(KernelError) as error:
        simulate(kernel, strict=True)
    for expected in ("illegal.py:8:", "illegal.py:9:", "refuses its file"):
        assert expected in str(error.value)
    with pytest.raises(KernelError, match="refuses its file"):
        trace(kernel, X, strict=True)


def test_a_legal_file_passes(tmp_path: Path) -> None:
    kernel = module(tmp_path / "legal.py", HEADER + LEGAL).kernel
    same(simulate(kernel, strict=True)(X), X)
    assert trace(kernel, X, strict=True).instructions


def test_a_kernel_without_a_file_passes() -> None:
    names: dict[str, object] = {}
    exec(HEADER + LEGAL, names)
    same(simulate(names["kernel"], strict=True)(X), X)  # type: ignore[arg-type]
