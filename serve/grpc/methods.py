"""The methods of inference.GRPCInferenceService."""

from __future__ import annotations

import math
from typing import Any

from trnrt import __version__
from trnrt.serve.grpc import health, messages, triton
from trnrt.serve.grpc.calls import Call, Method
from trnrt.serve.grpc.inference import InferRequest, parse, parse_infer, render_infer
from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.changes import Action
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.configuration import PLATFORM
from trnrt.serve.hosting.served import Model, check_ready
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import describe
from trnrt.serve.http.routes_protocol import timing, trace_inference
from trnrt.serve.http.tensors import value_text
from trnrt.serve.settings import is_loopback

SERVICE = "/inference.GRPCInferenceService/"
STREAM_IDLE_S = 300.0
"""The longest wait of a stream for its client's next message."""
_NEVER_REFUSED = "unload_dependents"
"""The parameter that Triton's client always sends; no model here has dependents."""


def make_methods() -> dict[str, Method]:
    """The methods by path."""
    own = {
        "ModelInfer": Method(infer),
        "ServerLive": Method(live, is_open=True),
        "ServerReady": Method(ready, is_open=True),
        "ServerMetadata": Method(server_metadata),
        "ModelReady": Method(model_ready),
        "ModelMetadata": Method(model_metadata),
        "ModelStreamInfer": Method(stream_infer, streams=True),
        "RepositoryIndex": Method(repository_index),
        "RepositoryModelLoad": Method(repository_load, timed=False),
        "RepositoryModelUnload": Method(repository_unload, timed=False),
    }
    own |= triton.make_methods()
    return {SERVICE + name: method for name, method in own.items()} | health.make_methods()


async def live(call: Call) -> bytes:
    """Say that the server runs."""
    return _encode(messages.LiveAnswer(live=True))


async def ready(call: Call) -> bytes:
    """Say if all models are ready."""
    return _encode(messages.ReadyAnswer(ready=call.repository.ready))


async def server_metadata(call: Call) -> bytes:
    """The server's name, version and extensions."""
    extensions = ["model_configuration", "statistics"]
    if call.repository.settings.admin:
        extensions.append("model_repository")
    return _encode(messages.ServerAnswer(name="trnrt", version=__version__, extensions=extensions))


async def model_ready(call: Call) -> bytes:
    """Say if a model is ready; one that is unknown is not."""
    given = parse(messages.NamedModel, await call.read())
    try:
        model = call.repository.find_main(given.name, given.version)
        is_ready = model.state == "ready" and model.busy is None
    except Problem:
        is_ready = False
    return _encode(messages.ModelReadyAnswer(ready=is_ready))


async def model_metadata(call: Call) -> bytes:
    """A model's inputs and outputs."""
    given = parse(messages.NamedModel, await call.read())
    model = call.repository.find_main(given.name, given.version)
    described = model.described
    if not described.inputs and not described.outputs:
        check_ready(model)
    answer = messages.MetadataAnswer(name=model.name, versions=[model.version], platform=PLATFORM)
    for metas, tensors in ((described.inputs, answer.inputs), (described.outputs, answer.outputs)):
        for meta in metas:
            tensors.add(**describe(meta))
    return _encode(answer)


async def infer(call: Call) -> bytes:
    """Run a model."""
    answer, size = await _infer(call, await call.read())
    return await _encode_answer(call, answer, size)


async def stream_infer(call: Call) -> bytes:
    """Run a model for each message of a stream, one after the other. A failure is an answer's error_message."""
    while (message := await call.read_next(STREAM_IDLE_S)) is not None:
        failure: Problem | None = None
        answer, size = messages.InferAnswer(), 0
        with call.next_request():
            try:
                call.check_rate()
                plain = await call.unpack(message)
                async with call.deadline.timeout:
                    answer, size = await _infer(call, plain)
            except TimeoutError:
                call.calls.metrics.count_rejection("timeout")
                failure = call.deadline.problem()
            except Exception as error:
                failure = call.problem_of(error)
        text = "" if failure is None else failure.text
        call.record(200 if failure is None else failure.status, text)
        wrapped = messages.StreamAnswer(error_message=text, infer_response=answer)
        await call.write(await _encode_answer(call, wrapped, size))
    return b""


async def repository_index(call: Call) -> bytes:
    """The models and their states."""
    _check_admin(call)
    given = parse(messages.IndexRequest, await call.read())
    rows = [row for row in call.repository.index() if row["state"] == "READY" or not given.ready]
    return _encode(messages.IndexAnswer(models=rows))


async def repository_load(call: Call) -> bytes:
    """Load or reload a model on all workers."""
    return await _act_on_all(call, "load")


async def repository_unload(call: Call) -> bytes:
    """Unload a model on all workers."""
    return await _act_on_all(call, "unload")


async def _act_on_all(call: Call, action: Action) -> bytes:
    _check_admin(call)
    given = parse(messages.ModelRequest, await call.read())
    for entry in given.parameters:
        name = parse(messages.ParameterName, entry, "a parameter").key
        if name != _NEVER_REFUSED:
            raise Problem(400, f"{action} has the parameter {value_text(name)}, which this server does not take")
    name = given.second or given.first
    await call.repository.act_on_all(action, name)
    return _encode(messages.ModelAnswer(model_name=name, done=True))


def _check_admin(call: Call) -> None:
    """Problem(403) unless the repository may be changed."""
    settings = call.repository.settings
    if not settings.admin:
        raise Problem(403, "this server does not load or unload models over gRPC; start it with --admin to allow it")
    if not (settings.has_keys or is_loopback(settings.host)):
        way_out = "loading and unloading need API keys at an address that others reach: set TRNRT_API_KEYS"
        raise Problem(403, f"the server has no keys; {way_out}")
    current_client.get().check_administers()


async def _infer(call: Call, message: bytes) -> tuple[Any, int]:
    """The answer to a request, and about how many bytes it has."""
    run, size = call.calls.run, len(message)
    given = await run(size, parse, messages.InferCall, message)
    model = call.repository.find(given.model_name, given.model_version)
    check_ready(model)
    settings = call.repository.settings.for_model(model.name)
    call.deadline.change(settings.request_timeout)
    with model.arriving():
        model.admit()
        most_elements = settings.max_tensor_elements
        request: InferRequest = await run(size, parse_infer, given, model.described, most_elements)
    del given, message
    left_s = min(call.deadline.left_s(), request.timeout_s or math.inf)
    call.trace.lap("parse")
    inference = await model.infer(request.feeds, request.outputs, timeout_s=left_s)
    trace_inference(call.trace, model, inference)
    size = sum(array.nbytes for array in inference.outputs.values())
    return await run(size, _render, model, request, inference), size


def _render(model: Model, request: InferRequest, inference: Inference) -> Any:
    named = (model.name, model.version)
    return render_infer(named, request, inference.outputs, inference.described.outputs, timing(inference))


def _encode(answer: Any) -> bytes:
    encoded: bytes = answer.SerializeToString()
    return encoded


async def _encode_answer(call: Call, answer: Any, size: int) -> bytes:
    encoded: bytes = await call.calls.run(size, _encode, answer)
    return encoded
