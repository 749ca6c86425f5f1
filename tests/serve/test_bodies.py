"""Bodies and answers of any size: small ones on the event loop, large ones elsewhere, and all of them the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from serving import MadeUpModel, MadeUpRepository, app_of, ask, client_of, doubling, echo, error_of, run

from trnrt.serve.hosting.description import TensorMeta
from trnrt.serve.http import bodies, converting, tensors
from trnrt.serve.http.bodies import INLINE
from trnrt.serve.http.converting import MOST_ELEMENTS
from trnrt.serve.http.sending import COMPRESS_FROM, choose_encoding

INFER = "/v2/models/doubling/infer"
MIB = 1 << 20
LARGE = np.random.default_rng(0).random((MOST_ELEMENTS, 4), np.float32)
"""As JSON larger than what the event loop reads, and writes."""


def infer_json(x: Any, **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor], **more}).encode()


def infer_binary(x: Any, pad: int = 0, name: str = "x", datatype: str = "FP32", **more: Any) -> tuple[bytes, Any]:
    parameters = {"binary_data_size": x.nbytes}
    tensor = {"name": name, "datatype": datatype, "shape": list(x.shape), "parameters": parameters}
    head = json.dumps({"inputs": [tensor], **more}).encode() + b" " * pad
    return head + x.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


@contextmanager
def no_reader(app: FastAPI) -> Iterator[None]:
    """The block starts no process."""
    yield
    assert app.state.converter.reader.pid is None


def outputs_of(answer: httpx.Response) -> Any:
    """The array of an answer's only output."""
    assert answer.status_code == 200, answer.text
    length = answer.headers.get("inference-header-content-length")
    if length is None:
        (found,) = answer.json()["outputs"]
        return np.array(found["data"], np.float32).reshape(found["shape"])
    (found,) = json.loads(answer.content[: int(length)])["outputs"]
    raw = answer.content[int(length) :]
    assert len(raw) == found["parameters"]["binary_data_size"]
    return np.frombuffer(raw, np.float32).reshape(found["shape"])


# -- large requests and answers ------------------------------------------------------------------------------------


def test_large_json_is_read_and_written_elsewhere() -> None:
    app = app_of(MadeUpRepository(doubling()))
    plain = {"Accept-Encoding": "identity"}
    answer = ask(app, "POST", INFER, content=infer_json(LARGE, id="7"), headers=plain)
    assert app.state.converter.reader.pid is not None
    np.testing.assert_array_equal(outputs_of(answer), LARGE * 2)
    document = answer.json()
    assert list(document) == ["model_name", "model_version", "outputs", "id", "parameters"] and document["id"] == "7"
    assert list(document["outputs"][0]) == ["name", "datatype", "shape", "data"]
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_small_ones_start_no_process() -> None:
    app = app_of(MadeUpRepository(doubling()))
    with no_reader(app):
        few = LARGE[: MOST_ELEMENTS // 8]
        np.testing.assert_array_equal(outputs_of(ask(app, "POST", INFER, content=infer_json(few))), few * 2)


@pytest.mark.parametrize("pad", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("rows", [10, INLINE // 16 + 1, converting.SMALL_TENSORS // 16 + 1])
@pytest.mark.parametrize("binary", [True, False])
def test_binary_tensors(pad: int, rows: int, binary: bool) -> None:
    """Without a process, unless the answer is large JSON; at any alignment."""
    x = np.random.default_rng(rows).random((rows, 4), np.float32)
    model = doubling()
    model.compute = lambda feeds: {"y": feeds["x"] * 2 if binary else feeds["x"][:9] * 2}
    app = app_of(MadeUpRepository(model))
    body, headers = infer_binary(x, pad, parameters={"binary_data_output": binary})
    with no_reader(app):
        answer = ask(app, "POST", INFER, content=body, headers=headers)
    np.testing.assert_array_equal(outputs_of(answer), x * 2 if binary else x[:9] * 2)


def test_a_large_body_of_binary_tensors_is_not_copied() -> None:
    """Its only copy is the file that it was received into."""
    x = np.ones((MIB, 4), np.float32)
    model, seen = doubling(), list[Any]()
    model.compute = lambda feeds: seen.append(feeds["x"]) or {"y": feeds["x"][:1]}  # type: ignore[func-returns-value]
    body, headers = infer_binary(x, 1)
    assert ask(app_of(MadeUpRepository(model)), "POST", INFER, content=body, headers=headers).status_code == 200
    assert seen[0].flags.aligned and seen[0].flags.writeable and not seen[0].flags.owndata
    np.testing.assert_array_equal(seen[0], x)


def test_a_large_json_before_binary_tensors() -> None:
    app = app_of(MadeUpRepository(doubling()))
    body, headers = infer_binary(LARGE, INLINE)
    np.testing.assert_array_equal(outputs_of(ask(app, "POST", INFER, content=body, headers=headers)), LARGE * 2)


def test_mixed_outputs() -> None:
    """JSON that is large, and binary data behind it."""
    app = app_of(MadeUpRepository(echo("float32", "int64")))
    inputs = [
        {"name": f"in_{dtype}", "datatype": name, "shape": [5000, 2], "data": list(range(10_000))}
        for dtype, name in (("float32", "FP32"), ("int64", "INT64"))
    ]
    wanted = [{"name": "out_float32"}, {"name": "out_int64", "parameters": {"binary_data": True}}]
    answer = ask(app, "POST", "/v2/models/echo/infer", json={"inputs": inputs, "outputs": wanted})
    length = int(answer.headers["inference-header-content-length"])
    first, second = json.loads(answer.content[:length])["outputs"]
    assert first["data"] == list(range(10_000)) and second["parameters"] == {"binary_data_size": 80_000}
    np.testing.assert_array_equal(np.frombuffer(answer.content[length:], np.int64), range(10_000))


def test_large_strings() -> None:
    texts = [f"text {k} ß" for k in range(MOST_ELEMENTS + 2)]
    app = app_of(MadeUpRepository(echo("str")))
    tensor = {"name": "in_str", "datatype": "BYTES", "shape": [len(texts) // 2, 2], "data": texts}
    answer = ask(app, "POST", "/v2/models/echo/infer", json={"inputs": [tensor]})
    assert answer.json()["outputs"][0]["data"] == texts


def test_strings_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 bytes of a request would be 50 of memory each."""
    monkeypatch.setattr(tensors, "MOST_STRINGS", 10)
    app = app_of(MadeUpRepository(echo("str")))
    body, headers = infer_binary(np.zeros((6, 2), np.int32), name="in_str", datatype="BYTES")
    for options in (
        {"content": body, "headers": headers},
        {"json": {"inputs": [{"name": "in_str", "datatype": "BYTES", "shape": [6, 2], "data": [""] * 12}]}},
    ):
        answer = ask(app, "POST", "/v2/models/echo/infer", **options)
        assert "has 12 strings; the limit of this server is 10" in error_of(answer, 400)


def test_predict_reads_and_writes_large_json() -> None:
    app = app_of(MadeUpRepository(doubling()))
    answer = ask(app, "POST", "/predict", json={"instances": LARGE.tolist()})
    assert app.state.converter.reader.pid is not None
    document = answer.json()
    assert list(document) == ["model", "version", "predictions", "timing"]
    np.testing.assert_array_equal(np.array(document["predictions"], np.float32), LARGE * 2)


def test_errors_of_large_requests() -> None:
    repository = MadeUpRepository(doubling())
    app = app_of(repository)
    wrong = infer_json(LARGE).replace(b"FP32", b"FP64")
    assert "the model wants FP32" in error_of(ask(app, "POST", INFER, content=wrong), 400)
    assert "no object with instances" in error_of(ask(app, "POST", "/predict", content=wrong), 400)
    assert "no JSON" in error_of(ask(app, "POST", INFER, content=b"[" + b"1," * INLINE), 400)
    body, headers = infer_binary(LARGE)
    headers = {"Inference-Header-Content-Length": str(len(body) + 1)}
    assert "the body has only" in error_of(ask(app, "POST", INFER, content=body, headers=headers), 400)
    many = LARGE.copy()
    many[5, 1] = np.nan
    body, headers = infer_binary(many)
    assert "NaN or infinity" in error_of(ask(app, "POST", INFER, content=body, headers=headers), 500)
    headers_null = headers
    body, headers_null = infer_binary(many, parameters={"nan_policy": "null"})
    answer = ask(app, "POST", INFER, content=body, headers=headers_null)
    assert answer.json()["outputs"][0]["data"][21] is None
    assert repository.metrics.refused == []


# -- limits --------------------------------------------------------------------------------------------------------


def test_json_has_a_limit_of_its_own() -> None:
    repository = MadeUpRepository(doubling(), max_json_mib=1, max_body_mib=4)
    app = app_of(repository)
    long = infer_json(LARGE) + b" " * MIB
    for path in (INFER, "/predict"):
        told = error_of(ask(app, "POST", path, content=long), 413)
        assert "1048576 bytes (1 MiB)" in told and "--max-json-mib" in told
        assert "binary data, with the header Inference-Header-Content-Length" in told
    body, headers = infer_binary(LARGE, MIB + 1)
    assert "--max-json-mib" in error_of(ask(app, "POST", INFER, content=body, headers=headers), 413)
    assert repository.metrics.refused == ["body"] * 3
    body, headers = infer_binary(np.ones((MIB // 8, 4), np.float32), parameters={"binary_data_output": True})
    assert ask(app, "POST", INFER, content=body, headers=headers).status_code == 200
    assert repository.admission.held == 0


def test_json_that_is_too_large_is_refused_before_it_is_all_there() -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b" " * INLINE

    app = app_of(MadeUpRepository(doubling(), max_json_mib=1))
    error_of(ask(app, "POST", INFER, content=endless()), 413)
    assert taken <= MIB // INLINE + 1


def test_memory_for_json_is_limited() -> None:
    repository = MadeUpRepository(doubling())
    app = app_of(repository)
    app.state.converter.reader.memory = 24 * MIB
    told = error_of(ask(app, "POST", INFER, content=b"[" + b"[]," * MIB + b"1]"), 413)
    assert "takes more than 25165824 bytes of memory" in told and "--max-json-mib" in told
    model = repository.models["doubling"]
    model.compute = lambda feeds: {"y": np.zeros((2 * MIB, 4), np.float32)}
    told = error_of(ask(app, "POST", INFER, content=infer_json(LARGE[:1])), 400)
    assert "ask for the outputs as binary data" in told
    assert repository.metrics.refused == ["body"] * 2


def test_a_reader_that_dies_is_a_503() -> None:
    repository = MadeUpRepository(doubling())
    app = app_of(repository)
    body = infer_json(LARGE)

    async def work() -> None:
        async with client_of(app) as client:
            assert (await client.post(INFER, content=body)).status_code == 200
            pid = app.state.converter.reader.pid
            os.kill(pid, signal.SIGSTOP)
            task = asyncio.create_task(client.post(INFER, content=body))
            await asyncio.sleep(0.2)
            os.kill(pid, signal.SIGKILL)
            refused = await task
            assert "the process that reads large JSON died" in error_of(refused, 503)
            assert int(refused.headers["retry-after"]) >= 1
            assert (await client.post(INFER, content=body)).status_code == 200

    run(work())
    assert repository.metrics.refused == ["reader"]


def test_a_timeout_frees_the_reader() -> None:
    repository = MadeUpRepository(doubling(), request_timeout=1.0)
    patient = MadeUpRepository(doubling())
    app = app_of(repository)
    app.state.converter = app_of(patient).state.converter
    body = infer_json(LARGE)
    reader = app.state.converter.reader

    # Not compressed, which takes turns: an answer that is half sent when the time is over ends with an exception.
    plain = {"Accept-Encoding": "identity"}

    async def work() -> None:
        async with client_of(app) as client:
            while (await client.post(INFER, content=body, headers=plain)).status_code != 200:
                pass  # a busy machine needs more than a second to start the process
            pid = reader.pid
            os.kill(pid, signal.SIGSTOP)
            assert "longer than 1 s" in error_of(await client.post(INFER, content=body, headers=plain), 504)
            assert reader.pid is None
            while (await client.post(INFER, content=body, headers=plain)).status_code != 200:
                pass
            assert reader.pid not in (None, pid)

    run(work())


# -- compressed answers --------------------------------------------------------------------------------------------


def constant(rows: int) -> MadeUpModel:
    x, y = TensorMeta("x", "float32", (-1, 4)), TensorMeta("y", "float32", (-1, 4))
    return MadeUpModel("doubling", [x], [y], lambda feeds: {"y": np.full((rows, 4), 0.1, np.float32)})


@pytest.mark.parametrize("rows", [10, MOST_ELEMENTS, 200_000])
@pytest.mark.parametrize(("accepted", "used"), [("gzip", "gzip"), ("deflate", "deflate"), ("br", None)])
@pytest.mark.parametrize("binary", [True, False])
def test_compressed_answers(rows: int, accepted: str, used: str | None, binary: bool) -> None:
    if rows > MOST_ELEMENTS and not binary:
        rows //= 5
    app = app_of(MadeUpRepository(constant(rows)))
    parameters = {"binary_data_output": binary}
    content = infer_json(LARGE[:1], parameters=parameters)
    answer = ask(app, "POST", INFER, content=content, headers={"Accept-Encoding": accepted})
    is_small = rows * (16 if binary else 20) < COMPRESS_FROM
    assert answer.headers.get("content-encoding") == (None if is_small else used)
    assert ("vary" in answer.headers) == (not is_small)
    np.testing.assert_array_equal(outputs_of(answer), np.full((rows, 4), 0.1, np.float32))


def test_what_does_not_shrink_is_sent_as_it_is() -> None:
    app = app_of(MadeUpRepository(doubling()))
    body, headers = infer_binary(LARGE, parameters={"binary_data_output": True})
    answer = ask(app, "POST", INFER, content=body, headers={**headers, "Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.content)
    np.testing.assert_array_equal(outputs_of(answer), LARGE * 2)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("GZIP, deflate", "gzip"),
        ("deflate, br", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip; q=0.000, deflate;q=0", None),
        ("gzip;q=x", None),
        ("identity", None),
        ("*", None),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", "gzip"),
    ],
)
def test_the_chosen_encoding(accepted: str | None, chosen: str | None) -> None:
    assert choose_encoding(accepted) == chosen


def test_predictions_are_compressed_too() -> None:
    app = app_of(MadeUpRepository(doubling()))
    answer = ask(app, "POST", "/predict", json={"instances": [[0, 0, 0, 0]] * 500}, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json()["predictions"] == [[0, 0, 0, 0]] * 500


def test_deflate_is_zlibs_format() -> None:
    app = app_of(MadeUpRepository(constant(1000)))

    async def work() -> bytes:
        async with client_of(app) as client:
            headers = {"Accept-Encoding": "deflate"}
            async with client.stream("POST", INFER, content=infer_json(LARGE[:1]), headers=headers) as answer:
                return b"".join([piece async for piece in answer.aiter_raw()])

    assert len(json.loads(zlib.decompress(run(work())))["outputs"][0]["data"]) == 4000


def test_bodies_of_every_size_around_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece or in many, below the threshold, at it and above."""
    monkeypatch.setattr(bodies, "INLINE", 100)
    monkeypatch.setattr(converting, "INLINE", 100)
    app = app_of(MadeUpRepository(doubling()))
    core = json.dumps({"instances": [[1, 2, 3, 4]]}).encode()

    async def work() -> None:
        async with client_of(app) as client:
            for size in (len(core), 99, 100, 101, 150):
                for step in (1, 60, 10**6):
                    text = core + b" " * (size - len(core))

                    async def parts(text: bytes = text, step: int = step) -> AsyncIterator[bytes]:
                        for at in range(0, len(text), step):
                            yield text[at : at + step]

                    answer = await client.post("/predict", content=parts())
                    assert answer.json()["predictions"] == [[2, 4, 6, 8]], (size, step)

    run(work())
