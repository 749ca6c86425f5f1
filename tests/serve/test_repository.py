"""The models of a server: their names, one that fails among others, loading, unloading and draining."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import RELU, numbers, run, save

from trnrt.errors import ModelFileError, OptionError
from trnrt.serve.hosting.catalog import Change, Pinned
from trnrt.serve.hosting.changes import Action
from trnrt.serve.hosting.files import find_sources
from trnrt.serve.hosting.loading import LoadedModel
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.pins import Store
from trnrt.serve.hosting.policies import chosen_sources, pin_sources
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings
from trnrt.session import InferenceSession
from trnrt.validate.bundling import check_bundle, write_bundle


def repository_of(*models: Path, **settings: Any) -> Repository:
    return Repository(ServeSettings(models=list(models), **settings), Metrics())


def states(repository: Repository) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in repository.index()}


def test_names_are_the_files_stems_and_a_folder_adds_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("b", "a"):
        save(folder, name, RELU)
    (folder / "notes.txt").write_text("no model")
    first = save(tmp_path, "z", RELU)
    files = find_sources(ServeSettings(models=[first, folder / "a.onnx"], model_dir=folder))
    assert list(files) == ["z", "a", "b"]


def test_two_of_one_name_none_at_all_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    twins = [save(tmp_path, "relu", RELU), save(tmp_path / "other", "relu", RELU)]
    with pytest.raises(OptionError, match="two models are called 'relu'"):
        find_sources(ServeSettings(models=twins))
    with pytest.raises(OptionError, match="no models to serve"):
        find_sources(ServeSettings())
    with pytest.raises(ModelFileError, match="no such file"):
        find_sources(ServeSettings(models=[tmp_path / "none.onnx"]))
    with pytest.raises(OptionError, match="--model-dir"):
        find_sources(ServeSettings(model_dir=tmp_path / "none"))


def test_one_that_does_not_load_does_not_take_the_others_down(tmp_path: Path) -> None:
    async def work() -> None:
        broken = tmp_path / "broken.onnx"
        broken.write_bytes(b"nonsense")
        repository = repository_of(broken, save(tmp_path, "relu", RELU))
        assert not repository.ready and set(repository.reasons) == {"broken", "relu"}
        await repository.start()
        assert states(repository) == {"broken": "UNAVAILABLE", "relu": "READY"}
        assert not repository.ready and list(repository.reasons) == ["broken"]
        await repository.find("relu").infer({"x": numbers(1, 4)})
        with pytest.raises(Problem) as caught:
            await repository.act_on_all("load", "broken")
        assert caught.value.status == 400 and repository.reasons["broken"] in caught.value.text

    run(work())


def test_a_change_goes_on_without_its_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client over gRPC may go, or set a deadline, while its model loads: half a change would never be undone."""

    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        repository = repository_of(path, max_batch=1)
        await repository.start()
        model = repository.find("relu")
        digest, real, preparing = model.digest, ServedModel.prepare, asyncio.Event()

        async def prepare(served: ServedModel, pinned: Pinned) -> str | None:
            preparing.set()
            return await real(served, pinned)

        monkeypatch.setattr(ServedModel, "prepare", prepare)
        save(tmp_path, "relu", RELU.replace("Relu", "Neg"))
        loading = asyncio.create_task(repository.act_on_all("load", "relu"))
        await preparing.wait()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        await repository.act_on_all("load", "relu")
        assert model.digest != digest and model.digest == repository.catalog.pinned["relu"].digest
        assert repository._store is not None
        copies = [one for one in repository._store.folder.iterdir() if one.is_dir()]
        assert copies == [repository.catalog.pinned["relu"].folder], "no other copy is left"

    run(work())


def test_a_model_that_can_not_be_released_is_gone_nevertheless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would stay unready for good."""

    async def work() -> None:
        repository = repository_of(save(tmp_path, "relu", RELU), save(tmp_path, "other", RELU), max_batch=1)
        await repository.start()

        def fail(loaded: LoadedModel) -> None:
            raise RuntimeError("the device does not let go")

        monkeypatch.setattr(LoadedModel, "close", fail)
        await repository.act_on_all("unload", "relu")
        assert states(repository) == {"relu": "UNAVAILABLE", "other": "READY"} and repository.ready

    run(work())


def test_a_name_that_is_not_there_is_404(tmp_path: Path) -> None:
    async def work() -> None:
        repository = repository_of(save(tmp_path, "relu", RELU), model_dir=tmp_path)
        for name in ("none", "../relu", "relu.onnx", ""):
            with pytest.raises(Problem) as caught:
                repository.find(name)
            assert caught.value.status == 404
            action: Action
            for action in ("load", "unload"):
                with pytest.raises(Problem) as caught:
                    await repository.act_on_all(action, name)
                assert caught.value.status == 404
        assert list(repository.models) == ["relu"]

    run(work())


def test_unloading_and_loading_again(tmp_path: Path) -> None:
    async def work() -> None:
        repository = repository_of(save(tmp_path, "relu", RELU), save(tmp_path, "other", RELU))
        await repository.start()
        assert repository.ready
        await repository.act_on_all("unload", "relu")
        assert states(repository) == {"relu": "UNAVAILABLE", "other": "READY"}
        assert repository.ready, "what an operator took away is not missing"
        await repository.act_on_all("unload", "relu")
        await repository.act_on_all("load", "relu")
        assert states(repository) == {"relu": "READY", "other": "READY"}
        x = numbers(2, 4)
        assert np.array_equal((await repository.find("relu").infer({"x": x})).outputs["y"], np.maximum(x, 0))

    run(work())


def test_what_is_put_into_the_folder_later_can_be_loaded(tmp_path: Path) -> None:
    async def work() -> None:
        save(tmp_path, "first", RELU)
        repository = repository_of(model_dir=tmp_path)
        await repository.start()
        save(tmp_path, "second", RELU)
        await repository.act_on_all("load", "second")
        assert states(repository) == {"first": "READY", "second": "READY"}

    run(work())


def test_a_load_that_hangs_does_not_keep_the_others_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        repository = repository_of(save(tmp_path, "hangs", RELU), save(tmp_path, "relu", RELU))
        free = asyncio.Event()

        async def hang() -> str | None:
            await free.wait()
            return "the device did not answer"

        monkeypatch.setattr(repository.find("hangs"), "load", hang)
        monkeypatch.setattr("trnrt.serve.hosting.repository.PATIENCE_S", 0.01)
        starting = asyncio.create_task(repository.start())
        while states(repository)["relu"] != "READY":
            await asyncio.sleep(0.01)
        assert states(repository)["hangs"] == "LOADING" and not starting.done() and not repository.ready
        free.set()
        await starting

    run(work())


def test_a_bundle_is_served_without_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        session = InferenceSession(save(tmp_path, "relu", RELU), cache_dir=tmp_path / "cache", backend="simulator")
        check_bundle(write_bundle(session, tmp_path / "folder" / "bundle", (1, 2, 4)))
        ran: list[int] = []
        run_once = InferenceSession.run

        def count(one: InferenceSession, names: Any, feeds: Any) -> Any:
            ran.append(len(feeds["x"]))
            return run_once(one, names, feeds)

        monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", lambda *_: pytest.fail("it was planned"))
        monkeypatch.setattr("trnrt.running.reference.open_model", lambda *_: pytest.fail("onnxruntime ran"))
        monkeypatch.setattr(InferenceSession, "run", count)
        for settings in ({"model_dir": tmp_path / "folder"}, {"models": [tmp_path / "folder" / "bundle"]}):
            repository = Repository(ServeSettings(**settings), Metrics())
            ran.clear()
            await repository.start()
            assert states(repository) == {"relu": "READY"}, repository.reasons
            assert set(ran) == {1}, "the first bucket alone"
            model = repository.find("relu")
            assert model.described.buckets == (1, 2, 4) and set(model.described.predictions) == {1, 2, 4}
            assert np.array_equal((await model.infer({"x": numbers(3, 4)})).outputs["y"], np.maximum(numbers(3, 4), 0))
        contradicting = Repository(ServeSettings(model_dir=tmp_path / "folder", dtype="bfloat16"), Metrics())
        await contradicting.start()
        assert "compiled with dtype 'float32'" in contradicting.reasons["relu"]
        for wrong, told in (
            ({"buckets": [1, 8]}, "compiled with buckets (1, 2, 4), not [1, 8]"),
            ({"max_batch": 2}, "compiled for 4 rows at most, not for max_batch = 2"),
            ({"model": {"relu": {"max_batch": 8}}}, "compiled for 4 rows at most, not for max_batch = 8"),
        ):
            contradicting = Repository(ServeSettings(model_dir=tmp_path / "folder", **wrong), Metrics())
            await contradicting.start()
            assert told in contradicting.reasons["relu"]
        fitting = Repository(ServeSettings(model_dir=tmp_path / "folder", max_batch=4), Metrics())
        await fitting.start()
        assert fitting.ready

    run(work())


def test_a_bundle_of_another_version_is_named_as_the_user_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not by the copy that is served."""
    told: list[str] = []

    async def work() -> None:
        session = InferenceSession(save(tmp_path, "relu", RELU), cache_dir=tmp_path / "cache", backend="simulator")
        bundle = tmp_path / "bundle"
        check_bundle(write_bundle(session, bundle, (1,)))
        for room in ("trnrt.cache.plans", "trnrt.running.bundles"):
            monkeypatch.setattr(f"{room}.code_version", lambda _rooms: "0.0.1+other")
        monkeypatch.setattr("trnrt.serve.hosting.loading.log", lambda _level, event, **how: told.append(how["bundle"]))
        repository = Repository(ServeSettings(models=[bundle]), Metrics())
        await repository.start()
        assert repository.ready, repository.reasons
        assert told == [str(bundle)] and str(repository.models["relu"].path) != str(bundle)  # type: ignore[attr-defined]

    run(work())


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="is a folder, and no bundle"):
        find_sources(ServeSettings(models=[tmp_path]))


def test_what_was_unloaded_while_the_server_started_stays_so(tmp_path: Path) -> None:
    async def work() -> None:
        repository = repository_of(save(tmp_path, "relu", RELU), save(tmp_path, "other", RELU))
        starting = asyncio.create_task(repository.start())
        await asyncio.sleep(0)
        await repository.act_on_all("unload", "other")
        await starting
        assert states(repository) == {"relu": "READY", "other": "UNAVAILABLE"}

    run(work())


def test_with_other_workers_actions_go_to_all(tmp_path: Path) -> None:
    async def work() -> None:
        told: list[Change] = []

        async def broadcast(change: Change) -> str | None:
            told.append(change)
            return "no room" if change.load else None

        settings = ServeSettings(models=[save(tmp_path, "relu", RELU)])
        store = Store.make()
        catalog = pin_sources(*chosen_sources(settings), store)
        catalog = replace(catalog, unloaded=frozenset({"relu"}))
        repository = Repository(settings, Metrics(), catalog=catalog, store=store)
        repository.broadcast = broadcast
        await repository.start()
        assert states(repository) == {"relu": "UNAVAILABLE"}
        await repository.act_on_all("unload", "relu")
        with pytest.raises(Problem, match="no room"):
            await repository.act_on_all("load", "relu")
        assert [change.unload for change in told] == [("relu",), ()]
        assert [[one.key for one in change.load] for change in told] == [[], ["relu"]]

    run(work())


def test_draining_finishes_what_is_queued(tmp_path: Path) -> None:
    async def work() -> None:
        repository = repository_of(save(tmp_path, "relu", RELU), max_batch=1)
        await repository.start()
        model = repository.find("relu")
        asked = [asyncio.create_task(model.infer({"x": numbers(1, 4)})) for _ in range(10)]
        await asyncio.sleep(0)
        await repository.drain()
        assert not repository.ready and repository.draining
        assert len(await asyncio.gather(*asked)) == 10

    run(work())
