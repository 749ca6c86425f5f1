"""The paths of the Open Inference Protocol: health, metadata, and infer."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt import __version__
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.served import Model
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.bodies import read_body
from trnrt.serve.http.limits import header
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import (
    BINARY,
    HEADER_LENGTH,
    JSON,
    RequestError,
    describe,
    header_length,
)
from trnrt.serve.http.routes import add_route, converter_of, media_type, repository_of
from trnrt.serve.http.sending import make_answer
from trnrt.serve.http.tensors import TensorError, value_text

PLATFORM = "trnrt_onnx"
_TAG = "Open Inference Protocol"
_HEADER_LENGTH = HEADER_LENGTH.lower().encode("ascii")


def add_protocol(app: FastAPI) -> None:
    """Add the protocol's paths."""
    for method, path, handler, success, failures, extra in (
        # The most frequent first: paths are tried in this order.
        ("POST", "/infer", infer, schemas.INFER_SUCCESS, schemas.FOR_INPUT, schemas.INFER),
        ("GET", "", model_metadata, "Model", schemas.FOR_A_MODEL, None),
        ("GET", "/ready", model_ready, "ModelReady", schemas.FOR_A_MODEL, None),
    ):
        for model in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            add_route(app, _TAG, method, model + path, handler, success, failures, extra)
    for path, handler, success in (
        ("/v2/health/live", live, "Live"),
        ("/v2/health/ready", ready, "Ready"),
        ("/v2", server_metadata, "Server"),
        ("/v2/", server_metadata, "Server"),
    ):
        add_route(app, _TAG, "GET", path, handler, success, schemas.EVERYWHERE)


async def live(request: Request) -> Response:
    """Check that the server runs."""
    return JSONAnswer({"live": True})


async def ready(request: Request) -> Response:
    """Check that all models are ready."""
    repository = repository_of(request)
    if repository.draining:
        raise Problem(503, "the server is shutting down")
    if not repository.ready:
        # The reasons are at the models' own paths: this one needs no key.
        waiting = [f"{value_text(name)} is {repository.find(name).state}" for name in repository.reasons]
        raise Problem(503, f"not ready: {', '.join(waiting) or 'other workers load their models'}")
    return JSONAnswer({"ready": True})


async def server_metadata(request: Request) -> Response:
    """The server's name, version and extensions."""
    extensions = ["binary_tensor_data"]
    if repository_of(request).settings.admin:
        extensions.append("model_repository")
    return JSONAnswer({"name": "trnrt", "version": __version__, "extensions": extensions})


async def model_metadata(request: Request) -> Response:
    """A model's inputs and outputs."""
    model = _find_model(request)
    described = model.described
    if not described.inputs and not described.outputs:
        # Nothing is known of a model before it is loaded.
        check_ready(model)
    return JSONAnswer(
        {
            "name": model.name,
            "versions": [model.version],
            "platform": PLATFORM,
            "inputs": [describe(meta) for meta in described.inputs],
            "outputs": [describe(meta) for meta in described.outputs],
        }
    )


async def model_ready(request: Request) -> Response:
    """Check that a model is ready; the error gives the reason if it isn't."""
    model = _find_model(request)
    check_ready(model)
    return JSONAnswer({"name": model.name, "ready": True})


async def infer(request: Request) -> Response:
    """Run a model."""
    model = _find_model(request)
    check_ready(model)
    media_type(request, (JSON, BINARY))
    converter = converter_of(request)
    with model.arriving():
        try:
            length = header_length(header(request.scope, _HEADER_LENGTH))
            body = await read_body(request, converter.check_json if length is None else None, length or 0)
            model.admit()
            parsed = await converter.read_infer(body, length, model.described)
        except RequestError as error:
            raise Problem(400, str(error)) from None
    inference = await model.infer(parsed.feeds, parsed.outputs)
    try:
        parts, size = await converter.write_infer(model.name, parsed, inference, timing(inference))
    except TensorError as error:
        raise Problem(500, str(error)) from None
    accepted = header(request.scope, b"accept-encoding")
    if size is None:
        return make_answer(parts, JSON, accepted)
    return make_answer(parts, BINARY, accepted, {HEADER_LENGTH: str(size)})


def _find_model(request: Request) -> Model:
    """The model of a path. Problem(404) if there is none, or no such version of it."""
    return repository_of(request).find(request.path_params["model"], request.path_params.get("version", ""))


def check_ready(model: Model) -> None:
    """Problem(503) with the reason unless the model is ready."""
    if model.state != "ready":
        reason = f": {model.reason}" if model.reason else ""
        text = f"model {value_text(model.name)} is not ready, but {model.state}{reason}"
        raise Problem(503, text, retry_after=model.retry_after)


def timing(inference: Inference) -> dict[str, float]:
    """Where a request's time went."""
    lengths = {"length": inference.length, "length_bucket": inference.length_bucket} if inference.length_bucket else {}
    return lengths | {
        "queue_ms": round(inference.queue_ms, 3),
        "batch_ms": round(inference.batch_ms, 3),
        "compute_ms": round(inference.compute_ms, 3),
        "rows": inference.rows,
        "batch_rows": inference.batch_rows,
        "bucket": inference.bucket,
    }
