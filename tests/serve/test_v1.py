"""Version 1 of KServe's protocol: rows and columns in, the model's own outputs out."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from serving import MadeUpModel, MadeUpRepository, app_of, ask, client_of, doubling, error_of, run

from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http.problems import Problem

ROWS = [[1, 2, 3, 4], [5, 6, 7, 8]]
TWICE = [[2.0, 4.0, 6.0, 8.0], [10.0, 12.0, 14.0, 16.0]]


def predict(body: Any, model: MadeUpModel | None = None, **settings: Any) -> httpx.Response:
    model = model or doubling()
    app = app_of(MadeUpRepository(model, **settings))
    return ask(app, "POST", f"/v1/models/{model.name}:predict", json=body)


def classifying(**metadata: str) -> MadeUpModel:
    """Two inputs of a number a row, and a class with the shares of two: what scikit-learn's converters write."""
    inputs = [TensorMeta(name, "float32", (-1,)) for name in ("age", "height")]
    outputs = [TensorMeta("label", "int64", (-1,)), TensorMeta("shares", "float32", (-1, 2))]

    def compute(feeds: Any) -> Any:
        old = feeds["age"] > feeds["height"]
        return {"label": old.astype(np.int64), "shares": np.stack([1 - old, old], axis=1).astype(np.float32)}

    return MadeUpModel("classifying", inputs, outputs, compute, metadata=metadata)


def test_the_models_and_whether_one_is_ready() -> None:
    late = doubling(name="late")
    late.state, late.reason, late.retry_after = "loading", "it compiles", 2
    app = app_of(MadeUpRepository(doubling(), late))
    assert ask(app, "GET", "/v1/models").json() == {"models": ["doubling", "late"]}
    assert ask(app, "GET", "/v1/models/doubling").json() == {"name": "doubling", "ready": True}
    response = ask(app, "GET", "/v1/models/late")
    assert "it compiles" in error_of(response, 503) and response.headers["retry-after"] == "2"
    assert "'nobody'" in error_of(ask(app, "GET", "/v1/models/nobody"), 404)
    assert "'nobody'" in error_of(ask(app, "POST", "/v1/models/nobody:predict", json={"instances": ROWS}), 404)
    assert "it compiles" in error_of(ask(app, "POST", "/v1/models/late:predict", json={"instances": ROWS}), 503)


@pytest.mark.parametrize("name", ["instances", "inputs"])
def test_rows(name: str) -> None:
    assert predict({name: ROWS}).json() == {"predictions": TWICE}
    assert predict({name: [{"x": row} for row in ROWS]}).json() == {"predictions": TWICE}


def test_columns() -> None:
    assert predict({"inputs": {"x": ROWS}}).json() == {"outputs": TWICE}


def test_several_inputs_and_outputs() -> None:
    rows = [{"age": 3, "height": 1.5}, {"age": 1, "height": 2}]
    found = [{"label": 1, "shares": [0.0, 1.0]}, {"label": 0, "shares": [1.0, 0.0]}]
    assert predict({"instances": rows}, classifying(labels='["young", "old"]')).json() == {"predictions": found}
    columns = {"inputs": {"age": [3, 1], "height": [1.5, 2]}}
    assert predict(columns, classifying()).json() == {"outputs": {"label": [1, 0], "shares": [[0.0, 1.0], [1.0, 0.0]]}}


def test_a_model_without_rows_takes_columns_alone() -> None:
    x, y = TensorMeta("x", "float32", ()), TensorMeta("y", "float32", (2,))
    model = MadeUpModel("plain", [x], [y], lambda feeds: {"y": np.stack([feeds["x"], -feeds["x"]])})
    model.described = model.described.__class__(inputs=(x,), outputs=(y,))
    assert predict({"inputs": {"x": 3}}, model).json() == {"outputs": [3.0, -3.0]}
    assert "have no rows; send them as inputs, by name" in error_of(predict({"instances": [3]}, model), 400)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, 'it is {"instances": [a row, ...]}'),
        ([1], 'it is {"instances": [a row, ...]}'),
        ({"instances": ROWS, "inputs": ROWS}, "the body has 'inputs', 'instances'"),
        ({"instances": []}, "instances is an empty list"),
        ({"instances": ROWS, "signature_name": "f"}, "signature_name"),
        ({"instances": [[1, 2, 3]]}, "instance 0, input 'x'"),
        ({"instances": [[1, 2, 3, "4"]]}, "instance 0, input 'x'"),
        ({"inputs": {"z": ROWS}}, "inputs has 'z'; the model's inputs are 'x'"),
        ({"inputs": {}}, "the model's inputs are 'x'"),
        ({"inputs": {"x": [1, 2]}}, "input 'x': it is nested 1 deep; the model wants 2"),
        ({"inputs": {"x": [[[1]]]}}, "input 'x': it is nested more than 2 deep; the model wants 2"),
        ({"inputs": {"x": [[1, 2, 3, 4], [5]]}}, "input 'x'"),
        ({"inputs": {"x": []}}, "input 'x'"),
        ({"inputs": "x"}, "instances is 'x'"),
    ],
)
def test_what_is_wrong_is_named(body: Any, told: str) -> None:
    assert told in error_of(predict(body), 400)


def test_the_limits_are_those_of_predict() -> None:
    assert "the limit of this server is 4" in error_of(predict({"inputs": {"x": ROWS}}, max_tensor_elements=4), 400)
    assert "4" in error_of(predict({"instances": ROWS}, max_tensor_elements=4), 400)
    app = app_of(MadeUpRepository(doubling(), api_keys=["key"]))
    error_of(ask(app, "POST", "/v1/models/doubling:predict", json={"instances": ROWS}), 401)
    error_of(ask(app, "GET", "/v1/models"), 401)
    large = {"instances": [[0.123456789012345] * 4] * 20_000}
    error_of(predict(large, max_body_mib=1), 413)
    given = {"content": b"{}", "headers": {"Content-Type": "text/plain"}}
    app = app_of(MadeUpRepository(doubling()))
    error_of(ask(app, "POST", "/v1/models/doubling:predict", **given), 415)
    error_of(ask(app, "GET", "/v1/models/doubling:predict"), 404)


def test_a_full_queue_refuses_before_the_body_is_parsed() -> None:
    model = doubling()

    def refuse() -> None:
        raise Problem(429, "256 requests wait")

    model.admit = refuse  # type: ignore[method-assign]
    error_of(predict({"instances": "not read"}, model), 429)


def test_an_output_that_json_cannot_hold() -> None:
    x, y = TensorMeta("x", "float32", (-1, 4)), TensorMeta("y", "float32", (-1, 4))
    model = MadeUpModel("nan", [x], [y], lambda feeds: {"y": feeds["x"] * np.nan})
    for body in ({"instances": ROWS}, {"inputs": {"x": ROWS}}):
        assert "output 'y'" in error_of(predict(body, model), 500)


def test_a_request_takes_a_place_among_those_that_arrive() -> None:
    async def work() -> None:
        model = doubling()
        model.go = asyncio.Event()
        async with client_of(app_of(MadeUpRepository(model))) as client:
            answer = asyncio.create_task(client.post("/v1/models/doubling:predict", json={"instances": ROWS}))
            while not model.waiting:
                await asyncio.sleep(0.001)
            assert model.on_their_way == 0
            model.go.set()
            assert (await answer).json() == {"predictions": TWICE}

    run(work())
