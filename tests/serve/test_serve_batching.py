"""Batches: what is merged and what is not, who waits for whom, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from engines import PATIENCE_S, Array, Doubling, batcher_of, numbers, run

from trnrt.errors import DeviceError, InputError, KernelError
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.http.problems import INTERNAL, Problem


async def ask(batcher: Batcher, x: Array, kind: object = (), timeout_s: float = 30.0) -> Inference:
    inference = await batcher.infer({"x": x}, len(x), kind, timeout_s)
    assert np.array_equal(inference.outputs["y"], x * 2)
    return inference


async def settled() -> None:
    """Let everything on the loop run that can run now."""
    for _ in range(5):
        await asyncio.sleep(0)


async def computing(doubling: Doubling) -> None:
    """Wait until the thread has begun."""
    while not doubling.runs:
        await asyncio.sleep(0.001)


def test_what_comes_together_is_one_batch_and_is_split_again() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        found = await asyncio.gather(*(ask(batcher, numbers(rows, 3, seed=rows)) for rows in (1, 2, 3)))
        assert doubling.runs == [6]
        assert [(f.rows, f.batch_rows, f.bucket) for f in found] == [(1, 6, 8), (2, 6, 8), (3, 6, 8)]
        assert all(min(f.queue_ms, f.batch_ms, f.compute_ms) >= 0 for f in found)

    run(work())


def test_a_batch_has_no_more_rows_than_it_may_and_keeps_the_order() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        await asyncio.gather(*(ask(batcher, numbers(rows, 3)) for rows in (3, 3, 3, 8, 1, 20, 1)))
        assert doubling.runs == [6, 3, 8, 1, 20, 1]

    run(work())


def test_kinds_are_not_mixed() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        widths = (3, 5, 3, 5)
        await asyncio.gather(*(ask(batcher, numbers(1, width), kind=width) for width in widths))
        assert doubling.runs == [2, 2]

    run(work())


def test_rows_that_depend_on_each_other_are_never_merged() -> None:
    async def work() -> None:
        doubling = Doubling(mergeable=False)
        batcher = batcher_of(doubling)
        await asyncio.gather(*(ask(batcher, numbers(2, 3)) for _ in range(4)))
        assert doubling.runs == [2, 2, 2, 2]

    run(work())


def test_while_a_batch_computes_the_next_one_gathers() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        doubling.gate.clear()
        first = asyncio.create_task(ask(batcher, numbers(1, 3)))
        await computing(doubling)
        others = [asyncio.create_task(ask(batcher, numbers(1, 3))) for _ in range(5)]
        await settled()
        began = time.perf_counter()
        await asyncio.sleep(0.02)
        waited = time.perf_counter() - began
        doubling.gate.set()
        found = await asyncio.gather(first, *others)
        assert doubling.runs == [1, 5]
        assert all(inference.queue_ms >= waited * 1e3 for inference in found[1:])

    run(work())


def test_a_lone_request_does_not_wait() -> None:
    async def work() -> None:
        batcher = batcher_of(Doubling(), delay_s=3600.0)  # longer than ``run`` waits
        with batcher.arriving():
            pass
        await ask(batcher, numbers(1, 3))

    run(work())


def test_a_request_waits_for_those_on_their_way() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, delay_s=3600.0)
        with batcher.arriving():
            first = asyncio.create_task(ask(batcher, numbers(1, 3)))
            await asyncio.sleep(0.05)
            assert doubling.runs == []
        await ask(batcher, numbers(1, 3))
        await first
        assert doubling.runs == [2]

    run(work())


def test_it_waits_no_longer_than_it_may_and_not_for_a_full_batch() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, delay_s=0.05)
        with batcher.arriving():
            inference = await ask(batcher, numbers(1, 3))
            assert inference.batch_ms >= 45
            full = batcher_of(doubling, delay_s=3600.0)
            with full.arriving():
                await ask(full, numbers(8, 3))

    run(work())


def test_of_a_batch_that_fails_only_the_guilty_get_the_error() -> None:
    async def work() -> None:
        doubling = Doubling()
        doubling.error = lambda x: KernelError("no such number") if np.isnan(x).any() else None
        batcher = batcher_of(doubling)
        bad = np.full((1, 3), np.nan, np.float32)
        good = [numbers(1, 3, seed=k) for k in range(3)]
        found = await asyncio.gather(*(ask(batcher, x) for x in [good[0], bad, *good[1:]]), return_exceptions=True)
        assert [type(f) for f in found] == [Inference, Problem, Inference, Inference]
        assert isinstance(found[1], Problem) and (found[1].status, found[1].text) == (500, "no such number")
        assert doubling.runs == [4, 1, 1, 1, 1]
        assert (await ask(batcher, good[0])).rows == 1

    run(work())


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InputError("too wide", hint="make it less wide"), 400, "too wide; make it less wide"),
        (RuntimeError("secret"), 500, INTERNAL),
        (MemoryError(), 500, INTERNAL),
        (SystemExit(3), 500, INTERNAL),
        (StopIteration(), 500, INTERNAL),
    ],
)
def test_whatever_is_raised_becomes_an_answer(error: BaseException, status: int, text: str) -> None:
    async def work() -> None:
        doubling = Doubling()
        doubling.error = lambda _x: error
        batcher = batcher_of(doubling)
        for count in (1, 3):
            asked = [ask(batcher, numbers(1, 3)) for _ in range(count)]
            for found in await asyncio.gather(*asked, return_exceptions=True):
                assert isinstance(found, Problem) and (found.status, found.text) == (status, text)
        await batcher.wait_idle()

    run(work())


def test_what_was_computed_alone_before_the_device_failed_is_answered() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        errors: list[BaseException | None] = [KernelError("together"), None, DeviceError("it fails", usable=True)]
        doubling.error = lambda _x: errors[len(doubling.runs) - 1]
        found = await asyncio.gather(*(ask(batcher, numbers(1, 3)) for _ in range(3)), return_exceptions=True)
        assert [type(f) for f in found] == [Inference, Problem, Problem]
        assert [f.status for f in found if isinstance(f, Problem)] == [503, 503]
        assert doubling.runs == [3, 1, 1]

    run(work())


def test_a_batch_that_the_device_failed_is_not_run_again_and_those_in_the_queue_are_told() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, rows=2)
        lost: list[DeviceError] = []
        batcher._on_lost = lost.append
        doubling.error = lambda _x: DeviceError("the core hangs", hint="for the operator", usable=False)
        doubling.gate.clear()
        asked = [asyncio.create_task(batcher.infer({"x": numbers(1, 3)}, 1, (), 30.0)) for _ in range(7)]
        await computing(doubling)
        doubling.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [(type(f), f.status, f.text) for f in found if isinstance(f, Problem)] == [
            (Problem, 503, "the device failed: the core hangs")
        ] * 7
        assert len({id(problem) for problem in found}) == 7, "an exception is raised for one only"
        assert doubling.runs == [2] and batcher.waiting == 0
        assert [str(error) for error in lost] == ["the core hangs"]
        await batcher.wait_idle()

    run(work())


def test_an_output_without_the_rows_is_our_fault_and_splits_nothing_wrongly() -> None:
    class Summing(Doubling):
        def run(self, feeds: Any) -> dict[str, Array]:
            return {"y": feeds["x"].sum(axis=0, keepdims=True)}

    async def work() -> None:
        batcher = batcher_of(Summing())
        given = [numbers(1, 3, seed=k) for k in range(3)]
        asked = [batcher.infer({"x": x}, 1, (), 9) for x in given]
        for x, inference in zip(given, await asyncio.gather(*asked), strict=True):
            assert np.array_equal(inference.outputs["y"], x)

    run(work())


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, queue=3)
        doubling.gate.clear()
        asked = [asyncio.create_task(ask(batcher, numbers(1, 3)))]
        await computing(doubling)
        asked += [asyncio.create_task(ask(batcher, numbers(1, 3))) for _ in range(3)]
        await settled()
        with pytest.raises(Problem) as caught:
            await ask(batcher, numbers(1, 3))
        assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "1"}
        assert "3 requests wait" in caught.value.text
        doubling.gate.set()
        await asyncio.gather(*asked)
        await ask(batcher, numbers(1, 3))

    run(work())


def test_retry_after_follows_the_pace() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, rows=1)
        first = await ask(batcher, numbers(1, 3))
        assert first.compute_ms / 1e3 <= batcher._pace.batch_s < PATIENCE_S
        batcher._pace.batch_s = 0.5  # the sixth computes, five wait
        doubling.gate.clear()
        asked = [asyncio.create_task(ask(batcher, numbers(1, 3))) for _ in range(6)]
        await settled()
        assert (batcher.waiting, batcher.retry_after()) == (5, 3)
        doubling.gate.set()
        await asyncio.gather(*asked)

    run(work())


def test_a_timeout_drops_the_work_and_a_cancelled_request_frees_its_place() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, queue=2)
        doubling.gate.clear()
        running = asyncio.create_task(ask(batcher, numbers(1, 3)))
        await computing(doubling)
        gone, stays = (asyncio.create_task(ask(batcher, numbers(1, 3))) for _ in range(2))
        await settled()
        assert batcher.waiting == 2
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.waiting == 1
        with pytest.raises(Problem) as caught:
            await ask(batcher, numbers(1, 3), timeout_s=0.02)
        assert caught.value.status == 504 and batcher.waiting == 1
        doubling.gate.set()
        await asyncio.gather(running, stays)
        await batcher.wait_idle()
        assert doubling.runs == [1, 1] and batcher.waiting == 0

    run(work())


def test_who_leaves_while_the_batch_computes_harms_nobody() -> None:
    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling)
        doubling.gate.clear()
        asked = [asyncio.create_task(ask(batcher, numbers(1, 3, seed=k))) for k in range(4)]
        await settled()
        await computing(doubling)
        asked[1].cancel()
        await settled()
        doubling.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(f) for f in found] == [Inference, asyncio.CancelledError, Inference, Inference]

    run(work())


def test_finished_waits_for_queue_and_thread() -> None:
    async def work() -> None:
        doubling = Doubling(seconds=0.01)
        batcher = batcher_of(doubling, rows=2)
        asked = [asyncio.create_task(ask(batcher, numbers(1, 3))) for _ in range(9)]
        await settled()
        await batcher.wait_idle()
        assert sum(doubling.runs) == 9 and batcher.waiting == 0
        await asyncio.gather(*asked)

    run(work())


def test_many_of_all_kinds_at_random_all_end_as_they_must() -> None:
    """No answer lost, none given twice, none of another's rows; and the pending gauge is back at 0."""
    draw = random.Random(9)

    async def one(batcher: Batcher, number: int) -> str:
        await asyncio.sleep(draw.random() * 1.5)
        rows, width = draw.randint(1, 5), draw.choice((2, 3))
        x = numbers(rows, width, seed=number)
        guilty = draw.random() < 0.1
        if guilty:
            x[0, 0] = np.nan
        task = asyncio.create_task(ask(batcher, x, kind=width, timeout_s=draw.choice((0.003, 20))))
        if draw.random() < 0.2:
            await asyncio.sleep(draw.random() * 0.01)
            task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(found, Problem):
            assert found.status in ((500, 504, 429) if guilty else (504, 429))
        else:
            assert isinstance(found, (Inference, asyncio.CancelledError)), found
            assert not (guilty and isinstance(found, Inference))
        return type(found).__name__

    async def work() -> None:
        doubling = Doubling(seconds=0.0005)
        doubling.error = lambda x: RuntimeError("guilty") if np.isnan(x).any() else None
        batcher = batcher_of(doubling, delay_s=0.002, queue=40)
        names = await asyncio.gather(*(one(batcher, number) for number in range(1500)))
        await batcher.wait_idle()
        assert {"Inference", "Problem", "CancelledError"} <= set(names) and names.count("Inference") > 100
        assert batcher.waiting == 0
        page = batcher._all_metrics.render()[0].decode()
        assert 'trnrt_pending_requests{model="doubling",version="1"} 0.0' in page

    run(work())


def test_a_thread_gives_back_what_is_returned_or_raised() -> None:
    async def work() -> None:
        thread = ComputeThread("test")
        assert await thread.call(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        with pytest.raises(RuntimeError, match="SystemExit"):
            await thread.call(lambda: exec("raise SystemExit"))
        go = threading.Event()
        waiting = asyncio.create_task(thread.call(lambda: go.wait(PATIENCE_S)))
        await settled()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        assert await thread.call(lambda: 8) == 8
        thread.stop()

    run(work())
