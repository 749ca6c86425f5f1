"""``trnrt.nki.install``: the simulator under AWS's names, and out of the way where AWS's own package is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import trnrt.nki
from trnrt.nki.installing import aws_nki_installed, install_briefly
from trnrt.nki.sim import isa, language
from trnrt.nki.sim.subset_api import load_api

NAMES = ("nki", "nki.language", "nki.isa", "nki.isa.constants", "nki.typing", "nki.dtype", "nki.tensor")


@pytest.fixture
def simulator() -> Iterator[None]:
    assert trnrt.nki.install()
    yield
    trnrt.nki.uninstall()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a package called nki, found before any other; what was imported of it is forgotten again."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(sys.modules)
    (tmp_path / "nki").mkdir()
    yield tmp_path / "nki"
    for name in [name for name in sys.modules if name.split(".")[0] == "nki"]:
        if sys.modules[name] is not before.get(name):
            del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("simulator")
def test_every_module_has_its_name(name: str) -> None:
    module = importlib.import_module(name)
    assert isinstance(module, ModuleType)
    assert module.__name__ == name and module.__spec__ is not None and module.__spec__.name == name
    assert find_spec(name) is not None
    parent, _, own = name.rpartition(".")
    assert not parent or getattr(sys.modules[parent], own) is module


@pytest.mark.parametrize("name", ["nki.language", "nki.isa"])
@pytest.mark.usefixtures("simulator")
def test_a_star_imports_the_names_that_load_on_first_use(name: str) -> None:
    found: dict[str, object] = {}
    exec(f"from {name} import *", found)
    offered = {one for one in load_api().modules[name].names() if hasattr(sys.modules[name], one)}
    assert {one for one in offered if not one.startswith("_")} - found.keys() == set()


@pytest.mark.usefixtures("simulator")
def test_the_names_of_nki_are_listed() -> None:
    assert {"jit", "simulate", "isa", "language"} <= set(dir(importlib.import_module("nki")))


@pytest.mark.usefixtures("simulator")
def test_the_names_are_the_simulators_own() -> None:
    nki, nl, nisa = (importlib.import_module(name) for name in NAMES[:3])
    assert nl.NkiTensor is language.NkiTensor and nl.float32 is language.float32
    assert nisa.nc_matmul is isa.nc_matmul
    for path, ours in (("nki.language", language), ("nki.isa", isa)):
        for name in load_api().modules[path].names():
            assert hasattr(sys.modules[path], name) == hasattr(ours, name), name
    assert importlib.import_module("nki.isa.constants").oob_mode is nisa.oob_mode
    assert importlib.import_module("nki.typing").tensor[128, 512] is not None
    assert importlib.import_module("nki.dtype").bfloat16 is nl.bfloat16
    assert nki.jit is not None and nki.simulate is not None


@pytest.mark.usefixtures("simulator")
def test_a_kernel_that_imports_nki_runs() -> None:
    source = (
        "import nki, nki.language as nl, nki.isa as nisa\n"
        "from nki.language import *\n"
        "@nki.jit\n"
        "def copy_(a):\n"
        "    out = ndarray(a.shape, dtype=a.dtype, buffer=shared_hbm)\n"
        "    x = nl.ndarray(a.shape, dtype=a.dtype, buffer=sbuf)\n"
        "    nisa.dma_copy(dst=x, src=a)\n"
        "    nisa.dma_copy(dst=out, src=x)\n"
        "    return out\n"
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(namespace["copy_"](given), given)


@pytest.mark.parametrize(
    ("statement", "error", "told"),
    [
        ("import nki.language as nl; nl.arange", AttributeError, "nki.language.arange does not exist in NKI 0.7"),
        ("import nki.language as nl; nl.arange", AttributeError, "Slice the tensor"),
        ("import nki.isa as nisa; nisa.tensor_tensr", AttributeError, "Did you mean tensor_tensor"),
        ("from nki.language import arange", ImportError, "Slice the tensor"),
        ("import nki.collectives", ImportError, "collectives between devices are left out"),
        ("from nki import collectives", ImportError, "collectives between devices are left out"),
        ("import nki; nki.baremetal", AttributeError, "nki.baremetal does not exist"),
        ("import nki; nki.baremetal", AttributeError, "`trnrt nki check` lists such places, `trnrt nki port`"),
        ("import nki; nki.benchmark", AttributeError, "`trnrt nki profile` predicts the latency"),
        ("import nki; nki.simulate_kernel", AttributeError, "nki.simulate"),
        ("import neuronxcc.nki.language", ImportError, "`trnrt nki run FILE`"),
        ("import neuronxcc.nki.language", ImportError, "`trnrt nki port FILE` rewrites them"),
        ("import neuronxcc.nki.isa as nisa", ImportError, "`trnrt nki check FILE` lists"),
    ],
)
@pytest.mark.usefixtures("simulator")
def test_what_is_not_there_says_so(statement: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        exec(statement, {})


def test_what_the_simulator_lacks_is_told_apart_from_what_nki_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = [name for name in dir(isa) if name != "nc_matmul_mx"]
    monkeypatch.setattr(isa, "__dir__", lambda: offered)
    with (
        install_briefly(),
        pytest.raises(AttributeError, match=r"is in NKI 0\.7\.0, but trnrt's simulator does not have it"),
    ):
        assert importlib.import_module("nki.isa").nc_matmul_mx


def test_install_twice_and_uninstall_leave_everything_as_it_was() -> None:
    modules, finders = dict(sys.modules), list(sys.meta_path)
    assert trnrt.nki.install()
    first = sys.modules["nki"]
    assert trnrt.nki.install() and sys.modules["nki"] is first
    with install_briefly() as ours:
        assert ours
    assert sys.modules["nki"] is first
    trnrt.nki.uninstall()
    trnrt.nki.uninstall()
    assert sys.meta_path == finders
    assert {name for name in sys.modules if name.startswith(("nki", "neuronxcc"))} == {
        name for name in modules if name.startswith(("nki", "neuronxcc"))
    }


@pytest.mark.parametrize("content", ["", "raise RuntimeError('get it elsewhere')\n"])
def test_the_empty_placeholder_counts_as_absent(package: Path, content: str) -> None:
    (package / "__init__.py").write_text(content)
    if not content:
        importlib.import_module("nki")
    assert not aws_nki_installed()
    with install_briefly() as ours:
        assert ours and importlib.import_module("nki.language").ndarray is language.ndarray
    if not content:
        assert sys.modules["nki"].__file__ == str(package / "__init__.py")


def test_aws_package_stays_in_its_place(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__init__", "language", "isa"):
        (package / f"{name}.py").write_text("whose = 'aws'\n")
    monkeypatch.delenv("TRNRT_NKI", raising=False)
    assert aws_nki_installed()
    assert not trnrt.nki.install()
    assert importlib.import_module("nki").whose == "aws"
    monkeypatch.setenv("TRNRT_NKI", "simulator")
    with install_briefly() as ours:
        assert ours and not hasattr(importlib.import_module("nki"), "whose")
        assert aws_nki_installed()
        assert sys.modules["nki"].__name__ == "nki" and not hasattr(sys.modules["nki"], "whose")
    assert importlib.import_module("nki").whose == "aws"
