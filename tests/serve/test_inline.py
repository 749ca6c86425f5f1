"""The place where batches run: the event loop while each is short, else the model's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engines import RELU, VARYING, Doubling, batcher_of, loaded, numbers, run, save

from trnrt.errors import DeviceError
from trnrt.serve.hosting import inline
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.inline import LoopOrThread, measure_batch
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.problems import Problem

QUICK_S = 0.002


@pytest.fixture(autouse=True)
def as_served(monkeypatch: pytest.MonkeyPatch, _compute_on_threads: None) -> None:
    monkeypatch.setattr(inline, "QUICK_S", QUICK_S)


class Thread:
    """Keeps the jobs that it gets."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []

    def submit(self, job: Any, waiting: int = 0) -> None:
        self.jobs.append(job)


def place(batch_s: float | None) -> tuple[LoopOrThread, Thread]:
    thread = Thread()
    return LoopOrThread("m", thread, 32, batch_s), thread


@pytest.mark.parametrize(("batch_s", "here"), [(QUICK_S, True), (2 * QUICK_S, False), (None, False)])
def test_short_batches_run_at_once(batch_s: float | None, here: bool) -> None:
    chosen, thread = place(batch_s)
    ran: list[int] = []
    chosen.submit(lambda: ran.append(1))
    assert (len(ran), len(thread.jobs)) == ((1, 0) if here else (0, 1))


def test_a_request_of_several_batches_keeps_all_on_the_thread() -> None:
    chosen, thread = place(0.0)
    with chosen.expecting(32):
        chosen.submit(lambda: None)
    assert not thread.jobs
    with chosen.expecting(33), chosen.expecting(1):
        chosen.submit(lambda: None)
    assert len(thread.jobs) == 1
    chosen.submit(lambda: None)
    assert len(thread.jobs) == 1


def test_while_more_than_a_batch_waits_the_thread_computes() -> None:
    """An overloaded loop would compute one batch between hundreds of refusals."""
    chosen, thread = place(0.0)
    ran: list[int] = []
    for waiting in (0, 32, 33, 200, 0):
        chosen.submit(lambda: ran.append(1), waiting)
    assert (len(ran), len(thread.jobs)) == (3, 2)


def test_the_batcher_says_how_many_wait() -> None:
    told: list[int] = []

    class Told:
        def submit(self, job: Any, waiting: int = 0) -> None:
            told.append(waiting)
            job()

    async def work() -> None:
        batcher = Batcher("m", Doubling(), Told(), Limits(4, 0.0, 256), Metrics())
        await asyncio.gather(*(batcher.infer({"x": numbers(1, 4)}, 1, (), 60.0) for _ in range(11)))

    run(work())
    assert told == [7, 3, 0]


def test_a_model_that_turns_slow_returns_to_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "SLOW_S", 0.0)
    chosen, thread = place(0.0)
    chosen.submit(lambda: _spend(0.002))
    chosen.submit(lambda: None)
    assert not chosen.quick and len(thread.jobs) == 1


def _spend(seconds: float) -> None:
    """Use this much of the CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_devices_and_padded_lengths_are_not_measured() -> None:
    def fake(backend: str, lengths: object = None, buckets: tuple[int, ...] = (1, 2)) -> Any:
        session = SimpleNamespace(backend=backend, lengths=lengths)
        return SimpleNamespace(session=session, described=SimpleNamespace(buckets=buckets), is_static=True)

    assert measure_batch(fake("neuron")) is None
    assert measure_batch(fake("simulator", lengths=object())) is None
    assert measure_batch(fake("simulator", buckets=())) is None


@pytest.mark.parametrize(("spent_s", "rows"), [(0.001, [1, 8]), (0.004, [1])])
def test_the_largest_batch_is_measured_if_the_smallest_is_quick(spent_s: float, rows: list[int]) -> None:
    given: list[Any] = []

    def run(feeds: Any) -> None:
        given.append(dict(feeds))
        _spend(spent_s)

    session = SimpleNamespace(backend="simulator", lengths=None)
    fake = SimpleNamespace(session=session, run=run, described=SimpleNamespace(buckets=(1, 8)), is_static=True)
    fake.parameters, fake.golden = ("k",), SimpleNamespace(feeds={"x": np.zeros((1, 3)), "k": np.zeros(1)})
    measured = measure_batch(fake)
    assert measured is not None and measured >= spent_s
    assert {(feeds["x"].shape, feeds["k"].shape) for feeds in given} == {((count, 3), (1,)) for count in rows}


def test_a_model_that_waits_for_something_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no CPU time, and would stop the loop nevertheless."""
    monkeypatch.setattr(inline, "SLOW_S", 0.01)
    session = SimpleNamespace(backend="simulator", lengths=None)
    described = SimpleNamespace(buckets=(1, 8))
    fake = SimpleNamespace(
        session=session, run=lambda _feeds: time.sleep(0.02), described=described, is_static=True, parameters=()
    )
    fake.golden = SimpleNamespace(feeds={"x": np.zeros((1, 3))})
    measured = measure_batch(fake)
    assert measured is not None and measured >= 0.02 > inline.QUICK_S


@pytest.mark.parametrize("batching", [True, False])
def test_a_short_model_answers_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batching: bool) -> None:
    """With the same numbers as on its thread, also from requests of several batches, which run there."""
    monkeypatch.setattr(inline, "QUICK_S", 60.0)
    monkeypatch.setattr(inline, "SLOW_S", 60.0)
    threads: set[str] = set()

    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), batching=batching, max_batch=4)
        assert model._engine is not None
        real = model._engine.loaded.run

        def note_thread(feeds: Any) -> Any:
            threads.add(threading.current_thread().name)
            return real(feeds)

        model._engine.loaded.run = note_thread  # type: ignore[method-assign]
        rows = np.arange(-8, 24, dtype=np.float32).reshape(8, 4)
        answers = []
        for few in (rows[:4], rows[4:]):  # with more at once the loop would count as overloaded
            answers += await asyncio.gather(*(model.infer({"x": row[None]}) for row in few))
        assert [a.outputs["y"].tolist() for a in answers] == [[row.clip(0).tolist()] for row in rows]
        assert threads == {threading.main_thread().name}
        whole = await model.infer({"x": rows})
        assert whole.outputs["y"].tolist() == rows.clip(0).tolist()
        assert threads == {threading.main_thread().name, "compute relu"}
        await model.unload()

    run(work())


def test_shapes_that_are_not_compiled_yet_are_computed_on_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling one would stop the loop for seconds."""
    monkeypatch.setattr(inline, "QUICK_S", 60.0)

    async def work() -> None:
        model = await loaded(save(tmp_path, "varying", VARYING), max_batch=2, shape=["x=1x4"])
        assert model._engine is not None
        threads, real = list[str](), model._engine.loaded.run

        def note_thread(feeds: Any) -> Any:
            threads.append(threading.current_thread().name)
            return real(feeds)

        model._engine.loaded.run = note_thread  # type: ignore[method-assign]
        for size in (4, 7):
            x = np.full((1, size), -1, np.float32)
            assert (await model.infer({"x": x})).outputs["y"].tolist() == [[0] * size]
        assert threads == ["compute varying"] * 2
        await model.unload()

    run(work())


def test_the_loop_has_a_turn_between_two_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many wait: on its thread a model computes one full batch after the other."""
    monkeypatch.setattr(inline, "SLOW_S", 60.0)

    async def work() -> None:
        model, turns = Doubling(mergeable=False), list[int]()
        chosen = LoopOrThread("m", Thread(), 8, 0.0)
        batcher = Batcher("doubling", model, chosen, Limits(8, 0.0, 100), Metrics())

        async def look() -> None:
            while len(model.runs) < 5:
                turns.append(len(model.runs))
                await asyncio.sleep(0)

        asked = [batcher.infer({"x": np.ones((1, 4), np.float32)}, 1, (), 60.0) for _ in range(5)]
        await asyncio.gather(look(), *asked)
        assert set(turns) >= {1, 2, 3, 4}, "one batch at a time"

    run(work())


def on_loop(model: Doubling) -> Batcher:
    return Batcher("doubling", model, LoopOrThread("m", Thread(), 8, 0.0), Limits(8, 0.0, 100), Metrics())


def test_a_lone_request_is_computed_at_once_and_the_next_one_after_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that come one by one, of a model whose rows may be merged."""
    monkeypatch.setattr(inline, "SLOW_S", 60.0)

    async def work() -> None:
        model, turns = Doubling(), list[int]()
        batcher = on_loop(model)

        async def ask() -> None:
            await batcher.infer({"x": np.ones((1, 4), np.float32)}, 1, (), 60.0)

        async def look() -> None:
            turns.append(len(model.runs))

        await ask()  # nothing is known yet: it waits for others for a turn
        alone = ask()
        with pytest.raises(StopIteration):
            alone.send(None)  # answered without a turn of the loop
        assert model.runs == [1, 1]
        await asyncio.gather(ask(), ask(), look())
        assert model.runs == [1, 1, 1, 1] and turns == [3], "the loop had a turn before the second one"
        await asyncio.gather(ask(), ask())
        assert model.runs == [1, 1, 1, 1, 2], "they came together before: now they join"
        await ask()
        await asyncio.wait_for(batcher.wait_idle(), 10)

    run(work())


def test_an_error_of_a_batch_that_is_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is the request's; a lost device ends the last lane, and whoever waits behind it has the error."""
    monkeypatch.setattr(inline, "SLOW_S", 60.0)

    async def work() -> None:
        model, lost = Doubling(mergeable=False), list[DeviceError]()
        batcher = Batcher(
            "m", model, LoopOrThread("m", Thread(), 8, 0.0), Limits(8, 0.0, 100), Metrics(), on_lost=lost.append
        )

        async def ask() -> int:
            try:
                await batcher.infer({"x": np.ones((1, 4), np.float32)}, 1, (), 60.0)
            except Problem as problem:
                return problem.status
            return 200

        assert await ask() == 200
        model.error = lambda _x: ValueError("it broke")
        assert [await ask(), await ask()] == [500, 500]
        model.error = lambda _x: DeviceError("it broke", usable=True) if len(model.runs) == 5 else None
        assert list(await asyncio.gather(ask(), ask(), ask())) == [200, 503, 503]
        assert len(lost) == 1 and not batcher.lanes and batcher.waiting == 0
        await asyncio.wait_for(batcher.wait_idle(), 10)

    run(work())


def test_one_timer_ends_each_request_at_its_own_time() -> None:
    async def work() -> None:
        model = Doubling()
        model.gate.clear()
        batcher = batcher_of(model)
        ended: list[float] = []

        async def ask(timeout_s: float) -> None:
            began = time.perf_counter()
            with pytest.raises(Problem, match=f"within {timeout_s:g} s"):
                await batcher.infer({"x": np.ones((1, 4), np.float32)}, 1, (), timeout_s)
            assert time.perf_counter() - began >= timeout_s
            ended.append(timeout_s)

        stays = asyncio.create_task(batcher.infer({"x": np.ones((1, 4), np.float32)}, 1, (), 60.0))
        await asyncio.gather(*map(ask, (0.3, 0.05, 0.2, 0.05)))
        assert sorted(ended) == [0.05, 0.05, 0.2, 0.3]
        model.gate.set()
        assert (await stays).rows == 1
        await batcher.wait_idle()
        assert batcher._expiry is not None and batcher._expiry.cancelled(), "it would hold the model for a minute"

    run(work())
