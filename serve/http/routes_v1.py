"""Version 1 of KServe's protocol: the models, whether one is ready, and ``:predict``.

The parts are those of ``/predict``, but the answer has the model's own outputs: version 1 knows no labels. The paths,
and ``inputs`` as another name for ``instances``, are in KServe's documentation (Data plane, V1 protocol); columns, and
the form of answers, in that of TensorFlow Serving's REST API.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.served import check_ready
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.bodies import read_body
from trnrt.serve.http.limits import header, limit_time
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import JSON, RequestError
from trnrt.serve.http.routes import add_route, converter_of, media_type, repository_of
from trnrt.serve.http.routes_protocol import trace_inference
from trnrt.serve.http.sending import make_answer
from trnrt.serve.http.tensors import TensorError
from trnrt.serve.processes.traces import current_trace

_TAG = "KServe version 1"


def add_v1(app: FastAPI) -> None:
    """Add the paths of version 1."""
    add_route(app, _TAG, "POST", "/v1/models/{model}:predict", predict_v1, "V1Answer", schemas.FOR_INPUT, schemas.V1)
    add_route(app, _TAG, "GET", "/v1/models", models_v1, "V1Models", schemas.EVERYWHERE)
    add_route(app, _TAG, "GET", "/v1/models/{model}", ready_v1, "ModelReady", schemas.FOR_A_MODEL)


async def models_v1(request: Request) -> Response:
    """The names of all models, or of those that the key is for."""
    models = current_client.get().visible(repository_of(request).models)
    return JSONAnswer({"models": list(dict.fromkeys(model.name for model in models.values()))})


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
    settings = repository.settings.for_model(model.name)
    limit_time(request.scope, settings.request_timeout)
    trace, converter = current_trace.get(), converter_of(request)
    with model.arriving():
        try:
            body = await read_body(request, converter.check_json)
            trace.lap("receive")
            model.admit()
            feeds, by_column = await converter.read_v1(body, model.described, settings.max_tensor_elements)
        except RequestError as error:
            raise Problem(400, str(error)) from None
    trace.lap("parse")
    inference = await model.infer(feeds)
    trace_inference(trace, model, inference)
    try:
        made = await converter.write_v1(inference, by_column)
    except TensorError as error:
        raise Problem(500, str(error)) from None
    answer = make_answer([made], JSON, header(request.scope, b"accept-encoding"))
    trace.lap("render")
    return answer
