"""What ``trnrt plan`` says of a queue is what the server's own batcher does, on a clock that is only counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from virtual import Clock, latencies, set_clock

from trnrt.capacity.assumptions import DEFAULT_MOST, QUEUE, WORKERS, Host
from trnrt.capacity.queueing import Worker, play, stream
from trnrt.capacity.workers import Served
from trnrt.planner.parts.crossing import HostLink
from trnrt.serve.settings import ServeSettings

COUNT = 2500


def of_one_row(device_us: list[float], host_us: float, in_us: float, out_us: float, queue: int = 256) -> Worker:
    """A worker for requests of one row, of which a batch has as many as there are times."""
    return Worker(tuple(device_us), (host_us,) * len(device_us), in_us, out_us, queue, len(device_us))


# Times that don't add up to the same: where two things happen at one moment, their order is the rounding's.
CASES = {
    "a device that likes batches": of_one_row([301.7 + 39.3 * n for n in range(1, 33)], 47.9, 21.1, 19.7),
    "a device that does not": of_one_row([203.3 * n for n in range(1, 9)], 23.9, 19.3, 11.7),
    "a small model": of_one_row([19.9] * 32, 203.1, 151.7, 148.3),
    "buckets": of_one_row([201.7 + 99.1 * (1 << (n - 1).bit_length()) for n in range(1, 17)], 197.3, 103.9, 61.3),
    "one by one": of_one_row([503.9], 101.3, 97.7, 99.1),
    "a short queue": of_one_row([307.3 + 101.9 * n for n in range(1, 5)], 53.9, 31.1, 17.9, 5),
}


def served(monkeypatch: pytest.MonkeyPatch, worker: Worker, arrivals: NDArray[Any], **rows: Any) -> NDArray[Any]:
    """What requests see of the server's batcher, microseconds; NaN where refused. ``rows``: see ``latencies``."""
    clock = Clock((arrivals / 1e6).tolist())
    set_clock(monkeypatch, clock)
    return latencies(clock, worker, arrivals, **rows)


@pytest.mark.parametrize("load", [0.4, 0.9])
@pytest.mark.parametrize("name", CASES)
def test_request_for_request_it_is_what_the_servers_batcher_does(
    monkeypatch: pytest.MonkeyPatch, name: str, load: float
) -> None:
    worker = CASES[name]
    arrivals = stream(samples=COUNT, seed=3) * (1e6 / (load * worker.saturation))
    ours, batches, _ = play(worker, arrivals)
    theirs = served(monkeypatch, worker, arrivals)
    refused = ~np.isfinite(ours)
    assert np.array_equal(refused, np.isnan(theirs))
    assert bool(refused.any()) == (name == "a short queue")
    np.testing.assert_allclose(ours[~refused], theirs[~refused], rtol=0, atol=1e-3)
    assert COUNT / worker.most <= batches < COUNT or worker.most == 1


@pytest.mark.parametrize("load", [0.4, 0.9])
@pytest.mark.parametrize(
    ("rows", "most", "mergeable"),
    [(8, 32, True), (5, 32, True), (12, 32, True), (20, 32, True), (40, 32, True), (32, 32, True), (3, 3, False)],
)
def test_requests_of_several_rows_fill_a_batch_as_the_server_has_it(
    monkeypatch: pytest.MonkeyPatch, rows: int, most: int, mergeable: bool, load: float
) -> None:
    # A batch of 6 x 5 rows of 32 has no room for another request, and the server sees that only once one waits.
    host = Host(40.3, 47.9, 1.1, 1.7, 0.0, 1.0, HostLink(9.7, 1.3))
    times = {size: 301.7 + 29.3 * size for size in (1, 2, 4, 8, 16, 32) if mergeable} or {rows: 503.9}
    worker = Served(times, 4, 4, 4, mergeable).worker(most, rows, host)
    arrivals = stream(samples=COUNT, seed=3) * (1e6 / (load * worker.saturation))
    ours, _, _ = play(worker, arrivals)
    theirs = served(monkeypatch, worker, arrivals, rows=rows, most=most, mergeable=mergeable)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def test_what_is_assumed_of_the_server_is_its_default() -> None:
    fields = ServeSettings.model_fields
    assert (fields["max_queue"].default, fields["max_batch"].default) == (QUEUE, DEFAULT_MOST)
    (most,) = [item.le for item in fields["workers"].metadata if hasattr(item, "le")]
    assert most == WORKERS
    assert ServeSettings().bucket_sizes == (1, 2, 4, 8, 16, 32)
