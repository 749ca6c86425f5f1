"""The NeuronCores that the settings ask for, and whether this machine has them. The simulator needs none."""

from __future__ import annotations

from trnrt.backends import DeviceOptions
from trnrt.backends.choosing import choose
from trnrt.errors import BackendError, OptionError
from trnrt.neuron.cores import Lease, known_cores, lease_for_worker
from trnrt.neuron.device import logical_config, neuron_device
from trnrt.serve.settings import ServeSettings

LONGEST_RUN_S = DeviceOptions.timeout_s
"""A longer run counts as hanging, unless requests may take longer."""


def device_options(settings: ServeSettings) -> DeviceOptions:
    """Each model's device options."""
    longest = max(LONGEST_RUN_S, settings.request_timeout)
    return DeviceOptions(
        settings.lnc,
        settings.cores,
        settings.compiled,
        timeout_s=longest,
        route=settings.route,
        allow_unsupported=settings.allow_unsupported_device,
    )


def on_device(settings: ServeSettings) -> bool:
    """True if the models run on NeuronCores. BackendError if they must and can't."""
    if settings.backend == "simulator" or (settings.backend == "auto" and neuron_device() is None):
        return False
    backend = choose(settings.backend, settings.target, device_options(settings)).backend
    if backend.name != "neuron":
        return False
    from trnrt.neuron.backend import NeuronBackend

    if isinstance(backend, NeuronBackend) and backend.route.name == "jit":
        raise BackendError(
            "the route jit compiles at each call: it can't serve", hint="use --route neff: docs/device.md says how"
        )
    return True


def check_device(settings: ServeSettings) -> None:
    """BackendError or OptionError if every worker, or every model, would fail."""
    if not on_device(settings):
        return
    known, needed = len(known_cores(logical_config(settings.lnc))), settings.workers * settings.cores
    if needed > known:
        asked = f"--workers {settings.workers} with --cores {settings.cores}"
        raise BackendError(f"{asked} needs {needed} NeuronCores, and there are {known}", hint="ask for fewer")
    if settings.compiled is not None and not settings.compiled.is_dir():
        raise OptionError(
            f"--compiled: there is no folder {str(settings.compiled)!r}",
            hint="trnrt compile MODEL --backend neuron -o DIR makes one",
        )


def lease_for(settings: ServeSettings) -> Lease | None:
    """A lease of a worker's own cores; None if it needs none. BackendError if too few are left."""
    return lease_for_worker(settings.cores, logical_config(settings.lnc)) if on_device(settings) else None
