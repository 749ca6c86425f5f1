"""The server's metrics, for Prometheus.

Several workers write their numbers into files of the folder PROMETHEUS_MULTIPROC_DIR, which the supervisor sets before
prometheus_client is imported. Each worker can render the sum of all.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from trnrt.nki.machine.timing import Range
from trnrt.serve.settings import MULTIPROC

STATES = ("loading", "ready", "recovering", "failed", "unloading", "unloaded")
INSTANCE_STATES = ("serving", "stuck", "lost")
"""``stuck``: its batch takes longer than a request may. ``lost``: its device failed."""
REASONS = (
    *("queue", "wait", "rows", "concurrency", "draining", "not_ready", "device", "timeout", "body", "reader"),
    *("key", "key_limit", "key_slowed"),
    *("malformed", "headers", "slow", "connections", "buffers", "host", "origin"),
)
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ERRORS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10)
_PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_BUFFERED = 1 << 10
"""Numbers of a series that a worker buffers."""
_FLUSHING = threading.Lock()
_Mode = Literal["livesum", "livemax", "max"]

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Histogram(prometheus_client.Histogram):
    """A histogram that takes many observations at once."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Observe each amount."""
        self._sum.inc(sum(amounts))
        places = Counts(bisect_left(self._upper_bounds, amount) for amount in amounts)
        for place, count in places.items():
            self._buckets[place].inc(count)


class Buffer:
    """Numbers of a counter, gauge or histogram that it does not have yet: ``take`` gives it all of them at once.

    At the latest when there are ``most``. Any thread may add some.
    """

    def __init__(self, take: Callable[[Sequence[float]], None], most: int) -> None:
        self._take, self._numbers, self._most = take, list[float](), most

    def add(self, number: float) -> None:
        """Add a number."""
        self._numbers.append(number)
        if len(self._numbers) >= self._most:
            self.flush()

    def flush(self) -> None:
        """Pass the numbers on."""
        with _FLUSHING:
            taken = self._numbers[:]
            del self._numbers[: len(taken)]
            if taken:
                self._take(taken)

    def end(self) -> None:
        """Pass the numbers on, and from now on each at once: nobody will call ``flush``."""
        self._most = 1
        self.flush()


class Metrics:
    """The metrics of one worker; ``render`` returns those of all.

    ``buffered``: the numbers of a series that wait until ``flush`` is called, at most. That is several times as fast
    as counting each at once.
    """

    def __init__(self, worker: int = 0, buffered: int = 1) -> None:
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
        self._keys = Counter(
            "trnrt_key_requests",
            "Requests with a key that were answered, by the key's name.",
            ["key", "code"],
            registry=own,
        )
        self._resident = Gauge(
            "trnrt_resident_bytes", "Memory of a worker.", ["worker"], registry=own, multiprocess_mode="livesum"
        )
        self._of_models = _Families(own)
        self._models: dict[tuple[str, str], ModelMetrics] = {}
        self._buffered, self._buffers = buffered, list[Buffer]()
        self._request_series = cache(self._find_series)  # looking labels up takes several times as long
        self._key_series = cache(self._keys.labels)
        self.sample()

    def request(self, path: str, method: str, code: int, seconds: float) -> None:
        """A request was answered; ``path`` is its template, such as /v2/models/{model}/infer."""
        self._request_series(path, method, code).add(seconds)

    def _find_series(self, path: str, method: str, code: int) -> Buffer:
        counter, timer = self._requests.labels(path, method, str(code)), self._request_seconds.labels(path)

        def take(seconds: Sequence[float]) -> None:
            counter.inc(len(seconds))
            timer.observe_all(seconds)

        self._buffers.append(Buffer(take, self._buffered))
        return self._buffers[-1]

    def count_key(self, name: str, code: int | str) -> None:
        """A request with the key of this name was answered."""
        self._key_series(name, str(code)).inc()

    def count_rejection(self, reason: str) -> None:
        """A request was refused: one of REASONS."""
        self._rejected.labels(reason).inc()

    def model(self, name: str, version: str = "1") -> ModelMetrics:
        """The metrics of one version of a model; the same object every time."""
        if (name, version) not in self._models:
            self._models[name, version] = ModelMetrics(name, version, self._of_models, self._buffered)
        return self._models[name, version]

    def flush(self) -> None:
        """Count what is buffered."""
        for buffer in self._buffers:
            buffer.flush()
        for model in list(self._models.values()):
            model.flush()

    def forget(self, name: str, version: str) -> None:
        """Show no series of this version any more. Those of several workers stay in their files: see ``collect_all``.

        A version that comes back with several workers goes on counting where it was.
        """
        model = self._models.pop((name, version), None)
        if model is None:
            return
        model.end()
        if not self._shared:
            self._of_models.remove(name, version)

    def sample(self) -> None:
        """Measure this worker's memory, and count what is buffered. Call it from time to time."""
        self.flush()
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except OSError:  # no Linux
            return
        self._resident.labels(self._worker).set(pages * _PAGE)

    def collect_all(self) -> CollectorRegistry:
        """The metrics of all workers, to be collected."""
        self.sample()
        if not self._shared:
            return self._registry
        collector = MultiProcessCollector(None, path=self._shared)  # type: ignore[no-untyped-call]
        with _lock_files(Path(self._shared), fcntl.LOCK_SH):
            families = list(collector.collect())  # type: ignore[no-untyped-call]
        for family in families:
            family.samples = [sample for sample in family.samples if self._is_served(sample.labels)]
        registry = CollectorRegistry()
        registry.register(_Collected(families))
        return registry

    def _is_served(self, labels: Mapping[str, str]) -> bool:
        """True unless a sample is of a version that was forgotten. Who has no models shows those of all workers."""
        known = self._models
        return "version" not in labels or not known or (labels["model"], labels["version"]) in known

    def render(self) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type."""
        return generate_latest(self.collect_all()), CONTENT_TYPE_PLAIN_0_0_4


class _Collected:
    """Metrics that were read already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return self._families


class _Families:
    """The metrics with labels for the model and its version."""

    def __init__(self, own: CollectorRegistry) -> None:
        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            named = ["model", "version", *labels]
            return Histogram(f"trnrt_{name}", help_text, named, buckets=buckets, registry=own)

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"trnrt_{name}", help_text, ["model", "version", *labels], registry=own)

        def gauge(name: str, help_text: str, *labels: str, mode: _Mode = "livesum") -> Gauge:
            named = ["model", "version", *labels]
            return Gauge(f"trnrt_{name}", help_text, named, registry=own, multiprocess_mode=mode)

        self.queue = histogram("queue_seconds", "From a request's queueing to the start of its batch.", _SECONDS)
        self.compute = histogram(
            "compute_seconds", "Computing of a batch, by its size with padding (none for several).", _SECONDS, "bucket"
        )
        self.total = histogram("inference_seconds", "From a request's queueing to its outputs.", _SECONDS)
        which = ["model", "version"]
        self.failed = Summary(
            "trnrt_failed_inference_seconds", "From a request's queueing to its failure.", which, registry=own
        )
        self.rows = histogram("batch_rows", "Rows of a batch, without padding.", _ROWS)
        self.dropped = counter(
            "dropped_rows", "Rows of accepted requests that were not computed, as nobody wanted the answer any more."
        )
        self.places = counter(
            "sequence_places", "Places of sequences that were padded to --lengths: given, padding.", "kind"
        )
        self.last = gauge("last_inference_timestamp_seconds", "When a batch was last computed, Unix time.", mode="max")
        self.pending = gauge("pending_requests", "Requests that wait for the model.")
        self.state = gauge("model_state", f"Workers with the model in a state ({', '.join(STATES)}).", "state")
        self.instances = gauge(
            "model_instances", f"Instances of the model, on all workers ({', '.join(INSTANCE_STATES)}).", "state"
        )
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

    def remove(self, name: str, version: str) -> None:
        """Remove the series of one version."""
        for family in vars(self).values():
            family.remove_by_labels({"model": name, "version": version})


class ModelMetrics:
    """The metrics of one version of a model."""

    def __init__(self, name: str, version: str, families: _Families, buffered: int) -> None:
        self._which, self._families, self._buffered = (name, version), families, buffered
        which = self._which
        self._compute = {0: self._compute_buffer("")}
        self._failed = families.failed.labels(*which)
        self._last = 0.0
        self._waited = Buffer(families.queue.labels(*which).observe_all, buffered)
        self._total = Buffer(families.total.labels(*which).observe_all, buffered)
        self._rows = Buffer(families.rows.labels(*which).observe_all, buffered)
        pending, device = families.pending.labels(*which), families.device.labels(*which)
        self._pending = Buffer(lambda changes: pending.inc(sum(changes)), buffered)
        self._device = Buffer(lambda seconds: device.inc(sum(seconds)), buffered)
        self._device_errors = families.device_errors.labels(*which)
        self._dropped = families.dropped.labels(*which)
        self.count_instances: Callable[[], Mapping[str, int]] = dict
        """The number of instances in each of INSTANCE_STATES, asked for with each sample."""

    def pending(self, change: int) -> None:
        """A request was queued (+1), or left the queue (-1)."""
        self._pending.add(change)

    def drop(self, rows: int) -> None:
        """Rows of a request that timed out, or whose client has gone, are not computed."""
        self._dropped.inc(rows)

    def count_places(self, rows: int, length: int, size: int) -> None:
        """Count the places of ``rows`` sequences of ``length`` that were padded to ``size``; 0 without lengths."""
        if size:
            self._families.places.labels(*self._which, "given").inc(rows * length)
            self._families.places.labels(*self._which, "padding").inc(rows * (size - length))

    def batch(self, rows: int, compute_s: float, predicted_us: float | None, bucket: int = 0) -> None:
        """A batch was computed, padded to ``bucket`` rows; ``predicted_us`` is the device's predicted time."""
        self._rows.add(rows)
        # Clients choose the rows: other sizes than the known ones must not become labels.
        (self._compute.get(bucket) or self._compute[0]).add(compute_s)
        self._last = time.time()
        if predicted_us is not None:
            self._device.add(predicted_us / 1e6)

    def count_answer(self, waited_s: float, total_s: float) -> None:
        """A request has its outputs: its time in the queue, and from the queue to the outputs."""
        self._waited.add(waited_s)
        self._total.add(total_s)

    def count_failure(self, seconds: float) -> None:
        """A request that was queued got an error, or its client left, ``seconds`` after it was queued."""
        self._failed.observe(seconds)

    def flush(self) -> None:
        """Count what is buffered, and set when a batch was last computed, and the instances."""
        for buffer in self._buffers():
            buffer.flush()
        if self._last:
            self._families.last.labels(*self._which).set(self._last)
        self.note_instances()

    def end(self) -> None:
        """Count what is buffered, and what still comes at once: a batch may compute that nobody waits for."""
        self.flush()
        for buffer in self._buffers():
            buffer.end()

    def _buffers(self) -> tuple[Buffer, ...]:
        return self._waited, self._total, self._rows, self._pending, self._device, *self._compute.values()

    def note_instances(self) -> None:
        """Count the instances now."""
        for state, count in self.count_instances().items():
            self._families.instances.labels(*self._which, state).set(count)

    def _compute_buffer(self, bucket: str) -> Buffer:
        return Buffer(self._families.compute.labels(*self._which, bucket).observe_all, self._buffered)

    def set_buckets(self, buckets: Sequence[int]) -> None:
        """Set the sizes of batch that the model is compiled for."""
        for bucket in buckets:
            made = self._compute[bucket] if bucket in self._compute else self._compute_buffer(str(bucket))
            self._compute[bucket] = made

    def state(self, current: str) -> None:
        """The model is in this state now."""
        for state in STATES:
            self._families.state.labels(*self._which, state).set(state == current)

    def device_error(self) -> None:
        """The device failed while the model was loaded or run."""
        self._device_errors.inc()

    def set_predictions(self, predictions: Mapping[str, Range]) -> None:
        """Set the device's predicted time of a batch, by bucket."""
        for bucket, predicted in predictions.items():
            self._families.predicted.labels(*self._which, bucket).set(predicted.us / 1e6)

    def shadow(self, outcome: str, max_abs: float | None = None, changed: int = 0) -> None:
        """onnxruntime ran a request, too: agreed, drifted or failed; or skipped it, as the queue was full."""
        self._families.shadow.labels(*self._which, outcome).inc()
        if max_abs is not None:
            self._families.shadow_error.labels(*self._which).observe(max_abs)
            self._families.shadow_changed.labels(*self._which).inc(changed)


def mark_worker_dead(pid: int) -> None:
    """Drop a dead worker's gauges, and add its other numbers to those of earlier dead ones, in one file of each type.

    Workers that end again and again must not fill the folder, nor slow the page down.
    """
    mark_process_dead(pid)  # type: ignore[no-untyped-call]
    folder = Path(os.environ[MULTIPROC])
    with _lock_files(folder, fcntl.LOCK_EX):
        for kind in ("counter", "histogram", "summary"):
            file = folder / f"{kind}_{pid}.db"
            with suppress(FileNotFoundError, RuntimeError):  # it counted nothing, or was killed while it wrote
                _add_numbers(list(MmapedDict.read_all_values_from_file(file)), folder / f"{kind}_dead.db")  # type: ignore[no-untyped-call]
                file.unlink()


def _add_numbers(numbers: Iterable[tuple[str, float, float, int]], file: Path) -> None:
    total = MmapedDict(str(file))  # type: ignore[no-untyped-call]
    try:
        for key, value, stamp, _ in numbers:
            total.write_value(key, total.read_value(key)[0] + value, stamp)  # type: ignore[no-untyped-call]
    finally:
        total.close()  # type: ignore[no-untyped-call]


@contextmanager
def _lock_files(folder: Path, how: int) -> Iterator[None]:
    """Keep a page from being made while numbers move from one file to another: it would have them twice, or not."""
    with (folder / "moving").open("ab") as file:
        fcntl.flock(file, how)
        yield
