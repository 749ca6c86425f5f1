"""Models whose device fails: pauses that a test ends, and what becomes of requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from engines import numbers

from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.recovering import Backoff
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.problems import Problem

PASSING = "NRT_FAILURE(1): something failed"
LASTING = "NRT_EXEC_UNIT_UNRECOVERABLE(101)"


@dataclass(frozen=True)
class Paced(Backoff):
    """Pauses that end when a test lets them: ``go`` has a place for each."""

    pauses: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=lambda: [1000.0])
    go: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    def now(self) -> float:
        """As late as the pauses that passed make it."""
        return self.clock[0]

    async def wait(self, seconds: float) -> None:
        """Until ``go``."""
        self.pauses.append(seconds)
        await self.go.acquire()
        self.clock[0] += seconds


def state(model: Model) -> str:
    """Its state now; mypy would believe that it stays."""
    return model.state


async def until(condition: Callable[[], object]) -> None:
    """Wait until it holds; the test's own limit ends that."""
    while not condition():
        await asyncio.sleep(0.002)


async def paused(paced: Paced, count: int) -> None:
    """Wait until so many pauses have begun."""
    await until(lambda: len(paced.pauses) == count)


async def outcome(model: Model, seed: int = 0) -> Problem | str:
    """What became of a request: ``right``, or what its client is told; never a wrong answer."""
    x = numbers(1, 4, seed=seed)
    try:
        inference: Inference = await model.infer({"x": x}, timeout_s=50)
    except Problem as problem:
        return problem
    assert np.array_equal(inference.outputs["y"], np.maximum(x, 0))
    return "right"


async def refused(model: Model, count: int = 1) -> list[str]:
    """The texts of so many requests at the same time, which all get 503 and when to come back."""
    found = await asyncio.gather(*(outcome(model, seed) for seed in range(count)))
    problems = [one for one in found if isinstance(one, Problem)]
    assert len(problems) == count and {problem.status for problem in problems} == {503}
    assert all(int(problem.headers["Retry-After"]) >= 1 for problem in problems)
    return [problem.text for problem in problems]
