"""gRPC with real servers: workers that share the port, kills, shutdowns, and ports that are in use."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from engines import RELU, save
from grpc_serving import raw_request
from serving import ServerProcess, events, ready_workers, server_process, until, workers
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from trnrt.commands import serve as command
from trnrt.errors import BackendError, OptionError
from trnrt.serve.processes.listening import address_of, reserve_port
from trnrt.serve.settings import ServeSettings

INFER = "/inference.GRPCInferenceService/ModelInfer"
REQUEST = raw_request("one", np.full((1, 4), -1, np.float32)).SerializeToString()
ALONE = [("grpc.use_local_subchannel_pool", 1)]


def test_a_port_is_reserved_for_workers_alone() -> None:
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        assert address_of(reserved) == f"127.0.0.1:{port}"
        with pytest.raises(OptionError, match="is in use") as caught:
            reserve_port("127.0.0.1", port)
        assert "--grpc-port 0" in str(caught.value.hint)
        with socket.socket() as other, pytest.raises(OSError):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
        for _ in range(2):
            with socket.socket() as worker:
                for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # as grpc sets them
                    worker.setsockopt(socket.SOL_SOCKET, option, 1)
                worker.bind(("127.0.0.1", port))
                worker.listen()
                with socket.create_connection(("127.0.0.1", port)):
                    worker.accept()[0].close()
    with reserve_port("127.0.0.1", port):
        pass


def test_without_a_port_nothing_of_grpc_is_imported() -> None:
    code = "import sys, trnrt.serve.processes.worker; print('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_missing_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "grpc" else object())
    with pytest.raises(BackendError, match="grpcio") as caught:
        command.serve({"grpc_port": 0})
    assert "trnrt[serve,grpc]" in str(caught.value.hint)


def test_replicas_of_ray_serve_no_grpc() -> None:
    with pytest.raises(ValueError, match="--grpc-port has no meaning with --engine ray"):
        ServeSettings(engine="ray", grpc_port=0)


class Load:
    """Threads that send requests, each on a connection of its own, until ``stop``; ``codes`` counts how they end."""

    def __init__(self, address: str, threads: int) -> None:
        self.codes: dict[Any, int] = {}
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(address,)) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[Any, int]:
        """End, and count the answers."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return self.codes

    def _send(self, address: str) -> None:
        while not self._stopping.is_set():
            with grpc.insecure_channel(address, options=ALONE) as channel:
                code: Any = grpc.StatusCode.OK
                try:
                    for _ in range(20):
                        channel.unary_unary(INFER)(REQUEST, timeout=60)
                        self._count(code)
                except grpc.RpcError as error:
                    self._count(error.code())

    def _count(self, code: Any) -> None:
        with self._lock:
            self.codes[code] = self.codes.get(code, 0) + 1


def serving_workers(server: ServerProcess) -> set[int]:
    """The workers that have answered calls."""
    return {line["worker"] for line in events(server, "request") if line["path"] == INFER and line["status"] == 200}


def test_workers_share_the_port_and_a_kill_costs_only_its_own_calls(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    save(folder, "one", RELU)
    flags = ("--model-dir", str(folder), "--workers", "2", "--admin", "--grpc-port", "0")
    with server_process(tmp_path, *flags) as server:
        until(lambda: ready_workers(server, "one") == 2)
        load = Load(server.grpc_address, 3)
        until(lambda: serving_workers(server) == {0, 1})
        os.kill(workers(server)[0], signal.SIGKILL)
        until(lambda: len(events(server, "worker_started")) == 3 and ready_workers(server, "one") == 2)
        codes = load.stop()
        # Each thread loses at most the call that was under way, and connections that were not accepted yet.
        assert codes.pop(grpc.StatusCode.OK) > 40
        assert set(codes) <= {grpc.StatusCode.UNAVAILABLE} and sum(codes.values()) <= 9, codes
        with InferenceServerClient(server.grpc_address) as client:
            client.unload_model("one")
            assert [model.state for model in client.get_model_repository_index().models] == ["UNAVAILABLE"]
            assert ready_workers(server, "one") == 0
            client.load_model("one")
            assert ready_workers(server, "one") == 2
            with pytest.raises(InferenceServerException, match="'config'"):
                client.load_model("one", config="{}")
        assert server.stop() == 0


def test_a_shutdown_answers_what_it_accepted(tmp_path: Path) -> None:
    model = save(tmp_path, "one", RELU)
    with server_process(tmp_path, str(model), "--grpc-port", "0") as server:
        load = Load(server.grpc_address, 3)
        until(lambda: load.codes.get(grpc.StatusCode.OK, 0) > 30)
        assert server.stop() == 0
        codes = load.stop()
        # grpc drops a call that comes while it closes its port, after all others were refused with words.
        assert codes.pop(grpc.StatusCode.CANCELLED, 0) <= 3
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    answered = [line for line in events(server, "request") if line["path"] == INFER]
    assert {line["status"] for line in answered} <= {200, 503}
    assert sum(line["status"] == 200 for line in answered) == codes[grpc.StatusCode.OK]
    assert all(line["clean"] for line in events(server, "stopped"))
    assert f"over gRPC at {server.grpc_address}" in server.log.read_text()


def test_a_port_in_use_ends_the_start(tmp_path: Path) -> None:
    model = save(tmp_path, "one", RELU)
    with socket.socket() as taken, contextlib.ExitStack() as stack:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for flags in ((), ("--workers", "2")):
            server = stack.enter_context(server_process(tmp_path, str(model), "--grpc-port", port, *flags, ready=False))
            assert server.process.wait(60) == 2
            assert f"can't listen on 127.0.0.1, port {port}: it is in use" in server.log.read_text()
