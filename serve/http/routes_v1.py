"""Version 1 of KServe's protocol: the models, whether one is ready, and ``:predict``.

The parts are those of ``/predict``, but the answer has the model's own outputs: version 1 knows no labels. The paths,
and ``inputs`` as another name for ``instances``, are in KServe's documentation (Data plane, V1 protocol); columns, and
the form of answers, in that of TensorFlow Serving's REST API.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.served import Model
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.columns import columns_of, feeds_of_columns
from trnrt.serve.http.predicting import feeds_of, outputs_by_row
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import JSON, RequestError, loads, names_text
from trnrt.serve.http.routes import add_route, media_type, repository_of
from trnrt.serve.http.routes_protocol import check_ready, trace_inference
from trnrt.serve.http.tensors import TensorError, value_text
from trnrt.serve.processes.traces import current_trace

_TAG = "KServe version 1"
_FORMS = '{"instances": [a row, ...]} or {"inputs": {the name of an input: its rows}}'


def add_v1(app: FastAPI) -> None:
    """Add the paths of version 1."""
    add_route(app, _TAG, "POST", "/v1/models/{model}:predict", predict_v1, "V1Answer", schemas.FOR_INPUT, schemas.V1)
    add_route(app, _TAG, "GET", "/v1/models", models_v1, "V1Models", schemas.EVERYWHERE)
    add_route(app, _TAG, "GET", "/v1/models/{model}", ready_v1, "ModelReady", schemas.FOR_A_MODEL)


async def models_v1(request: Request) -> Response:
    """The names of all models."""
    return JSONAnswer({"models": list(dict.fromkeys(model.name for model in repository_of(request).models.values()))})


async def ready_v1(request: Request) -> Response:
    """Check that a model is ready; the error gives the reason if it isn't."""
    model = repository_of(request).find_main(request.path_params["model"])
    check_ready(model)
    return JSONAnswer({"name": model.name, "ready": True})


async def predict_v1(request: Request) -> Response:
    """Predict, from rows (instances) or columns (inputs).

    Rows give predictions, one for each; columns give outputs, each with all its rows. These are the model's own
    outputs, without labels.
    """
    repository = repository_of(request)
    model = repository.find(request.path_params["model"])
    check_ready(model)
    media_type(request, (JSON,))
    trace = current_trace.get()
    with model.arriving():
        body = await request.body()
        trace.lap("receive")
        model.admit()
        try:
            feeds, by_column = _read(loads(body), model, repository.settings.max_tensor_elements)
        except RequestError as error:
            raise Problem(400, str(error)) from None
    trace.lap("parse")
    inference = await model.infer(feeds)
    trace_inference(trace, model, inference)
    outputs, metas = inference.outputs, inference.described.outputs
    try:
        found = columns_of(outputs, metas) if by_column else outputs_by_row(outputs, metas, inference.rows)
    except TensorError as error:
        raise Problem(500, str(error)) from None
    answer = JSONAnswer({"outputs" if by_column else "predictions": found})
    trace.lap("render")
    return answer


def _read(given: object, model: Model, most_elements: int) -> tuple[dict[str, Any], bool]:
    """The model's inputs, and whether they came as columns."""
    if type(given) is not dict or ("instances" in given) == ("inputs" in given):
        found = f"has {names_text(sorted(given))}" if type(given) is dict else f"is {value_text(given)}"
        raise RequestError(f"the body {found}; it is {_FORMS}")
    if "signature_name" in given:
        raise RequestError("the body has a signature_name; an ONNX model has no signatures, leave it out")
    inputs = model.described.inputs
    if isinstance(given.get("inputs"), dict):
        return feeds_of_columns(given["inputs"], inputs, most_elements), True
    if model.described.batch is None:
        name = value_text(model.name)
        raise RequestError(f"the inputs of model {name} have no rows; send them as inputs, by name, instead")
    rows = given["instances"] if "instances" in given else given["inputs"]
    return feeds_of(rows, inputs, most_elements), False
