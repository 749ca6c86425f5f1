"""What the server counts and times, for Prometheus.

With several workers each writes its numbers into files of a folder that PROMETHEUS_MULTIPROC_DIR names (the supervisor
sets it before prometheus_client is imported), and any of them can render the sum of all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from trnrt.serve.settings import MULTIPROC

STATES = ("loading", "ready", "recovering", "failed", "unloading", "unloaded")
REASONS = ("queue", "concurrency", "draining", "not_ready", "device", "timeout", "body", "key")
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ERRORS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10)
_PAGE = os.sysconf("SC_PAGE_SIZE")

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one worker; ``render`` gives those of all."""

    def __init__(self, worker: int = 0) -> None:
        own = self._registry = CollectorRegistry()
        self._shared = os.environ.get(MULTIPROC)
        self._worker = str(worker)
        self._requests = Counter(
            "trnrt_requests", "Requests that were answered.", ["path", "method", "code"], registry=own
        )
        self._request_seconds = Histogram(
            "trnrt_request_seconds", "From a request to its answer.", ["path"], buckets=_SECONDS, registry=own
        )
        self._rejected = Counter(
            "trnrt_rejected", f"Requests that were refused, by reason ({', '.join(REASONS)}).", ["reason"], registry=own
        )
        self._resident = Gauge(
            "trnrt_resident_bytes", "Memory of a worker.", ["worker"], registry=own, multiprocess_mode="livesum"
        )
        self._of_models = _families(own)
        self._models: dict[str, ModelMetrics] = {}
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        self.sample()

    def request(self, path: str, method: str, code: int, seconds: float) -> None:
        """A request was answered; ``path`` is its template, such as /v2/models/{model}/infer."""
        key = (path, method, code)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self._requests.labels(path, method, str(code))
            self._timers.setdefault(path, self._request_seconds.labels(path))
        counter.inc()
        self._timers[path].observe(seconds)

    def count_rejection(self, reason: str) -> None:
        """A request was refused: one of REASONS."""
        self._rejected.labels(reason).inc()

    def model(self, name: str) -> ModelMetrics:
        """The metrics of one model; the same object every time."""
        if name not in self._models:
            self._models[name] = ModelMetrics(name, self._of_models)
        return self._models[name]

    def sample(self) -> None:
        """Look at what is not counted but looked at: this worker's memory. To be called now and then."""
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except OSError:  # no Linux
            return
        self._resident.labels(self._worker).set(pages * _PAGE)

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type."""
        self.sample()
        registry = self._registry
        if self._shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, path=self._shared)  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


@dataclass(frozen=True)
class _Families:
    """The metrics with a label for the model."""

    queue: Histogram
    compute: Histogram
    total: Histogram
    rows: Histogram
    pending: Gauge
    state: Gauge
    predicted: Gauge
    device: Counter
    device_errors: Counter
    shadow: Counter
    shadow_error: Histogram
    shadow_changed: Counter


class ModelMetrics:
    """What is counted and timed of one model."""

    def __init__(self, name: str, families: _Families) -> None:
        self._name, self._families = name, families
        self._queue, self._compute = families.queue.labels(name), families.compute.labels(name)
        self._total, self._rows = families.total.labels(name), families.rows.labels(name)
        self._pending, self._device = families.pending.labels(name), families.device.labels(name)
        self._device_errors = families.device_errors.labels(name)

    def pending(self, change: int) -> None:
        """A request was queued (+1), or left the queue (-1)."""
        self._pending.inc(change)

    def batch(self, rows: int, compute_s: float, predicted_us: float | None) -> None:
        """A batch was computed; ``predicted_us`` is what the device would have taken."""
        self._rows.observe(rows)
        self._compute.observe(compute_s)
        if predicted_us is not None:
            self._device.inc(predicted_us / 1e6)

    def count_answer(self, waited_s: float, total_s: float) -> None:
        """A request has its outputs: how long it waited, and how long it took from queue to outputs."""
        self._queue.observe(waited_s)
        self._total.observe(total_s)

    def state(self, current: str) -> None:
        """The model is in this state now."""
        for state in STATES:
            self._families.state.labels(self._name, state).set(state == current)

    def device_error(self) -> None:
        """The device failed while the model was loaded or run."""
        self._device_errors.inc()

    def set_prediction(self, bucket: int, microseconds: float) -> None:
        """What a batch of a bucket takes on the device."""
        self._families.predicted.labels(self._name, str(bucket)).set(microseconds / 1e6)

    def shadow(self, outcome: str, max_abs: float | None = None, changed: int = 0) -> None:
        """A request was run on onnxruntime, too: agreed, drifted or failed; or skipped, as others were being run."""
        self._families.shadow.labels(self._name, outcome).inc()
        if max_abs is not None:
            self._families.shadow_error.labels(self._name).observe(max_abs)
            self._families.shadow_changed.labels(self._name).inc(changed)


def mark_worker_dead(pid: int) -> None:
    """What a worker that died reported as its present state no longer counts; its counters stay."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]


def _families(own: CollectorRegistry) -> _Families:
    def histogram(name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"trnrt_{name}", told, ["model"], buckets=buckets, registry=own)

    def counter(name: str, told: str, *labels: str) -> Counter:
        return Counter(f"trnrt_{name}", told, ["model", *labels], registry=own)

    def gauge(name: str, told: str, *labels: str, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
        return Gauge(f"trnrt_{name}", told, ["model", *labels], registry=own, multiprocess_mode=mode)

    return _Families(
        queue=histogram("queue_seconds", "From a request's queueing to the start of its batch.", _SECONDS),
        compute=histogram("compute_seconds", "Computing of a batch.", _SECONDS),
        total=histogram("inference_seconds", "From a request's queueing to its outputs.", _SECONDS),
        rows=histogram("batch_rows", "Rows of a batch, without padding.", _ROWS),
        pending=gauge("pending_requests", "Requests that wait for the model."),
        state=gauge("model_state", f"Workers with the model in a state ({', '.join(STATES)}).", "state"),
        predicted=gauge("predicted_device_seconds", "A batch on the device, predicted.", "bucket", mode="livemax"),
        device=counter("predicted_device_busy_seconds", "What the batches so far take on the device, predicted."),
        device_errors=counter("device_errors", "Errors of the device while the model was loaded or run."),
        shadow=counter("shadow_runs", "Requests for onnxruntime: agreed, drifted, failed, skipped.", "outcome"),
        shadow_error=histogram("shadow_abs_error", "The largest difference from onnxruntime, by request.", _ERRORS),
        shadow_changed=counter("shadow_changed_decisions", "Rows in which onnxruntime decides for another class."),
    )
