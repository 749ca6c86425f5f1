"""The two tiers of the Ray application without Ray: what a front asks again, and how a replica makes its batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import NO_BATCH, RELU, VARYING, numbers, run, save

pytest.importorskip("ray")

import ray_quietly  # noqa: F401 - before whatever else imports it
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
from ray.serve.exceptions import BackPressureError

from trnrt.errors import BackendError, DeviceError, OptionError
from trnrt.predict import clusters
from trnrt.serve import ray_app
from trnrt.serve.hosting.batching import Inference, Member
from trnrt.serve.hosting.contents import digest_of
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.http.problems import Problem
from trnrt.serve.ray import models as ray_models
from trnrt.serve.ray import replica as ray_replica
from trnrt.serve.ray import running as ray_running
from trnrt.serve.ray.front import _Pages
from trnrt.serve.ray.messages import Ask, Share
from trnrt.serve.ray.models import ATTEMPTS, RayModel
from trnrt.serve.ray.replica import ModelReplica
from trnrt.serve.ray_app import RaySettings, application
from trnrt.serve.settings import ServeSettings, read_settings

RAY = {"engine": "ray", "max_batch": 4, "max_delay_ms": 0.0}


class Ended(BaseException):
    """In the place of the end of a process."""


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica without Ray: its id is made up, there is no log, and its end is an exception."""

    def ended(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(ray_replica, "own_replica", lambda: "made up")
    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setattr(ray_replica, "start_logging", lambda *_, **__: type("Log", (), {"flush": lambda _: None})())
    monkeypatch.setattr(ray_models, "PAUSE_S", 0.0)


def share_of(path: Path, **settings: Any) -> Share:
    return Share(path.stem, (path,), digest_of(path), ServeSettings(**{**RAY, **settings}))


async def replica_of(path: Path, **settings: Any) -> ModelReplica:
    """A replica whose batcher makes one batch of what comes while the loop goes round once."""
    replica = object.__new__(ModelReplica)
    await ModelReplica.__init__(replica, share_of(path, **settings))
    replica._batched = gathering(replica)
    return replica


def gathering(replica: ModelReplica) -> Callable[[Any], Any]:
    """What Ray's batcher does, in short: it needs Ray to run."""
    waiting: list[tuple[Any, asyncio.Future[Any]]] = []

    async def compute() -> None:
        await asyncio.sleep(0)
        batch, waiting[:] = list(waiting), []
        for (_, answer), outcome in zip(batch, await replica._compute_batches([m for m, _ in batch]), strict=True):
            answer.set_result(outcome)

    async def batched(member: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        waiting.append((member, answer))
        if len(waiting) == 1:
            tasks.append(asyncio.create_task(compute()))
        return await answer

    tasks: list[asyncio.Task[None]] = []
    return batched


def ask(replica: ModelReplica, x: np.ndarray, version: str | None = None) -> Any:
    return replica.infer(Ask({"x": x}, replica._described.digest if version is None else version, "", {}))


def test_what_comes_together_is_one_batch_of_each_kind(tmp_path: Path) -> None:
    async def work() -> None:
        replica = await replica_of(save(tmp_path, "varying", VARYING), shape=["x=5"])
        pieces = [numbers(1, 5), numbers(1, 6), numbers(2, 5, seed=1), numbers(1, 6, seed=2)]
        found = await asyncio.gather(*(ask(replica, piece) for piece in pieces))
        for piece, answer in zip(pieces, found, strict=True):
            assert np.array_equal(answer.outputs["y"], np.maximum(piece, 0))
        assert [answer.batch_rows for answer in found] == [3, 2, 3, 2]
        assert [answer.bucket for answer in found] == [4, 2, 4, 2]

    run(work())


def test_different_lengths_share_a_batch(tmp_path: Path) -> None:
    async def work() -> None:
        replica = await replica_of(save(tmp_path, "varying", VARYING), lengths=[4, 8])
        pieces = [numbers(1, 5), numbers(1, 7), numbers(1, 3)]
        found = await asyncio.gather(*(ask(replica, piece) for piece in pieces))
        for piece, answer in zip(pieces, found, strict=True):
            assert np.array_equal(answer.outputs["y"], np.maximum(piece, 0))
        lengths = [(answer.batch_rows, answer.length, answer.length_bucket) for answer in found]
        assert lengths == [(2, 5, 8), (2, 7, 8), (1, 3, 4)]
        refused = await ask(replica, numbers(1, 9))
        assert isinstance(refused, Problem) and refused.status == 400 and "the largest" in refused.text

    run(work())


def test_more_rows_than_a_batch_has_and_a_model_without_rows_run_alone(tmp_path: Path) -> None:
    async def work() -> None:
        replica = await replica_of(save(tmp_path, "relu", RELU))
        found = await asyncio.gather(*(ask(replica, numbers(rows, 4)) for rows in (9, 1, 4)))
        assert [answer.batch_rows for answer in found] == [9, 1, 4]
        lone = await replica_of(save(tmp_path, "no_batch", NO_BATCH))
        feeds = {"x": numbers(3, 4), "z": numbers(2)}
        answers: list[Any] = await asyncio.gather(*(lone.infer(Ask(feeds, "", "", {})) for _ in range(2)))
        assert all(np.array_equal(answer.outputs["w"], -feeds["z"]) for answer in answers)

    run(work())


def test_a_batch_that_fails_is_run_one_by_one_and_only_the_guilty_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        replica = await replica_of(save(tmp_path, "relu", RELU))
        true_run = replica._loaded.run

        def picky(feeds: Any) -> Any:
            if (feeds["x"] > 100).any():
                raise RuntimeError("too much")
            return true_run(feeds)

        replica._loaded.run = picky  # type: ignore[method-assign]
        pieces = [numbers(1, 4), np.full((1, 4), 101, np.float32), numbers(1, 4, seed=1)]
        first, guilty, last = await asyncio.gather(*(ask(replica, piece) for piece in pieces))
        assert isinstance(guilty, Problem) and guilty.status == 500 and "too much" not in guilty.text
        for piece, answer in ((pieces[0], first), (pieces[2], last)):
            assert np.array_equal(answer.outputs["y"], np.maximum(piece, 0))
        bad = await ask(replica, numbers(1, 3))
        assert isinstance(bad, Problem) and bad.status == 400

    run(work())


def test_a_replica_that_computes_wrongly_or_loses_its_device_ends(tmp_path: Path) -> None:
    async def work() -> None:
        replica = await replica_of(save(tmp_path, "relu", RELU))
        await replica.check_health()
        true_run = replica._loaded.run
        replica._loaded.run = lambda feeds: {"y": true_run(feeds)["y"] + 1e-3}  # type: ignore[method-assign]
        with pytest.raises(Ended):
            await replica.check_health()

        def lost(_feeds: Any) -> Any:
            raise DeviceError("the core hangs", usable=False)

        replica._loaded.run = lost  # type: ignore[assignment, method-assign]
        with pytest.raises(Ended):
            await replica.check_health()
        with pytest.raises(Ended):
            replica._answers([Member({"x": numbers(1, 4)}, 1, (), "", 0.0, {})])

    run(work())


def test_a_replica_serves_the_very_file_that_was_deployed(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    share = share_of(path)
    elsewhere = replace(share, paths=(tmp_path / "none.onnx", path))
    assert ray_replica._load(elsewhere).path == path
    np.savez(tmp_path / "relu.golden.npz", x=numbers(1, 4))
    assert digest_of(path) != share.version, "its golden input is part of a version"
    for paths, told in (((path,), "is not the file that was deployed"), ((tmp_path / "none.onnx",), "no such file on")):
        with pytest.raises(BaseException, match=told):
            ray_replica._load(replace(share, paths=paths))

    async def work() -> None:
        with pytest.raises(RuntimeError, match="the model 'relu' can't be loaded"):
            await ModelReplica.__init__(object.__new__(ModelReplica), share)

    run(work())


# -- fronts --------------------------------------------------------------------------------------------------------


class Response:
    """What a handle gives: awaited, it answers or raises."""

    def __init__(self, said: Any) -> None:
        self._said, self.cancelled = said, False

    def __await__(self) -> Any:
        return self._speak().__await__()

    async def _speak(self) -> Any:
        if self._said is None:
            await asyncio.Event().wait()
        if isinstance(self._said, BaseException):
            raise self._said
        return self._said

    def cancel(self) -> None:
        """Remember it."""
        self.cancelled = True


class Handle:
    """A handle whose replicas say these things, one after the other."""

    def __init__(self, replica: ModelReplica, said: list[Any]) -> None:
        self.replica, self.said, self.responses = replica, said, list[Response]()
        self.infer = self.describe = self

    def remote(self, *asked: Ask) -> Any:
        """The next thing that is to be said; else the replica itself answers."""
        if self.said:
            self.responses.append(Response(self.said.pop(0)))
            return self.responses[-1]
        return self.replica.infer(*asked) if asked else self.replica.describe()


def model_of(path: Path, handle: Handle, **settings: Any) -> RayModel:
    source = (handle, handle.replica._described.digest)
    return RayModel(path.stem, ServeSettings(**{**RAY, **settings}), Metrics(), source)


DIED = [ActorDiedError(), ActorUnavailableError("gone", None)]


def test_what_a_replica_died_with_is_asked_of_another(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)

    async def work() -> None:
        handle = Handle(await replica_of(path), [])
        model = model_of(path, handle)
        assert model.state == "loading" and await model.load() is None and model.state == "ready"
        handle.said = list(DIED)
        x = numbers(2, 4)
        inference = await model.infer({"x": x})
        assert np.array_equal(inference.outputs["y"], np.maximum(x, 0)) and len(handle.responses) == len(DIED)
        handle.said = [ActorDiedError() for _ in range(ATTEMPTS + 1)]
        with pytest.raises(Problem) as caught:
            await model.infer({"x": x})
        assert caught.value.status == 503 and len(handle.said) == 1, "a request that kills replicas is given up"

    run(work())


@pytest.mark.parametrize(
    ("said", "status"), [(BackPressureError(9, 8), 429), (RayError("odd"), 500), (Problem(400, "no"), 400), (None, 504)]
)
def test_what_else_ray_says_is_told_in_the_servers_words(said: Any, status: int, tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)

    async def work() -> None:
        handle = Handle(await replica_of(path), [])
        model = model_of(path, handle, request_timeout=0.1)
        await model.load()
        handle.said = [said]
        with pytest.raises(Problem) as caught:
            await model.infer({"x": numbers(1, 4)})
        assert caught.value.status == status
        assert handle.responses[-1].cancelled == (said is None), "what nobody waits for frees its place"
        await model.wait_idle()

    run(work())


def test_an_answer_means_what_the_version_says_that_computed_it(tmp_path: Path) -> None:
    """A front meets replicas of both versions during an update."""
    (tmp_path / "new").mkdir()
    old = save(tmp_path, "scores", RELU, labels='["a", "b", "c", "d"]')
    new = save(tmp_path / "new", "scores", RELU.replace("Relu", "Neg"), labels='["e", "f", "g", "h"]')

    async def work() -> None:
        other, handle = await replica_of(new), Handle(await replica_of(old), [])
        model = model_of(old, handle)
        await model.load()
        x = numbers(1, 4)
        handle.replica = other
        found = await model.infer({"x": x})
        assert np.array_equal(found.outputs["y"], -x) and found.described.labels == ["e", "f", "g", "h"]
        assert model.described.labels == ["a", "b", "c", "d"]

    run(work())


def test_a_front_waits_for_the_version_that_it_was_deployed_with(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)

    async def work() -> None:
        handle = Handle(await replica_of(path), [])
        outdated = replace(handle.replica._described, digest="old")
        handle.said = [outdated, ActorDiedError(), outdated]
        model = model_of(path, handle)
        await model.load()
        assert handle.said == [] and model.state == "ready"

    run(work())


def test_pages_of_several_become_one() -> None:
    one, other = Metrics(), Metrics()
    one.model("m").batch(3, 0.1, None)
    other.model("m").batch(5, 0.1, None)
    found = list(_Pages([("a", one.render()[0]), ("b", other.render()[0])]).collect())
    (rows,) = [family for family in found if family.name == "trnrt_batch_rows"]
    sums = {s.labels["replica"]: s.value for s in rows.samples if s.name.endswith("_sum")}
    assert sums == {"a": 3.0, "b": 5.0}


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"replicas": 2}, "--replicas has no meaning with --engine local"),
        ({"address": "auto"}, "--address has no meaning with --engine local"),
        ({"engine": "ray", "workers": 2}, "--workers has no meaning with --engine ray"),
        ({"engine": "ray", "admin": True}, "--admin has no meaning with --engine ray"),
    ],
)
def test_settings_of_the_other_engine_are_refused(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_settings(flags)


def test_a_replica_asks_for_a_core_on_neuron_and_for_a_share_of_the_cpus_elsewhere(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    for backend, resources in (("neuron", {"neuron_cores": 1}), ("simulator", {}), ("auto", {})):
        settings = RaySettings(models=[path], backend=backend, replicas=3, replica_cpus=0.25)  # type: ignore[arg-type]
        bound: Any = application(settings)._bound_deployment
        assert bound.name == ray_app.FRONT and bound.num_replicas == 2
        replica, version = bound.init_args[1]["relu"]
        deployment = replica._bound_deployment
        assert (deployment.name, deployment.num_replicas, version) == ("model-relu", 3, digest_of(path))
        assert deployment.ray_actor_options["num_cpus"] == 0.25
        assert deployment.ray_actor_options["resources"] == resources


def test_no_two_models_are_one_deployment(tmp_path: Path) -> None:
    names = ["a.b", "a_b", "a-b", "A-b", "a"]
    bound: Any = application(RaySettings(models=[save(tmp_path, name, RELU) for name in names]))._bound_deployment
    replicas = [replica._bound_deployment for replica, _ in bound.init_args[1].values()]
    assert len({replica.name for replica in replicas}) == len(names)
    assert [replica.init_args[0].name for replica in replicas] == names


def test_the_builder_takes_what_serve_run_gives_it(tmp_path: Path) -> None:
    """Texts, as ``serve run trnrt.serve.ray_app:build models=m.onnx replicas=2`` has them."""
    path = save(tmp_path, "relu", RELU)
    given = {"models": str(path), "replicas": "2", "max_batch": "4", "backend": "simulator"}
    builder: Any = ray_app.build
    built: Any = call_user_app_builder_with_args_if_necessary(builder, given)
    replica, _ = built._bound_deployment.init_args[1]["relu"]
    (share,) = replica._bound_deployment.init_args
    assert (replica._bound_deployment.num_replicas, share.settings.max_batch, share.settings.engine) == (2, 4, "ray")
    with pytest.raises(ValueError, match="model\n"):
        call_user_app_builder_with_args_if_necessary(builder, {"model": str(path)})


def test_keys_go_to_fronts_alone(tmp_path: Path) -> None:
    settings = RaySettings(models=[save(tmp_path, "relu", RELU)], backend="simulator", api_keys=["k"])  # type: ignore[list-item]
    bound: Any = application(settings)._bound_deployment
    front, sources = bound.init_args
    assert [key.get_secret_value() for key in front.api_keys] == ["k"]
    assert sources["relu"][0]._bound_deployment.init_args[0].settings.api_keys == []


def test_where_there_is_no_room_that_is_said_at_once() -> None:
    room = {"CPU": 2.0, "neuron_cores": 1.0}
    clusters.check_room({"CPU": 1}, 2, room)
    with pytest.raises(OptionError, match="4 replicas need 4 CPU, and this machine has 2"):
        clusters.check_room({"CPU": 1}, 4, room)
    with pytest.raises(OptionError, match="2 replicas need 2 neuron_cores, and this machine has 1"):
        clusters.check_room({"CPU": 0.5, "neuron_cores": 1}, 2, room)


@pytest.mark.parametrize(("own", "file", "found"), [(None, False, "0"), ("1", False, "1"), (None, True, None)])
def test_nothing_is_sent_to_rays_makers_unless_the_user_says_so(
    own: str | None, file: bool, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(clusters.USAGE, own or "")
    if own is None:
        monkeypatch.delenv(clusters.USAGE)
    monkeypatch.setenv("RAY_USAGE_STATS_CONFIG_PATH", str(tmp_path / "config.json"))
    if file:
        (tmp_path / "config.json").write_text("{}")
    clusters._keep_quiet()
    assert os.environ.get(clusters.USAGE) == found


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "find_spec", lambda _name: None)
    with pytest.raises(BackendError, match="Ray is not installed") as caught:
        clusters.require()
    assert caught.value.hint == "pip install 'trnrt[ray]'"


def test_why_a_replica_did_not_start_is_told_without_its_traceback() -> None:
    traced = "failed to start: ray::X\n  File\nRuntimeError: the model 'm' can't be loaded: why\nmore"
    assert ray_running._reason(["", traced, "it failed"]) == "the model 'm' can't be loaded: why"
    assert ray_running._reason(["", "no\nroute"]) == "no route"


def test_answers_travel() -> None:
    import pickle

    answer = Inference({"y": numbers(1, 4)}, 0.0, 0.1, 0.2, 1, 1, 1)
    assert np.array_equal(pickle.loads(pickle.dumps(answer)).outputs["y"], answer.outputs["y"])
    problem = pickle.loads(pickle.dumps(Problem(429, "later", retry_after=3)))
    assert (problem.status, problem.text, problem.headers) == (429, "later", {"Retry-After": "3"})
