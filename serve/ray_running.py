"""``trnrt serve --engine ray`` from its first line to its last.

Without ``--address`` it starts Ray on this machine, and ends it. With one the application stays on the cluster when the
command has gone: serving a model's new file is the same command again.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve as ray_serve
from ray.exceptions import RayError

from trnrt.backends.cores import device_cores
from trnrt.backends.device import logical_config
from trnrt.errors import BackendError, OptionError
from trnrt.report.console import render, say
from trnrt.report.tables import plain_table
from trnrt.serve.files import model_files
from trnrt.serve.listening import listen
from trnrt.serve.ray_app import FRONT, NAME, NEURON_CORES, application, deployment_of, needed
from trnrt.serve.settings import ServeSettings
from trnrt.serve.worker import LINGER_S

USAGE = "RAY_USAGE_STATS_ENABLED"
_USAGE_FILE = "RAY_USAGE_STATS_CONFIG_PATH"
_NAMESPACE = "serve"
_LOOK_S = 30.0
_FAILED = "RuntimeError: the model "
"""How a replica's reason begins within the traceback that Ray tells."""


def serve(settings: ServeSettings) -> int:
    """Serve until a signal says to stop, or put the application on a cluster; the exit code."""
    files = model_files(settings)
    app = application(settings)
    _keep_quiet()
    _watch_signals()
    if settings.address is not None:
        with _joined(settings.address):
            _deploy(settings, app, list(files), settings.port)
        return 0
    port = _free_port(settings)
    with _started(settings, len(files)) as session:
        try:
            say(f"starting Ray at {session['address']}, logs in {session['session_dir']}/logs; loading its replicas")
            _deploy(settings, app, list(files), port)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            return _drained(settings)


def _watch_signals() -> None:
    """SIGTERM is what Ctrl-C is. To be called again when Ray is connected, which has an idea of its own about it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)


def _stop(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _deploy(settings: ServeSettings, app: Any, models: list[str], port: int) -> None:
    """Put the application there, wait until it runs, and say where."""
    _watch_signals()
    ray_serve.start(http_options={"host": settings.host, "port": port})
    url = _url(settings, port)
    try:
        ray_serve.run(app, name=NAME, route_prefix="/")
    except (RuntimeError, RayError) as error:
        told = _reason([*_messages(), str(error)])
        raise BackendError(f"Ray can't run the application: {told}", hint="Ray's logs tell more") from None
    say(_summary(models) + f"{len(models)} of {len(models)} ready at {url}")


def _url(settings: ServeSettings, port: int) -> str:
    """Where Ray Serve listens; OptionError where it runs already, and listens elsewhere than it was told."""
    from ray.serve.context import _get_global_client

    client = _get_global_client()
    assert client is not None
    options = client.http_config
    if (options.host, options.port) != (settings.host, port):
        told = f"Ray Serve listens on {options.host}, port {options.port}, on this cluster already"
        raise OptionError(told, hint="say these as --host and --port, or end it with: serve shutdown")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(options.host, options.host)
    return f"http://{host}:{options.port}"


def _summary(models: list[str]) -> str:
    """A table of the processes that serve."""
    lines = []
    for name in (FRONT, *map(deployment_of, models)):
        for where in _broadcast(name, "where", _LOOK_S):
            lines.append((name, where.replica.rpartition("#")[2], where.host, str(where.process), where.cores or ""))
    return render([plain_table(("deployment", "replica", "host", "process", "NeuronCore"), lines)])


def _drained(settings: ServeSettings) -> int:
    """Answer what was accepted: 0 if that was everything, else 1. A second signal does not wait."""
    clean = 0
    try:
        _broadcast(FRONT, "drain", settings.drain_timeout)
    except KeyboardInterrupt:
        return 1
    except TimeoutError:
        clean = 1
    except (RayError, RuntimeError):  # it was not there yet: nothing was accepted
        return 0
    with suppress(KeyboardInterrupt):
        time.sleep(LINGER_S)  # until Ray's proxies have passed the last answers on; then all of Ray ends with us
    return clean


def _broadcast(deployment: str, method: str, seconds: float) -> list[Any]:
    """What all replicas of a deployment say. TimeoutError, and what Ray raises where there is none."""
    handle = ray_serve.get_deployment_handle(deployment, NAME)
    answers: list[Any] = handle.broadcast(method).results(timeout_s=seconds)
    return answers


@contextmanager
def _started(settings: ServeSettings, models: int) -> Iterator[dict[str, Any]]:
    """Ray on this machine, as long as the context lasts. OptionError where it has no room for the replicas."""
    cpus, cores = len(os.sched_getaffinity(0)), len(device_cores(logical_config()))
    _check_room(settings, models, {"CPU": cpus, NEURON_CORES: cores}, "this machine")
    try:
        context: Any = ray.init(
            num_cpus=cpus,
            resources={NEURON_CORES: cores} if cores else None,
            namespace=_NAMESPACE,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield dict(context.address_info)
    finally:
        ray.shutdown()


@contextmanager
def _joined(address: str) -> Iterator[None]:
    """A connection to a cluster."""
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        told = f"no cluster of Ray at --address {address!r}: {' '.join(str(error).split())}"
        hint = "ray start --head starts one on a machine; one that wants a token needs RAY_AUTH_MODE=token here"
        raise BackendError(told, hint=hint) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_room(settings: ServeSettings, models: int, room: dict[str, float], where: str) -> None:
    replicas = settings.replicas * models
    wanted = {"CPU": settings.replica_cpus, **needed(settings)}
    for resource, each in wanted.items():
        if replicas * each > room.get(resource, 0):
            told = f"{replicas} replicas need {replicas * each:g} {resource}, and {where} has {room.get(resource, 0):g}"
            raise OptionError(told, hint="ask for fewer --replicas, or set fewer CPUs aside with --replica-cpus")


def _free_port(settings: ServeSettings) -> int:
    """The port that Ray is to listen on. OptionError, at once, where it is in use."""
    with listen(settings.host, settings.port) as listener:
        port: int = listener.getsockname()[1]
    return port


def _keep_quiet() -> None:
    """Nothing is sent to Ray's makers unless the user says so, and what Ray logs as a matter of course is not shown."""
    file = os.environ.get(_USAGE_FILE) or Path("~/.ray/config.json").expanduser()
    if not Path(file).is_file():
        os.environ.setdefault(USAGE, "0")
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _messages() -> list[str]:
    """What Ray says of each deployment."""
    with suppress(RayError, RuntimeError):
        application = ray_serve.status().applications.get(NAME)
        return [deployment.message for deployment in application.deployments.values()] if application else []
    return []


def _reason(messages: list[str]) -> str:
    """Why a replica did not start, out of the tracebacks that Ray tells; the last of the messages where none says."""
    for message in messages:
        _, found, rest = message.partition(_FAILED)
        if found:
            return (found + rest).removeprefix("RuntimeError: ").partition("\n")[0]
    return " ".join(messages[-1].split())
