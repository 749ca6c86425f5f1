"""The facts about this machine that the doctor judges. No package is imported to find them.

``neuron.device`` gathers those that decide whether kernels can run on the device, for ``--backend neuron``, too.

Facts that can't be read are None or empty, as on most machines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trnrt.neuron import device
from trnrt.neuron.cores import failed_cores, leased_cores
from trnrt.neuron.device import Facts, first_line, look_for_device

SYSTEM_PACKAGES = ("aws-neuronx-dkms", "aws-neuronx-runtime-lib", "aws-neuronx-collectives", "aws-neuronx-tools")

_TOOLS = "opt/aws/neuron/bin"
_SECONDS = 20.0

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Listed:
    """A device in the list of ``neuron-ls``. ``users``: "pid program", as a whole command line may hold secrets."""

    number: int
    cores: int
    lnc: int | None
    users: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Machine(Facts):
    """The facts that the backend itself depends on, and those that explain them.

    ``leased``: physical cores that trnrt uses; ``failed``: those that failed lately. ``cache_error``: (state, reason,
    advice) if nothing can be cached.
    """

    system: Mapping[str, str] = field(default_factory=dict)
    driver: str | None = None
    neuron_ls: str | None = None
    listed: tuple[Listed, ...] = ()
    leased: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    cache: str = ""
    cache_error: tuple[str, str, str] | None = None


def look(root: Path | None = None, environ: Mapping[str, str] | None = None, run: Run | None = None) -> Machine:
    """Gather the facts; ``root`` and ``run`` are for tests."""
    environ, run = os.environ if environ is None else environ, run or _output
    root = root or device.ROOT
    tool = shutil.which("neuron-ls", path=f"{environ.get('PATH', '')}{os.pathsep}{root / _TOOLS}")
    listed = () if tool is None else _parse_devices(run([tool, "--json-output"]))
    cache, cache_error = _cache()
    listed_lnc = max((row.lnc for row in listed if row.lnc is not None), default=None)
    return Machine(
        **vars(replace(look_for_device(root, environ), listed_lnc=listed_lnc)),
        system=_system_packages(run),
        driver=first_line(root / "sys/module/neuron/version"),
        neuron_ls=tool,
        listed=listed,
        leased=leased_cores(),
        failed=tuple(sorted(failed_cores())),
        cache=cache,
        cache_error=cache_error,
    )


def _system_packages(run: Run) -> dict[str, str]:
    """The versions of the system packages, by dpkg, else by rpm."""
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


def _parse_devices(text: str | None) -> tuple[Listed, ...]:
    try:
        return tuple(_device(row) for row in json.loads(text or ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def _device(row: Mapping[str, Any]) -> Listed:
    lnc = row.get("logical_neuroncore_config")
    users = tuple(f"{u.get('pid')} {str(u.get('command')).split(' ')[0]}" for u in row.get("neuron_processes") or ())
    return Listed(int(row["neuron_device"]), int(row["nc_count"]), None if lnc is None else int(lnc), users)


def _cache() -> tuple[str, tuple[str, str, str] | None]:
    from trnrt.cache import KernelCache
    from trnrt.errors import TrnrtError

    kept = KernelCache()
    try:
        note = kept.prepare()
    except TrnrtError as error:
        return str(kept.directory), ("wrong", str(error), error.hint or "")
    return str(kept.directory), ("warning", note, "free some space, or set TRNRT_CACHE") if note else None


def _output(command: Sequence[str]) -> str | None:
    """A command's output; None if it is missing or hangs. dpkg-query fails if it knows one of the names not, but prints
    the others."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout
