"""A model whose batch takes longer than anybody waits: what probes are told, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path

import httpx
import numpy as np
import pytest
from engines import PATIENCE_S, RELU, Array, Doubling, batcher_of, numbers, run, save
from failing import until

from trnrt.serve.hosting.loading import LoadedModel
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings

TIMEOUT_S = 3.0
"""Long enough for a request to begin on a busy machine."""


class Blocked:
    """Batches that begin and do not end before ``go``."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.go, self.runs, self.closed = threading.Event(), list[int](), threading.Event()
        self._run, self._close = loaded.run, loaded.close
        loaded.run = self.run  # type: ignore[method-assign]
        loaded.close = self.close  # type: ignore[method-assign]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """As the model's, later."""
        self.runs.append(len(feeds["x"]))
        assert self.go.wait(PATIENCE_S), "nobody let it go"
        return self._run(feeds)

    def close(self) -> None:
        """As the model's."""
        self._close()
        self.closed.set()


async def started(tmp_path: Path, timeout_s: float) -> tuple[Repository, ServedModel, Blocked]:
    """A server's models: one that is blocked, and another one."""
    files = [save(tmp_path, name, RELU) for name in ("relu", "other")]
    settings = ServeSettings(models=files, backend="simulator", max_batch=2, request_timeout=timeout_s, admin=True)
    repository = Repository(settings, Metrics())
    await repository.start()
    model = repository.find("relu")
    assert isinstance(model, ServedModel) and model._engine is not None
    return repository, model, Blocked(model._engine.loaded)


async def abandon(model: ServedModel, blocked: Blocked) -> None:
    """A request whose client goes while its first slice computes."""
    asking = asyncio.create_task(model.infer({"x": numbers(7, 4)}))
    await until(lambda: blocked.runs)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_probes_know_of_a_batch_that_takes_too_long(tmp_path: Path) -> None:
    async def work() -> None:
        repository, model, blocked = await started(tmp_path, timeout_s=TIMEOUT_S)
        transport = httpx.ASGITransport(make_app(repository))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def get(path: str) -> tuple[int, str]:
                response = await client.get(path)
                return response.status_code, response.text

            assert (await get("/v2/health/ready"))[0] == 200
            body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
            assert (await client.post("/v2/models/relu/infer", json=body)).status_code == 504
            await until(lambda: model.busy)
            status, text = await get("/v2/health/ready")
            assert status == 503 and "'relu' is busy: one batch computes since" in text and "other" not in text
            status, text = await get("/v2/models/relu/ready")
            assert status == 503 and "model 'relu' is not ready, but busy: one batch computes since" in text
            assert repository.reasons == {"relu": model.busy}
            assert (await get("/v2/health/live"))[0] == (await get("/v2/models/other/ready"))[0] == 200
            assert (await client.post("/v2/models/other/infer", json=body)).status_code == 200
            blocked.go.set()
            await until(lambda: not model.busy)
            assert (await get("/v2/health/ready"))[0] == (await get("/v2/models/relu/ready"))[0] == 200
            assert (await client.post("/v2/models/relu/infer", json=body)).status_code == 200

    run(work())


def test_a_slow_batch_within_the_timeout_is_no_reason(tmp_path: Path) -> None:
    async def work() -> None:
        repository, model, blocked = await started(tmp_path, timeout_s=PATIENCE_S)
        asking = [asyncio.create_task(model.infer({"x": numbers(1, 4)})) for _ in range(6)]
        await until(lambda: blocked.runs)
        await asyncio.sleep(0.05)
        assert model._engine is not None and model._engine.batcher.stuck_s >= 0.04
        assert repository.ready and model.busy is None
        blocked.go.set()
        await asyncio.gather(*asking)
        assert model._engine.batcher.stuck_s == 0

    run(work())


def test_a_request_that_waits_too_long_is_a_reason() -> None:
    """For a thread that does not even begin."""

    async def work() -> None:
        doubling = Doubling()
        batcher = batcher_of(doubling, delay_s=PATIENCE_S)
        with batcher.arriving():
            asking = asyncio.create_task(batcher.infer({"x": numbers(1, 3)}, 1, (), PATIENCE_S))
            await until(lambda: batcher.stuck_s > 0.02)
            assert doubling.runs == []
        await asking
        assert batcher.stuck_s == 0

    run(work())


def test_a_shutdown_does_not_wait_for_work_that_was_dropped(tmp_path: Path) -> None:
    async def work() -> None:
        repository, model, blocked = await started(tmp_path, timeout_s=PATIENCE_S)
        last = asyncio.create_task(model.infer({"x": numbers(7, 4)}, timeout_s=TIMEOUT_S))
        await until(lambda: blocked.runs)
        await repository.drain()
        assert last.done(), "it waits for every answer, also for a 504"
        with pytest.raises(Problem) as caught:
            await last
        assert caught.value.status == 504 and blocked.runs == [2]
        blocked.go.set()

    run(work())


@pytest.mark.parametrize("action", ["unload", "reload"])
def test_nobody_waits_to_release_a_model_that_computes_for_nobody(action: str, tmp_path: Path) -> None:
    async def work() -> None:
        repository, model, blocked = await started(tmp_path, timeout_s=PATIENCE_S)
        assert model._engine is not None
        thread = model._engine.instances[0].thread._thread
        await abandon(model, blocked)
        if action == "unload":
            await repository.act_on_all("unload", "relu")
            assert model.state == "unloaded"
        await repository.act_on_all("load", "relu")
        x = numbers(3, 4)
        assert np.array_equal((await repository.find("relu").infer({"x": x})).outputs["y"], np.maximum(x, 0))
        assert not blocked.closed.is_set() and repository.ready
        blocked.go.set()
        await until(blocked.closed.is_set)
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not thread.is_alive() and blocked.runs == [2], "the rest of its rows was not computed"

    run(work())


def test_a_model_without_work_is_released_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        repository, model, blocked = await started(tmp_path, timeout_s=PATIENCE_S)
        blocked.go.set()
        await model.infer({"x": numbers(3, 4)})
        await repository.act_on_all("unload", "relu")
        assert blocked.closed.is_set()

    run(work())
