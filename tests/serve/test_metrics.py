"""Metrics: what is counted has its name, and several workers' numbers are one page."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from engines import RELU, loaded, numbers, run, save
from prometheus_client.parser import text_string_to_metric_families

from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.metrics import MOST_BUFFERED, REASONS, STATES, Buffer, Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.processes.worker import Worker
from trnrt.serve.settings import ServeSettings

GAUGES = ("trnrt_resident", "trnrt_pending", "trnrt_model_state", "trnrt_predicted_device_seconds")
WORKER = """
import sys
from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.metrics import Metrics
number = int(sys.argv[1])
metrics = Metrics(number)
metrics.request("/v2/models/{model}/infer", "POST", 200, 0.01)
metrics.count_rejection("queue")
model = metrics.model("m")
model.state("ready")
model.batch(3 + number, 0.001, 20.0)
model.pending(2)
print(__import__("os").getpid(), flush=True)
sys.stdin.read()
"""
RENDER = """
import sys
from trnrt.nki.machine.timing import Range
from trnrt.serve.hosting.metrics import Metrics, mark_worker_dead
for pid in sys.argv[1:]:
    mark_worker_dead(int(pid))
sys.stdout.write(Metrics(9).render()[0].decode())
"""


def samples(page: str) -> dict[str, float]:
    """Every sample by its name and labels."""
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


FORGETFUL = """
import sys
from trnrt.serve.hosting.metrics import Metrics
metrics = Metrics()
metrics.request("/predict", "POST", 200, 0.01)
for version in ("1", "2"):
    metrics.model("m", version).count_answer(0.001, 0.002)
metrics.forget("m", "1")
sys.stdout.write(metrics.render()[0].decode())
"""


def page_of_workers(script: str, folder: Path) -> str:
    """The page that a script prints in a process of its own, one of several workers with files in ``folder``."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout


def test_a_forgotten_version_is_no_more_on_the_page_of_all_workers(tmp_path: Path) -> None:
    """Their files keep it; those who serve it no more don't show it."""
    page = page_of_workers(FORGETFUL, tmp_path)
    assert 'version="2"' in page and 'version="1"' not in page and "trnrt_requests_total{" in page


def test_every_name_of_the_page_is_there_and_starts_with_ours() -> None:
    metrics = Metrics()
    metrics.request("/predict", "POST", 200, 0.003)
    for reason in REASONS:
        metrics.count_rejection(reason)
    model = metrics.model("m")
    metrics.count_key("alice", 200)
    model.state("loading")
    model.set_predictions({"8": Range(20.0, 25.0, 30.0)})
    model.batch(5, 0.002, 25.0)
    model.count_answer(0.001, 0.004)
    model.shadow("agreed", 1e-6, 1)
    model.count_places(2, 0, 0)
    model.count_places(2, 5, 8)
    page, content_type = metrics.render()
    families = {family.name for family in text_string_to_metric_families(page.decode())}
    assert content_type.startswith("text/plain")
    assert families == {
        "trnrt_requests",
        "trnrt_request_seconds",
        "trnrt_rejected",
        "trnrt_key_requests",
        "trnrt_resident_bytes",
        "trnrt_queue_seconds",
        "trnrt_compute_seconds",
        "trnrt_failed_inference_seconds",
        "trnrt_last_inference_timestamp_seconds",
        "trnrt_inference_seconds",
        "trnrt_batch_rows",
        "trnrt_dropped_rows",
        "trnrt_sequence_places",
        "trnrt_pending_requests",
        "trnrt_model_state",
        "trnrt_model_instances",
        "trnrt_predicted_device_seconds",
        "trnrt_predicted_device_busy_seconds",
        "trnrt_device_errors",
        "trnrt_shadow_runs",
        "trnrt_shadow_abs_error",
        "trnrt_shadow_changed_decisions",
    }
    found = samples(page.decode())
    assert found["trnrt_requests_total[('code', '200'), ('method', 'POST'), ('path', '/predict')]"] == 1
    assert found["trnrt_predicted_device_busy_seconds_total[('model', 'm'), ('version', '1')]"] == 25e-6
    assert found["trnrt_sequence_places_total[('kind', 'given'), ('model', 'm'), ('version', '1')]"] == 10
    assert found["trnrt_sequence_places_total[('kind', 'padding'), ('model', 'm'), ('version', '1')]"] == 6
    states = [found[f"trnrt_model_state[('model', 'm'), ('state', '{s}'), ('version', '1')]"] for s in STATES]
    assert states == [1, 0, 0, 0, 0, 0]
    assert found["trnrt_resident_bytes[('worker', '0')]"] > 1e6


def test_an_inference_is_counted_once_everywhere(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU))
        await model.infer({"x": numbers(3, 4)})
        found = samples(model._metrics.render()[0].decode())
        for name in ("queue_seconds", "inference_seconds", "batch_rows"):
            assert found[f"trnrt_{name}_count[('model', 'relu'), ('version', '1')]"] == 1
        assert found["trnrt_compute_seconds_count[('bucket', '4'), ('model', 'relu'), ('version', '1')]"] == 1
        assert found["trnrt_batch_rows_sum[('model', 'relu'), ('version', '1')]"] == 3
        assert found["trnrt_pending_requests[('model', 'relu'), ('version', '1')]"] == 0
        busy = found["trnrt_predicted_device_busy_seconds_total[('model', 'relu'), ('version', '1')]"]
        assert busy == found["trnrt_predicted_device_seconds[('bucket', '4'), ('model', 'relu'), ('version', '1')]"] > 0

    run(work())


def test_sizes_that_clients_choose_are_no_labels() -> None:
    model = (metrics := Metrics()).model("m")
    model.set_buckets((1, 4))
    for bucket in (4, 4, 7, 20_000):
        model.batch(3, 0.1, None, bucket)
    found = samples(metrics.render()[0].decode())
    counts = {key: value for key, value in found.items() if key.startswith("trnrt_compute_seconds_count")}
    assert counts == {
        f"trnrt_compute_seconds_count[('bucket', '{bucket}'), ('model', 'm'), ('version', '1')]": count
        for bucket, count in (("", 2), ("1", 0), ("4", 2))
    }


def test_several_workers_are_one_page_and_a_dead_ones_state_is_gone(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def rendered(*dead: str) -> dict[str, float]:
        command = [sys.executable, "-c", RENDER, *dead]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return samples(done.stdout)

    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        pids = [worker.stdout.readline().strip() for worker in workers if worker.stdout]
        both = rendered()
        assert both["trnrt_rejected_total[('reason', 'queue')]"] == 2
        assert both["trnrt_model_state[('model', 'm'), ('state', 'ready'), ('version', '1')]"] == 2
        assert both["trnrt_pending_requests[('model', 'm'), ('version', '1')]"] == 4
        assert both["trnrt_batch_rows_sum[('model', 'm'), ('version', '1')]"] == 7
        assert both["trnrt_resident_bytes[('worker', '0')]"] > 1e6 < both["trnrt_resident_bytes[('worker', '1')]"]
        one = rendered(pids[1])
        assert one["trnrt_rejected_total[('reason', 'queue')]"] == 2
        assert one["trnrt_model_state[('model', 'm'), ('state', 'ready'), ('version', '1')]"] == 1
        assert one["trnrt_pending_requests[('model', 'm'), ('version', '1')]"] == 2
        assert "trnrt_resident_bytes[('worker', '1')]" not in one
        before = {name: value for name, value in both.items() if not name.startswith(GAUGES)}
        assert {name: value for name, value in one.items() if not name.startswith(GAUGES)} == before
        none = rendered(pids[0])
        assert {name: value for name, value in none.items() if not name.startswith(GAUGES)} == before
        assert not [file for pid in pids for file in tmp_path.glob(f"*_{pid}.db")]
    finally:
        for worker in workers:
            worker.communicate()


BUFFERED = """
import sys
from trnrt.serve.hosting.metrics import Metrics
metrics = Metrics(0, 1000)
model = metrics.model("m")
model.pending(1)
metrics.flush()
model.pending(-1)
model.count_answer(0.001, 0.002)
metrics.forget("m", "1")
model.count_answer(0.001, 0.002)  # of a batch that still computed
metrics.model("m")  # the version comes back
sys.stdout.write(metrics.render()[0].decode())
"""


def test_what_a_forgotten_version_had_buffered_is_counted(tmp_path: Path) -> None:
    """In several workers' files, where it goes on counting."""
    page = page_of_workers(BUFFERED, tmp_path)
    found, of = samples(page), "[('model', 'm'), ('version', '1')]"
    assert found[f"trnrt_inference_seconds_count{of}"] == 2
    (pending,) = (value for name, value in found.items() if name.startswith("trnrt_pending_requests"))
    assert pending == 0


def test_numbers_that_are_buffered_are_on_the_page_and_none_is_counted_twice() -> None:
    metrics = Metrics(0, 3)
    for _ in range(7):
        metrics.request("/predict", "POST", 200, 0.01)
        metrics.model("m").batch(2, 0.001, 5.0, 2)
    for _ in range(2):
        found = samples(metrics.render()[0].decode())
        rows = "[('model', 'm'), ('version', '1')]"
        assert found["trnrt_requests_total[('code', '200'), ('method', 'POST'), ('path', '/predict')]"] == 7
        assert (found[f"trnrt_batch_rows_count{rows}"], found[f"trnrt_batch_rows_sum{rows}"]) == (7, 14)


def test_many_threads_lose_no_number() -> None:
    taken: list[float] = []
    buffer = Buffer(taken.extend, 16)

    def add_many() -> None:
        for _ in range(2000):
            buffer.add(1.0)

    threads = [threading.Thread(target=add_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        buffer.flush()
    for thread in threads:
        thread.join()
    buffer.flush()
    assert len(taken) == 8000


def test_a_worker_that_ends_has_counted_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other workers show what it did in its last moments."""
    metrics = Metrics(0, MOST_BUFFERED)
    taken: list[float] = []
    metrics._buffers.append(last := Buffer(taken.extend, MOST_BUFFERED))

    async def nothing() -> None:
        """No model is loaded."""

    async def work() -> int:
        settings = ServeSettings(models=[save(tmp_path, "relu", RELU)])
        worker = Worker(Repository(settings, metrics), lambda _rows: None)
        leave = worker._leave

        async def leave_and_count(*given: Any) -> int:
            code = await leave(*given)
            last.add(1.0)
            return code

        monkeypatch.setattr(worker, "_leave", leave_and_count)
        monkeypatch.setattr(worker, "_load", nothing)
        worker.stop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            return await worker.run(listener)

    assert (run(work()), taken) == (0, [1.0])
