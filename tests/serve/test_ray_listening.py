"""Where Ray Serve listens on several machines, without Ray."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray_quietly  # before whatever else imports it
from ray.exceptions import RayError

from trnrt.errors import BackendError, OptionError
from trnrt.serve.processes.listening import bind_socket, listen
from trnrt.serve.ray import listening as ray_listening
from trnrt.serve.ray.proxy import CALLBACK, LAYERS

NODES = [
    {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": "one"},
    {"NodeID": "b", "Alive": False, "NodeManagerAddress": "10.0.0.2", "NodeManagerHostname": "two"},
    {"NodeID": "c", "Alive": True, "NodeManagerAddress": "fd00::3", "NodeManagerHostname": "three"},
]


class Serve:
    """Ray Serve, started or not; ``calls`` is what it was told."""

    def __init__(self, running: tuple[str, int] | None = None, error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self._running, self._error = running, error

    def client(self, *, raise_if_no_controller_running: bool) -> Any:
        """Ray's handle of it."""
        assert not raise_if_no_controller_running
        if self._running is None:
            return None
        host, port = self._running
        return SimpleNamespace(http_config=SimpleNamespace(host=host, port=port))

    def start(self, **options: Any) -> None:
        """As Ray's."""
        self.calls.append(options)
        if self._error:
            raise self._error

    def shutdown(self) -> None:
        """As Ray's."""
        self.calls.append("shutdown")

    def status(self) -> Any:
        """As Ray's; the dead one may still be in it."""
        return SimpleNamespace(proxies={"a": "HEALTHY", "b": "HEALTHY", "c": "STARTING"})


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Serve:
    made = Serve(**getattr(request, "param", {}))
    monkeypatch.setattr(ray_listening, "ray_serve", made)
    monkeypatch.setattr("ray.serve.context._get_global_client", made.client)
    monkeypatch.setattr(ray_quietly.ray, "nodes", lambda: NODES)
    monkeypatch.delenv(CALLBACK, raising=False)
    return made


def test_a_port_that_is_kept_for_ray_is_nobody_elses() -> None:
    with bind_socket("127.0.0.1", 0) as held, socket.socket() as other:
        address = held.getsockname()
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    with listen("127.0.0.1", 0) as listener, pytest.raises(OptionError, match="it is in use"):
        bind_socket(*listener.getsockname())


def test_an_address_of_one_machine_is_none_of_all(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="same address on all 2 machines"):
        ray_listening.start("10.0.0.1", 8000)
    assert serve.calls == []
    monkeypatch.setattr(ray_quietly.ray, "nodes", lambda: NODES[:1])
    ray_listening.start("10.0.0.1", 8000)
    assert len(serve.calls) == 1


def test_its_proxies_ask_again_unless_the_user_has_an_idea_of_his_own(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_listening.start("0.0.0.0", 80)
    monkeypatch.setenv(CALLBACK, "mine:layers")
    ray_listening.start("127.0.0.1", 81)
    assert serve.calls == [
        {
            "http_options": {"host": "0.0.0.0", "port": 80},
            "controller_options": {"runtime_env": {"env_vars": {CALLBACK: LAYERS}}},
        },
        {"http_options": {"host": "127.0.0.1", "port": 81}, "controller_options": {}},
    ]


@pytest.mark.parametrize(
    "serve", [{"error": RayError("ray::ProxyActor\n  File\nRuntimeError: Failed to bind")}], indirect=True
)
def test_what_could_not_listen_does_not_go_on(serve: Serve) -> None:
    with pytest.raises(BackendError, match="can't listen on ::1, port 8000: Failed to bind"):
        ray_listening.start("::1", 8000)
    assert serve.calls[-1] == "shutdown"


@pytest.mark.parametrize("serve", [{"running": ("::1", 8000)}], indirect=True)
def test_one_that_runs_is_taken_where_it_listens(serve: Serve) -> None:
    ray_listening.start("::1", 8000)
    with pytest.raises(OptionError, match="listens on ::1, port 8000, on this cluster already"):
        ray_listening.start("::1", 8001)
    assert serve.calls == []


def test_the_machines_are_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_listening.urls("0.0.0.0", 80) == "http://10.0.0.1:80, http://[fd00::3]:80"
    assert ray_listening.urls("127.0.0.1", 80) == "http://127.0.0.1:80 on each of one, three"
    monkeypatch.setattr(ray_quietly.ray, "nodes", lambda: NODES[:1])
    assert ray_listening.urls("127.0.0.1", 80) == "http://127.0.0.1:80"
