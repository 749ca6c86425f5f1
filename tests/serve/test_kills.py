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
from functools import partial
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
LARGE = 100_000
"""Bytes of JSON that the event loop does not read."""
SOON_S = 15.0
"""A machine that is busy with other tests takes its time; on a quiet one a request of a dead process fails in 0.1 s."""
HEADERS = {"Content-Type": "application/json"}
CUT = (ConnectionError, http.client.HTTPException)


def infer_body(numbers: list[int], size: int) -> bytes:
    """A request with one row, at least ``size`` bytes of JSON: spaces are JSON, too."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": numbers}
    return json.dumps({"inputs": [tensor]}).encode().ljust(size)


class Load:
    """Threads that send random rows, in JSON of at least ``size`` bytes, each on its own connection, until ``stop``.

    Version 1 of the model is Relu, and 2, if there is one, Neg. ``versions``: how many answers each gave.
    ``counts``: how they ended: "right", "wrong", "cut" for a connection that was closed, "refused" for a port that is
    closed, or the status and the text of an error. ``slowest``: seconds that one of those that failed took.
    """

    def __init__(self, port: int, threads: int, size: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.slowest = 0.0
        self._port, self._size = port, size
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
        generator, asked = np.random.default_rng(number), 0
        while not self._stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
            with suppress(*CUT):
                while not self._stopping.is_set() and (asked := asked + 1) % 50:  # then a connection to any worker
                    numbers = generator.integers(-9, 9, 4)
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
        connection.request("POST", INFER, infer_body(numbers.tolist(), self._size), HEADERS)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            return f"{answer.status} {body['error']}"
        with self._lock:
            self.versions[body["model_version"]] += 1
        meant = np.maximum(numbers, 0) if body["model_version"] == "1" else -numbers
        return "right" if body["outputs"][0]["data"] == meant.tolist() else "wrong"


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
    with server_process(tmp_path, str(save(tmp_path, "one", RELU)), "--max-batch=1", *flags) as server:
        yield server


def read_large(server: ServerProcess) -> int:
    """Let a worker read large JSON; the process that does."""
    body = infer_body([1, 2, 3, 4], LARGE)
    assert fetch("POST", f"{server.url}{INFER}", content=body, headers=HEADERS).status_code == 200
    return int(events(server, "reader_started")[-1]["pid"])


def is_replaced(server: ServerProcess, reader: int) -> bool:
    """True if another process reads large JSON now."""
    return bool(events(server, "reader_started")[-1]["pid"] != reader)


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
    """The only worker, or the supervisor of two: whatever they started ends, and both ports are free. Before that, of
    two workers' server, whatever Python runs beside them: that costs nothing."""
    with served(tmp_path, "--workers", str(count), "--grpc-port=0") as server:
        port, grpc_port = server.port, int(server.grpc_address.rpartition(":")[2])
        if count == 2:
            until(lambda: ready_workers(server, "one") == 2)
        reader = read_large(server)
        load, calls = Load(port, 4), Calls(server.grpc_address)
        load.right(50)
        until(lambda: calls.answered > 5)
        others = set(children(server.process.pid)) - set(workers(server).values()) - {reader}
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        load.right(100)
        assert set(load.counts) == {"right"} and len(others) == count - 1
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
        small, large = Load(server.port, 2), Load(server.port, 2, LARGE)
        for _ in range(4):
            large.right(1)
            reader = int(events(server, "reader_started")[-1]["pid"])
            small.right(5)
            with suppress(ProcessLookupError):
                os.kill(reader, signal.SIGKILL)
            until(partial(is_replaced, server, reader))
            small.right(5)
        large.right(2)
        small_counts, large_counts = small.stop(), large.stop()
        assert server.stop() == 0
    assert set(small_counts) == {"right"}, small_counts
    del large_counts["right"]
    assert all("the process that reads large JSON died" in told for told in large_counts), large_counts
    assert all(told.startswith("503 ") for told in large_counts) and large_counts.total() <= 4, large_counts
    assert large.slowest < SOON_S


def test_a_canary_outlives_a_worker(tmp_path: Path) -> None:
    """Both versions answer with their own numbers while a worker is replaced, and after it; and back in one call."""
    for number, graph in (("1", RELU), ("2", RELU.replace("Relu", "Neg"))):
        (tmp_path / "models" / "one" / number).mkdir(parents=True)
        save(tmp_path / "models" / "one" / number, "model", graph)
    flags = ("--model-dir", str(tmp_path / "models"), "--workers=2", "--admin", "--max-batch=1", "--canary=2=50%")
    with server_process(tmp_path, *flags) as server:
        until(lambda: ready_workers(server, "one") == 2)
        load = Load(server.port, 3)
        load.right(60)
        os.kill(workers(server)[0], signal.SIGKILL)
        load.right(60)
        until(lambda: len(events(server, "models_loaded")) == 3)
        before = Counter(load.versions)
        load.right(200)
        assert all(load.versions[version] - before[version] > 50 for version in ("1", "2")), load.versions
        back = {"version": "2", "share": 0}
        assert fetch("POST", f"{server.url}/v2/repository/models/one/canary", json=back).status_code == 200
        load.right(10)  # those that were under way
        before = Counter(load.versions)
        load.right(60)
        counts = load.stop()
        assert load.versions["2"] == before["2"]
        assert server.stop() == 0
    assert set(counts) <= {"right", "cut"} and counts["cut"] <= 3, counts
