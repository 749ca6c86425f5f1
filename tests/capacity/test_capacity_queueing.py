"""The queue's simulation against what is known exactly: M/D/1, batches by their Markov chain, and rules of thumb."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trnrt.capacity.queueing import FINAL_SAMPLES, Waiting, Worker, play, stream, wait
from trnrt.errors import OptionError

Array = NDArray[np.float64]
LOADS = (0.2, 0.5, 0.8)


def device_only(*device_us: float, queue: int = 10**9) -> Worker:
    """A core without a host: a queue in front of a server of batches, for which there is theory."""
    return Worker(device_us, (0.0,) * len(device_us), 0.0, 0.0, queue, len(device_us))


def seen(worker: Worker, load: float, samples: int = FINAL_SAMPLES) -> Waiting:
    return wait(worker, load * worker.saturation, stream(samples=samples))


def one_by_one(load: float, waited: float) -> float:
    """P(a request waits at most ``waited`` service times) in M/D/1: Erlang's sum (1909), in exact terms."""
    total = 0.0
    for k in range(math.floor(waited) + 1):
        past = load * (k - waited)
        total += past**k / math.factorial(k) * math.exp(-past)
    return (1 - load) * total


@pytest.mark.parametrize("load", LOADS)
def test_one_by_one_it_is_m_d_1(load: float) -> None:
    found = seen(device_only(100.0), load)
    assert found.mean_us == pytest.approx(100 + 50 * load / (1 - load), rel=0.02)  # Pollaczek and Khinchine
    assert one_by_one(load, found.p99_us / 100 - 1) == pytest.approx(0.99, abs=0.002)
    assert found.p50_us == pytest.approx(100 * (1 + median_wait(load)), rel=0.05)
    assert found.batch == 1


def median_wait(load: float) -> float:
    grid = np.linspace(0, 20, 20_001)
    return float(next(t for t in grid if one_by_one(load, t) >= 0.5))


class Chain:
    """The queue that batches leave behind them, as a Markov chain (Bailey 1954, with times by size), solved exactly.

    ``service`` are the times of batches of 1, 2, ... requests, ``rate`` arrivals a unit of time.
    """

    def __init__(self, service: Array, rate: float, longest: int = 400) -> None:
        self.service, self.rate, self.longest = service, rate, longest
        self.most = len(service)
        step = np.zeros((longest + 1, longest + 1))
        for left in range(longest + 1):
            size, rest = self._begins(left)
            step[left, rest:] = self._coming(size, longest - rest)
            step[left, -1] += 1 - step[left].sum()
        a = step.T - np.eye(longest + 1)
        a[-1] = 1
        self.left = np.linalg.solve(a, np.eye(longest + 1)[-1])

    def _begins(self, left: int) -> tuple[int, int]:
        """The next batch after one that leaves so many behind, and who is left in the queue then."""
        size = max(1, min(left, self.most))
        return size, max(0, left - self.most)

    def _coming(self, size: int, most: int) -> Array:
        """P(k arrivals during a batch of this size), k = 0 ... most."""
        mean = self.rate * float(self.service[size - 1])
        ks = np.arange(most + 1)
        logs: Array = ks * math.log(mean) - mean - np.array([math.lgamma(k + 1) for k in ks])
        return np.asarray(np.exp(logs))

    def beyond(self, limit: float, grid: int = 1000) -> float:
        """P(a request is answered later than ``limit`` after its arrival)."""
        late = all_ = 0.0
        for left, share in enumerate(self.left):
            if share < 1e-9:
                continue
            size, rest = self._begins(left)
            time = float(self.service[size - 1])
            if not left:  # the first of a busy time meets nobody
                all_ += share
                late += share * (time > limit)
            moments = (np.arange(grid) + 0.5) / grid * time
            all_ += share * self.rate * time
            late += share * self.rate * time * float(self._late(rest, moments, time - moments, limit).mean())
        return late / all_

    def _late(self, rest: int, before: Array, after: Array, limit: float) -> Array:
        """P(late) of who comes ``before`` into a batch with ``after`` to go, where ``rest`` are left in the queue."""
        mean = self.rate * before
        found, share = np.zeros_like(before), np.exp(-mean)
        for came in range(200):
            found += share * self._late_behind(rest + came, after, limit)
            share = share * mean / (came + 1)
            if came > mean.max() and share.max() < 1e-9:
                break
        return found

    def _late_behind(self, ahead: int, after: Array, limit: float) -> Array:
        """P(late) with so many ahead in the queue: whole batches of them, then one with whoever came by then."""
        whole, place = divmod(ahead, self.most)
        waited = after + whole * float(self.service[-1])
        mean = self.rate * waited
        found, share, fewer = np.zeros_like(after), np.exp(-mean), np.zeros_like(after)
        for came in range(self.most - place - 1):
            found += share * (waited + float(self.service[place + came]) > limit)
            fewer += share
            share = share * mean / (came + 1)
        return found + (1 - fewer) * (waited + float(self.service[-1]) > limit)


TABLES = {
    "batches pay": [100.0 + 10 * n for n in range(1, 9)],
    "batches don't": [100.0 * n for n in range(1, 5)],
    "buckets": [100.0, 130.0, 190.0, 190.0, 310.0, 310.0, 310.0, 310.0],
    "free of charge": [100.0] * 16,
}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("name", TABLES)
def test_in_batches_it_is_the_markov_chain(name: str, load: float) -> None:
    worker = device_only(*TABLES[name])
    found = seen(worker, load)
    chain = Chain(np.array(TABLES[name]), load * worker.saturation / 1e6)
    assert chain.left.sum() == pytest.approx(1)
    # A step of the distribution may stand at the quantile: then 1 % lies between both of its sides.
    assert chain.beyond(found.p99_us * 1.02) <= 0.01 <= chain.beyond(found.p99_us * 0.98)


def test_a_lone_request_takes_what_it_takes_alone() -> None:
    worker = Worker((100.0, 120.0), (30.0, 35.0), 20.0, 10.0, 256, 2)
    assert worker.alone_us == 160
    latencies, batches, cold_us = play(worker, np.array([1e4, 2e4, 3e4]))
    assert latencies == pytest.approx([160] * 3)
    assert (batches, cold_us) == (3, 0)


def test_after_a_pause_it_takes_longer() -> None:
    """Half of it before the batch and half after; the pause counts from when the same was last done."""
    worker = Worker((100.0, 120.0), (30.0, 35.0), 20.0, 10.0, 256, 2, cold_us=1000.0, cooling_us=4000.0)
    latencies, _, cold_us = play(worker, np.array([0.0, 5e3, 1e6]))
    read, answered = 500 + 20, 500 + 20 + 130 + 500 + 10
    assert latencies[0] == answered  # it had never done anything
    first = 500 * (1 - math.exp(-(5e3 - read) / 4e3))
    begun = 5e3 + first + 20 + 130
    second = 500 * (1 - math.exp(-(begun - answered) / 4e3))
    assert latencies[1] == pytest.approx(first + second + 160)
    assert latencies[2] == pytest.approx(1160)  # by then all is cold
    assert cold_us == pytest.approx((latencies.sum() - 3 * 160) / 3)


def test_a_busy_worker_is_warm_and_an_idle_one_is_not() -> None:
    warm = Worker((100.0,) * 8, (30.0,) * 8, 150.0, 150.0, 256, 8)
    cold = replace(warm, cold_us=1000.0, cooling_us=4000.0)
    added = [seen(cold, load).cold_us for load in (0.05, 0.2, 0.5, 0.8)]
    assert added == sorted(added, reverse=True) and added[0] > 400 and added[-1] < 100
    assert seen(cold, 0.05).p50_us > seen(warm, 0.05).p50_us + 400
    assert seen(warm, 0.5).cold_us == 0


def test_saturation_is_where_the_queue_grows_without_end() -> None:
    workers = [
        Worker((200.0, 210.0), (50.0, 50.0), 40.0, 40.0, 10**9, 2),
        Worker((10.0,) * 4, (80.0,) * 4, 90.0, 90.0, 10**9, 4),
    ]
    assert [worker.device_rate < worker.host_rate for worker in workers] == [True, False]
    for worker in workers:
        below, above = (
            play(worker, stream(samples=8000) * (1e6 / (load * worker.saturation)))[0] for load in (0.9, 1.15)
        )
        assert below[-1000:].mean() < 3 * below[1000:].mean()
        assert above[-1000:].mean() > 4 * above[500:1000].mean()


@settings(max_examples=30)
@given(
    st.lists(st.floats(1, 1000), min_size=1, max_size=12),
    st.floats(0, 300),
    st.floats(0, 200),
    st.floats(0.05, 1.5),
    st.integers(1, 40),
    st.integers(0, 99),
)
def test_whatever_the_table_nobody_is_lost_and_nobody_is_early(
    device: list[float], host: float, loop: float, load: float, queue: int, seed: int
) -> None:
    worker = Worker(tuple(sorted(device)), (host,) * len(device), loop, loop / 2, queue, len(device))
    latencies, batches, _ = play(worker, stream(samples=300, seed=seed) * (1e6 / (load * worker.saturation)))
    answered = latencies[np.isfinite(latencies)]
    assert len(latencies) == 300 and len(answered) >= min(queue, 300) * (load < 1)
    assert answered.min() >= worker.alone_us * (1 - 1e-9) - 1e-6
    assert math.ceil(len(answered) / worker.most) <= batches <= len(answered)


def test_more_requests_wait_longer_and_the_same_question_has_the_same_answer() -> None:
    worker = Worker(tuple(100.0 + 10 * n for n in range(1, 9)), (50.0,) * 8, 30.0, 30.0, 256, 8)
    p99 = [seen(worker, load, 20_000).p99_us for load in LOADS]
    assert p99 == sorted(p99) and p99[0] > worker.alone_us
    assert seen(worker, 0.5, 5000) == seen(worker, 0.5, 5000)


def test_bursts_wait_longer_and_steps_do_not_wait() -> None:
    worker = device_only(100.0)
    found = [wait(worker, 0.6 * worker.saturation, stream(burst)).p99_us for burst in (0, 0.5, 1, 3)]
    assert found == sorted(found) and found[0] == pytest.approx(100) and found[3] > 2 * found[2]
    gaps = np.diff(stream(3.0, FINAL_SAMPLES))
    assert gaps.mean() == pytest.approx(1, rel=1e-3) and gaps.std() == pytest.approx(3, rel=0.05)


def test_who_finds_the_queue_full_is_refused_and_counts_as_never_answered() -> None:
    worker = replace(device_only(100.0), queue=3)
    found = wait(worker, 1.2 * worker.saturation, stream())
    assert found.refused > 0.15 and math.isinf(found.p99_us) and math.isinf(found.p99_error)
    assert found.mean_us < 500


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_is_above_0(rate: float) -> None:
    with pytest.raises(OptionError, match=r"a rate of \S+ requests per second"):
        wait(device_only(1.0), rate, stream())
