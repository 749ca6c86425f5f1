"""A model's configuration and statistics, as Triton's tools read them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from engines import FIXED, MIXING, NO_BATCH, RELU, Doubling, loaded, numbers, run, save
from serving import MadeUpRepository, app_of, ask, doubling, error_of

from trnrt.serve.hosting.batcher import Batcher
from trnrt.serve.hosting.configuration import model_config
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.served import Model
from trnrt.serve.hosting.statistics import statistics
from trnrt.serve.hosting.threads import ComputeThread
from trnrt.serve.hosting.waiting import Limits
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings

SCALARS = "(float[N] x) => (float[N] y) { y = Relu(x) }"
ZERO = {"count": 0, "ns": 0}


def config_of(folder: Path, graph: str, **settings: Any) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        model = await loaded(save(folder, "m", graph), **settings)
        try:
            return model_config(model, ServeSettings(**settings))
        finally:
            await model.unload()

    return run(work())


def test_a_model_with_rows(tmp_path: Path) -> None:
    config = config_of(tmp_path, RELU, max_batch=8, max_delay_ms=1.5, max_queue=7, request_timeout=2, workers=3)
    assert config == {
        "name": "m",
        "platform": "trnrt_onnx",
        "backend": "trnrt",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
        "instance_group": [{"name": "m_0", "kind": "KIND_MODEL", "count": 3}],
        "model_transaction_policy": {"decoupled": False},
        "dynamic_batching": {
            "preferred_batch_size": [1, 2, 4, 8],
            "max_queue_delay_microseconds": 1500,
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": 2_000_000,
                "max_queue_size": 7,
            },
        },
    }


@pytest.mark.parametrize(
    ("graph", "rows", "dims"),
    [(FIXED, 4, [3]), (SCALARS, 8, []), (MIXING, 0, [-1, 3]), (NO_BATCH, 0, [3, 4])],
    ids=["fixed", "numbers", "mixing", "no batch"],
)
def test_max_batch_size_is_of_rows_that_can_share_a_batch(
    tmp_path: Path, graph: str, rows: int, dims: list[int]
) -> None:
    config = config_of(tmp_path, graph, max_batch=8)
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (rows, dims)
    assert ("dynamic_batching" in config) == bool(rows)


def test_without_batching_there_is_no_batcher(tmp_path: Path) -> None:
    config = config_of(tmp_path, RELU, max_batch=8, batching=False)
    assert config["max_batch_size"] == 8 and "dynamic_batching" not in config


def test_it_is_a_configuration_by_the_published_protocol_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    messages = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    json_format = pytest.importorskip("google.protobuf.json_format")

    config = config_of(tmp_path, RELU, max_batch=4)
    message = json_format.ParseDict(config, messages.ModelConfig())
    back = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert back["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["4"]}]
    assert back["dynamic_batching"]["preferred_batch_size"] == [1, 2, 4]


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_the_paths(version: str) -> None:
    app = app_of(MadeUpRepository(doubling(), doubling(name="stats")))
    for name in ("doubling", "stats"):
        assert ask(app, "GET", f"/v2/models/{name}{version}/config").json()["name"] == name
        (stats,) = ask(app, "GET", f"/v2/models/{name}{version}/stats").json()["model_stats"]
        assert (stats["name"], stats["version"], stats["execution_count"]) == (name, "1", 0)
    everything = ask(app, "GET", "/v2/models/stats").json()["model_stats"]
    assert [each["name"] for each in everything] == ["doubling", "stats"]
    for path in ("nobody/config", "nobody/stats", "doubling/versions/2/config", "doubling/versions/2/stats"):
        error_of(ask(app, "GET", f"/v2/models/{path}"), 404)


def test_a_models_own_settings_are_in_its_configuration() -> None:
    model = doubling()
    model.described = replace(model.described, buckets=(1, 2))
    own = {"doubling": {"max_queue": 3, "max_delay_ms": 4, "request_timeout": 5}}
    config = ask(app_of(MadeUpRepository(model, model=own)), "GET", "/v2/models/doubling/config").json()
    batching = config["dynamic_batching"]
    queue = batching["default_queue_policy"]
    assert (batching["max_queue_delay_microseconds"], queue["max_queue_size"]) == (4000, 3)
    assert queue["default_timeout_microseconds"] == 5_000_000


def test_they_need_a_key_as_all_that_tells_of_models() -> None:
    app = app_of(MadeUpRepository(doubling(), api_keys=["key"]))
    for path in ("/v2/models/stats", "/v2/models/doubling/stats", "/v2/models/doubling/config"):
        error_of(ask(app, "GET", path), 401)


def test_the_extensions_that_are_not_there_are_404() -> None:
    app = app_of(MadeUpRepository(doubling()))
    for path in (
        "/v2/trace/setting",
        "/v2/models/doubling/trace/setting",
        "/v2/logging",
        "/v2/systemsharedmemory/status",
        "/v2/cudasharedmemory/region/region/register",
    ):
        for method in ("GET", "POST"):
            assert f"there is no '{path}' here" in error_of(ask(app, method, path), 404)


def test_requests_are_counted_as_triton_counts_them(tmp_path: Path) -> None:
    """Rows as inferences, batches as executions, a request's time as its queueing and its computing."""

    async def work() -> None:
        metrics = Metrics()
        model = await loaded(save(tmp_path, "m", RELU), max_batch=4)
        model._engine.batcher._metrics = metrics.model("m")  # type: ignore[union-attr]
        metrics.model("m").set_buckets(model.described.buckets)
        began = time.time()
        (idle,) = statistics(metrics, [model])["model_stats"]
        assert (idle["last_inference"], idle["inference_count"], idle["batch_stats"]) == (0, 0, [])
        await model.infer({"x": numbers(3, 4)})
        await model.infer({"x": numbers(4, 4)})
        await model.infer({"x": numbers(1, 4)})
        (found,) = statistics(metrics, [model])["model_stats"]
        assert (found["inference_count"], found["execution_count"]) == (8, 3)
        assert began * 1e3 - 1 <= found["last_inference"] <= time.time() * 1e3 + 1
        parts = found["inference_stats"]
        counts = {name: part["count"] for name, part in parts.items()}
        answered = dict.fromkeys(("success", "queue", "compute_input", "compute_infer", "compute_output"), 3)
        assert counts == answered | dict.fromkeys(("fail", "cache_hit", "cache_miss"), 0)
        assert parts["success"]["ns"] == parts["queue"]["ns"] + parts["compute_infer"]["ns"] > 0
        sizes = {batch["batch_size"]: batch["compute_infer"] for batch in found["batch_stats"]}
        assert {size: computed["count"] for size, computed in sizes.items()} == {1: 1, 4: 2}
        assert 0 < sum(computed["ns"] for computed in sizes.values()) <= parts["compute_infer"]["ns"]
        await model.unload()

    run(work())


def test_a_failed_request_is_no_success() -> None:
    async def work() -> None:
        metrics, runnable = Metrics(), Doubling()
        runnable.error = lambda _x: ValueError("why")
        batcher = Batcher("doubling", runnable, ComputeThread("test"), Limits(8, 0.0, 100), metrics)
        with pytest.raises(Problem):
            await batcher.infer({"x": numbers(1, 4)}, 1, (), 60.0)
        runnable.gate.clear()
        with pytest.raises(Problem, match="no answer within"):
            await batcher.infer({"x": numbers(1, 4)}, 1, (), 0.01)
        leaving = asyncio.create_task(batcher.infer({"x": numbers(1, 4)}, 1, (), 60.0))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait([leaving])
        runnable.gate.set()
        (found,) = statistics(metrics, [cast(Model, doubling())])["model_stats"]
        assert found["inference_stats"]["fail"]["count"] == 3 and found["inference_stats"]["fail"]["ns"] > 1e7
        assert (found["inference_count"], found["execution_count"]) == (0, 0)
        assert found["inference_stats"]["success"] == ZERO

    run(work())


WORKER = """
import sys
from trnrt.serve.hosting.metrics import Metrics
metrics = Metrics(int(sys.argv[1]))
model = metrics.model("m")
model.set_buckets((1, 4))
model.batch(3, 0.25, None, 4)
model.count_answer(0.5, 1.0)
metrics.sample()
"""
READER = """
import json, sys
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.statistics import statistics
class Model: name, version = "m", "1"
print(json.dumps(statistics(Metrics(9), [Model])))
"""


def test_several_workers_are_summed(tmp_path: Path) -> None:
    """Differences of sums are what perf_analyzer takes; a worker that answers for itself alone would confuse it."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def done(*command: str) -> str:
        given = [sys.executable, "-c", *command]
        return subprocess.run(given, env=environment, capture_output=True, text=True, check=True).stdout

    done(WORKER, "0")
    done(WORKER, "1")
    (found,) = json.loads(done(READER))["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (6, 2)
    assert found["inference_stats"]["success"] == {"count": 2, "ns": 2_000_000_000}
    assert found["inference_stats"]["queue"] == {"count": 2, "ns": 1_000_000_000}
    assert [(b["batch_size"], b["compute_infer"]["count"]) for b in found["batch_stats"]] == [(4, 2)]
    assert abs(found["last_inference"] / 1e3 - time.time()) < 600
