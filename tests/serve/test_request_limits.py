"""Limits of one request: its rows, and the time that it waits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import FIXED, RELU, loaded, numbers, run, save
from PIL import Image
from serving import MadeUpModel, MadeUpRepository, app_of, ask, doubling, error_of

from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import RequestError, parse_infer

X = TensorMeta("x", "float32", (-1, 2))
DESCRIBED = Description((X, TensorMeta("shape", "int64", (-1,))), (), batch="N", parameters=("shape",), max_rows=3)


def body_of(name: str, shape: list[int], **members: Any) -> bytes:
    datatype = "FP32" if name == "x" else "INT64"
    return json.dumps({"inputs": [{"name": name, "shape": shape, "datatype": datatype, **members}]}).encode()


@pytest.mark.parametrize("members", [{}, {"data": [1] * 8}, {"data": "wrong"}])
def test_rows_are_counted_before_the_data_is_read(members: Mapping[str, Any]) -> None:
    """Data that is missing or wrong would be another error."""
    with pytest.raises(Problem, match=r"the request has 4 rows; the limit is 3 \(--max-rows\)") as caught:
        parse_infer(body_of("x", [4, 2], **members), None, DESCRIBED, 100)
    assert (caught.value.status, caught.value.reason) == (413, "rows")


def test_what_has_no_rows_or_few_is_taken() -> None:
    assert parse_infer(body_of("x", [3, 2], data=[1] * 6), None, DESCRIBED, 100).feeds["x"].shape == (3, 2)
    assert parse_infer(body_of("shape", [9], data=[1] * 9), None, DESCRIBED, 100).feeds["shape"].shape == (9,)
    unlimited = replace(DESCRIBED, max_rows=0)
    assert parse_infer(body_of("x", [9, 2], data=[1] * 18), None, unlimited, 100).feeds["x"].shape == (9, 2)


def served(model: MadeUpModel, path: str, **options: Any) -> tuple[httpx.Response, list[str]]:
    """The answer to a POST, and the reasons of refusals."""
    repository = MadeUpRepository(model)
    return ask(app_of(repository), "POST", path, **options), repository.metrics.refused


@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize("path", ["/predict", "/v2/models/doubling/infer"])
def test_every_way_in_has_the_limit_and_counts(path: str, rows: int) -> None:
    model = doubling()
    model.described = replace(model.described, max_rows=3)
    tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": [1] * 4 * rows}
    body = {"instances": [[1, 2, 3, 4]] * rows} if path == "/predict" else {"inputs": [tensor]}
    response, refused = served(model, path, json=body)
    if rows == 3:
        assert response.status_code == 200 and refused == []
        return
    assert error_of(response, 413) == (
        "the request has 4 rows; the limit is 3 (--max-rows): send the others in other requests"
    )
    assert refused == ["rows"] and model.answered == 0


def test_pictures_are_rows_too() -> None:
    metadata = {"image.layout": "NCHW", "image.scale": "255"}
    inputs, outputs = [TensorMeta("x", "float32", (-1, 1, 2, 2))], [TensorMeta("y", "float32", (-1, 1, 2, 2))]
    model = MadeUpModel("seeing", inputs, outputs, lambda feeds: {"y": feeds["x"]}, metadata=metadata)
    model.described = replace(model.described, max_rows=2)
    held = BytesIO()
    Image.new("L", (2, 2)).save(held, "PNG")
    files = [("image", (f"{k}.png", held.getvalue(), "image/png")) for k in range(3)]
    assert "has 3 rows; the limit is 2" in error_of(served(model, "/predict", files=files)[0], 413)
    response, _ = served(model, "/predict", files=files[:2])
    assert response.status_code == 200, response.text


def test_a_model_of_the_server_has_the_limit(tmp_path: Path) -> None:
    """At least its own batch, which may be the only size that it takes."""

    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), max_rows=6, max_batch=4)
        assert len((await model.infer({"x": numbers(6, 4)})).outputs["y"]) == 6
        with pytest.raises(Problem, match="the request has 7 rows; the limit is 6"):
            await model.infer({"x": numbers(7, 4)})
        fixed = await loaded(save(tmp_path, "fixed", FIXED), max_rows=2)
        assert fixed.described.max_rows == 4
        assert np.array_equal((await fixed.infer({"x": np.ones((4, 3), np.float32)})).outputs["y"], np.ones((4, 3)))

    run(work())


@pytest.mark.parametrize(
    ("given", "seconds"), [(1, 1e-6), (250_000, 0.25), (0, None), (None, None), (1 << 80, (1 << 53) / 1e6)]
)
def test_a_timeout_is_in_microseconds(given: int | None, seconds: float | None) -> None:
    body = json.dumps({"inputs": [], "parameters": {"timeout": given}}).encode()
    assert parse_infer(body, None, DESCRIBED, 100).timeout_s == seconds


@pytest.mark.parametrize("given", [-1, 0.5, "9", True, [1]])
def test_what_is_no_timeout(given: object) -> None:
    body = json.dumps({"inputs": [], "parameters": {"timeout": given}}).encode()
    with pytest.raises(RequestError, match=r"timeout is .*; it is a number of microseconds"):
        parse_infer(body, None, DESCRIBED, 100)


def test_the_models_get_the_clients_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    model, told = doubling(), list[float | None]()
    real = model.infer

    async def infer(*arguments: Any, timeout_s: float | None = None) -> Any:
        told.append(timeout_s)
        return await real(*arguments, timeout_s=timeout_s)

    monkeypatch.setattr(model, "infer", infer)
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1] * 4}
    for parameters in ({"timeout": 2_000_000}, {}):
        body = {"inputs": [tensor], "parameters": parameters}
        assert served(model, "/v2/models/doubling/infer", json=body)[0].status_code == 200
    assert told == [2.0, None]


@pytest.mark.parametrize(("settings", "asked"), [(0.02, 100.0), (0.02, None), (100.0, 0.02), (100.0, 0.0)])
def test_the_shorter_timeout_counts(settings: float, asked: float | None, tmp_path: Path) -> None:
    """Before the delay is over, for which a request waits for another one that arrives."""

    async def work() -> None:
        model = await loaded(save(tmp_path, "relu", RELU), request_timeout=settings, max_batch=2, max_delay_ms=9000)
        with model.arriving(), pytest.raises(Problem) as caught:
            await model.infer({"x": numbers(1, 4)}, timeout_s=asked)
        assert caught.value.status == 504
        shorter = min(settings, 100.0 if asked is None else asked)
        assert caught.value.text == f"no answer within {shorter:g} s, the limit for this request"

    run(work())
