"""The protocol's paths, and what is said where there is none; the application in this process."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import httpx
import numpy as np
import pytest
from serving import MadeUpModel, MadeUpRepository, app_of, ask, doubling, echo, error_of, lines_logged

from trnrt import __version__
from trnrt.serve.hosting.description import NOTHING_KNOWN, TensorMeta
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import DATATYPES, datatype_of, to_binary

X = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
INFER = "/v2/models/doubling/infer"


def get(path: str, *models: MadeUpModel, **settings: Any) -> httpx.Response:
    return ask(app_of(MadeUpRepository(*(models or (doubling(),)), **settings)), "GET", path)


def infer(body: dict[str, Any], model: MadeUpModel | None = None, path: str | None = None) -> httpx.Response:
    model = model or doubling()
    return ask(app_of(MadeUpRepository(model)), "POST", path or f"/v2/models/{model.name}/infer", json=body)


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(path: str) -> None:
    extensions = ["binary_tensor_data", "model_configuration", "statistics"]
    assert get(path).json() == {"name": "trnrt", "version": __version__, "extensions": extensions}
    assert get(path, admin=True).json()["extensions"] == [*extensions, "model_repository"]


def test_health() -> None:
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}


def test_a_server_is_ready_when_all_models_are() -> None:
    late = doubling(name="late")
    late.state, late.reason = "loading", "it compiles"
    text = error_of(get("/v2/health/ready", doubling(), late), 503)
    assert "'late' is loading" in text and "doubling" not in text
    assert get("/v2/health/live", late).json() == {"live": True}
    assert get("/v2/models/doubling/ready", doubling(), late).json() == {"name": "doubling", "ready": True}


def test_a_model_that_is_not_ready_says_why() -> None:
    failed = doubling(name="failed")
    failed.state, failed.reason = "failed", "bad.onnx is truncated"
    repository = MadeUpRepository(failed)
    for method, path in (("GET", "ready"), ("POST", "infer")):
        response = ask(app_of(repository), method, f"/v2/models/failed/{path}")
        assert "is not ready, but failed: bad.onnx is truncated" in error_of(response, 503)
        assert "retry-after" not in response.headers, "nobody knows when it will be another"
        failed.retry_after = 7
        assert ask(app_of(repository), method, f"/v2/models/failed/{path}").headers["retry-after"] == "7"
        failed.retry_after = None
    assert ask(app_of(repository), "GET", "/v2/models/failed").status_code == 200
    failed.described = NOTHING_KNOWN
    error_of(ask(app_of(repository), "GET", "/v2/models/failed"), 503)


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_model_metadata_and_readiness(version: str) -> None:
    assert get(f"/v2/models/doubling{version}").json() == {
        "name": "doubling",
        "versions": ["1"],
        "platform": "trnrt_onnx",
        "digest": "",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert get(f"/v2/models/doubling{version}/ready").json() == {"name": "doubling", "ready": True}


@pytest.mark.parametrize("tail", ["", "/ready", "/versions/1", "/versions/1/ready"])
def test_unknown_models(tail: str) -> None:
    assert "'nobody'" in error_of(get(f"/v2/models/nobody{tail}"), 404)


@pytest.mark.parametrize("version", ["2", "0", "01", "latest", "%31x"])
def test_unknown_versions(version: str) -> None:
    for tail in ("", "/ready"):
        assert "its only version is 1" in error_of(get(f"/v2/models/doubling/versions/{version}{tail}"), 404)
    error_of(infer({"inputs": [X]}, path=f"/v2/models/doubling/versions/{version}/infer"), 404)


@pytest.mark.parametrize(
    "path", ["/nope", "/v2/models", "/v2/models/", "/v2/health", "/V2", "/v2/health/live/", "/v2//health/live"]
)
def test_unknown_paths(path: str) -> None:
    assert "there is no" in error_of(get(path), 404)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "BREW"])
def test_methods_that_a_path_does_not_take(method: str) -> None:
    response = ask(app_of(MadeUpRepository(doubling())), method, INFER)
    assert f"does not take '{method}'; it takes POST" in error_of(response, 405)
    assert response.headers["allow"] == "POST"


def test_head_is_get_without_a_body() -> None:
    app = app_of(MadeUpRepository(doubling()))
    whole, head = ask(app, "GET", "/v2"), ask(app, "HEAD", "/v2")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(whole.content))


def test_no_cors() -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    app = app_of(MadeUpRepository(doubling()))
    for method in ("GET", "OPTIONS"):
        response = ask(app, method, "/v2", headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", [INFER, "/v2/models/doubling/versions/1/infer"])
def test_infer(path: str) -> None:
    response = infer({"id": "one", "inputs": [X]}, path=path)
    assert response.status_code == 200 and response.headers["content-type"] == "application/json"
    answer = response.json()
    times = answer.pop("parameters")
    assert answer == {
        "model_name": "doubling",
        "model_version": "1",
        "id": "one",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [2, 4, 6, 8]}],
    }
    assert times == {"queue_ms": 0.1, "batch_ms": 0.2, "compute_ms": 0.3, "rows": 1, "batch_rows": 1, "bucket": 1}
    assert "id" not in infer({"inputs": [X]}).json()


def binary_infer(model: MadeUpModel, inputs: list[dict[str, Any]], rest: bytes, **members: Any) -> httpx.Response:
    head = json.dumps({"inputs": inputs, **members}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    app = app_of(MadeUpRepository(model))
    return ask(app, "POST", f"/v2/models/{model.name}/infer", content=head + rest, headers=headers)


def test_infer_with_binary_data() -> None:
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
    raw = struct.pack("<4f", 1, 2, 3, float("nan"))
    response = binary_infer(doubling(), [tensor], bytes(raw), parameters={"binary_data_output": True})
    assert response.status_code == 200 and response.headers["content-type"] == "application/octet-stream"
    length = int(response.headers["inference-header-content-length"])
    assert response.content[length:] == struct.pack("<4f", 2, 4, 6, float("nan"))
    assert json.loads(response.content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    told = error_of(binary_infer(doubling(), [tensor], raw), 500)
    assert "output 'y': it holds NaN or infinity" in told and "nan_policy" in told
    response = binary_infer(doubling(), [tensor], raw, parameters={"nan_policy": "null"})
    assert response.json()["outputs"][0]["data"] == [2, 4, 6, None]


DTYPES = [str(d.dtype) if d.kind != "str" else "str" for d in DATATYPES.values()]
VALUES: dict[str, list[Any]] = {"bool": [True, False], "str": ["ü", ""], "int": [1, 100], "float": [0.5, -2]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_datatype_in_json_and_binary(dtype: str) -> None:
    datatype = datatype_of(dtype)
    assert datatype is not None
    values = VALUES[datatype.kind]
    tensor: dict[str, Any] = {"name": f"in_{dtype}", "shape": [1, 2], "datatype": datatype.name}
    (got,) = infer({"inputs": [tensor | {"data": [values]}]}, echo(dtype)).json()["outputs"]
    assert (got["datatype"], got["shape"], got["data"]) == (datatype.name, [1, 2], values)
    raw = to_binary(np.array(values, datatype.dtype), datatype)
    sent = tensor | {"parameters": {"binary_data_size": len(raw)}}
    response = binary_infer(echo(dtype), [sent], bytes(raw), parameters={"binary_data_output": True})
    assert response.content[int(response.headers["inference-header-content-length"]) :] == raw


def test_outputs_that_are_asked_for() -> None:
    body = {
        "inputs": [
            {"name": "in_int8", "shape": [1, 2], "datatype": "INT8", "data": [1, 2]},
            {"name": "in_str", "shape": [1, 2], "datatype": "BYTES", "data": ["a", "b"]},
        ]
    }
    outputs = infer(body | {"outputs": [{"name": "out_str"}]}, echo("int8", "str")).json()["outputs"]
    assert [output["name"] for output in outputs] == ["out_str"]
    outputs = infer(body, echo("int8", "str")).json()["outputs"]
    assert [output["name"] for output in outputs] == ["out_int8", "out_str"]


def test_bad_requests_are_refused_before_the_model_sees_them() -> None:
    model = doubling()
    bodies: tuple[dict[str, Any], ...] = (
        {},
        {"inputs": []},
        {"inputs": [X | {"shape": [1, 5]}]},
        {"inputs": [X | {"shape": [4], "data": [1] * 4}]},
    )
    for bad in bodies:
        error_of(infer(bad, model), 400)
    assert (model.answered, model.on_their_way) == (0, 0)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "image/png"]
)
def test_content_types_that_infer_does_not_take(kind: str) -> None:
    app = app_of(MadeUpRepository(doubling()))
    response = ask(app, "POST", INFER, content=b"{}", headers={"Content-Type": kind})
    assert "it is application/json or application/octet-stream" in error_of(response, 415)


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "", None])
def test_content_types_that_infer_takes(kind: str | None) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    content = json.dumps({"inputs": [X]}).encode()
    response = ask(app_of(MadeUpRepository(doubling())), "POST", INFER, content=content, headers=headers)
    assert response.status_code == 200


def test_what_the_model_raises_is_answered() -> None:
    model = doubling()
    model.error = Problem(429, "the queue is full", {"Retry-After": "3"})
    response = infer({"inputs": [X]}, model)
    assert error_of(response, 429) == "the queue is full"
    assert response.headers["retry-after"] == "3"


def test_our_own_faults_say_nothing_but_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_logged(monkeypatch)
    model = doubling()
    model.error = RuntimeError("secret detail")
    app = app_of(MadeUpRepository(model))
    response = ask(app, "POST", INFER, json={"inputs": [X]}, headers={"X-Request-Id": "find-me"})
    text = error_of(response, 500)
    assert "find-me" in text and "secret" not in text
    assert "RuntimeError: secret detail" in str(next(line for line in lines if line["event"] == "unhandled"))


def test_repository_extension_is_off() -> None:
    repository = MadeUpRepository(doubling())
    assert "--admin" in error_of(ask(app_of(repository), "GET", "/v2/repository/models/doubling/canary"), 403)
    for path in ("index", "models/doubling/load", "models/doubling/unload", "models/doubling/canary"):
        assert "--admin" in error_of(ask(app_of(repository), "POST", f"/v2/repository/{path}"), 403)
    assert repository.done == []


def test_repository_extension() -> None:
    repository = MadeUpRepository(doubling(), admin=True)
    app = app_of(repository)
    assert ask(app, "POST", "/v2/repository/index").json()[0]["name"] == "doubling"
    for verb in ("load", "unload"):
        response = ask(app, "POST", f"/v2/repository/models/doubling/{verb}", json={})
        assert (response.status_code, response.json()) == (200, {})
        error_of(ask(app, "POST", f"/v2/repository/models/nobody/{verb}"), 404)
    assert repository.done == ["load doubling", "unload doubling"]
    assert ask(app, "POST", "/v2/repository/index", json={"ready": True}).json()[0]["state"] == "READY"
    canary = {"version": "1", "share": 0.25}
    assert ask(app, "GET", "/v2/repository/models/doubling/canary").json() == {}
    assert ask(app, "POST", "/v2/repository/models/doubling/canary", json=canary).status_code == 200
    assert ask(app, "GET", "/v2/repository/models/doubling/canary").json() == canary
    error_of(ask(app, "GET", "/v2/repository/models/nobody/canary"), 404)
    parameters = {"parameters": {"unload_dependents": False}}  # as Triton's client sends it
    assert ask(app, "POST", "/v2/repository/models/doubling/unload", json=parameters).status_code == 200
    assert repository.done[2:] == ["doubling 1=0.25", "unload doubling"]


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("models/doubling/load", {"parameters": {"config": "{}"}}, "takes no parameter 'config': put the file into"),
        ("models/doubling/load", {"parameters": {"file:1/model.onnx": "CA=="}}, "takes no parameter 'file:1/model"),
        ("models/doubling/load", {"parameters": {"version": "2"}}, "load has no parameter 'version'"),
        ("models/doubling/load", {"parameters": []}, "they are an object"),
        ("models/doubling/load", {"config": "{}"}, "the body has 'config'; it may have parameters"),
        ("models/doubling/load", [], "the body is a list; it is an object"),
        ("models/doubling/unload", {"parameters": {"unload_dependents": 1}}, "unload_dependents is 1"),
        ("models/doubling/unload", {"parameters": {"force": True}}, "unload has no parameter 'force'"),
        ("index", {"ready": "yes"}, "ready is 'yes'; it is true or false"),
        ("index", {"name": "x"}, "the body has 'name'; it may have ready"),
        ("models/doubling/canary", {}, "the body has no version"),
        ("models/doubling/canary", {"version": 2, "share": 0.1}, "version is 2"),
        ("models/doubling/canary", {"version": "2", "share": 1.1}, "share is 1.1"),
        ("models/doubling/canary", {"version": "2", "share": True}, "share is true"),
    ],
)
def test_what_an_operator_asks_for_is_done_or_refused(path: str, body: Any, told: str) -> None:
    repository = MadeUpRepository(doubling(), admin=True)
    assert told in error_of(ask(app_of(repository), "POST", f"/v2/repository/{path}", json=body), 400)
    assert repository.done == []


def test_metrics() -> None:
    response = get("/metrics")
    assert response.text == "made_up 1\n"
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_names_of_models_are_data() -> None:
    hostile = doubling(name='<script>"ü')
    app = app_of(MadeUpRepository(hostile))
    response = ask(app, "GET", "/v2/models/%3Cscript%3E%22%C3%BC")
    assert response.json()["name"] == '<script>"ü'
    assert response.content.isascii()


def test_models_without_inputs_of_the_kind_asked() -> None:
    meta = TensorMeta("x", "float32", ())
    scalar = MadeUpModel("scalar", [meta], [meta], lambda feeds: dict(feeds))
    body = {"inputs": [{"name": "x", "shape": [], "datatype": "FP32", "data": [3]}]}
    assert infer(body, scalar).json()["outputs"] == [{"name": "x", "datatype": "FP32", "shape": [], "data": [3]}]


def test_the_description_names_every_status_and_schema() -> None:
    described = get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    text = json.dumps(described)
    assert {name for name in schemas if f'#/components/schemas/{name}"' in text} == set(schemas)
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            codes = set(operation["responses"])
            assert {"200", "401", "413", "500", "503", "504"} <= codes and "422" not in codes, (method, path)
            names = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert names == set(re.findall(r"{(\w+)}", path))
            error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
            assert all(operation["responses"][code]["content"] == error for code in codes - {"200"})
    assert len(
        {operation["operationId"] for item in described["paths"].values() for operation in item.values()}
    ) == sum(map(len, described["paths"].values()))
