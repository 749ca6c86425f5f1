"""Statistics in Triton's form, from the metrics: they are counted once, and summed over all workers as /metrics is.

Triton's documentation: docs/protocol/extension_statistics.md of triton-inference-server/server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.settings import ServeSettings

Found = TypeVar("Found")

_NEEDED = (
    "trnrt_inference_seconds",
    "trnrt_queue_seconds",
    "trnrt_failed_inference_seconds",
    "trnrt_compute_seconds",
    "trnrt_batch_rows",
    "trnrt_last_inference_timestamp_seconds",
)


def statistics(metrics: Metrics, models: Sequence[Model]) -> dict[str, Any]:
    """The statistics of these models, since the server's start.

    With several workers it reads their files, and with Ray it asks every process: call it off the event loop there.
    """
    found = _Samples(metrics)
    return {"model_stats": [_model_statistics(model, found) for model in models]}


async def read_statistics(repository: Repository, name: str = "", version: str = "") -> dict[str, Any]:
    """The statistics of a model's versions, or of one, or of all models, summed over all workers.

    Problem(404) for an unknown model. A key for some models sees no others.
    """
    if name:
        model = repository.find_main(name, version)
        models = [model] if version or "@" in name else repository.versions(model.name) or [model]
    else:
        models = list(current_client.get().visible(repository.models).values())
    return await read_metrics(repository.settings, lambda: statistics(repository.metrics, models))


async def read_metrics(settings: ServeSettings, read: Callable[[], Found]) -> Found:
    """The result of ``read``, which looks at all workers' metrics.

    Those of several workers come from files, those of replicas by request, so not on the event loop. A single worker's
    take 2 ms; a thread would wait longer than that for a busy loop.
    """
    several = settings.workers > 1 or settings.engine == "ray"
    return await asyncio.to_thread(read) if several else read()


class _Samples:
    """The samples of the metrics, one after the other."""

    def __init__(self, metrics: Metrics) -> None:
        families = [family for family in metrics.collect_all().collect() if family.name in _NEEDED]
        self._samples = [sample for family in families for sample in family.samples]

    def values(self, model: Model, name: str, **labels: str) -> Iterable[float]:
        """A model's samples of this name."""
        wanted = {"model": model.name, "version": model.version, **labels}
        for sample in self._samples:
            if sample.name == name and all(sample.labels.get(key, value) == value for key, value in wanted.items()):
                yield sample.value

    def duration(self, model: Model, name: str, **labels: str) -> dict[str, int]:
        """The count and the nanoseconds of a histogram or summary of seconds."""
        count = sum(self.values(model, f"{name}_count", **labels))
        return _duration(count, sum(self.values(model, f"{name}_sum", **labels)))

    def batches(self, model: Model) -> dict[int, dict[str, int]]:
        """The time of each size of batch that was computed, smallest first. One of several programs has no size."""
        sizes = {sample.labels.get("bucket", "") for sample in self._samples} - {""}
        ordered = sorted(sizes, key=int)
        found = {int(size): self.duration(model, "trnrt_compute_seconds", bucket=size) for size in ordered}
        return {size: computed for size, computed in found.items() if computed["count"]}


def _model_statistics(model: Model, found: _Samples) -> dict[str, Any]:
    success = found.duration(model, "trnrt_inference_seconds")
    queue = found.duration(model, "trnrt_queue_seconds")
    # A request's part of each batch's time is not kept; it is what its queueing leaves of its whole time. Merging
    # its rows into the batch and cutting its outputs out of it are in there.
    compute = {"count": success["count"], "ns": max(0, success["ns"] - queue["ns"])}
    nothing, in_compute = _duration(0, 0), _duration(success["count"], 0)
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": round(max(found.values(model, "trnrt_last_inference_timestamp_seconds"), default=0.0) * 1e3),
        "inference_count": round(sum(found.values(model, "trnrt_batch_rows_sum"))),
        "execution_count": round(sum(found.values(model, "trnrt_batch_rows_count"))),
        "inference_stats": {
            "success": success,
            "fail": found.duration(model, "trnrt_failed_inference_seconds"),
            "queue": queue,
            "compute_input": in_compute,
            "compute_infer": compute,
            "compute_output": in_compute,
            "cache_hit": nothing,
            "cache_miss": nothing,
        },
        "response_stats": {},
        "batch_stats": [_batch_statistics(size, computed) for size, computed in found.batches(model).items()],
        "memory_usage": [],
    }


def _batch_statistics(size: int, computed: dict[str, int]) -> dict[str, Any]:
    in_compute = _duration(computed["count"], 0)
    return {
        "batch_size": size,
        "compute_input": in_compute,
        "compute_infer": computed,
        "compute_output": in_compute,
    }


def _duration(count: float, seconds: float) -> dict[str, int]:
    return {"count": round(count), "ns": round(seconds * 1e9)}
