"""Strict mode: what a simulator can compute and the hardware can't, is refused with what to write instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from simulating import Tensor, drawn, give, load, same

from trnrt.errors import KernelError
from trnrt.nki import nki, nl, profile, simulate, trace
from trnrt.nki.checking import check
from trnrt.nki.installing import install_briefly

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


@pytest.mark.usefixtures("level_0_6")
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


# Every way to say that a function is a kernel, with the name of what strict mode is given.
STATED = {
    "decorated": "@nki.jit\ndef kernel(x):{body}",
    "decorated, called": "@nki.jit()\ndef kernel(x):{body}",
    "decorated with options": "@nki.jit(mode='auto')\ndef kernel(x):{body}",
    "imported decorator": "from nki import jit\n\n@jit\ndef kernel(x):{body}",
    "renamed module": "import nki as other\n\n@other.jit\ndef kernel(x):{body}",
    "renamed decorator": "compiled = nki.jit\n\n@compiled\ndef kernel(x):{body}",
    "plain": "def kernel(x):{body}",
    "plain with a comment above": "# a kernel\n\n\ndef kernel(x):{body}",
    "wrapped": "def plain(x):{body}\n\nkernel = nki.jit(plain)",
    "wrapped by a call": "def plain(x):{body}\n\nkernel = nki.jit()(plain)",
    "wrapped by partial": "def plain(x):{body}\n\nkernel = functools.partial(nki.jit)(plain)",
    "wrapped in a loop": "def plain(x):{body}\n\nfor made in [nki.jit(f) for f in (plain,)]:\n    kernel = made",
    "decorated twice": "@nki.jit\n@nki.jit\ndef kernel(x):{body}",
    "on two cores": "@nki.jit\ndef both(x):{body}\n\nkernel = both[2]",
    "plain on two cores": "def both(x):{body}\n\nkernel = nki.jit(both)[2]",
    "scheduled": "@nki.jit\ndef free(x):{body}\n\nkernel = free.with_schedule([])",
    "plain, scheduled": "def free(x):{body}\n\nkernel = nki.jit(free).with_schedule([])",
    "made by a function": "def make():\n    def made(x):{nested}\n    return made\n\nkernel = make()",
    "made by a function, decorated": (
        "def make():\n    @nki.jit\n    def made(x):{nested}\n    return made\n\nkernel = make()"
    ),
    "of a class": "class Kernels:\n    @staticmethod\n    def made(x):{nested}\n\nkernel = Kernels.made",
    "calls a helper": "def helper(x):{body}\n\ndef kernel(x):\n    return helper(x)",
    "one of several": "def first(x):\n    return x\n\ndef kernel(x):{body}\n\ndef last(x):\n    return x",
}
IMPORTS = "import functools\n\nimport nki\nimport nki.language as nl\n\n"
TAKEN = "\n    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nl.store(out, nl.load(x))\n    return out"
NOT_TAKEN = TAKEN.replace("\n", "\n    sizes = [size for size in x.shape]\n", 1)


def stated(way: str, body: str, path: Path) -> tuple[Any, int]:
    """The kernel that a file states in this way, and the line of the comprehension in it."""
    source = IMPORTS + STATED[way].format(body=body, nested=body.replace("\n", "\n    "))
    with install_briefly():
        kernel = module(path, source).kernel
    return kernel, source[: source.find("sizes =")].count("\n") + 1


@pytest.mark.usefixtures("level_0_6")
@pytest.mark.parametrize("way", STATED)
def test_however_a_kernel_is_stated_its_file_is_checked(way: str, tmp_path: Path) -> None:
    kernel, line = stated(way, NOT_TAKEN, tmp_path / "stated.py")
    assert simulate(kernel)(X).shape == X.shape
    for strictly in (
        lambda: simulate(kernel, strict=True),
        lambda: simulate(nki.jit(kernel), strict=True),
        lambda: trace(kernel, X, strict=True),
        lambda: profile(kernel, X, strict=True),
    ):
        with pytest.raises(KernelError, match="refuses its file") as error:
            strictly()
        assert f"stated.py:{line}:" in str(error.value)
        assert "comprehension" in str(error.value)


@pytest.mark.parametrize("way", STATED)
def test_however_a_kernel_is_stated_a_legal_one_passes(way: str, tmp_path: Path) -> None:
    kernel, _ = stated(way, TAKEN, tmp_path / "stated.py")
    same(simulate(kernel, strict=True)(X), X)
    assert trace(kernel, X, strict=True).instructions


@pytest.mark.usefixtures("level_0_6")
def test_a_lambda_is_no_kernel(tmp_path: Path) -> None:
    kernel = module(tmp_path / "short.py", "kernel = lambda x: x\n").kernel
    with pytest.raises(KernelError, match=r"short\.py:1:.*lambda"):
        simulate(kernel, strict=True)


@pytest.mark.usefixtures("level_0_6")
def test_check_looks_at_a_plain_function_that_is_called(tmp_path: Path) -> None:
    """Both if the call is given as text, and if the script makes the kernel with a call that the file doesn't show."""
    path = tmp_path / "plain.py"
    path.write_text(IMPORTS + STATED["plain"].format(body=NOT_TAKEN), encoding="utf-8")
    line = path.read_text(encoding="utf-8").split("sizes")[0].count("\n") + 1
    (finding,) = check(path, ["kernel(f32[128,64])"]).findings
    assert (finding.line, finding.rule) == (line, "comprehension")
    call = "\n\nimport numpy as np\n\n[nki.jit(f) for f in (kernel,)][0](np.zeros((128, 64), np.float32))\n"
    path.write_text(path.read_text(encoding="utf-8") + call, encoding="utf-8")
    (finding,) = check(path).findings
    assert (finding.line, finding.rule) == (line, "comprehension")
