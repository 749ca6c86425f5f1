"""The fake in the place of AWS's packages: for one test, or for a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import trnrt.nki
from fake_neuron import fake_nki, fake_torch, fake_torch_neuronx
from fake_neuron.documented import REFERENCE, VIOLATIONS
from fake_neuron.hardware import Hardware
from trnrt.neuron import backend as neuron
from trnrt.neuron import cores, device
from trnrt.neuron.frontend import FRONTEND_VARIABLE
from trnrt.nki.sim.kernel import intercept_calls

_TORCH_NAMES = ("from_numpy", "nn", *fake_torch.DTYPES)
_TORCH_NEURONX_NAMES = ("trace", "neuron_cores_context", "move_trace_to_device")
# What the backend sets.
_SET = (
    device.LNC_VARIABLE,
    device.TARGET_VARIABLE,
    neuron.TIMEOUT_VARIABLE,
    cores.VISIBLE,
    *neuron.DEBUG_SETTINGS,
    FRONTEND_VARIABLE,
    device.ROUTE_VARIABLE,
    device.WORKER_VARIABLE,
    device.UNSUPPORTED_VARIABLE,
)

TORCHES = ("fake torch", "torch")
"""The fake of PyTorch, which knows what the reference says of it; and PyTorch itself."""


@contextmanager
def an_instance(patch: pytest.MonkeyPatch, folder: Path, torch: str) -> Iterator[Hardware]:
    """A trn2 instance with one device and an empty cache; nothing may be done on it that the reference does not allow.

    ``torch``: one of TORCHES. With PyTorch itself the test is skipped where that is not installed.
    """
    if torch == "torch":
        pytest.importorskip("torch", reason="PyTorch is not installed")
    patch.setenv("TRNRT_CACHE", str(folder / "cache"))
    hardware = Hardware()
    VIOLATIONS.clear()
    install(patch, folder, hardware, versions(), real_torch=torch == "torch")
    yield hardware
    if hardware.faults.hanging is not None:
        hardware.faults.hanging.set()
    assert VIOLATIONS == []


def versions() -> dict[str, str]:
    """The versions that belong together: those of 2.32.0, and PyTorch's of 2.31.1, the last that has them."""
    packages = REFERENCE["releases"]["packages"]
    torch = next(e["source"]["version"] for e in REFERENCE["functions"] if e["name"] == "torch.jit.save")
    found = {name: packages["2.32.0"][name][0] for name in ("nki", "neuronx-cc")}
    return {**found, "torch-neuronx": packages["2.31.1"]["torch-neuronx"][0], "torch": torch}


def install(
    patch: pytest.MonkeyPatch, folder: Path, hardware: Hardware, packages: dict[str, str], *, real_torch: bool = False
) -> None:
    """Make this process believe that it is on such a machine, with these packages.

    ``real_torch``: PyTorch is the one that is installed, and only torch_neuronx is a fake.
    """
    for name in {*_SET, *(name for name in os.environ if name.startswith(("NEURON_", "NKI_")))}:
        patch.setenv(name, "")  # so that it is absent again afterwards, whatever is set in between
        patch.delenv(name)
    site = folder / "site"
    for name, version in packages.items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    patch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    torch_neuronx = ModuleType("torch_neuronx")
    vars(torch_neuronx).update({name: getattr(fake_torch_neuronx, name) for name in _TORCH_NEURONX_NAMES})
    if real_torch:
        tensors = importlib.import_module("fake_neuron.real_torch")
        patch.setattr("torch.jit.load", tensors.load)
        patch.setattr(fake_torch_neuronx.State, "tensors", tensors)
    else:
        torch = ModuleType("torch")
        vars(torch).update({name: getattr(fake_torch, name) for name in _TORCH_NAMES}, jit=fake_torch_neuronx.jit)
        patch.setitem(sys.modules, "torch", torch)
        patch.setattr(fake_torch_neuronx.State, "tensors", fake_torch_neuronx.Scripts)
    patch.setitem(sys.modules, "torch_neuronx", torch_neuronx)
    _machine(patch, folder, hardware)


ROUTE_VERSIONS = {
    "jit": {"nki": "0.7.0", "neuronx-cc": "2.28.7631.0"},
    "neff": {"nki": "0.7.0", "neuronx-cc": "2.28.7631.0"},
    "torchneuron": {"nki": "0.7.0", "neuronx-cc": "2.28.7631.0", "torch-neuronx": "2.14.3.0", "torch": "2.14.0"},
}
"""The packages of SDK 2.33.0 that a route needs."""


@contextmanager
def fake_machine(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hardware]:
    """A trn2 instance of eight cores with AWS's packages. Fails at the end if their documented rules were broken."""
    hardware = Hardware()
    VIOLATIONS.clear()
    install(patch, folder, hardware, versions())
    yield hardware
    assert VIOLATIONS == []


@contextmanager
def a_route(
    patch: pytest.MonkeyPatch, folder: Path, route: str, packages: dict[str, str] | None = None
) -> Iterator[Hardware]:
    """A trn2 instance with the packages of a route other than trace, by default those of SDK 2.33.0."""
    packages = packages or ROUTE_VERSIONS[route]
    patch.setenv("TRNRT_CACHE", str(folder / "cache"))
    hardware = Hardware()
    VIOLATIONS.clear()
    install(patch, folder, hardware, packages)
    for name in ("torch", "torch_neuronx"):
        patch.delitem(sys.modules, name)
    call = fake_nki.standalone(hardware, packages["nki"])
    if route == "torchneuron":
        torch = ModuleType("torch")
        vars(torch).update({name: getattr(fake_torch, name) for name in ("from_numpy", *fake_torch.DTYPES)})
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch_neuronx", fake_nki.torchneuron())
        call = fake_nki.on_tensors(hardware, packages["nki"])
    if route == "neff":
        _install_package(patch, folder, packages["nki"], hardware)
    with intercept_calls(call):
        yield hardware
    if hardware.faults.hanging is not None:
        hardware.faults.hanging.set()
    assert VIOLATIONS == []


def _install_package(patch: pytest.MonkeyPatch, folder: Path, version: str, hardware: Hardware) -> None:
    """A package nki for the process that compiles, and the machine that it sees."""
    package = folder / "site" / "nki"
    package.mkdir()
    for name, text in fake_nki.SOURCES.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    machine = {"version": version, "target": hardware.target, "devices": 0, "compiling": hardware.faults.compiling}
    file = folder / "machine.json"
    file.write_text(json.dumps(machine), encoding="utf-8")
    patch.setenv(fake_nki.MACHINE, str(file))


def be_instance(patch: pytest.MonkeyPatch, root: Path, instance: str, devices: int) -> None:
    """Put an instance's files into a folder, and make this process look for them there."""
    product = root / "sys" / "devices" / "virtual" / "dmi" / "id" / "product_name"
    product.parent.mkdir(parents=True, exist_ok=True)
    product.write_text(f"{instance}\n", encoding="ascii")
    (root / "dev").mkdir(exist_ok=True)
    for number in range(devices):
        (root / "dev" / f"neuron{number}").touch()
    patch.setattr(device, "ROOT", root)


def _machine(patch: pytest.MonkeyPatch, folder: Path, hardware: Hardware) -> None:
    be_instance(patch, folder, f"{hardware.target}.48xlarge", hardware.devices)
    patch.setattr(trnrt.nki, "USES_AWS", True)
    patch.setattr(tempfile, "tempdir", str(folder))
    patch.setattr(fake_torch_neuronx.State, "hardware", hardware)
    patch.setattr(fake_torch_neuronx.State, "placement", None)
    patch.setattr(cores._Process, "lease", None)
    patch.setattr(neuron, "_hung", set())
    patch.setattr(neuron, "_models_on", {})
