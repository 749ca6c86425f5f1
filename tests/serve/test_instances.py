"""Several instances of a model: batches at the same time from one queue, and an instance that hangs or fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from engines import PATIENCE_S, RELU, VARYING, Array, Doubling, loaded, numbers, run, save
from failing import until

from trnrt.errors import DeviceError, OptionError
from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.configuration import model_config
from trnrt.serve.hosting.lanes import Lanes
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings, read_settings


def blocking(count: int) -> list[Doubling]:
    """Models whose runs wait for their gate."""
    models = [Doubling() for _ in range(count)]
    for model in models:
        model.gate.clear()
    return models


def batcher_of(models: Sequence[Doubling], metrics: Metrics | None = None, lost: Any = None, **limits: Any) -> Batcher:
    first, *others = [(model, ComputeThread(f"test {k}")) for k, model in enumerate(models)]
    given = Limits(**{"rows": 2, "delay_s": 0.0, "queue": 100, **limits})
    return Batcher("doubling", *first, given, metrics or Metrics(), lost, others=others)


def ask(batcher: Batcher, row: float, rows: int = 1, timeout_s: float = PATIENCE_S) -> asyncio.Task[Any]:
    feeds = {"x": np.full((rows, 3), row, np.float32)}
    return asyncio.create_task(batcher.infer(feeds, rows, (), timeout_s))


def is_answer(task: asyncio.Task[Any], row: float) -> bool:
    return bool(np.all(task.result().outputs["y"] == 2 * row))


# -- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_as_many_batches_run_at_once_as_there_are_instances(count: int) -> None:
    async def work() -> None:
        models = blocking(count)
        batcher = batcher_of(models)
        asking = [ask(batcher, float(k), 2) for k in range(3)]
        await until(lambda: sum(len(model.runs) for model in models) == count)
        await asyncio.sleep(0.05)
        assert [model.runs for model in models] == [[2]] * count and batcher.computing
        assert batcher.waiting == 3 - count
        for model in models:
            model.gate.set()
        await asyncio.gather(*asking)
        assert all(is_answer(task, float(k)) for k, task in enumerate(asking))
        assert sum(len(model.runs) for model in models) == 3
        await until(lambda: not batcher.computing)

    run(work())


def test_a_slow_batch_does_not_hold_the_others() -> None:
    async def work() -> None:
        slow, quick = blocking(2)
        batcher = batcher_of([slow, quick])
        first = ask(batcher, 1.0)
        await until(lambda: slow.runs)
        quick.gate.set()
        others = [ask(batcher, float(k)) for k in range(2, 12)]
        await asyncio.gather(*others)
        assert all(is_answer(task, float(k)) for k, task in enumerate(others, start=2))
        assert not first.done() and slow.runs == [1]
        assert batcher.stuck_s == 0, "one of two instances works"
        slow.gate.set()
        await first

    run(work())


def test_requests_begin_in_the_order_in_which_they_came() -> None:
    async def work() -> None:
        begun: list[float] = []

        class Noting(Doubling):
            def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
                begun.append(float(feeds["x"][0, 0]))
                return super().run(feeds)

        models = [Noting(), Noting()]
        batcher = batcher_of(models, rows=1)
        for model in models:
            model.gate.clear()
        asking = [ask(batcher, float(k)) for k in range(12)]
        await until(lambda: len(begun) == 2)
        for model in models:
            model.gate.set()
        await asyncio.gather(*asking)
        # Two threads note what they begin: neighbours may change places, and nobody else.
        assert all(abs(place - row) <= 1 for place, row in enumerate(begun))

    run(work())


def test_slices_of_a_large_request_run_one_after_the_other_and_let_others_pass() -> None:
    async def work() -> None:
        models = [Doubling(0.001), Doubling(0.001)]
        batcher = batcher_of(models, slice_rows=2)
        x = numbers(41, 3)
        large = asyncio.create_task(batcher.infer({"x": x}, 41, (), PATIENCE_S))
        small = [ask(batcher, float(k)) for k in range(20)]
        await asyncio.gather(large, *small)
        assert np.array_equal(large.result().outputs["y"], x * 2)
        assert all(is_answer(task, float(k)) for k, task in enumerate(small))

    run(work())


def test_a_failure_is_its_own_batchs() -> None:
    async def work() -> None:
        failing, other = blocking(2)
        failing.error = lambda x: ValueError("no") if x[0, 0] == 1 else None
        batcher = batcher_of([failing, other])
        first = ask(batcher, 1.0)
        await until(lambda: failing.runs)
        second = ask(batcher, 2.0)
        await until(lambda: other.runs)
        failing.gate.set()
        with pytest.raises(Problem) as caught:
            await first
        assert caught.value.status == 500 and not second.done()
        other.gate.set()
        await second
        later = [ask(batcher, float(k)) for k in range(2, 8)]
        await asyncio.gather(*later)
        assert all(is_answer(task, float(k)) for k, task in enumerate(later, start=2))

    run(work())


def test_an_instance_whose_device_fails_computes_no_more_and_the_queue_goes_on() -> None:
    async def work() -> None:
        failing, other = blocking(2)
        errors: list[DeviceError] = []
        failing.error = other.error = lambda x: DeviceError("it broke", usable=True) if x[0, 0] == 1 else None
        batcher = batcher_of([failing, other], lost=errors.append)
        first = ask(batcher, 1.0)
        await until(lambda: failing.runs)
        second = ask(batcher, 2.0)
        await until(lambda: other.runs)
        waiting = [ask(batcher, 3.0), ask(batcher, 4.0)]
        await until(lambda: batcher.waiting == 2)
        failing.gate.set()
        with pytest.raises(Problem) as caught:
            await first
        assert caught.value.status == 503
        await until(lambda: errors)
        assert len(batcher.lanes) == 1 and not second.done() and batcher.waiting == 2
        other.gate.set()
        await asyncio.gather(second, *waiting)
        assert failing.runs == [1]
        last = [ask(batcher, 1.0), ask(batcher, 5.0)]
        with pytest.raises(Problem) as caught:
            await asyncio.gather(*last)
        assert caught.value.status == 503 and not batcher.lanes and len(errors) == 2

    run(work())


def test_the_wait_is_estimated_for_all_instances() -> None:
    lanes = Lanes([(cast(Any, None), cast(Any, None))] * 3, 0.0)
    assert [lanes.start_after(turns, 2.0, 10.0) for turns in (0, 2, 3, 7)] == [0.0, 0.0, 2.0, 4.0]
    for lane, began in zip(lanes, (9.0, 9.5, 8.5), strict=True):
        lane.began = began
    assert [lanes.start_after(turns, 2.0, 10.0) for turns in (0, 1, 2, 3)] == [0.5, 1.0, 1.5, 2.5]
    assert lanes.all_busy_since(10.0) == 9.5 and lanes.count_stuck(10.0, 0.9) == 2
    next(iter(lanes)).began = 0.0
    assert lanes.all_busy_since(10.0) == 10.0 and lanes.start_after(0, 2.0, 10.0) == 0.0
    one = Lanes([(cast(Any, None), cast(Any, None))], 0.0)
    one.every[0].began = 9.0
    assert [one.start_after(turns, 2.0, 10.0) for turns in (0, 1, 5)] == [1.0, 3.0, 11.0]


# -- models --------------------------------------------------------------------------------------------------------


class Gate:
    """Keeps an instance's runs until ``go``."""

    def __init__(self, instance: Any) -> None:
        self.go, self.runs, self.closed = threading.Event(), list[int](), threading.Event()
        self._run, self._close = instance.loaded.run, instance.loaded.close
        instance.loaded.run, instance.loaded.close = self.run, self.close

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.runs.append(len(feeds["x"]))
        assert self.go.wait(PATIENCE_S), "nobody let it go"
        outputs: dict[str, Array] = self._run(feeds)
        return outputs

    def close(self) -> None:
        self._close()
        self.closed.set()


def gates_of(model: ServedModel) -> list[Gate]:
    assert model._engine is not None
    return [Gate(instance) for instance in model._engine.instances]


def test_answers_are_those_of_one_instance_bit_for_bit(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "models" / "digits_ffnn.onnx"
    requests = [numbers(rows, 1, 8, 8, seed=rows) for rows in (1, 3, 2, 9, 1, 4)]

    async def answers(instances: int) -> list[bytes]:
        model = await loaded(path, backend="simulator", max_batch=4, batching=False, instances=instances)
        assert model._engine is not None and len(model._engine.instances) == instances
        assert len({id(instance.loaded.session._programs) for instance in model._engine.instances}) == instances
        name = model.described.inputs[0].name
        shape = [abs(size) for size in model.described.inputs[0].shape[1:]]
        feeds = [{name: x.reshape(len(x), *shape)} for x in requests * 3]
        found = await asyncio.gather(*(model.infer(one) for one in feeds))
        return [array.tobytes() for inference in found for array in inference.outputs.values()]

    assert run(answers(2)) == run(answers(1))


def test_shapes_that_nobody_compiled_run_in_every_instance(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "m", VARYING), backend="simulator", instances=2, shape=["x=1x4"])
        given = [numbers(2, length, seed=length) for length in (4, 5, 6, 5, 7, 6, 5, 4)]
        found = await asyncio.gather(*(model.infer({"x": x}) for x in given))
        for x, inference in zip(given, found, strict=True):
            assert np.array_equal(inference.outputs["y"], np.maximum(x, 0))

    run(work())


def test_a_model_is_busy_when_all_of_its_instances_are_stuck(tmp_path: Path) -> None:
    async def work() -> None:
        path = save(tmp_path, "relu", RELU)
        metrics = Metrics()
        settings = ServeSettings(models=[path], backend="simulator", max_batch=1, request_timeout=0.2, instances=2)
        repository = Repository(settings, metrics)
        await repository.start()
        model = repository.find("relu")
        assert isinstance(model, ServedModel)
        gates = gates_of(model)

        def shown(state: str) -> float:
            page = metrics.render()[0].decode()
            line = f'trnrt_model_instances{{model="relu",state="{state}",version="1"}} '
            return next(float(text[len(line) :]) for text in page.splitlines() if text.startswith(line))

        async def abandon(gate: Gate) -> None:
            asking = asyncio.create_task(model.infer({"x": numbers(1, 4)}))
            await until(lambda: gate.runs)
            with pytest.raises(Problem):
                await asking

        await abandon(gates[0])
        await until(lambda: shown("stuck") == 1)
        assert repository.ready and repository.reasons == {} and shown("serving") == 1
        await abandon(gates[1])
        await until(lambda: model.busy)
        assert "each of 2 instances computes one batch since" in str(model.busy)
        assert "relu" in repository.reasons and shown("stuck") == 2
        gates[0].go.set()
        await until(lambda: model.busy is None)
        gates[1].go.set()
        await until(lambda: shown("serving") == 2)
        await model.unload()
        assert shown("serving") == shown("stuck") == shown("lost") == 0

    run(work())


@pytest.mark.parametrize("action", ["unload", "reload"])
def test_unloading_waits_for_all_instances(action: str, tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), backend="simulator", max_batch=1, instances=2)
        assert model._engine is not None
        threads = [instance.thread._thread for instance in model._engine.instances]
        gates = gates_of(model)
        asking = [asyncio.create_task(model.infer({"x": numbers(1, 4, seed=k)})) for k in range(4)]
        await until(lambda: all(gate.runs for gate in gates))
        ending = asyncio.create_task(model.unload() if action == "unload" else model.load())
        gates[0].go.set()
        await asyncio.sleep(0.05)
        assert not ending.done() and not any(gate.closed.is_set() for gate in gates)
        gates[1].go.set()
        await ending
        for k, task in enumerate(asking):
            assert np.array_equal((await task).outputs["y"], np.maximum(numbers(1, 4, seed=k), 0))
        assert all(gate.closed.is_set() for gate in gates)
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)

    run(work())


def test_the_configuration_counts_instances_of_all_workers(tmp_path: Path) -> None:
    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), backend="simulator", max_batch=1)
        for workers, instances in ((3, 2), (3, 1), (1, 4)):
            settings = ServeSettings(workers=workers, instances=instances)
            (group,) = model_config(model, settings)["instance_group"]
            assert group["count"] == workers * instances

    run(work())


# -- settings ------------------------------------------------------------------------------------------------------


def test_a_model_has_its_own_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.toml"
    path.write_text("instances = 2\n[model.a]\ninstances = 4\n[model.b]\nmax_queue = 3\n", encoding="utf-8")
    settings = read_settings({"config": path})
    assert [settings.for_model(name).instances for name in "abc"] == [4, 2, 2] and settings.most_instances == 4
    monkeypatch.setenv("TRNRT_INSTANCES", "3")
    assert read_settings({}).instances == read_settings({}).most_instances == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[model.a]\ninstances = -1\n", r"server.toml': \[model.a\] instances: it must be at least 1, not -1"),
        ("[model.a]\ninstances = 0\n", r"\[model.a\] instances: .* not 0"),
        ("[model.a]\ninstances = 'two'\n", r"\[model.a\] instances: .*integer.* not 'two'"),
        ("[model.a]\ninstances = 1.5\n", r"\[model.a\] instances: .*integer.* not 1.5"),
        ("[model.a]\ninstances = 1000000000\n", r"\[model.a\] instances: it must be at most 64, not 1000000000"),
        ("instances = 0\n", r"--instances \(TRNRT_INSTANCES\): .* not 0"),
        ("engine = 'ray'\ninstances = 2\n", r"--instances has no meaning with --engine ray: .*--replicas"),
        ("engine = 'ray'\n[model.a]\ninstances = 2\n", r"\[model.a\]: instances has no meaning with --engine ray"),
    ],
)
def test_wrong_instances_are_refused_with_their_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=told):
        read_settings({"config": path})
