"""The paths of the Open Inference Protocol: health, metadata, and infer."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt import __version__
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.configuration import PLATFORM
from trnrt.serve.hosting.served import Model, check_ready
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.bodies import read_body
from trnrt.serve.http.limits import header, limit_time
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
from trnrt.serve.processes.traces import Trace, current_trace

MODEL_PATHS = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
_TAG = "Open Inference Protocol"
_HEADER_LENGTH = HEADER_LENGTH.lower().encode("ascii")


def add_infer(app: FastAPI) -> None:
    """Add the most frequent path. Call it first: paths are tried in the order in which they were added."""
    for model in MODEL_PATHS:
        add_route(app, _TAG, "POST", f"{model}/infer", infer, schemas.INFER_SUCCESS, schemas.FOR_INPUT, schemas.INFER)


def add_protocol(app: FastAPI) -> None:
    """Add the protocol's other paths."""
    for path, handler, success in (("", model_metadata, "Model"), ("/ready", model_ready, "ModelReady")):
        for model in MODEL_PATHS:
            add_route(app, _TAG, "GET", model + path, handler, success, schemas.FOR_A_MODEL)
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
        # The reasons are at the models' own paths: this one needs no key, so with keys it names no model either.
        reasons = repository.reasons
        if reasons and repository.settings.has_keys:
            raise Problem(503, f"not ready: {len(reasons)} of {len(repository.models)} models")
        models = {key: repository.find(key) for key in reasons}
        waiting = [f"{value_text(key)} is {model.busy or model.state}" for key, model in models.items()]
        raise Problem(503, f"not ready: {', '.join(waiting) or 'other workers load their models'}")
    return JSONAnswer({"ready": True})


async def server_metadata(request: Request) -> Response:
    """The server's name, version and extensions."""
    extensions = ["binary_tensor_data", "model_configuration", "statistics"]
    if repository_of(request).settings.admin:
        extensions.append("model_repository")
    return JSONAnswer({"name": "trnrt", "version": __version__, "extensions": extensions})


async def model_metadata(request: Request) -> Response:
    """A model's inputs and outputs."""
    repository = repository_of(request)
    model = repository.find_main(*address_of(request))
    described = model.described
    if not described.inputs and not described.outputs:
        # Nothing is known of a model before it is loaded.
        check_ready(model)
    return JSONAnswer(
        {
            "name": model.name,
            "versions": [one.version for one in repository.versions(model.name)] or [model.version],
            "platform": PLATFORM,
            "digest": model.digest,
            "inputs": [describe(meta) for meta in described.inputs],
            "outputs": [describe(meta) for meta in described.outputs],
        }
    )


async def model_ready(request: Request) -> Response:
    """Check that a model is ready; the error gives the reason if it isn't."""
    model = repository_of(request).find_main(*address_of(request))
    check_ready(model)
    if (busy := model.busy) is not None:
        raise Problem(503, f"model {value_text(model.name)} is not ready, but {busy}")
    return JSONAnswer({"name": model.name, "ready": True})


async def infer(request: Request) -> Response:
    """Run a model."""
    model = repository_of(request).find(*address_of(request))
    check_ready(model)
    media_type(request, (JSON, BINARY))
    settings = repository_of(request).settings.for_model(model.name)
    limit_time(request.scope, settings.request_timeout)
    trace, converter = current_trace.get(), converter_of(request)
    with model.arriving():
        try:
            length = header_length(header(request.scope, _HEADER_LENGTH))
            body = await read_body(request, converter.check_json if length is None else None, length or 0)
            trace.lap("receive")
            model.admit()
            parsed = await converter.read_infer(body, length, model.described, settings.max_tensor_elements)
        except RequestError as error:
            raise Problem(400, str(error)) from None
    trace.lap("parse")
    inference = await model.infer(parsed.feeds, parsed.outputs, timeout_s=parsed.timeout_s)
    trace_inference(trace, model, inference)
    try:
        parts, size = await converter.write_infer(model, parsed, inference, timing(inference))
    except TensorError as error:
        raise Problem(500, str(error)) from None
    trace.lap("render")
    accepted = header(request.scope, b"accept-encoding")
    if size is None:
        return make_answer(parts, JSON, accepted)
    return make_answer(parts, BINARY, accepted, {HEADER_LENGTH: str(size)})


def address_of(request: Request) -> tuple[str, str]:
    """The model and the version that a path names."""
    return request.path_params["model"], request.path_params.get("version", "")


def trace_inference(trace: Trace, model: Model, inference: Inference) -> None:
    """Divide the time of ``model.infer``, which ends now, into waiting and computing."""
    if not trace.recording:
        return
    attributes: dict[str, str | int] = {
        "trnrt.model": model.name,
        "trnrt.version": model.version,
        "trnrt.rows": inference.rows,
        "trnrt.batch_rows": inference.batch_rows,
        "trnrt.bucket": inference.bucket,
    }
    if inference.length_bucket:
        attributes |= {"trnrt.length": inference.length, "trnrt.length_bucket": inference.length_bucket}
    waited = (inference.queue_ms + inference.batch_ms) / 1e3
    trace.divide(("queue", waited, attributes), ("compute", inference.compute_ms / 1e3, attributes))


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
