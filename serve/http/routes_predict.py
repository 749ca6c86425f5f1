"""The path ``/predict``: see ``predicting`` for what it takes and says."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import numpy as np
from fastapi import FastAPI
from numpy.typing import NDArray
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http import schemas
from trnrt.serve.http.predicting import feeds_of, pictures_of, predictions_of
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import JSON, RequestError, loads
from trnrt.serve.http.routes import JSONAnswer, add_route, media_type
from trnrt.serve.http.routes_protocol import check_ready, timing
from trnrt.serve.http.tensors import TensorError, value_text

Array = NDArray[Any]

FORM = "multipart/form-data"
PICTURES = ("image/png", "image/jpeg")
MOST_PICTURES = 64
_BYTES_A_VALUE = np.dtype(np.float64).itemsize


def add_predict(app: FastAPI, repository: Repository) -> None:
    """Add /predict."""
    settings = repository.settings

    async def predict(request: Request) -> Response:
        """Predict, from rows or pictures.

        Rows as JSON, or PNG and JPEG pictures, as the body or as files of a form, by the preprocessing that the model
        declares. The answer has a prediction for each row.
        """
        began = time.perf_counter()
        model = _chosen_model(repository, request)
        check_ready(model)
        if not model.has_batch:
            raise Problem(
                400, f"the inputs of model {value_text(model.name)} have no rows; use the protocol's infer for it"
            )
        kind = media_type(request, (JSON, FORM, *PICTURES))
        with model.arriving():
            try:
                feeds = await _feeds(request, kind, model, settings.max_tensor_elements)
            except RequestError as error:
                raise Problem(400, str(error)) from None
            model.check(feeds)
        inference = await model.infer(feeds)
        try:
            told = predictions_of(inference.outputs, model.outputs, model.labels, inference.rows)
        except TensorError as error:
            raise Problem(500, str(error)) from None
        times = timing(inference)
        times["total_ms"] = round((time.perf_counter() - began) * 1e3, 3)
        found = model.predictions.get(inference.bucket)
        predicted = None if found is None else found.us
        return JSONAnswer({"model": model.name, **told, "timing": {**times, "predicted_device_us": predicted}})

    answers = schemas.responses("Prediction", schemas.FOR_INPUT)
    add_route(app, "POST", "/predict", predict, tag="Predict", responses=answers, extra=schemas.PREDICT)


def _chosen_model(repository: Repository, request: Request) -> Model:
    """The model that the query names, or the only one."""
    named = request.query_params.getlist("model")
    if len(named) > 1:
        raise Problem(400, f"the query names {len(named)} models; it names one")
    if named:
        return repository.get(named[0]).view()
    if len(repository.models) == 1:
        return repository.get(next(iter(repository.models))).view()
    names = ", ".join(value_text(name) for name in repository.models) or "none"
    raise Problem(400, f"say which model, as in /predict?model=NAME; the models are {names}")


async def _feeds(request: Request, kind: str, model: Model, most_elements: int) -> dict[str, Array]:
    if kind == FORM:
        return await _from_pictures(await _read_uploads(request), model, most_elements)
    body = await request.body()
    if kind in PICTURES:
        return await _from_pictures([("the body", body)], model, most_elements)
    model.admit()
    given = loads(body)
    if type(given) is not dict or "instances" not in given:
        raise RequestError("the body is no object with instances, which are the rows")
    return feeds_of(given["instances"], model.inputs, most_elements)


async def _from_pictures(files: list[tuple[str, bytes]], model: Model, most_elements: int) -> dict[str, Array]:
    largest = most_elements * _BYTES_A_VALUE
    model.admit()  # it may have gone while they came
    return await asyncio.to_thread(pictures_of, files, model.inputs, model.metadata, largest)


async def _read_uploads(request: Request) -> list[tuple[str, bytes]]:
    """The files of a form, whatever their fields are called, with the names that they have there."""
    async with request.form(max_files=MOST_PICTURES, max_fields=MOST_PICTURES) as form:
        files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
        if not files:
            raise RequestError("the form has no file; send a PNG or JPEG picture as a file of it")
        return [(file.filename or "the file", await file.read()) for file in files]
