"""Ray Serve's address: one host and port for all machines of a cluster."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray import serve as ray_serve
from ray.exceptions import RayError
from trnrt.errors import BackendError, OptionError
from trnrt.serve.processes.listening import url_text
from trnrt.serve.ray.proxy import CALLBACK, LAYERS
from trnrt.serve.settings import is_loopback

_ANY = ("0.0.0.0", "::")


def start(host: str, port: int) -> None:
    """Start Ray Serve on the connected cluster, unless it runs already.

    OptionError if it listens elsewhere, or would listen on one machine of several; BackendError if it can't listen.
    """
    from ray.serve.context import _get_global_client

    running = _get_global_client(raise_if_no_controller_running=False)
    if running is None:
        _start(host, port)
    elif ((options := running.http_config).host, options.port) != (host, port):
        text = f"Ray Serve listens on {options.host}, port {options.port}, on this cluster already"
        raise OptionError(
            text, hint="say these as --host and --port, or end it, on the head's machine, with: serve shutdown"
        )


def urls(host: str, port: int) -> str:
    """The URLs: on the machines that have replicas, and on the head's."""
    nodes = {node["NodeID"]: node for node in _nodes()}
    there = [nodes[node] for node in ray_serve.status().proxies if node in nodes]
    if host in _ANY:
        return ", ".join(url_text(node["NodeManagerAddress"], port) for node in there)
    names = ", ".join(node["NodeManagerHostname"] for node in there)
    return url_text(host, port) + (f" on each of {names}" if len(there) > 1 else "")


def _start(host: str, port: int) -> None:
    count = len(_nodes())
    if count > 1 and host not in _ANY and not is_loopback(host):
        text = f"--host {host}: Ray Serve listens at the same address on all {count} machines of the cluster"
        raise OptionError(text, hint="0.0.0.0 is every address of each machine, and 127.0.0.1 is for itself alone")
    # The controller starts the proxies, which inherit its environment; a user's own value stays.
    own = {} if CALLBACK in os.environ else {"runtime_env": {"env_vars": {CALLBACK: LAYERS}}}
    try:
        ray_serve.start(http_options={"host": host, "port": port}, controller_options=own)
    except (RayError, RuntimeError, TimeoutError) as error:
        ray_serve.shutdown()  # type: ignore[no-untyped-call]  # else it would run, and claim to listen there
        reason = str(error).strip().rpartition("\n")[2].removeprefix("RuntimeError: ")
        text = f"Ray Serve can't listen on {host}, port {port}: {reason}"
        raise BackendError(text, hint="another --port may be free on all machines; Ray's logs tell more") from None


def _nodes() -> list[dict[str, Any]]:
    """The machines that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
