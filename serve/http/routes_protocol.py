"""The paths of the Open Inference Protocol: health, metadata, and infer."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt import __version__
from trnrt.serve.hosting.models import Inference
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http import schemas
from trnrt.serve.http.limits import header
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import (
    BINARY,
    HEADER_LENGTH,
    JSON,
    VERSION,
    InferRequest,
    RequestError,
    describe,
    header_length,
    parse_infer,
    render_infer,
)
from trnrt.serve.http.routes import Handler, JSONAnswer, add_route, media_type
from trnrt.serve.http.tensors import TensorError, value_text

PLATFORM = "trnrt_onnx"
_HEADER_LENGTH = HEADER_LENGTH.lower().encode("ascii")


def add_protocol(app: FastAPI, repository: Repository) -> None:
    """Add the protocol's paths."""
    # First what is asked most: paths are tried in this order.
    answers = schemas.responses(schemas.INFER_SUCCESS, schemas.FOR_INPUT)
    _add_for_model(app, "POST", "/infer", _infer(repository), answers, schemas.INFER)
    for handler, method, path, success in (
        (_model_metadata(repository), "GET", "", "Model"),
        (_model_ready(repository), "GET", "/ready", "ModelReady"),
    ):
        _add_for_model(app, method, path, handler, schemas.responses(success, schemas.FOR_A_MODEL), {})
    _add_server(app, repository)


def _add_for_model(
    app: FastAPI,
    method: str,
    path: str,
    handler: Handler,
    answers: dict[int | str, schemas.Schema],
    extra: schemas.Schema,
) -> None:
    """Add a path of a model twice: without a version, and with one."""
    for version, parameters in (("", (schemas.MODEL,)), ("/versions/{version}", (schemas.MODEL, schemas.VERSION))):
        add_route(
            app,
            method,
            f"/v2/models/{{model}}{version}{path}",
            handler,
            tag="Open Inference Protocol",
            responses=answers,
            extra=schemas.with_parameters(extra, *parameters),
        )


def _add_server(app: FastAPI, repository: Repository) -> None:
    extensions = ["binary_tensor_data", *(["model_repository"] if repository.settings.admin else [])]

    async def live(request: Request) -> Response:
        """Whether the server runs."""
        return JSONAnswer({"live": True})

    async def ready(request: Request) -> Response:
        """Whether all models are ready."""
        if repository.draining:
            raise Problem(503, "the server is shutting down")
        if not repository.ready:
            # Why is at the model's own path: this one needs no key.
            waiting = [f"{value_text(name)} is {repository.get(name).state}" for name in repository.reasons]
            raise Problem(503, f"not ready: {', '.join(waiting) or 'other workers load their models'}")
        return JSONAnswer({"ready": True})

    async def server_metadata(request: Request) -> Response:
        """The server's name, version and extensions."""
        return JSONAnswer({"name": "trnrt", "version": __version__, "extensions": extensions})

    tag = "Open Inference Protocol"
    add_route(app, "GET", "/v2/health/live", live, tag=tag, responses=schemas.responses("Live", schemas.EVERYWHERE))
    add_route(app, "GET", "/v2/health/ready", ready, tag=tag, responses=schemas.responses("Ready", schemas.EVERYWHERE))
    answers = schemas.responses("Server", schemas.EVERYWHERE)
    add_route(app, "GET", "/v2", server_metadata, tag=tag, responses=answers)
    add_route(app, "GET", "/v2/", server_metadata, tag=tag, responses=answers, hidden=True)


def find_model(repository: Repository, request: Request) -> Model:
    """The model of a path. Problem(404) where there is none, or no such version of it."""
    model = repository.get(request.path_params["model"])
    version = request.path_params.get("version", VERSION)
    if version != VERSION:
        raise Problem(
            404, f"model {value_text(model.name)} has no version {value_text(version)}; its only version is {VERSION}"
        )
    return model.view()


def check_ready(model: Model) -> None:
    """Problem(503) with the reason unless the model is ready."""
    if model.state != "ready":
        reason = f": {model.reason}" if model.reason else ""
        text = f"model {value_text(model.name)} is not ready, but {model.state}{reason}"
        raise Problem(503, text, retry_after=model.retry_after)


def _model_metadata(repository: Repository) -> Handler:
    async def model_metadata(request: Request) -> Response:
        """A model's inputs and outputs."""
        model = find_model(repository, request)
        if not model.inputs and not model.outputs:
            # Nothing is known of a model that was not loaded.
            check_ready(model)
        return JSONAnswer(
            {
                "name": model.name,
                "versions": [VERSION],
                "platform": PLATFORM,
                "inputs": [describe(meta) for meta in model.inputs],
                "outputs": [describe(meta) for meta in model.outputs],
            }
        )

    return model_metadata


def _model_ready(repository: Repository) -> Handler:
    async def model_ready(request: Request) -> Response:
        """Whether a model is ready; the reason where it is not."""
        model = find_model(repository, request)
        check_ready(model)
        return JSONAnswer({"name": model.name, "ready": True})

    return model_ready


def _infer(repository: Repository) -> Handler:
    most_elements = repository.settings.max_tensor_elements

    async def infer(request: Request) -> Response:
        """Run a model."""
        model = find_model(repository, request)
        check_ready(model)
        media_type(request, (JSON, BINARY))
        outputs = {meta.name: meta for meta in model.outputs}
        with model.arriving():
            body = await request.body()
            model.admit()
            try:
                length = header_length(header(request.scope, _HEADER_LENGTH), len(body))
                inputs = {meta.name: meta for meta in model.inputs}
                parsed = parse_infer(body, length, inputs, outputs, most_elements)
            except RequestError as error:
                raise Problem(400, str(error)) from None
            model.check(parsed.feeds)
        inference = await model.infer(parsed.feeds, parsed.outputs)
        return _answer(model, parsed, inference)

    return infer


def _answer(model: Model, parsed: InferRequest, inference: Inference) -> Response:
    known = {meta.name: meta for meta in model.outputs}
    try:
        body, length = render_infer(model.name, parsed, inference.outputs, known, timing(inference))
    except TensorError as error:
        raise Problem(500, str(error)) from None
    if length is None:
        return Response(body, media_type=JSON)
    return Response(body, media_type=BINARY, headers={HEADER_LENGTH: str(length)})


def timing(inference: Inference) -> dict[str, float]:
    """Where a request's time went."""
    return {
        "queue_ms": round(inference.queue_ms, 3),
        "batch_ms": round(inference.batch_ms, 3),
        "compute_ms": round(inference.compute_ms, 3),
        "rows": inference.rows,
        "batch_rows": inference.batch_rows,
        "bucket": inference.bucket,
    }
