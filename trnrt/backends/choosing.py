"""Choosing a backend: a NeuronCore if there is one, else the simulator."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.backends import Backend, DeviceOptions
from trnrt.errors import BackendError, OptionError
from trnrt.neuron.device import neuron_device

if TYPE_CHECKING:
    from trnrt.neuron.requirements import Asked

BACKENDS = ("auto", "simulator", "neuron")


@dataclass(frozen=True)
class Choice:
    """The chosen backend, and the reason in one line."""

    backend: Backend
    reason: str


def choose(
    name: str,
    target: str | os.PathLike[str] | None = None,
    options: DeviceOptions | None = None,
    folder: Path | None = None,
) -> Choice:
    """Choose the backend called ``name``; ``auto`` is the NeuronCore if there is one, else the simulator.

    ``target``: the requested one. ``folder``: where compiled models are kept; None keeps none. Raises BackendError if
    ``neuron`` is requested and can't run: it never simulates silently.
    """
    from trnrt.backends.simulator import SimulatorBackend

    if name not in BACKENDS:
        raise OptionError(f"unknown backend {name!r}", hint=f"backends are {', '.join(BACKENDS)}")
    if name == "simulator":
        return Choice(SimulatorBackend(), "asked for")
    options = options or DeviceOptions()
    device = neuron_device()
    if name == "auto" and device is None:
        return Choice(SimulatorBackend(), "no NeuronCore on this machine")
    from trnrt.neuron.frontend import set_frontend
    from trnrt.neuron.requirements import examine_use
    from trnrt.nki.machine.targets import get_target

    asked = None if target is None else get_target(target).name
    with suppress(BackendError):  # of a value that no page names: a finding says so
        set_frontend()  # before the facts are gathered, which imports nki
    verdict = examine_use(_describe_use(asked, options))
    found = verdict.findings
    if found and name == "auto":
        return Choice(SimulatorBackend(), f"{device} is here, but {found[0].text}")
    if found:
        does = "compile" if options.compile_only else "run"
        problems = "; ".join(finding.text for finding in found)
        remedies = "; ".join(dict.fromkeys(finding.mend for finding in found))
        raise BackendError(f"the neuron backend can't {does}: {problems}", hint=remedies)
    from trnrt.neuron.backend import NeuronBackend

    reason = "asked for" if name == "neuron" else f"{device} is here"
    return Choice(NeuronBackend(options, folder, verdict.route), f"{reason}, route {verdict.route}")


def _describe_use(target: str | None, options: DeviceOptions) -> Asked:
    from trnrt.neuron.requirements import Asked

    return Asked(
        target,
        options.lnc,
        not options.compile_only,
        route=options.route,
        compiled=options.compiled is not None,
        unsupported=options.allow_unsupported,
    )
