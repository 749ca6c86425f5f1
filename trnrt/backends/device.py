"""What there is of a NeuronCore and of AWS's packages on this machine. Nothing of theirs is imported to find out.

The facts are from the SDK's documentation of release 2.32; nothing here was ever run on a machine with a device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from trnrt.errors import BackendError

LNC_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
INDEX = "https://pip.repos.neuron.amazonaws.com"
DEFAULT_LNC = 1
"""The kernels run on one physical core. The runtime's own default is 2 on trn2 and trn3."""

PHYSICAL_CORES = {"trn1": 2, "trn2": 8, "trn3": 8}
"""Physical NeuronCores of a device; NEURON_LOGICAL_NC_CONFIG of them make one that the runtime numbers."""

_DEVICES = Path("/dev")
_PRODUCT_NAME = Path("/sys/devices/virtual/dmi/id/product_name")
# EC2 instance family -> target.
_FAMILIES = {"trn1": "trn1", "inf2": "trn1", "trn2": "trn2", "trn3": "trn3"}


@dataclass(frozen=True)
class Finding:
    """Why the NeuronCore can't be used, and what mends it."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Needed:
    """A package of AWS's, and its versions that serve: from ``first`` on, and before ``end`` where there is one."""

    name: str
    first: str
    end: str | None
    reason: str


NEEDED = (
    Needed("nki", "0.6", None, "the kernels are written in the language of NKI 0.6"),
    Needed("neuronx-cc", "2.27", None, "the compiler of SDK 2.32, which NKI 0.6 came with"),
    Needed("torch-neuronx", "2.9", "2.10", "torch_neuronx.trace is of PyTorch/XLA, which 2.9 is the last to have"),
)


def neuron_devices() -> list[Path]:
    """The Neuron device files of this machine, in the order of their numbers."""
    return sorted(_DEVICES.glob("neuron[0-9]*"), key=lambda path: (len(path.name), path.name))


def neuron_device() -> Path | None:
    """The first Neuron device file of this machine, or None."""
    return next(iter(neuron_devices()), None)


def device_target() -> str | None:
    """The target that this machine's device is, or None where there is no device or its kind can't be told.

    EC2 gives the instance type ("trn2.48xlarge") as the product name.
    """
    if neuron_device() is None:
        return None
    try:
        family = _PRODUCT_NAME.read_text(encoding="ascii").split(".")[0].strip()
    except (OSError, ValueError):
        return None
    return next((target for prefix, target in _FAMILIES.items() if family.startswith(prefix)), None)


def installed_versions() -> dict[str, str]:
    """The versions of AWS's packages, and of what they stand on, that are installed; without importing any."""
    found = {}
    for name in (*(needed.name for needed in NEEDED), "torch", "libneuronxla"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def logical_config(asked: int | None = None) -> int:
    """How many physical cores make a logical one: what was asked for, else the environment's, else 1.

    BackendError where the two differ: the runtime takes the environment's, and a kernel compiled for another fails.
    """
    told = os.environ.get(LNC_VARIABLE)
    if told is not None and told not in ("1", "2"):
        raise BackendError(f"{LNC_VARIABLE}={told!r} is no number of cores", hint="it is 1 or 2")
    if asked is not None and told is not None and int(told) != asked:
        raise BackendError(
            f"--lnc {asked} was asked for, and {LNC_VARIABLE}={told} is set, which the runtime goes by",
            hint=f"unset {LNC_VARIABLE}, or ask for --lnc {told}",
        )
    return asked or int(told or DEFAULT_LNC)


def findings(target: str | None = None, *, lnc: int | None = None, running: bool = True) -> list[Finding]:
    """Why the NeuronCore can't run (or, not ``running``, compile) kernels for ``target``; the weightiest first."""
    found = []
    if running and neuron_device() is None:
        found.append(Finding("there is no /dev/neuron* on this machine", "use --backend simulator, on any machine"))
    found += _package_findings(installed_versions())
    device = device_target()
    if running and target is None and device is None and neuron_device() is not None:
        found.append(Finding("the kind of this machine's device can't be told", "say --target trn1, trn2 or trn3"))
    if running and target is not None and device is not None and target != device:
        remedy = f"leave --target out, or compile for {target} only: trnrt compile --backend neuron"
        found.append(Finding(f"target {target} was asked for, and this machine's device is {device}", remedy))
    try:
        cores = logical_config(lnc)
    except BackendError as error:
        return [*found, Finding(str(error), error.hint or "")]
    if cores == 2 and (target or device) == "trn1":
        found.append(Finding("trn1 has no logical cores of 2: there, LNC is always 1", "use --lnc 1"))
    return found


def _package_findings(versions: Mapping[str, str]) -> list[Finding]:
    from trnrt import nki

    install = f"pip install 'trnrt[neuron]' --extra-index-url {INDEX}"
    found = []
    for needed in NEEDED:
        version = versions.get(needed.name)
        wanted = f"{needed.first} or newer" if needed.end is None else f"{needed.first}, before {needed.end}"
        if version is None:
            found.append(Finding(f"{needed.name} is not installed ({needed.reason})", install))
        elif not _serves(version, needed):
            told = f"{needed.name} {version} is installed, and {wanted} is needed: {needed.reason}"
            found.append(Finding(told, install))
    if not found and not nki.USES_AWS:
        asked = os.environ.get("TRNRT_NKI")
        why = f"TRNRT_NKI={asked} is set" if asked else "its modules nki.language and nki.isa are missing"
        found.append(Finding(f"AWS's nki is installed, but kernels don't get it: {why}", "unset TRNRT_NKI"))
    return found


def _serves(version: str, needed: Needed) -> bool:
    numbers = _numbers(version)
    return numbers >= _numbers(needed.first) and (needed.end is None or numbers < _numbers(needed.end))


def _numbers(version: str) -> tuple[int, ...]:
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()
