"""A request with many rows is computed slice by slice: others pass, and nobody's work is dropped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import CANCELLING, LAST_ROWS, PATIENCE_S, Array, Doubling, batcher_of, loaded, numbers, run, save
from virtual import Clock, Steady, play, set_clock

from trnrt.errors import DeviceError, KernelError
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.problems import Problem

UNIT_S = 0.01
START_S = 1.0


async def ask(batcher: Batcher, x: Array, kind: object = (), timeout_s: float = 30.0) -> Inference:
    inference = await batcher.infer({"x": x}, len(x), kind, timeout_s)
    assert np.array_equal(inference.outputs["y"], x * 2)
    return inference


def dropped(metrics: Metrics, model: str) -> float | None:
    return metrics._registry.get_sample_value("trnrt_dropped_rows_total", {"model": model, "version": "1"})


def played(
    monkeypatch: pytest.MonkeyPatch, requests: list[tuple[float, int, float]], **limits: Any
) -> tuple[list[float | Problem], Steady, Metrics]:
    """Ask for rows at moments, with timeouts: when each had its answer, or its problem. Slices of 8 take UNIT_S."""
    clock = Clock([START_S + moment for moment, _, _ in requests])
    set_clock(monkeypatch, clock)
    found: list[float | Problem] = [0.0] * len(requests)
    metrics, models = Metrics(), list[Steady]()

    def make() -> Batcher:
        models.append(Steady(clock, UNIT_S))
        limited = Limits(8, 0.002, 1000, slice_rows=8, **limits)
        return Batcher("steady", models[0], models[0].thread, limited, metrics)

    async def one(batcher: Batcher, number: int) -> None:
        _, rows, timeout_s = requests[number]
        try:
            inference = await batcher.infer({"x": numbers(rows, 1)}, rows, (), timeout_s)
        except Problem as problem:
            found[number] = problem
            return
        found[number] = clock.now - START_S
        told = inference.queue_ms + inference.batch_ms + inference.compute_ms
        assert told == pytest.approx((clock.now - START_S - requests[number][0]) * 1e3)
        assert min(inference.queue_ms, inference.batch_ms, inference.compute_ms) >= -1e-9

    play(clock, len(requests), make, one)
    return found, models[0], metrics


def test_slices_make_one_answer() -> None:
    async def work() -> None:
        doubling = Doubling()
        found = await ask(batcher_of(doubling, slice_rows=8), numbers(20, 3))
        assert doubling.runs == [8, 8, 4]
        assert (found.rows, found.batch_rows, found.bucket) == (20, 20, 32)

    run(work())


@pytest.mark.parametrize("rows", [9, 16, 23])
def test_parameters_and_scalars_go_with_every_slice(rows: int) -> None:
    class Scaling(Doubling):
        def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
            self.runs.append(len(feeds["x"]))
            made: Array = feeds["x"] * feeds["by"] * feeds["table"].sum()
            return {"y": made}

    async def work() -> None:
        scaling = Scaling()
        scaling.parameters = ("table",)
        x = numbers(rows, 3)
        feeds = {"x": x, "by": np.array(3, np.float32), "table": np.ones(50, np.float32)}
        found = await batcher_of(scaling, slice_rows=8).infer(feeds, rows, (), 30)
        assert len(scaling.runs) == -(-rows // 8)
        assert np.array_equal(found.outputs["y"], x * np.float32(3) * np.float32(50))

    run(work())


def test_dependent_rows_stay_together() -> None:
    """The model may be found to mix rows only for so many of them."""

    class Mixing(Doubling):
        def independent(self, feeds: Any, rows: int) -> bool:
            return rows < 20

    async def work() -> None:
        doubling = Mixing()
        batcher = batcher_of(doubling, slice_rows=8)
        await ask(batcher, numbers(20, 3))
        await ask(batcher, numbers(19, 3))
        assert doubling.runs == [20, 8, 8, 3] and batcher._queue.slices == 0

    run(work())


@pytest.mark.parametrize("rows", [5, 8, 23])
@pytest.mark.parametrize("graph", [CANCELLING, CANCELLING.replace("[N,4]", "[4,4]")])
def test_the_numbers_are_those_of_one_run(graph: str, rows: int, tmp_path: Path) -> None:
    """Bit for bit, also where rounding leaves little else."""

    async def work() -> None:
        model = await loaded(save(tmp_path, "cancelling", graph), max_batch=4)
        assert model._engine is not None
        one, runs = model._engine.loaded, list[int]()
        x = numbers(rows, 4)
        at_once = one.run({"x": x})
        real = one.run

        def counting(feeds: Mapping[str, Array]) -> dict[str, Array]:
            runs.append(len(feeds["x"]))
            return real(feeds)

        one.run = counting  # type: ignore[method-assign]
        found = await model.infer({"x": x})
        assert runs == [min(4, rows - start) for start in range(0, rows, 4)]
        assert found.outputs["y"].tobytes() == at_once["y"].tobytes()
        assert (found.rows, found.bucket) == (rows, one.bucket(rows))

    run(work())


def test_a_model_that_mixes_rows_is_one_unit(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "last", LAST_ROWS), max_batch=4)
        x = numbers(9, 3)
        assert np.array_equal((await model.infer({"x": x})).outputs["y"], x[-3:])

    run(work())


def test_small_requests_pass_and_a_large_one_does_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 slices, and almost as many batches of the others: a request waits for the rest of a unit and for another."""
    small = [(0.0005 + 0.0107 * k, 4, 30.0) for k in range(300)]
    found, model, _ = played(monkeypatch, sorted([(0.0, 800, 30.0), *small]))
    answered = [moment for moment in found if isinstance(moment, float)]
    assert len(answered) == 301
    assert answered[0] <= 201 * UNIT_S, "it has every second turn"
    waits = [moment - request[0] for moment, request in zip(answered[1:], small, strict=True)]
    during = [wait for wait, request in zip(waits, small, strict=True) if request[0] < answered[0]]
    assert len(during) > 150 and max(during) <= 3 * UNIT_S
    assert sum(rows for _, rows in model.runs) == 800 + 4 * 300


def test_large_requests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, _ = played(monkeypatch, [(0.0, 400, 30.0), (0.001, 24, 30.0)])
    assert found == [pytest.approx(53 * UNIT_S), pytest.approx(6 * UNIT_S)]


def test_the_rest_of_a_request_that_timed_out_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    found, model, metrics = played(monkeypatch, [(0.0, 800, 0.055), (0.056, 1, 30.0)])
    assert isinstance(found[0], Problem) and found[0].status == 504
    assert [rows for _, rows in model.runs] == [8] * 6 + [1]
    assert found[1] == pytest.approx(7 * UNIT_S)
    assert dropped(metrics, "steady") == 800 - 48


def test_the_rest_of_a_request_whose_client_has_gone_is_dropped() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, slice_rows=8)
        doubling.gate.clear()
        large = asyncio.create_task(ask(batcher, numbers(80, 3)))
        while not doubling.runs:
            await asyncio.sleep(0.001)
        other = asyncio.create_task(ask(batcher, numbers(1, 3)))
        await asyncio.sleep(0)
        large.cancel()
        with pytest.raises(asyncio.CancelledError):
            await large
        doubling.gate.set()
        await other
        assert doubling.runs == [8, 1] and batcher.waiting == 0
        assert dropped(batcher._all_metrics, "doubling") == 72

    run(work())


def test_no_thread_takes_what_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is busy and can't answer 504 in time; the thread, which takes whole batches alone, must not compute."""
    clock = Clock([START_S] * 9)
    set_clock(monkeypatch, clock)
    model, metrics = list[Steady](), Metrics()
    statuses = []

    def make() -> Batcher:
        model.append(Steady(clock, UNIT_S))
        return Batcher("steady", model[0], model[0].thread, Limits(1, 0.0, 100), metrics)

    async def one(batcher: Batcher, number: int) -> None:
        asking = asyncio.ensure_future(batcher.infer({"x": numbers(1, 1)}, 1, (), 2.5 * UNIT_S))
        if number == 8:
            for _ in range(4):
                await asyncio.sleep(0)
            clock.spend(20 * UNIT_S)
        try:
            await asking
            statuses.append(200)
        except Problem as problem:
            statuses.append(problem.status)

    play(clock, 9, make, one)
    assert [moment for moment, _ in model[0].runs] == pytest.approx([START_S, START_S + UNIT_S, START_S + 2 * UNIT_S])
    assert len(statuses) == 9 and statuses.count(504) >= 6
    assert dropped(metrics, "steady") == 6


def test_only_the_guilty_get_a_slices_error() -> None:
    async def work() -> None:
        doubling = Doubling()
        doubling.error = lambda x: KernelError("no such number") if np.isnan(x).any() else None
        batcher = batcher_of(doubling, slice_rows=8)
        bad = numbers(40, 3)
        bad[17] = np.nan
        asked = [ask(batcher, x) for x in (numbers(30, 3), bad, numbers(1, 3))]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in found] == [Inference, Problem, Inference]
        assert isinstance(found[1], Problem) and found[1].text == "no such number"
        await batcher.wait_idle()
        assert batcher.waiting == 0 and batcher._queue.slices == 0

    run(work())


def test_a_device_error_ends_all_of_them() -> None:
    async def work() -> None:
        doubling = Doubling()
        doubling.error = lambda _x: DeviceError("it hangs", usable=False) if len(doubling.runs) == 3 else None
        batcher = batcher_of(doubling, slice_rows=8)
        asked = [ask(batcher, numbers(rows, 3)) for rows in (40, 40, 2, 2)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [one.status for one in found if isinstance(one, Problem)] == [503, 503]
        assert doubling.runs == [4, 8, 8] and batcher.waiting == 0

    run(work())


def test_all_sizes_at_random_all_end_as_they_must() -> None:
    """No answer lost, none given twice, none of another's rows; and nothing is left in the queue."""
    draw = random.Random(5)

    async def one(batcher: Batcher, number: int) -> str:
        await asyncio.sleep(draw.random())
        rows, width = draw.choice((1, 2, 5, 8, 9, 30, 100)), draw.choice((2, 3))
        timeout_s = draw.choice((0.002, PATIENCE_S))
        task = asyncio.create_task(ask(batcher, numbers(rows, width, seed=number), width, timeout_s))
        if draw.random() < 0.2:
            await asyncio.sleep(draw.random() * 0.01)
            task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, Problem):
            assert found.status in (504, 429)
        else:
            assert isinstance(found, (Inference, asyncio.CancelledError)), found
        return type(found).__name__

    async def work() -> None:
        batcher = batcher_of(Doubling(seconds=0.0002), delay_s=0.002, queue=60, slice_rows=8)
        names = await asyncio.gather(*(one(batcher, number) for number in range(800)))
        await batcher.wait_idle()
        while batcher.computing:
            await asyncio.sleep(0.001)
        assert {"Inference", "Problem", "CancelledError"} <= set(names) and names.count("Inference") > 100
        assert batcher.waiting == 0 and batcher._queue.slices == 0
        page = batcher._all_metrics.render()[0].decode()
        assert 'trnrt_pending_requests{model="doubling",version="1"} 0.0' in page

    run(work())
