"""Execution providers: onnxruntime's word for a backend, with names for trnrt's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnrt.errors import OptionError
from trnrt.neuron.device import neuron_device
from trnrt.ort.ignoring import warn_ignored

SIMULATOR = "TrnrtSimulatorExecutionProvider"
NEURON = "TrnrtNeuronExecutionProvider"
CPU = "CPUExecutionProvider"
"""onnxruntime's own, which runs the nodes of a session with ``fallback="onnxruntime"``."""

_BACKENDS = {SIMULATOR: "simulator", NEURON: "neuron"}
_NAMES = {backend: name for name, backend in _BACKENDS.items()}
_OPTIONS = ("target", "dtype", "fallback")


def get_all_providers() -> list[str]:
    """The names that trnrt knows."""
    return [NEURON, SIMULATOR, CPU]


def get_available_providers() -> list[str]:
    """The names that this machine has: without a NeuronCore, the simulator comes first."""
    return [name for name in get_all_providers() if name != NEURON or neuron_device() is not None]


def get_device() -> str:
    """The word "NEURON" on a machine with a NeuronCore, else "CPU": the simulator runs there."""
    return "CPU" if neuron_device() is None else "NEURON"


def providers_of(backend: str, fallback: str | None) -> list[str]:
    """The names of what a session computes on."""
    return [_NAMES.get(backend, backend), *([CPU] if fallback else [])]


def read_providers(
    providers: Sequence[object] | None, options: Sequence[Mapping[str, str]] | None, severity: int = -1
) -> dict[str, Any]:
    """The session's arguments that ``providers`` and their ``options`` ask for.

    One name of trnrt's own chooses the backend; with both, the device is taken if there is one. Options are target,
    dtype and fallback. Other names are ignored, with one warning: a script for onnxruntime has them.
    """
    found = _pairs(providers, options)
    own = {name: given for name, given in found if name in _BACKENDS}
    asked: dict[str, Any] = {}
    for name, given in own.items():
        if unknown := sorted(set(given) - set(_OPTIONS)):
            raise OptionError(f"{name} has no option {unknown[0]!r}", hint=f"it has {', '.join(_OPTIONS)}")
        asked |= given
    if len(own) == 1:
        asked["backend"] = _BACKENDS[next(iter(own))]
    known = {*_BACKENDS, *([CPU] if own or asked.get("fallback") else [])}
    reason = f"trnrt computes on its own: {', '.join(get_available_providers()[:-1])}"
    warn_ignored({f"the provider {name}": reason for name, _ in found if name not in known}, severity)
    return asked


def _pairs(
    providers: Sequence[object] | None, options: Sequence[Mapping[str, str]] | None
) -> list[tuple[str, Mapping[str, str]]]:
    """The providers by name, each with its options."""
    names = [] if providers is None else [providers] if isinstance(providers, str) else list(providers)
    if options is not None and len(options) != len(names):
        raise OptionError(f"{len(names)} providers, and {len(options)} provider_options", hint="give one for each")
    pairs: list[tuple[str, Mapping[str, str]]] = []
    for k, name in enumerate(names):
        given: Mapping[str, str] = {} if options is None else options[k] or {}
        if isinstance(name, tuple) and len(name) == 2:
            name, given = name[0], {**(name[1] or {}), **given}
        if not isinstance(name, str):
            raise OptionError(f"a provider is {name!r}", hint='give a name, or ("name", {"option": "value"})')
        pairs.append((name, given))
    return pairs
