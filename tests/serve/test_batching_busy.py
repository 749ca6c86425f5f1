"""A batch that is whole does not wait for a loop that is busy with something else."""

from __future__ import annotations

import asyncio
import time

import numpy as np
from engines import PATIENCE_S, Doubling, batcher_of, numbers, run

from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.http.problems import Problem


async def _begun(doubling: Doubling) -> None:
    while not doubling.runs:
        await asyncio.sleep(0.001)


def test_the_thread_goes_on_with_whole_batches_while_the_loop_is_busy() -> None:
    async def work() -> None:
        doubling = Doubling(seconds=0.001)
        batcher = batcher_of(doubling, rows=2)
        doubling.gate.clear()
        rows = [numbers(1, 3, seed=number) for number in range(9)]
        asked = [asyncio.create_task(batcher.infer({"x": row}, 1, (), 30.0)) for row in rows]
        await _begun(doubling)
        doubling.gate.set()
        deadline = time.monotonic() + PATIENCE_S
        while len(doubling.runs) < 4 and time.monotonic() < deadline:
            time.sleep(0.001)  # the loop does nothing else meanwhile
        time.sleep(0.05)
        assert doubling.runs == [2, 2, 2, 2]  # the ninth is no whole batch: that is for the loop to decide
        for row, inference in zip(rows, await asyncio.gather(*asked), strict=True):
            assert np.array_equal(inference.outputs["y"], row * 2)
        assert doubling.runs == [2, 2, 2, 2, 1]
        await asyncio.wait_for(batcher.wait_idle(), PATIENCE_S)

    run(work())


def test_a_queue_that_two_threads_take_from_loses_nothing() -> None:
    """More than it holds, cancelled and refused, while the thread takes batch after batch: each has its own answer."""

    async def ask(batcher: Batcher, number: int) -> str:
        row = numbers(1, 3, seed=number)
        try:
            inference = await asyncio.wait_for(
                batcher.infer({"x": row}, 1, (), 30.0), 0.0005 if number % 5 == 0 else 30
            )
        except Problem as problem:
            assert problem.status == 429 and int(problem.headers["Retry-After"]) >= 1
            return "refused"
        except TimeoutError:
            return "cancelled"
        assert np.array_equal(inference.outputs["y"], row * 2)
        return "answered"

    async def work() -> None:
        batcher = batcher_of(Doubling(), rows=4, queue=24)
        outcomes: list[str] = []
        for start in range(40):
            outcomes += await asyncio.gather(*(ask(batcher, 32 * start + number) for number in range(32)))
        assert {outcomes.count(name) > 0 for name in ("answered", "refused", "cancelled")} == {True}
        await asyncio.wait_for(batcher.wait_idle(), PATIENCE_S)
        assert batcher.waiting == 0

    run(work())
