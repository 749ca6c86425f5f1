"""The NeuronCores and AWS packages of this machine. None of the packages is imported to find them.

``requirements`` judges these facts for ``--backend neuron``, and ``trnrt doctor`` shows them. File names and variables
are from the documentation of SDK 2.32; nothing here was ever run on a machine with a device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trnrt.errors import BackendError

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
AWS_SIMULATOR = "NKI_SIMULATOR"  # nki/guides/nki_simulator.rst
ARTIFACTS_VARIABLE = "NKI_ARTIFACTS_DIR"
ROUTE_VARIABLE = "TRNRT_ROUTE"
WORKER_VARIABLE = "TRNRT_NRTPY_PYTHON"
UNSUPPORTED_VARIABLE = "TRNRT_ALLOW_UNSUPPORTED_DEVICE"
DEFAULT_LNC = 1
"""The kernels run on one physical core. The runtime's own default is 2 on trn2."""

AWS_PACKAGES = ("nki", "neuronx-cc", "torch-neuronx", "torch", "libneuronxla", "nrtpy")
"""AWS's Python packages, torch, which some of them need, and nrtpy, which can't be beside nki."""

OWN_PACKAGES = ("numpy", "onnx", "onnx_ir", "onnxruntime", "ml_dtypes")
"""The packages that trnrt needs without a device."""

PREFIXES = ("NEURON_", "NEURONCORE_", "NKI_", "XLA_USE_BF16", "XLA_DOWNCAST_BF16")
# Not all TRNRT_ variables: a report is sent to others, and a server's variables may hold secrets or paths.
OWN_SETTINGS = (
    *("TRNRT_NKI", "TRNRT_CACHE", "TRNRT_CACHE_LIMIT"),
    *(ROUTE_VARIABLE, UNSUPPORTED_VARIABLE),
)

_SECONDS = 20.0
ROOT = Path("/")
"""The file system's root; tests use another one."""


@dataclass(frozen=True)
class Package:
    """An installed Python package. ``placeholder``: it has at most one file, as AWS's packages on PyPI have."""

    name: str
    version: str
    placeholder: bool = False


@dataclass(frozen=True)
class WorkerPython:
    """The Python of a worker process: its version and packages, or the ``problem`` with it."""

    version: str = ""
    packages: Mapping[str, Package] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that decide whether kernels can run on a machine's NeuronCores.

    ``closed``: device files that this user may not open. ``instance``: EC2's type ("trn2.48xlarge"). ``lnc_file``: the
    setting in the machine's file; ``listed_lnc``: by neuron-ls, if it was run. ``seam``: why kernels don't import AWS's
    nki, although it may be installed. ``worker``: the Python that TRNRT_NRTPY_PYTHON names.
    """

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    instance: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    lnc_file: str | None = None
    listed_lnc: int | None = None
    seam: str = ""
    worker: WorkerPython | None = None

    @property
    def target(self) -> str | None:
        """The target, by the instance type."""
        return target_of(self.instance)


def look_for_device(root: Path | None = None, environ: Mapping[str, str] | None = None) -> Facts:
    """Gather the facts; ``root`` and ``environ`` are for tests. Facts that can't be read are None or empty."""
    import platform

    root, environ = root or ROOT, os.environ if environ is None else environ
    devices = neuron_devices(root)
    names = (*AWS_PACKAGES, *OWN_PACKAGES)
    return Facts(
        python=platform.python_version(),
        packages={name: package for name in names if (package := _package(name)) is not None},
        devices=tuple(devices),
        closed=tuple(name for name in devices if not os.access(root / name[1:], os.R_OK | os.W_OK)),
        instance=first_line(root / "sys/devices/virtual/dmi/id/product_name"),
        settings={n: value for n, value in sorted(environ.items()) if n.startswith(PREFIXES) or n in OWN_SETTINGS},
        lnc_file=_lnc_file(root / "opt/aws/neuron/logical_nc_config"),
        seam=_seam(environ),
        worker=_worker(environ.get(WORKER_VARIABLE)),
    )


def neuron_devices(root: Path | None = None) -> list[str]:
    """The Neuron device files of this machine ("/dev/neuron0"), in the order of their numbers."""
    names = [path.name for path in ((root or ROOT) / "dev").glob("neuron[0-9]*")]
    return [f"/dev/{name}" for name in sorted(names, key=lambda name: (len(name), name))]


def neuron_device() -> str | None:
    """The first Neuron device file of this machine, or None."""
    return next(iter(neuron_devices()), None)


def device_target() -> str | None:
    """The target of this machine's device; None if there is no device, or its kind is unknown."""
    if neuron_device() is None:
        return None
    return target_of(first_line(ROOT / "sys/devices/virtual/dmi/id/product_name"))


def target_of(instance: str | None) -> str | None:
    """The target of an EC2 instance type, which is the machine's product name; None for other machines."""
    from trnrt.nki.machine.targets import known_targets

    family = (instance or "").split(".")[0]
    return next((target.name for target in known_targets() if family.startswith(target.device.families)), None)


def installed_versions() -> dict[str, str]:
    """The installed versions of AWS's packages and torch, without importing them."""
    found = {name: _package(name) for name in AWS_PACKAGES}
    return {name: package.version for name, package in found.items() if package is not None}


def logical_config(asked: int | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Physical cores per logical core: ``asked``, else the environment's, else 1.

    BackendError if the two differ: the runtime uses the environment's, and a kernel compiled for another fails.
    """
    value = (os.environ if environ is None else environ).get(LNC_VARIABLE)
    if value not in (None, "1", "2"):
        raise BackendError(f"{LNC_VARIABLE}={value} is neither 1 nor 2", hint=f"export {LNC_VARIABLE}={DEFAULT_LNC}")
    if asked is not None and value not in (None, str(asked)):
        raise BackendError(
            f"--lnc {asked} was asked for, and {LNC_VARIABLE}={value} is set, which the runtime uses",
            hint=f"unset {LNC_VARIABLE}, or ask for --lnc {value}",
        )
    return asked or int(value or DEFAULT_LNC)


def first_line(path: Path) -> str | None:
    """The text of a small system file; None if it is empty or can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _package(name: str) -> Package | None:
    from importlib import metadata  # it loads email, which no session on the simulator needs

    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    files = found.files
    own = [] if files is None else [f for f in files if ".dist-info/" not in str(f) and not str(f).endswith(".pyc")]
    return Package(name, found.version, files is not None and len(own) <= 1)


def _lnc_file(path: Path) -> str | None:
    for line in reversed((first_line(path) or "").splitlines()):
        name, equals, value = line.partition("=")
        if equals and name.strip() == LNC_VARIABLE:
            return value.strip()
    return None


def _seam(environ: Mapping[str, str]) -> str:
    from trnrt import nki

    if nki.USES_AWS:
        return ""
    asked = environ.get("TRNRT_NKI")
    return f"TRNRT_NKI={asked} is set" if asked else "its modules nki.language and nki.isa are missing"


_ASK_WORKER = """
import importlib.metadata as m, json, platform
found = {}
for name in ("nrtpy", "nki", "numpy"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps([platform.python_version(), found]))
"""


def _worker(python: str | None) -> WorkerPython | None:
    """Ask the worker's Python for its packages; nothing of them is imported."""
    if not python:
        return None
    import subprocess

    try:
        done = subprocess.run(
            [python, "-I", "-c", _ASK_WORKER], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        version, packages = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return WorkerPython(problem=f"{WORKER_VARIABLE}={python}: {error}")
    return WorkerPython(version, {name: Package(name, number) for name, number in packages.items()})
