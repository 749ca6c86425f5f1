"""The facts about this machine that the doctor judges: packages, driver, device, settings, cache. Nothing is imported.

Whatever can't be read is None or empty: a machine without any of it is the usual one.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

PYTHON_PACKAGES = (
    "nki",
    "neuronx-cc",
    "torch-neuronx",
    "torch",
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "ml_dtypes",
)
SYSTEM_PACKAGES = ("aws-neuronx-dkms", "aws-neuronx-runtime-lib", "aws-neuronx-collectives", "aws-neuronx-tools")
PREFIXES = ("NEURON_", "NEURONCORE_", "XLA_USE_BF16", "XLA_DOWNCAST_BF16")
# Not all of trnrt's own: a report is sent to others, and a server's variables may hold secrets.
OWN = ("TRNRT_NKI", "TRNRT_CACHE", "TRNRT_CACHE_LIMIT")
# EC2 instance family -> target.
FAMILIES = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2", "trn3": "trn3"}

_TOOLS = "opt/aws/neuron/bin"
_SECONDS = 20.0

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Package:
    """An installed Python package. ``placeholder``: it holds no more than one file, as AWS's do on PyPI."""

    name: str
    version: str
    placeholder: bool = False


@dataclass(frozen=True)
class Listed:
    """A device as ``neuron-ls`` lists it; ``users`` are the processes on it, "pid program": a whole command
    line may hold secrets."""

    number: int
    cores: int
    lnc: int | None
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The facts. ``lnc_file`` is what the machine's own file sets; ``leased`` are physical cores that trnrt has
    taken. ``cache_error`` (state, why, what helps): why nothing can be kept. ``choice_error`` (why, what helps): what
    refuses ``--backend neuron``."""

    python: str
    packages: Mapping[str, Package] = field(default_factory=dict)
    system: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    driver: str | None = None
    instance: str | None = None
    neuron_ls: str | None = None
    listed: tuple[Listed, ...] = ()
    leased: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    lnc_file: str | None = None
    cache: str = ""
    cache_error: tuple[str, str, str] | None = None
    choice: str = ""
    choice_error: tuple[str, str] | None = None

    @property
    def target(self) -> str | None:
        """The target that this machine is, by its instance type."""
        family = (self.instance or "").split(".")[0]
        return next((target for prefix, target in FAMILIES.items() if family.startswith(prefix)), None)


def look(root: Path = Path("/"), environ: Mapping[str, str] | None = None, run: Run | None = None) -> Machine:
    """Gather the facts; ``root`` and ``run`` are for tests."""
    environ, run = os.environ if environ is None else environ, run or _output
    tool = _tool(root, environ)
    cache, cache_error = _cache()
    choice, choice_error = _choice()
    return Machine(
        platform.python_version(),
        {name: package for name in PYTHON_PACKAGES if (package := _package(name)) is not None},
        _system_packages(run),
        tuple(f"/dev/{path.name}" for path in sorted((root / "dev").glob("neuron[0-9]*"), key=_number)),
        _line(root / "sys/module/neuron/version"),
        _line(root / "sys/devices/virtual/dmi/id/product_name"),
        tool,
        () if tool is None else _listed(run([tool, "--json-output"])),
        _leased(Path(tempfile.gettempdir()) / "trnrt-cores"),
        {name: value for name, value in sorted(environ.items()) if name.startswith(PREFIXES) or name in OWN},
        _lnc_file(root / "opt/aws/neuron/logical_nc_config"),
        cache,
        cache_error,
        choice,
        choice_error,
    )


def _number(path: Path) -> int:
    digits = path.name.removeprefix("neuron")
    return int(digits) if digits.isdigit() else 0


def _line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _package(name: str) -> Package | None:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    files = found.files
    own = [] if files is None else [f for f in files if ".dist-info/" not in str(f) and not str(f).endswith(".pyc")]
    return Package(name, found.version, files is not None and len(own) <= 1)


def _system_packages(run: Run) -> dict[str, str]:
    """By dpkg, else by rpm."""
    asked = (
        ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", *SYSTEM_PACKAGES],
        ["rpm", "-q", "--qf", "%{NAME} %{VERSION}\n", *SYSTEM_PACKAGES],
    )
    for command in asked:
        lines = [line.split() for line in (run(command) or "").splitlines()]
        found = {words[0]: words[1] for words in lines if len(words) == 2 and words[0] in SYSTEM_PACKAGES}
        if found:
            return found
    return {}


def _tool(root: Path, environ: Mapping[str, str]) -> str | None:
    return shutil.which("neuron-ls", path=f"{environ.get('PATH', '')}{os.pathsep}{root / _TOOLS}")


def _listed(text: str | None) -> tuple[Listed, ...]:
    try:
        return tuple(_device(row) for row in json.loads(text or ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def _device(row: Mapping[str, Any]) -> Listed:
    lnc = row.get("logical_neuroncore_config")
    users = tuple(f"{u.get('pid')} {str(u.get('command')).split(' ')[0]}" for u in row.get("neuron_processes") or ())
    return Listed(int(row["neuron_device"]), int(row["nc_count"]), None if lnc is None else int(lnc), users)


def _leased(folder: Path) -> tuple[int, ...]:
    """The cores whose files another process holds a lock on."""
    held = []
    for path in folder.glob("core-*"):
        number = path.name.removeprefix("core-")
        if not number.isdigit():
            continue
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            held.append(int(number))
        finally:
            os.close(file)
    return tuple(sorted(held))


def _lnc_file(path: Path) -> str | None:
    for line in reversed((_line(path) or "").splitlines()):
        name, equals, value = line.partition("=")
        if equals and name.strip() == "NEURON_LOGICAL_NC_CONFIG":
            return value.strip()
    return None


def _cache() -> tuple[str, tuple[str, str, str] | None]:
    from trnrt.cache import KernelCache
    from trnrt.errors import TrnrtError

    kept = KernelCache()
    try:
        note = kept.prepare()
    except TrnrtError as error:
        return str(kept.directory), ("wrong", str(error), error.hint or "")
    return str(kept.directory), ("warning", note, "free some space, or set TRNRT_CACHE") if note else None


def _choice() -> tuple[str, tuple[str, str] | None]:
    """What ``--backend neuron`` itself says."""
    from trnrt.backends import choose
    from trnrt.errors import TrnrtError

    try:
        return choose("neuron").reason, None
    except TrnrtError as error:
        return "", (str(error), error.hint or "")


def _output(command: Sequence[str]) -> str | None:
    """What a command prints; None where it is not there, or hangs. dpkg-query fails where one of its names is unknown,
    and prints the others all the same."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout
