"""Ray, for whoever runs something on it: one of this machine that ends with the command, or a cluster that runs."""

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
"""What Ray calls the resource; it shows a process its cores with NEURON_RT_VISIBLE_CORES."""
CLIENT = "ray://"
"""How the address of a cluster begins for those who are no part of it."""
USAGE = "RAY_USAGE_STATS_ENABLED"
_USAGE_FILE = "RAY_USAGE_STATS_CONFIG_PATH"
_NAMESPACE = "serve"
"""That of Ray Serve; nothing else that is done here has a name."""


def require() -> None:
    """BackendError unless Ray is installed."""
    if find_spec("ray") is None:
        raise BackendError("Ray is not installed", hint="pip install 'trnrt[ray]'")


@contextmanager
def start_cluster(each: Mapping[str, float], count: int) -> Iterator[dict[str, Any]]:
    """Ray on this machine as long as the context lasts: its addresses and folders.

    OptionError where there is no room for ``count`` processes that need ``each`` of its resources.
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
        except Exception as error:  # of no kind of its own, where its processes take longer than Ray waits
            reason = " ".join(str(error).split())
            raise BackendError(f"Ray did not start: {reason}", hint="try again when the machine is less busy") from None
        yield dict(context.address_info)
    finally:
        ray.shutdown()


@contextmanager
def join_cluster(address: str) -> Iterator[None]:
    """A connection to a cluster. BackendError where there is none."""
    import ray

    _keep_quiet()
    warnings.filterwarnings("ignore", "Ray Client connection timed out")  # it is told below
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = f"no cluster of Ray at --address {address!r}: {' '.join(str(error).split())}"
        hint = (
            "HOST:PORT is for machines of the cluster, which ray start --address HOST:PORT makes of this one; "
            "elsewhere say ray://HOST:10001; a cluster that wants a token needs RAY_AUTH_MODE=token here"
        )
        raise BackendError(told, hint=hint) from None
    try:
        yield
    finally:
        ray.shutdown()


def check_room(each: Mapping[str, float], count: int, room: Mapping[str, float]) -> None:
    """OptionError where this machine, which has ``room``, has too little for ``count`` processes."""
    for resource, amount in each.items():
        if count * amount > room.get(resource, 0):
            told = (
                f"{count} replicas need {count * amount:g} {resource}, and this machine has {room.get(resource, 0):g}"
            )
            raise OptionError(told, hint="ask for fewer --replicas, or set fewer CPUs aside with --replica-cpus")


def _keep_quiet() -> None:
    """Nothing is sent to Ray's makers unless the user says so, and Ray's logs stay in its folder."""
    from ray._private import worker

    file = os.environ.get(_USAGE_FILE) or Path("~/.ray/config.json").expanduser()
    if not Path(file).is_file():
        os.environ.setdefault(USAGE, "0")
    for name in ("ray", "ray.data", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # That a process died is printed to stdout, log_to_driver or not: it would stand within the JSON of a command.
    vars(worker)["_worker_logs_enabled"] = False
