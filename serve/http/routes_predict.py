"""The path ``/predict``; ``predicting`` converts its inputs and outputs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.errors import InputError
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model, check_ready
from trnrt.serve.http import schemas
from trnrt.serve.http.bodies import read_body
from trnrt.serve.http.drawing import Choice, choice_of, drawable, drawn_answer
from trnrt.serve.http.limits import header, limit_time
from trnrt.serve.http.pictures import read_pictures
from trnrt.serve.http.predicting import Sent
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import JSON, RequestError, dumps
from trnrt.serve.http.routes import add_route, converter_of, media_type, repository_of
from trnrt.serve.http.routes_protocol import timing, trace_inference
from trnrt.serve.http.sending import make_answer
from trnrt.serve.http.tensors import TensorError, value_text
from trnrt.serve.http.uploads import read_uploads
from trnrt.serve.processes.traces import current_trace

FORM = "multipart/form-data"
PICTURES = ("image/png", "image/jpeg")
_BYTES_A_VALUE = np.dtype(np.float64).itemsize


def add_predict(app: FastAPI) -> None:
    """Add /predict."""
    add_route(app, "Predict", "POST", "/predict", predict, "Prediction", schemas.FOR_INPUT, schemas.PREDICT)


async def predict(request: Request) -> Response:
    """Predict, from rows or pictures.

    Rows as JSON, or PNG and JPEG pictures, as the body or as files of a form, by the preprocessing that the model
    declares or the query says. The answer has a prediction for each row. A detector's prediction for a picture is its
    boxes, a segmenter's its classes and a mask.
    """
    began = time.perf_counter()
    repository = repository_of(request)
    model = _chosen_model(repository, request)
    check_ready(model)
    settings = repository.settings.for_model(model.name)
    limit_time(request.scope, settings.request_timeout)
    trace = current_trace.get()
    with model.arriving():
        try:
            choice = choice_of(request.query_params)
            sent = await _read_request(request, model, settings.max_tensor_elements, choice)
            _check_rows(model, sent, choice)
        except RequestError as error:
            raise Problem(400, str(error)) from None
    trace.lap("parse")
    inference = await model.infer(sent.feeds)
    trace_inference(trace, model, inference)
    described = inference.described
    try:
        found = None if sent.how is None else drawable(described, sent.how, choice, inference.outputs)
        if found is not None:
            drawn = (inference.outputs, found, sent.placements, described, choice.limits)
            predictions: bytes | memoryview = await asyncio.to_thread(_drawn_text, *drawn)
        else:
            predictions = await converter_of(request).write_predictions(inference)
    except (TensorError, InputError) as error:
        raise Problem(500, str(error)) from None
    except RequestError as error:  # the model was replaced by another one meanwhile
        raise Problem(400, str(error)) from None
    predicted = described.times(inference.length_bucket).get(inference.bucket)
    times = {
        **timing(inference),
        "total_ms": round((time.perf_counter() - began) * 1e3, 3),
        "predicted_device_us": None if predicted is None else predicted.us,
    }
    head, rest = dumps({"model": model.name, "version": model.version})[:-1] + b",", b"," + dumps({"timing": times})[1:]
    accepted = header(request.scope, b"accept-encoding")
    answer = make_answer([head, memoryview(predictions)[1:-1], rest], JSON, accepted)
    trace.lap("render")
    return answer


def _drawn_text(*drawn: Any) -> bytes:
    """``drawn_answer`` as JSON."""
    return dumps(drawn_answer(*drawn))


def _chosen_model(repository: Repository, request: Request) -> Model:
    """The model that the query names, or the only one."""
    named = request.query_params.getlist("model")
    if len(named) > 1:
        raise Problem(400, f"the query names {len(named)} models; it names one")
    if named:
        return repository.find(named[0])
    models = current_client.get().visible(repository.models)
    names = list(dict.fromkeys(model.name for model in models.values()))
    if len(names) != 1:
        known = ", ".join(map(value_text, names)) or "none"
        raise Problem(400, f"say which model, as in /predict?model=NAME; the models are {known}")
    return repository.find(names[0])


def _check_rows(model: Model, sent: Sent, choice: Choice) -> None:
    """RequestError if the answer can't have a prediction for each row, or the outputs can't be read as chosen."""
    found = None if sent.how is None else drawable(model.described, sent.how, choice)
    if model.described.batch is None and (found is None or len(sent.placements) != 1):
        what = "takes one picture at a time" if found is not None else "has inputs without rows"
        raise RequestError(f"model {value_text(model.name)} {what}; use the protocol's infer for it")


async def _read_request(request: Request, model: Model, most_elements: int, choice: Choice) -> Sent:
    kind = media_type(request, (JSON, FORM, *PICTURES))
    if kind == FORM or kind in PICTURES:
        files = await read_uploads(request) if kind == FORM else [("the body", await request.body())]
        current_trace.get().lap("receive")
        model.admit()  # the queue may have filled, or the model gone, while they came
        model.described.check_rows(len(files))
        largest = most_elements * _BYTES_A_VALUE
        return await read_pictures(files, model.described, largest, choice.images)
    converter = converter_of(request)
    body = await read_body(request, converter.check_json)
    current_trace.get().lap("receive")
    model.admit()
    if model.described.batch is None:
        raise RequestError(
            f"the inputs of model {value_text(model.name)} have no rows; use the protocol's infer for it"
        )
    return Sent(await converter.read_rows(body, model.described, most_elements))
