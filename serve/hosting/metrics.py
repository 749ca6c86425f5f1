"""The server's metrics, for Prometheus.

Several workers write their numbers into files of the folder PROMETHEUS_MULTIPROC_DIR, which the supervisor sets before
prometheus_client is imported. Each worker can render the sum of all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from trnrt.nki.machine.timing import Range
from trnrt.serve.settings import MULTIPROC

STATES = ("loading", "ready", "recovering", "failed", "unloading", "unloaded")
REASONS = ("queue", "concurrency", "draining", "not_ready", "device", "timeout", "body", "reader", "key")
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ERRORS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10)
_PAGE = os.sysconf("SC_PAGE_SIZE")

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one worker; ``render`` returns those of all."""

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
        self._of_models = _Families(own)
        self._models: dict[str, ModelMetrics] = {}
        self._request_series = cache(self._find_series)  # looking labels up takes several times as long
        self.sample()

    def request(self, path: str, method: str, code: int, seconds: float) -> None:
        """A request was answered; ``path`` is its template, such as /v2/models/{model}/infer."""
        counter, timer = self._request_series(path, method, code)
        counter.inc()
        timer.observe(seconds)

    def _find_series(self, path: str, method: str, code: int) -> tuple[Counter, Histogram]:
        return self._requests.labels(path, method, str(code)), self._request_seconds.labels(path)

    def count_rejection(self, reason: str) -> None:
        """A request was refused: one of REASONS."""
        self._rejected.labels(reason).inc()

    def model(self, name: str) -> ModelMetrics:
        """The metrics of one model; the same object every time."""
        if name not in self._models:
            self._models[name] = ModelMetrics(name, self._of_models)
        return self._models[name]

    def sample(self) -> None:
        """Measure this worker's memory. Call it from time to time."""
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


class _Families:
    """The metrics with a label for the model."""

    def __init__(self, own: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"trnrt_{name}", help_text, ["model"], buckets=buckets, registry=own)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"trnrt_{name}", help_text, ["model", *labels], registry=own)

        def gauge(name: str, help_text: str, *labels: str, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
            return Gauge(f"trnrt_{name}", help_text, ["model", *labels], registry=own, multiprocess_mode=mode)

        self.queue = histogram("queue_seconds", "From a request's queueing to the start of its batch.", _SECONDS)
        self.compute = histogram("compute_seconds", "Computing of a batch.", _SECONDS)
        self.total = histogram("inference_seconds", "From a request's queueing to its outputs.", _SECONDS)
        self.rows = histogram("batch_rows", "Rows of a batch, without padding.", _ROWS)
        self.places = counter(
            "sequence_places", "Places of sequences that were padded to --lengths: given, padding.", "kind"
        )
        self.pending = gauge("pending_requests", "Requests that wait for the model.")
        self.state = gauge("model_state", f"Workers with the model in a state ({', '.join(STATES)}).", "state")
        self.predicted = gauge(
            "predicted_device_seconds", "A batch on the device, predicted.", "bucket", mode="livemax"
        )
        self.device = counter("predicted_device_busy_seconds", "What the batches so far take on the device, predicted.")
        self.device_errors = counter("device_errors", "Errors of the device while the model was loaded or run.")
        self.shadow = counter("shadow_runs", "Requests for onnxruntime: agreed, drifted, failed, skipped.", "outcome")
        self.shadow_error = histogram(
            "shadow_abs_error", "The largest difference from onnxruntime, by request.", _ERRORS
        )
        self.shadow_changed = counter(
            "shadow_changed_decisions", "Rows in which onnxruntime decides for another class."
        )


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, name: str, families: _Families) -> None:
        self._name, self._families = name, families
        self._queue, self._compute = families.queue.labels(name), families.compute.labels(name)
        self._total, self._rows = families.total.labels(name), families.rows.labels(name)
        self._pending, self._device = families.pending.labels(name), families.device.labels(name)
        self._device_errors = families.device_errors.labels(name)

    def pending(self, change: int) -> None:
        """A request was queued (+1), or left the queue (-1)."""
        self._pending.inc(change)

    def count_places(self, rows: int, length: int, size: int) -> None:
        """Count the places of ``rows`` sequences of ``length`` that were padded to ``size``; 0 without lengths."""
        if size:
            self._families.places.labels(self._name, "given").inc(rows * length)
            self._families.places.labels(self._name, "padding").inc(rows * (size - length))

    def batch(self, rows: int, compute_s: float, predicted_us: float | None) -> None:
        """A batch was computed; ``predicted_us`` is the device's predicted time."""
        self._rows.observe(rows)
        self._compute.observe(compute_s)
        if predicted_us is not None:
            self._device.inc(predicted_us / 1e6)

    def count_answer(self, waited_s: float, total_s: float) -> None:
        """A request has its outputs: its time in the queue, and from the queue to the outputs."""
        self._queue.observe(waited_s)
        self._total.observe(total_s)

    def state(self, current: str) -> None:
        """The model is in this state now."""
        for state in STATES:
            self._families.state.labels(self._name, state).set(state == current)

    def device_error(self) -> None:
        """The device failed while the model was loaded or run."""
        self._device_errors.inc()

    def set_predictions(self, predictions: Mapping[str, Range]) -> None:
        """Set the device's predicted time of a batch, by bucket."""
        for bucket, predicted in predictions.items():
            self._families.predicted.labels(self._name, bucket).set(predicted.us / 1e6)

    def shadow(self, outcome: str, max_abs: float | None = None, changed: int = 0) -> None:
        """onnxruntime ran a request, too: agreed, drifted or failed; or skipped it, as the queue was full."""
        self._families.shadow.labels(self._name, outcome).inc()
        if max_abs is not None:
            self._families.shadow_error.labels(self._name).observe(max_abs)
            self._families.shadow_changed.labels(self._name).inc(changed)


def mark_worker_dead(pid: int) -> None:
    """Drop a dead worker's gauges; its counters stay."""
    mark_process_dead(pid)  # type: ignore[no-untyped-call]
