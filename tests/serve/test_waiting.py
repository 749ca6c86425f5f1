"""Waiting under overload: twice as many requests as a model can answer, on a clock that is only counted."""

from __future__ import annotations

import numpy as np
import pytest
from engines import Array, numbers
from virtual import Clock, Steady, latencies, play, set_clock

from trnrt.capacity.queueing import Worker, stream
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.waiting import Limits, Pace, rest_of
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings

WAIT_S = ServeSettings().max_wait_ms / 1e3
WARM = 0.1
"""The share of requests at the start, while the pace of a full batch is not known."""


def worker_of(batch_s: float, row_s: float = 0.0, most: int = 32) -> Worker:
    """A batch of n rows takes ``batch_s + n * row_s``; the event loop takes 60 us to read a request, and to answer."""
    times = [1e6 * (batch_s + n * row_s) for n in range(1, most + 1)]
    return Worker(tuple(times), (100.0,) * most, 60.0, 60.0, ServeSettings().max_queue, most)


def overload(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, count: int, *, mergeable: bool = True, wait_s: float = WAIT_S
) -> tuple[Array, float]:
    """Twice the requests that a worker can answer: the latencies of those accepted, s, and their rate's share."""
    arrivals = stream(samples=count, seed=4) * (1e6 / (2 * worker.saturation))
    clock = Clock((arrivals / 1e6).tolist())
    set_clock(monkeypatch, clock)
    found = latencies(clock, worker, arrivals, mergeable=mergeable, wait_s=wait_s) / 1e6
    taken = found[int(WARM * count) :]
    answered = taken[np.isfinite(taken)]
    return answered, 2 * len(answered) / len(taken)


@pytest.mark.parametrize(
    ("worker", "mergeable"),
    [
        (worker_of(0.3), True),
        (worker_of(0.45), True),
        (worker_of(0.01, 0.005), True),
        (worker_of(0.2, 0.007), True),
        (worker_of(0.02, most=1), False),
        (worker_of(0.4, most=1), False),
    ],
)
def test_the_accepted_have_their_answer_within_a_second(
    monkeypatch: pytest.MonkeyPatch, worker: Worker, mergeable: bool
) -> None:
    answered, share = overload(monkeypatch, worker, 4000, mergeable=mergeable)
    assert np.quantile(answered, 0.99) < 1.0
    assert share > 0.95, "and the model is not idle"
    endless, _ = overload(monkeypatch, worker, 4000, mergeable=mergeable, wait_s=1e9)
    assert np.quantile(endless, 0.99) > 1.0, "which a queue of 256 alone does not make so"


@pytest.mark.parametrize("batch_s", [0.7, 3.0])
@pytest.mark.parametrize("most", [1, 32])
def test_a_model_slower_than_the_limit_always_has_a_batch(
    monkeypatch: pytest.MonkeyPatch, batch_s: float, most: int
) -> None:
    answered, share = overload(monkeypatch, worker_of(batch_s, most=most), 4000 if most > 1 else 400)
    assert share > (0.95 if most > 1 else 0.85), "random arrivals leave a single place empty now and then"
    assert np.quantile(answered, 0.99) < 2 * batch_s + WAIT_S


def test_a_fast_model_never_refuses_for_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's own limit comes first."""
    worker = worker_of(0.002)
    limited, _ = overload(monkeypatch, worker, 4000)
    endless, _ = overload(monkeypatch, worker, 4000, wait_s=1e9)
    assert np.array_equal(limited, endless)


def test_requests_that_do_not_fit_together_count_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a kind of its own, so a batch has one row, and not eight."""
    clock = Clock([1.0 + 0.01 * k for k in range(600)])
    set_clock(monkeypatch, clock)
    waits, statuses = [], []

    def make() -> Batcher:
        model = Steady(clock, 0.1)
        return Batcher("steady", model, model.thread, Limits(8, 0.0, 256, wait_s=0.5), metrics)

    async def one(batcher: Batcher, number: int) -> None:
        began = clock.now
        try:
            await batcher.infer({"x": numbers(1, 1)}, 1, number, 30.0)
            waits.append(clock.now - began)
        except Problem as problem:
            statuses.append((problem.status, int(problem.headers["Retry-After"])))

    metrics = Metrics()
    play(clock, 600, make, one)
    assert max(waits[25:]) < 0.8 and len(waits) > 55
    assert set(statuses) == {(429, 1)}
    assert metrics._registry.get_sample_value("trnrt_rejected_total", {"reason": "wait"}) == len(statuses)


def test_behind_a_large_request_another_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 slices of 0.1 s: another large one would begin late, and small ones have every second turn."""
    clock = Clock([1.0, 1.35, 1.351])
    set_clock(monkeypatch, clock)
    found: dict[int, float | str] = {}

    def make() -> Batcher:
        model = Steady(clock, 0.1)
        limits = Limits(8, 0.0, 256, slice_rows=8, wait_s=0.5)
        return Batcher("steady", model, model.thread, limits, Metrics())

    async def one(batcher: Batcher, number: int) -> None:
        rows = (400, 1, 16)[number]
        try:
            await batcher.infer({"x": numbers(rows, 1)}, rows, (), 30.0)
            found[number] = clock.now - 1.0
        except Problem as problem:
            found[number] = problem.text

    play(clock, 3, make, one)
    assert found[1] == pytest.approx(0.5) and found[0] == pytest.approx(5.1)
    assert "'steady' could begin with it in about" in str(found[2])
    assert "requests wait for 0.5 s at most (--max-wait-ms)" in str(found[2])


def test_the_pace_is_that_of_the_largest_batches() -> None:
    pace = Pace(32)
    assert pace.batch_s == 0
    for bucket, seconds, expected in ((1, 0.5, 0.5), (1, 1.5, 0.6), (8, 2.0, 2.0), (1, 9.0, 2.0), (64, 3.0, 3.0)):
        pace.measure(bucket, seconds)
        assert pace.batch_s == pytest.approx(expected)
    pace.measure(32, 1.0)
    assert pace.batch_s == pytest.approx(2.8)


def test_a_batch_that_takes_too_long_is_expected_to_go_on() -> None:
    assert [rest_of(2.0, elapsed) for elapsed in (0.0, 1.5, 2.0, 7.0)] == [2.0, 0.5, 0.0, 5.0]
