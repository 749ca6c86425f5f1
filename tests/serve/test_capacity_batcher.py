"""What ``trnrt plan`` says of a queue is what the server's own batcher does, on a clock that is only counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual import Clock, latencies

from trnrt.capacity.assumptions import DEFAULT_MOST, QUEUE, WORKERS
from trnrt.capacity.queueing import Worker, play, stream
from trnrt.serve import batching
from trnrt.serve.loading import _bucket_sizes
from trnrt.serve.settings import ServeSettings

COUNT = 2500

# Times that don't add up to the same: where two things happen at one moment, their order is the rounding's.
CASES = {
    "a device that likes batches": Worker(tuple(301.7 + 39.3 * n for n in range(1, 33)), (47.9,) * 32, 21.1, 19.7, 256),
    "a device that does not": Worker(tuple(203.3 * n for n in range(1, 9)), (23.9,) * 8, 19.3, 11.7, 256),
    "a small model": Worker((19.9,) * 32, (203.1,) * 32, 151.7, 148.3, 256),
    "buckets": Worker(
        tuple(201.7 + 99.1 * (1 << (n - 1).bit_length()) for n in range(1, 17)), (197.3,) * 16, 103.9, 61.3, 256
    ),
    "one by one": Worker((503.9,), (101.3,), 97.7, 99.1, 256),
    "a short queue": Worker(tuple(307.3 + 101.9 * n for n in range(1, 5)), (53.9,) * 4, 31.1, 17.9, 5),
}


def served(monkeypatch: pytest.MonkeyPatch, worker: Worker, arrivals: NDArray[Any]) -> NDArray[Any]:
    """What requests see of the server's batcher, microseconds; NaN where they are refused."""
    clock = Clock((arrivals / 1e6).tolist())
    monkeypatch.setattr(batching, "time", SimpleNamespace(perf_counter=clock.time))
    return latencies(clock, worker, arrivals)


@pytest.mark.parametrize("load", [0.4, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_request_for_request_it_is_what_the_servers_batcher_does(
    monkeypatch: pytest.MonkeyPatch, name: str, load: float
) -> None:
    worker = CASES[name]
    arrivals = stream(samples=COUNT, seed=3) * (1e6 / (load * worker.saturation))
    ours, batches = play(worker, arrivals)
    theirs = served(monkeypatch, worker, arrivals)
    refused = ~np.isfinite(ours)
    assert np.array_equal(refused, np.isnan(theirs))
    assert bool(refused.any()) == (name == "a short queue")
    np.testing.assert_allclose(ours[~refused], theirs[~refused], rtol=0, atol=1e-3)
    assert COUNT / worker.most <= batches < COUNT or worker.most == 1


def test_what_is_assumed_of_the_server_is_its_default() -> None:
    fields = ServeSettings.model_fields
    assert (fields["max_queue"].default, fields["max_batch"].default) == (QUEUE, DEFAULT_MOST)
    (most,) = [item.le for item in fields["workers"].metadata if hasattr(item, "le")]
    assert most == WORKERS
    assert _bucket_sizes(ServeSettings()) == (1, 2, 4, 8, 16, 32)
