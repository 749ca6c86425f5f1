"""The NeuronCores that the settings ask for, and whether this machine has them. The simulator needs none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trnrt.backends import Backend, DeviceOptions
from trnrt.backends.choosing import choose
from trnrt.errors import BackendError, CoresTakenError, OptionError, TrnrtError
from trnrt.neuron.cores import Lease, known_cores, lease_for_process, lease_for_worker
from trnrt.neuron.device import logical_config, neuron_device
from trnrt.running.bundles import read_bundle
from trnrt.serve.hosting.files import find_sources
from trnrt.serve.settings import ServeSettings
from trnrt.session import InferenceSession

LONGEST_RUN_S = DeviceOptions.timeout_s
"""A longer run counts as hanging, unless requests may take longer."""


def device_options(settings: ServeSettings) -> DeviceOptions:
    """Each model's device options."""
    longest = max(LONGEST_RUN_S, settings.request_timeout)
    return DeviceOptions(  # a worker's first cores: those behind them are other instances'
        settings.lnc,
        settings.cores,
        settings.compiled,
        timeout_s=longest,
        route=settings.route,
        allow_unsupported=settings.allow_unsupported_device,
        first_core=0,
    )


def on_device(settings: ServeSettings) -> bool:
    """True if the models run on NeuronCores. BackendError if they must and can't."""
    if settings.backend == "simulator" or (settings.backend == "auto" and neuron_device() is None):
        return False
    options = replace(device_options(settings), compiled=settings.compiled or _bundled_programs(settings))
    backend = choose(settings.backend, settings.target, options).backend
    if backend.name != "neuron":
        return False
    from trnrt.neuron.backend import NeuronBackend

    if not isinstance(backend, NeuronBackend):
        return True
    name, most = backend.route.name, backend.route.most_cores
    if name == "jit":
        raise BackendError(
            "the route jit compiles at each call: it can't serve", hint="use --route neff: docs/device.md says how"
        )
    if most is not None and cores_of_worker(settings) > most:
        raise BackendError(
            f"{settings.most_instances} instances: a process uses {most} NeuronCore by the route {name}",
            hint="use --route neff or trace, or a process for each core (--workers)",
        )
    return True


def _bundled_programs(settings: ServeSettings) -> Path | None:
    """Compiled programs in a bundle, if every model is a bundle that has some: then nothing is left to compile."""
    try:
        sources = [one.path for versions in find_sources(settings).values() for one in versions.values()]
        bundles = [read_bundle(path) for path in sources]
    except TrnrtError:  # its loading will say what is wrong
        return None
    found = [None if bundle is None else bundle.programs for bundle in bundles]
    return found[0] if found and all(found) else None


def check_device(settings: ServeSettings) -> None:
    """BackendError or OptionError if every worker, or every model, would fail."""
    if not on_device(settings):
        return
    known, needed = len(known_cores(logical_config(settings.lnc))), settings.workers * cores_of_worker(settings)
    if needed > known:
        asked = f"--workers {settings.workers} with --cores {settings.cores}"
        if settings.most_instances > 1:
            asked = f"{settings.most_instances} instances with {asked}"
        raise BackendError(f"{asked} needs {needed} NeuronCores, and there are {known}", hint="ask for fewer")
    if settings.compiled is not None and not settings.compiled.is_dir():
        raise OptionError(
            f"--compiled: there is no folder {str(settings.compiled)!r}",
            hint="trnrt compile MODEL --backend neuron -o DIR makes one",
        )


def lease_for(settings: ServeSettings) -> Lease | None:
    """A lease of a worker's own cores; None if it needs none. BackendError if too few are left."""
    return lease_for_worker(cores_of_worker(settings), logical_config(settings.lnc)) if on_device(settings) else None


def cores_of_worker(settings: ServeSettings) -> int:
    """The NeuronCores that a worker leases: each instance of a model has its own, and models share them."""
    return settings.most_instances * settings.cores


def lease_for_instances(settings: ServeSettings) -> None:
    """Check that this process has the cores for a model's instances, or lease them.

    BackendError if it has fewer: the runtime keeps those that it saw first until the process ends.
    """
    needed = settings.instances * settings.cores
    try:
        lease_for_process(needed, logical_config(settings.lnc))
    except CoresTakenError:
        raise
    except BackendError as error:
        raise BackendError(
            f"instances = {settings.instances} with --cores {settings.cores} needs {needed} NeuronCores: {error}",
            hint="ask for fewer, or restart the server: a worker leases its cores when it starts",
        ) from None


def more_sessions(session: InferenceSession, settings: ServeSettings) -> list[InferenceSession]:
    """Sessions for the instances beside the first. BackendError if this process has too few NeuronCores."""
    if session.backend == "neuron" and settings.instances > 1:
        lease_for_instances(settings)
    others = range(1, settings.instances)
    return [session.with_options(session.options, _runner(session, number, settings.cores)) for number in others]


def _runner(session: InferenceSession, number: int, cores: int) -> Backend:
    """The backend of an instance: on a device with the cores behind those of the instances before it."""
    from trnrt.neuron.backend import NeuronBackend

    runner = session.runner
    return runner.starting_at(number * cores) if isinstance(runner, NeuronBackend) else runner
