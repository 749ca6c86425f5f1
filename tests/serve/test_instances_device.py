"""Instances on NeuronCores: each has cores of its own, and one whose core fails leaves the others working.

On the fake SDK; pauses end when a test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commanding import trnrt
from engines import RELU, run, save
from failing import PASSING, Paced, outcome, paused, state, until
from fake_neuron import Hardware
from fake_neuron.installing_fake import fake_machine

from trnrt.backends.choosing import choose
from trnrt.errors import BackendError
from trnrt.neuron.cores import VISIBLE
from trnrt.neuron.routes.trace import Traced
from trnrt.serve.hosting import devices, models
from trnrt.serve.hosting.devices import check_device, lease_for
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.reloading import Reloader
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings, read_settings


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Paced:
    made = Paced()
    monkeypatch.setattr(models, "BACKOFF", made)
    return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance with eight cores."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    with fake_machine(monkeypatch, tmp_path) as hardware:
        yield hardware


def settings_of(tmp_path: Path, text: str, *names: str) -> ServeSettings:
    """Settings of a file, for models that clip at 0."""
    file = tmp_path / "server.toml"
    file.write_text(f'backend = "neuron"\nbuckets = [1, 2]\n{text}', encoding="utf-8")
    return read_settings({"config": file, "models": [save(tmp_path, name, RELU) for name in names or ("relu",)]})


def model_in(repository: Repository, name: str = "relu") -> ServedModel:
    model = repository.models[name]
    assert isinstance(model, ServedModel) and model._engine is not None
    return model


def cores_of(model: ServedModel, number: int) -> set[int]:
    """The cores on which an instance's programs are loaded."""
    assert model._engine is not None
    programs = model._engine.instances[number].loaded.session._programs.loaded.values()
    kernels: list[Any] = [plan.kernel for program in programs for plan in program.plans]
    return {copy._core for kernel in kernels for copy in kernel._copies}


def test_each_instance_has_cores_of_its_own(tmp_path: Path, machine: Hardware) -> None:
    settings = settings_of(tmp_path, "cores = 2\n[model.relu]\ninstances = 3\n", "relu", "other")
    lease = lease_for(settings)
    assert lease is not None and lease.cores == (0, 1, 2, 3, 4, 5)

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        assert repository.ready, repository.reasons
        relu, other = model_in(repository), model_in(repository, "other")
        assert [cores_of(relu, k) for k in range(3)] == [{0, 1}, {2, 3}, {4, 5}]
        assert cores_of(other, 0) == {0, 1}
        assert await outcome(relu) == await outcome(other) == "right"

    run(work())


def test_more_than_there_are_is_refused_at_the_start(
    tmp_path: Path, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    relu = save(tmp_path, "relu", RELU)
    for arguments, told in (
        (["--instances", "9"], "9 instances with --workers 1 with --cores 1 needs 9 NeuronCores, and there are 8"),
        (["--instances", "3", "--workers", "3"], "needs 9 NeuronCores, and there are 8"),
        (["--instances", "2", "--cores", "5"], "needs 10 NeuronCores, and there are 8"),
        (["--instances", "3", "--lnc", "2", "--cores", "2"], "needs 6 NeuronCores, and there are 4"),
    ):
        found = trnrt("serve", relu, "--backend", "neuron", *arguments)
        assert (found.code, found.out) == (2, "") and told in found.err and "hint: ask for fewer" in found.err
    config = tmp_path / "server.toml"
    config.write_text("[model.relu]\ninstances = 9\n", encoding="utf-8")
    assert "9 instances with" in trnrt("serve", relu, "--backend", "neuron", "--config", config).err
    monkeypatch.setenv(VISIBLE, "2-3")
    assert "3 instances with" in trnrt("serve", relu, "--backend", "neuron", "--instances", "3").err
    assert machine.visible is None, "the runtime was not started"


def test_a_route_of_one_core_has_one_instance(
    tmp_path: Path, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(*arguments: Any) -> Any:
        choice: Any = choose(*arguments)
        monkeypatch.setattr(choice.backend.route, "most_cores", 1)
        return choice

    monkeypatch.setattr(devices, "choose", chosen)
    check_device(settings_of(tmp_path, ""))
    with pytest.raises(BackendError, match="2 instances: a process uses 1 NeuronCore by the route trace") as caught:
        check_device(settings_of(tmp_path, "instances = 2\n"))
    assert "--workers" in str(caught.value.hint)


def test_a_reload_that_needs_more_cores_than_the_worker_has_is_refused(tmp_path: Path, machine: Hardware) -> None:
    settings = settings_of(tmp_path, "instances = 2\n")
    lease_for(settings)

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        reloader, model = Reloader(repository), model_in(repository)
        for count, kept in ((3, 2), (1, 1), (2, 2), (4, 2)):
            settings_of(tmp_path, f"[model.relu]\ninstances = {count}\n")
            await reloader.reload()
            assert model._engine is not None and len(model._engine.instances) == kept
            assert repository.settings.for_model("relu").instances == kept and repository.ready
            assert await outcome(model) == "right"
        reason = await model._try_load(model.pinned)
        assert not isinstance(reason, str)
        await reason.engine.close()
        model._settings = repository.settings.model_copy(update={"instances": 3, "model": {}})
        told = await model.load()
        assert told is not None and "instances = 3 with --cores 1 needs 3 NeuronCores" in told
        assert "restart the server" in told and await outcome(model) == "right"

    run(work())


def test_an_instance_that_fails_is_loaded_again_while_the_others_answer(
    tmp_path: Path, machine: Hardware, paced: Paced, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, "instances = 2\nbatching = false\n")
    lease_for(settings)
    run_on_device, failing = Traced.run, [0]

    def sometimes(*arguments: Any) -> Any:
        if failing[0]:
            failing[0] -= 1
            raise RuntimeError(PASSING)
        return run_on_device(*arguments)

    monkeypatch.setattr(Traced, "run", sometimes)

    async def work() -> None:
        metrics = Metrics()
        repository = Repository(settings, metrics)
        await repository.start()
        model = model_in(repository)
        engine = model._engine

        def shown(state: str) -> float:
            start = f'trnrt_model_instances{{model="relu",state="{state}",version="1"}}'
            page = metrics.render()[0].decode().splitlines()
            return next(float(line.rsplit(" ", 1)[1]) for line in page if line.startswith(start))

        failing[0] = 1
        problem = await outcome(model)
        assert isinstance(problem, Problem) and problem.status == 503
        await paused(paced, 1)
        assert state(model) == "ready" and repository.ready and model._engine is engine
        assert model.reason is not None and model.reason.startswith("1 of 2 instances: ")
        assert "after 1 s, attempt 1" in model.reason
        assert (shown("serving"), shown("lost")) == (1, 1)
        assert [await outcome(model, seed) for seed in range(6)] == ["right"] * 6
        paced.go.release()
        await until(lambda: model._engine is not engine)
        assert repository.index()[0]["reason"] == "" and await outcome(model) == "right"
        assert (shown("serving"), shown("lost")) == (2, 0)
        # Both fail, the second one while the first one's pause lasts: then nobody answers, and one attempt follows.
        failing[0] = 2
        assert isinstance(await outcome(model), Problem) and isinstance(await outcome(model), Problem)
        assert state(model) == "recovering" and len(paced.pauses) == 2
        paced.go.release()
        await until(lambda: state(model) == "ready")
        assert await asyncio.gather(*(outcome(model, seed) for seed in range(4))) == ["right"] * 4
        assert shown("serving") == 2 and len(paced.pauses) == 2

    run(work())


def test_a_bundle_with_compiled_programs_needs_no_compiler(
    tmp_path: Path, machine: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where --compiled names it; a model without programs is refused still."""
    bundle = tmp_path / "models" / "relu"
    relu = save(tmp_path, "relu", RELU)
    assert trnrt("compile", relu, "-o", bundle, "--backend", "neuron", "--buckets", "1,2").code == 0
    asked: list[Any] = []

    def noting(name: str, target: Any, options: Any) -> Any:
        asked.append(options.compiled)
        return choose(name, target, options)

    monkeypatch.setattr(devices, "choose", noting)
    folder = tmp_path / "folder"
    folder.mkdir()
    for given, compiled in (
        ({"models": [bundle]}, bundle),
        ({"model_dir": tmp_path / "models"}, bundle),
        ({"models": [relu]}, None),
        ({"models": [relu], "model_dir": folder}, None),
        ({"models": [save(tmp_path, "other", RELU), bundle]}, None),
        ({"models": [bundle], "compiled": folder}, folder),
    ):
        check_device(ServeSettings(backend="neuron", **given))
        assert asked.pop() == compiled
