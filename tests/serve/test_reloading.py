"""While a model's file is loaded anew: whose labels an answer has, and what becomes of attempts that are under way."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from engines import RELU, run, save
from failing import PASSING, Paced, outcome, until
from fake_neuron import Faults, Hardware
from fake_neuron.installing_fake import install, versions

from trnrt.serve.hosting import models
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.settings import ServeSettings


def test_an_answer_has_the_labels_of_the_model_that_computed_it(tmp_path: Path) -> None:
    """A request that was accepted before a changed file was loaded is answered by the old model, and told as such."""
    row: dict[str, Any] = {"instances": [[1, 2, 3, 9]]}

    async def work() -> None:
        path = save(tmp_path, "scores", RELU, labels='["old-a", "old-b", "old-c", "old-d"]')
        settings = ServeSettings(models=[path], backend="simulator", max_batch=2, admin=True)
        repository = Repository(settings, Metrics())
        await repository.start()
        model = repository.find("scores")
        assert isinstance(model, ServedModel) and model._engine is not None
        old, began, go = model._engine, threading.Event(), threading.Event()
        real = old.loaded.run

        def slow(feeds: Any) -> Any:
            began.set()
            assert go.wait(60)
            return real(feeds)

        old.loaded.run = slow  # type: ignore[method-assign]
        transport = httpx.ASGITransport(make_app(repository))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            asking = asyncio.create_task(client.post("/predict", json=row))
            await asyncio.to_thread(began.wait, 60)
            save(tmp_path, "scores", RELU.replace("Relu", "Neg"), labels='["new-e", "new-f", "new-g", "new-h"]')
            loading = asyncio.create_task(client.post("/v2/repository/models/scores/load"))
            await until(lambda: model._engine is not old)
            go.set()
            assert "old-d" in (await asking).text
            assert (await loading).status_code == 200
            assert "new-e" in (await client.post("/predict", json=row)).text

    run(work())


def test_a_load_that_is_asked_for_does_not_end_the_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails with an answer that is wrong, as an attempt of the recovery may, too: that goes on."""
    machine, paced = Hardware(), Paced()
    install(monkeypatch, tmp_path, machine, versions())
    monkeypatch.setattr(models, "BACKOFF", paced)

    async def work() -> None:
        settings = ServeSettings(models=[save(tmp_path, "relu", RELU)], backend="neuron", max_batch=2)
        repository = Repository(settings, Metrics())
        await repository.start()
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await outcome(model)
        assert model.state == "recovering"
        machine.faults = Faults(wrong=True)
        assert "golden" in str(await model.load())
        assert model.state == "recovering"
        machine.faults = Faults()
        paced.go.release()
        await until(lambda: model.state == "ready")
        assert await outcome(model) == "right"

    run(work())
