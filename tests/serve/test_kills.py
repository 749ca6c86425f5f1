"""kill -9 of each process of a server under load: only requests inside it fail, at once, and no answer is wrong.

``test_under_load.py``, ``test_workers.py`` and ``test_grpc_workers.py`` kill one worker of two. Here are the only
worker, the supervisor, the process that reads large JSON, and every other child.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import numpy as np
import pytest
from engines import PATIENCE_S, RELU, save
from grpc_serving import raw_request
from serving import ServerProcess, events, fetch, ready_workers, server_process, until, workers

from benchmarks.serve.servers import children

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at processes through /proc")

INFER = "/v2/models/one/infer"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
LARGE_ROWS = 4000
SOON_S = 15.0
"""A machine that is busy with other tests takes its time; on a quiet one a request of a dead process fails in 0.1 s."""
CUT = (ConnectionError, http.client.HTTPException)


class Load:
    """Threads that send requests of ``rows`` random rows, each on its own connection, until ``stop``.

    ``counts``: how they ended: "right", "wrong", "cut" for a connection that was closed, "refused" for a port that is
    closed, or the status and the text of an error. ``slowest``: seconds that one of those that failed took.
    """

    def __init__(self, port: int, threads: int, rows: int = 1) -> None:
        self.counts: Counter[str] = Counter()
        self.slowest = 0.0
        self._port, self._rows = port, rows
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def right(self, count: int) -> None:
        """Wait for so many more right answers."""
        wanted = self.counts["right"] + count
        until(lambda: self.counts["right"] >= wanted)

    def stop(self) -> Counter[str]:
        """End, and give the counts."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        return self.counts

    def _work(self, number: int) -> None:
        generator = np.random.default_rng(number)
        while not self._stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
            with suppress(*CUT):
                while not self._stopping.is_set():
                    numbers = generator.integers(-9, 9, 4 * self._rows)
                    began = time.monotonic()
                    try:
                        told = self._ask(connection, numbers)
                    except ConnectionRefusedError:
                        told = "refused"
                    except CUT:
                        told = "cut"
                    with self._lock:
                        self.counts[told] += 1
                        if told != "right":
                            self.slowest = max(self.slowest, time.monotonic() - began)
                    if told in ("refused", "cut"):
                        time.sleep(0.01)
                        break
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, numbers: np.ndarray) -> str:
        tensor = {"name": "x", "shape": [self._rows, 4], "datatype": "FP32", "data": numbers.tolist()}
        connection.request("POST", INFER, json.dumps({"inputs": [tensor]}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            return f"{answer.status} {body['error']}"
        return "right" if body["outputs"][0]["data"] == np.maximum(numbers, 0).tolist() else "wrong"


class Calls:
    """A thread that makes gRPC calls until one fails, whose code it keeps."""

    def __init__(self, address: str) -> None:
        self.code: grpc.StatusCode | None = None
        self.answered = 0
        self.thread = threading.Thread(target=self._work, args=(address,))
        self.thread.start()

    def _work(self, address: str) -> None:
        request = raw_request("one", np.full((1, 4), -1, np.float32)).SerializeToString()
        with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                while True:
                    channel.unary_unary(GRPC_INFER)(request, timeout=PATIENCE_S)
                    self.answered += 1
            except grpc.RpcError as error:
                self.code = error.code()


@contextmanager
def served(tmp_path: Path, *flags: str) -> Iterator[ServerProcess]:
    """A server of one small model."""
    with server_process(
        tmp_path, str(save(tmp_path, "one", RELU)), "--max-rows=8192", "--max-batch=1", *flags
    ) as server:
        yield server


def read_large(server: ServerProcess) -> int:
    """Let a worker read large JSON; the process that does."""
    body = {"inputs": [{"name": "x", "shape": [LARGE_ROWS, 4], "datatype": "FP32", "data": [0.5] * 4 * LARGE_ROWS}]}
    assert fetch("POST", f"{server.url}{INFER}", json=body).status_code == 200
    return int(events(server, "reader_started")[-1]["pid"])


def is_free(port: int) -> bool:
    """True if nobody listens there."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
        other.listen()
        return True


def all_gone(processes: list[int]) -> bool:
    """True if none of them runs."""
    return not any(Path(f"/proc/{pid}").exists() for pid in processes)


@pytest.mark.parametrize("count", [1, 2])
def test_without_its_first_process_a_server_ends(tmp_path: Path, count: int) -> None:
    """The only worker, or the supervisor of two: whatever they started ends, and both ports are free."""
    with served(tmp_path, "--workers", str(count), "--grpc-port=0") as server:
        port, grpc_port = server.port, int(server.grpc_address.rpartition(":")[2])
        if count == 2:
            until(lambda: ready_workers(server, "one") == 2)
        read_large(server)
        load, calls = Load(port, 4), Calls(server.grpc_address)
        load.right(50)
        until(lambda: calls.answered > 5)
        started = children(server.process.pid)
        assert len(started) >= count
        moment = time.monotonic()
        server.process.kill()
        server.process.wait()
        calls.thread.join(PATIENCE_S)
        until(lambda: load.counts["refused"] > 4)
        until(lambda: all_gone(started), SOON_S + PATIENCE_S)
        until(lambda: is_free(port) and is_free(grpc_port), SOON_S)
        ended_s = time.monotonic() - moment
        counts = load.stop()
    assert ended_s < SOON_S + PATIENCE_S and load.slowest < SOON_S, (ended_s, load.slowest)
    refused = {told for told in counts if told not in ("right", "cut", "refused")}
    assert all(told.startswith("503 the server is shutting down") for told in refused), counts
    assert calls.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def test_without_the_process_that_reads_large_json_small_requests_go_on(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        read_large(server)
        small, large = Load(server.port, 2), Load(server.port, 2, LARGE_ROWS)
        for _ in range(4):
            large.right(1)
            reader = int(events(server, "reader_started")[-1]["pid"])
            small.right(5)
            with suppress(ProcessLookupError):
                os.kill(reader, signal.SIGKILL)
            until(lambda killed=reader: events(server, "reader_started")[-1]["pid"] != killed)
            small.right(5)
        large.right(2)
        small_counts, large_counts = small.stop(), large.stop()
        assert server.stop() == 0
    assert set(small_counts) == {"right"}, small_counts
    del large_counts["right"]
    assert all("the process that reads large JSON died" in told for told in large_counts), large_counts
    assert all(told.startswith("503 ") for told in large_counts) and large_counts.total() <= 4, large_counts
    assert large.slowest < SOON_S


def test_no_other_child_matters(tmp_path: Path) -> None:
    """Whatever Python starts beside the workers."""
    with served(tmp_path, "--workers=2") as server:
        until(lambda: ready_workers(server, "one") == 2)
        load = Load(server.port, 3)
        load.right(20)
        before = workers(server)
        others = set(children(server.process.pid)) - set(before.values())
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        load.right(100)
        assert workers(server) == before
        assert set(load.stop()) == {"right"}
        assert server.stop() == 0
