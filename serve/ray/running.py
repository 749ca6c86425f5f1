"""The run of ``trnrt serve --engine ray``.

Without ``--address`` it starts Ray on this machine, and ends it. With one, the command ends and the application stays
on the cluster. To serve a model's new file, run the same command again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ray import serve as ray_serve
from ray.exceptions import RayError
from trnrt.errors import BackendError
from trnrt.predict.clusters import CPU, join_cluster, start_cluster
from trnrt.report.console import note, render, say
from trnrt.report.tables import plain_table
from trnrt.serve.processes.listening import bind_socket
from trnrt.serve.processes.spans import check_tracing
from trnrt.serve.processes.worker import LINGER_S
from trnrt.serve.ray import listening as ray_listening
from trnrt.serve.ray.proxy import CALLBACK, LAYERS
from trnrt.serve.ray_app import FRONT, NAME, application, deployment_of, needed_resources, served_files
from trnrt.serve.settings import ServeSettings

_LOOK_S, _TOLD_S = 30.0, 10.0
_FAILED = "RuntimeError: the model "
"""The start of a replica's reason within Ray's traceback."""


def serve(settings: ServeSettings) -> int:
    """Serve until a signal, or deploy the application to a cluster; the exit code."""
    files = served_files(settings)
    check_tracing(settings)
    app = application(settings)
    _watch_signals()
    if settings.address is not None:
        with join_cluster(settings.address):
            _deploy(settings, app, list(files), settings.port)
        return 0
    os.environ.setdefault(CALLBACK, LAYERS)
    each = {CPU: settings.replica_cpus, **needed_resources(settings)}
    # Ray takes long to start: reserve the port first, so that a port in use fails at once.
    held = bind_socket(settings.host, settings.port)
    port = held.getsockname()[1]
    with held, _stopped_early(), start_cluster(each, settings.replicas * len(files)) as session:
        try:
            say(f"starting Ray at {session['address']}, logs in {session['session_dir']}/logs; loading its replicas")
            held.close()
            _deploy(settings, app, list(files), port)
            while True:
                signal.pause()
        except KeyboardInterrupt:
            return _drain(settings)


@contextmanager
def _stopped_early() -> Iterator[None]:
    """Stop cleanly while Ray starts: nothing was accepted. Ray's own handler of SIGTERM raises SystemExit(15)."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say("stopped")
        raise SystemExit(0) from None


def _watch_signals() -> None:
    """Treat SIGTERM as Ctrl-C. Call it again when Ray is connected, as Ray sets a handler of its own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def _deploy(settings: ServeSettings, app: Any, models: list[str], port: int) -> None:
    """Deploy the application, wait until it runs, and print its URLs."""
    _watch_signals()
    ray_listening.start(settings.host, port)
    try:
        with _tell_state():
            ray_serve.run(app, name=NAME, route_prefix="/")
    except (RuntimeError, RayError) as error:
        reason = _reason([*_messages(), str(error)])
        raise BackendError(f"Ray can't run the application: {reason}", hint="Ray's logs tell more") from None
    say(_summary(models) + f"{len(models)} of {len(models)} ready at {ray_listening.urls(settings.host, port)}")


@contextmanager
def _tell_state() -> Iterator[None]:
    """Print Ray's messages about missing resources, each once: Ray may wait for them without end."""
    over = threading.Event()

    def tell() -> None:
        said = {""}
        while not over.wait(_TOLD_S):
            for message in {_reason([message]) for message in _messages()} - said:
                note(message)
                said.add(message)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LOOK_S)


def _summary(models: list[str]) -> str:
    """A table of the processes that serve."""
    lines = []
    for name in (FRONT, *map(deployment_of, models)):
        for where in _broadcast(name, "where", _LOOK_S):
            lines.append((name, where.replica.rpartition("#")[2], where.host, str(where.process), where.cores or ""))
    return render([plain_table(("deployment", "replica", "host", "process", "NeuronCore"), lines)])


def _drain(settings: ServeSettings) -> int:
    """Answer the accepted requests: 0 if all were answered, else 1. A second signal ends the wait."""
    clean = 0
    try:
        _broadcast(FRONT, "drain", settings.drain_timeout)  # a front that died is an error among the results
    except KeyboardInterrupt:
        return 1
    except TimeoutError:
        clean = 1
    except (RayError, RuntimeError, KeyError):  # no front runs yet: nothing was accepted
        return 0
    with suppress(KeyboardInterrupt):
        time.sleep(LINGER_S)  # until Ray's proxies have passed the last answers on; then all of Ray ends with us
    return clean


def _broadcast(deployment: str, method: str, seconds: float) -> list[Any]:
    """The answers of all replicas of a deployment. Raises TimeoutError, and Ray's errors if there is none."""
    handle = ray_serve.get_deployment_handle(deployment, NAME)
    answers: list[Any] = handle.broadcast(method).results(timeout_s=seconds, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, TimeoutError) or (isinstance(answer, Exception) and not isinstance(answer, RayError)):
            raise answer
    return [answer for answer in answers if not isinstance(answer, RayError)]


def _messages() -> list[str]:
    """Ray's message about each deployment."""
    with suppress(RayError, RuntimeError):
        application = ray_serve.status().applications.get(NAME)
        return [deployment.message for deployment in application.deployments.values()] if application else []
    return []


def _reason(messages: list[str]) -> str:
    """Why a replica did not start, from Ray's tracebacks; else the last message."""
    for message in messages:
        _, found, rest = message.partition(_FAILED)
        if found:
            return (found + rest).removeprefix("RuntimeError: ").partition("\n")[0]
    return " ".join(messages[-1].split())
