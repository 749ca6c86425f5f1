"""Ray: start it on this machine for as long as the command runs, or join a running cluster."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trnrt.errors import BackendError, OptionError
from trnrt.neuron.cores import device_cores
from trnrt.neuron.device import logical_config

CPU = "CPU"
NEURON_CORES = "neuron_cores"
"""Ray's name for the resource. Ray assigns a process its cores by NEURON_RT_VISIBLE_CORES."""
CLIENT = "ray://"
"""The prefix of a cluster's address for machines outside of it."""
USAGE = "RAY_USAGE_STATS_ENABLED"
_USAGE_FILE = "RAY_USAGE_STATS_CONFIG_PATH"
_NAMESPACE = "serve"
"""Ray Serve's; nothing else here uses names."""


def require() -> None:
    """BackendError unless Ray is installed."""
    if find_spec("ray") is None:
        raise BackendError("Ray is not installed", hint="pip install 'trnrt[ray]'")


@contextmanager
def start_cluster(each: Mapping[str, float], count: int) -> Iterator[dict[str, Any]]:
    """Run Ray on this machine in this context; yields its addresses and folders.

    OptionError if the machine has too little for ``count`` processes that need the resources ``each``.
    """
    import ray

    cpus, cores = len(os.sched_getaffinity(0)), len(device_cores(logical_config()))
    check_room(each, count, {CPU: cpus, NEURON_CORES: cores})
    _keep_quiet()
    try:
        try:
            context: Any = ray.init(
                address="local",
                num_cpus=cpus,
                resources={NEURON_CORES: cores} if cores else None,
                namespace=_NAMESPACE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises it if its processes take longer than it waits
            reason = " ".join(str(error).split())
            raise BackendError(f"Ray did not start: {reason}", hint="try again when the machine is less busy") from None
        yield dict(context.address_info)
    finally:
        ray.shutdown()


@contextmanager
def join_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster in this context. BackendError if there is none."""
    import ray

    _keep_quiet()
    warnings.filterwarnings("ignore", "Ray Client connection timed out")  # it is raised below
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"no cluster of Ray at --address {address!r}: {' '.join(str(error).split())}",
            hint="HOST:PORT works on machines of the cluster, which ray start --address HOST:PORT joins; elsewhere say "
            "ray://HOST:10001; if the cluster requires a token, set RAY_AUTH_MODE=token",
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def check_room(each: Mapping[str, float], count: int, room: Mapping[str, float]) -> None:
    """OptionError if this machine's resources, ``room``, are too little for ``count`` processes."""
    for resource, amount in each.items():
        available = room.get(resource, 0)
        if count * amount > available:
            raise OptionError(
                f"{count} replicas need {count * amount:g} {resource}, and this machine has {available:g}",
                hint="ask for fewer --replicas, or reserve fewer CPUs with --replica-cpus",
            )


def _keep_quiet() -> None:
    """Turn off Ray's usage reports unless the user configured them, and keep Ray's logs in its folder."""
    from ray._private import worker

    file = os.environ.get(_USAGE_FILE) or Path("~/.ray/config.json").expanduser()
    if not Path(file).is_file():
        os.environ.setdefault(USAGE, "0")
    for name in ("ray", "ray.data", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Ray prints the death of a process to stdout, despite log_to_driver, and so into the JSON of a command.
    vars(worker)["_worker_logs_enabled"] = False
