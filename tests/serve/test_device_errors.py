"""A device that fails under a model: who is told what, when the model is tried again, and when its process goes.

On the fake SDK; time passes when a test says so.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import httpx
import pytest
from engines import PATIENCE_S, RELU, run, save
from failing import LASTING, PASSING, Paced, outcome, paused, refused, state, until
from fake_neuron import REFERENCE, Faults, Hardware
from fake_neuron.installing_fake import fake_machine
from serving import ask, error_of

from trnrt.neuron import backend as neuron
from trnrt.neuron.routes.trace import Traced
from trnrt.serve.hosting import devices, models
from trnrt.serve.hosting.description import NOTHING_KNOWN
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes.worker import Worker
from trnrt.serve.settings import ServeSettings


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Paced:
    """The pauses of all models."""
    made = Paced()
    monkeypatch.setattr(models, "BACKOFF", made)
    return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hardware]:
    """A trn2 instance, on which nothing was compiled yet."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))
    with fake_machine(monkeypatch, tmp_path) as hardware:
        yield hardware
        if hardware.faults.hanging is not None:
            hardware.faults.hanging.set()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One item for each run that is begun."""
    begun: list[None] = []
    run_on_device = Traced.run

    def counted(*arguments: Any) -> Any:
        begun.append(None)
        return run_on_device(*arguments)

    monkeypatch.setattr(Traced, "run", counted)
    return begun


def repository_of(folder: Path, *names: str, **settings: Any) -> Repository:
    """Models that clip at 0, not loaded yet."""
    files = [save(folder, name, RELU) for name in names or ("relu",)]
    given = {"models": files, "backend": "neuron", "max_batch": 2, **settings}
    return Repository(ServeSettings(**given), Metrics())


async def started(folder: Path, *names: str, **settings: Any) -> Repository:
    """The same, ready."""
    repository = repository_of(folder, *names, **settings)
    await repository.start()
    assert repository.ready, repository.reasons
    return repository


def metric(repository: Repository, start: str) -> float:
    page = repository.metrics.render()[0].decode()
    return next(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(start))


# -- a model -------------------------------------------------------------------------------------------------------


def test_after_an_error_in_flight_it_is_not_ready_and_then_loaded_again(
    tmp_path: Path, machine: Hardware, paced: Paced, runs: list[None]
) -> None:
    async def work() -> None:
        repository = await started(tmp_path, "relu", "other", batching=False)
        model = repository.find("relu")
        before, known = len(runs), model.described
        machine.faults = Faults(running=PASSING)
        texts = await refused(model, 5)
        assert model.described == known != NOTHING_KNOWN
        assert len(runs) == before + 1, "nothing is run on a device that failed"
        assert all("the device failed" in text and "NRT_FAILURE, 1" in text for text in texts)
        assert state(model) == "recovering" and not repository.ready
        assert model.reason is not None and "NRT_FAILURE" in model.reason and "after 1 s, attempt 1" in model.reason
        assert repository.index()[0] == {
            "name": "relu",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": model.reason,
        }
        assert metric(repository, 'trnrt_model_state{model="relu",state="recovering",version="1"}') == 1
        assert metric(repository, 'trnrt_device_errors_total{model="relu",version="1"}') == 1
        assert metric(repository, 'trnrt_rejected_total{reason="device"}') == 5
        assert metric(repository, 'trnrt_pending_requests{model="relu",version="1"}') == 0
        machine.faults = Faults()
        assert await outcome(repository.find("other")) == "right", "the others go on"
        assert "is recovering: " in (await refused(model))[0]
        paced.go.release()
        await until(lambda: state(model) != "recovering")
        assert repository.reasons == {}
        assert await asyncio.gather(*(outcome(model, seed) for seed in range(5))) == ["right"] * 5
        assert paced.pauses == [1.0] and not repository.core_lost.is_set()

    run(work())


def test_while_the_error_lasts_the_pauses_grow_to_a_minute(
    tmp_path: Path, machine: Hardware, paced: Paced, runs: list[None]
) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        expected = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        for count in range(1, len(expected) + 1):
            await paused(paced, count)
            begun = len(runs)
            problem = await outcome(model)
            assert isinstance(problem, Problem) and problem.status == 503
            assert problem.headers["Retry-After"] == str(int(max(2, expected[count - 1])))
            assert len(runs) == begun, "no request wakes the device"
            if count < len(expected):
                paced.go.release()
        assert paced.pauses == expected
        assert metric(repository, 'trnrt_device_errors_total{model="relu",version="1"}') == len(expected)
        machine.faults = Faults()
        paced.go.release()
        await until(lambda: repository.ready)
        assert await outcome(model) == "right"
        # A model that fails again at once goes on where it was; one that served for a minute begins anew.
        for later, pause in ((1.0, 60.0), (60.0, 1.0)):
            paced.clock[0] += later
            machine.faults = Faults(running=PASSING)
            await refused(model)
            assert paced.pauses[-1] == pause
            machine.faults = Faults()
            paced.go.release()
            await until(lambda: repository.ready)

    run(work())


def test_it_is_not_ready_again_before_it_answers_its_golden_input(
    tmp_path: Path, machine: Hardware, paced: Paced
) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        for count, faults, told in (
            (2, Faults(wrong=True), "away from onnxruntime's"),
            (3, Faults(wrong_shape=True), "its plan has"),
            (4, Faults(loading="NRT_RESOURCE(4)"), "no memory of the device"),
        ):
            machine.faults = faults
            paced.go.release()
            await paused(paced, count)
            assert state(model) == "recovering" and told in str(model.reason)
            await refused(model)
        machine.faults = Faults()
        paced.go.release()
        await until(lambda: repository.ready)
        assert await outcome(model) == "right"

    run(work())


def test_what_is_no_fault_of_the_device_ends_the_attempts(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        machine.faults = Faults()
        assert isinstance(model, ServedModel)
        model.path.write_bytes(b"nonsense")  # the server's own copy
        paced.go.release()
        await until(lambda: state(model) != "recovering")
        assert state(model) == "failed" and "is not sha256:" in str(model.reason)
        problem = await outcome(model)
        assert isinstance(problem, Problem) and "Retry-After" not in problem.headers
        await repository.act_on_all("load", "relu")
        assert await outcome(model) == "right"


def test_it_recovers_with_the_content_that_it_had(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    """Whatever became of its file meanwhile."""

    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        machine.faults = Faults()
        (tmp_path / "relu.onnx").write_bytes(b"nonsense")
        paced.go.release()
        await until(lambda: repository.ready)
        assert await outcome(model) == "right"

    run(work())


@pytest.mark.parametrize(
    ("faults", "taken", "told"),
    [
        (Faults(loading="NRT_EXEC_NC_BUSY(1005)"), frozenset(), "another process has the core"),
        (Faults(running=PASSING), frozenset(), "NRT_FAILURE"),
        (Faults(), frozenset({0}), "another process has the NeuronCore"),
    ],
    ids=["loading", "running", "taken"],
)
def test_a_device_that_fails_at_the_start_is_tried_again(
    tmp_path: Path, machine: Hardware, paced: Paced, faults: Faults, taken: frozenset[int], told: str
) -> None:
    async def work() -> None:
        machine.faults, machine.taken = faults, taken
        repository = repository_of(tmp_path)
        await repository.start()
        model = repository.find("relu")
        assert state(model) == "recovering" and told in str(model.reason)
        machine.faults, machine.taken = Faults(), frozenset()
        paced.go.release()
        await until(lambda: repository.ready)
        assert await outcome(model) == "right"

    run(work())


def test_a_module_that_does_not_compile_is_not(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        machine.faults = Faults(compiling="NCC_EUOC002: an operator is not supported")
        repository = repository_of(tmp_path)
        await repository.start()
        model = repository.find("relu")
        assert state(model) == "failed" and "AWS's compiler refused relu" in str(model.reason)
        assert paced.pauses == [] and not repository.core_lost.is_set()

    run(work())


@pytest.mark.parametrize("said", ["NRT_EXEC_COMPLETED_WITH_NUM_ERR(1003)", REFERENCE["statuses"]["raised"]["text"]])
def test_a_run_that_made_nans_costs_nobody_the_model(
    tmp_path: Path, machine: Hardware, paced: Paced, said: str
) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=said)
        problem = await outcome(model)
        assert isinstance(problem, Problem) and problem.status == 500 and "the run made NaNs" in problem.text
        assert repository.ready and paced.pauses == []
        machine.faults = Faults()
        assert await outcome(model) == "right"

    run(work())


def test_an_operator_may_load_or_unload_it_meanwhile(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        with pytest.raises(Problem, match="NRT_FAILURE"):
            await repository.act_on_all("load", "relu")
        assert state(model) == "recovering"
        await paused(paced, 2)
        machine.faults = Faults()
        await repository.act_on_all("load", "relu")
        assert repository.ready and await outcome(model) == "right"
        machine.faults = Faults(running=PASSING)
        await refused(model)
        await repository.act_on_all("unload", "relu")
        assert state(model) == "unloaded" and repository.ready
        for _ in range(5):
            paced.go.release()
            await asyncio.sleep(0)
        assert (state(model), len(paced.pauses)) == ("unloaded", 3), "nobody loads it again"

    run(work())


def test_a_device_that_fails_while_it_is_loaded_anew(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        loading = asyncio.create_task(model.load())
        await asyncio.sleep(0)
        machine.faults = Faults(running=PASSING)
        await refused(model)
        assert "NRT_FAILURE" in str(await loading) and state(model) == "recovering"
        machine.faults = Faults()
        paced.go.release()
        await until(lambda: repository.ready)
        assert await outcome(model) == "right" and paced.pauses == [1.0]
        machine.faults = Faults(loading="NRT_RESOURCE(4)")
        assert "no memory of the device" in str(await model.load())
        machine.faults = Faults()
        assert state(model) == "ready" and await outcome(model) == "right", "the old one serves on"

    run(work())


def test_its_place_on_the_device_is_given_back(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path, cores=2)
        model = repository.find("relu")
        assert sum(neuron._models_on.values()) == 2, "two rows are one on each of two cores"
        machine.faults = Faults(running=PASSING)
        await refused(model)
        await until(lambda: not sum(neuron._models_on.values()))
        machine.faults = Faults(wrong=True)
        paced.go.release()
        await paused(paced, 2)
        assert sum(neuron._models_on.values()) == 0
        machine.faults = Faults()
        paced.go.release()
        await until(lambda: repository.ready)
        await model.unload()
        assert sum(neuron._models_on.values()) == 0

    run(work())


def test_the_routes_say_so(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> Repository:
        repository = await started(tmp_path, admin=True)
        machine.faults = Faults(running=PASSING)
        await refused(repository.find("relu"))
        return repository

    app = make_app(run(work()))
    assert "'relu' is recovering" in error_of(ask(app, "GET", "/v2/health/ready"), 503)
    assert ask(app, "GET", "/v2/health/live").status_code == 200
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, -1, 0, 2]}]}
    for method, path, options in (
        ("GET", "/v2/models/relu/ready", {}),
        ("POST", "/v2/models/relu/infer", {"json": body}),
        ("POST", "/predict", {"json": {"instances": [[1, 2, 3, 4]]}}),
    ):
        answer = ask(app, method, path, **options)
        assert "recovering" in error_of(answer, 503) and "NRT_FAILURE" in error_of(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1
    assert ask(app, "GET", "/v2/models/relu").json()["inputs"][0]["name"] == "x"
    (entry,) = ask(app, "POST", "/v2/repository/index").json()
    assert entry["state"] == "UNAVAILABLE" and "NRT_FAILURE" in entry["reason"]
    (shown,) = ask(app, "GET", "/models.json").json()["models"]
    assert shown["state"] == "recovering" and "NRT_FAILURE" in shown["reason"]


# -- a core that is lost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hangs", [True, False], ids=["hang", "error"])
def test_a_lost_core_ends_the_worker(
    tmp_path: Path, machine: Hardware, paced: Paced, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = Event()

    class Patient(SimpleQueue[Any]):
        """The device's time is over when the test says so: whoever waits for less has been told so by then."""

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            assert passed.wait(PATIENCE_S)
            return super().get(block, timeout)

    async def work() -> None:
        repository = repository_of(tmp_path, "relu", "other", request_timeout=0.1 if hangs else 30.0)
        worker = Worker(repository, lambda _rows: None)
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(worker.run(listener))
        await until(lambda: repository.ready)
        model = repository.find("relu")
        if hangs:  # only now: a run that a busy machine takes long for is none that hangs
            monkeypatch.setattr(neuron, "GRACE_S", 0.01 - devices.LONGEST_RUN_S)
            monkeypatch.setattr(neuron, "SimpleQueue", Patient)
        machine.faults = Faults(hanging=Event()) if hangs else Faults(running=LASTING)
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, -1, 0, 2]}]}
        try:
            async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
                answer = await client.post(f"{url}/v2/models/relu/infer", json=body)
            texts: list[str] = []
            if hangs:
                others = asyncio.create_task(refused(model, 3))
                await until(lambda: metric(repository, 'trnrt_pending_requests{model="relu",version="1"}') == 3)
                passed.set()
                texts = await others
            assert await serving == 1
        finally:  # a loop with an open server does not close
            worker.stop()
            await serving
        assert repository.draining and not repository.ready
        # Who waits no longer than the device is given time is told that it took too long.
        told = error_of(answer, 504 if hangs else 503)
        assert ("0.1 s" if hangs else "the core can't go on") in told
        assert all("the device hangs" in text for text in texts)
        assert state(model) == "failed" and repository.core_lost.is_set() and paced.pauses == []

    run(work())


@pytest.mark.parametrize("loading", [False, True], ids=["pause", "loading"])
def test_a_server_that_recovers_stops_when_it_is_told_to(
    tmp_path: Path, machine: Hardware, paced: Paced, loading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits neither for the end of a pause, nor for a load that does not come back."""
    begun, never = Event(), Event()

    def hanging(*_: Any) -> None:
        begun.set()
        never.wait()

    async def work() -> None:
        repository = repository_of(tmp_path)
        worker = Worker(repository, lambda _rows: None)
        serving = asyncio.create_task(worker.run(socket.create_server(("127.0.0.1", 0))))
        await until(lambda: repository.ready)
        machine.faults = Faults(running=PASSING)
        await refused(repository.find("relu"))
        if loading:
            monkeypatch.setattr(models, "LoadedModel", hanging)
            paced.go.release()
            await until(begun.is_set)
        worker.stop()
        assert await serving == 0 and state(repository.find("relu")) == "recovering"

    run(work())
    never.set()


def test_a_successor_whose_core_is_lost_does_not_even_listen(tmp_path: Path, machine: Hardware) -> None:
    async def work() -> None:
        machine.faults = Faults(running=LASTING)
        repository = repository_of(tmp_path, "relu", "other")
        worker = Worker(repository, lambda _rows: None)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert await worker.run(listener, load_first=True) == 1
            assert listener.fileno() >= 0
        assert [*map(state, repository.models.values())] == ["failed", "loading"]

    run(work())


def test_a_lost_core_while_the_old_one_serves(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=LASTING)
        assert "can't go on" in str(await model.load())
        assert repository.core_lost.is_set() and paced.pauses == []
        machine.faults = Faults()
        assert await outcome(model) == "right", "what is accepted is answered"

    run(work())


def test_a_core_that_is_lost_between_two_attempts(tmp_path: Path, machine: Hardware, paced: Paced) -> None:
    async def work() -> None:
        repository = await started(tmp_path)
        model = repository.find("relu")
        machine.faults = Faults(running=PASSING)
        await refused(model)
        machine.faults = Faults(running=LASTING)
        paced.go.release()
        await repository.core_lost.wait()
        assert state(model) == "failed" and "can't go on" in str(model.reason)

    run(work())
