"""Triton's extensions of the protocol that its tools read: a model's configuration, and statistics."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.configuration import model_config
from trnrt.serve.hosting.description import NOTHING_KNOWN
from trnrt.serve.hosting.served import Model
from trnrt.serve.hosting.statistics import statistics
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes import add_route, repository_of
from trnrt.serve.http.routes_operating import read_metrics
from trnrt.serve.http.routes_protocol import MODEL_PATHS, address_of, check_ready
from trnrt.serve.http.tensors import TensorError

_TAG = "Triton's extensions"


def add_triton(app: FastAPI) -> None:
    """Add the extensions' paths. Those of all models come before those of one: a model may be called ``stats``."""
    add_route(app, _TAG, "GET", "/v2/models/stats", all_statistics, "Statistics", schemas.EVERYWHERE)
    for model in MODEL_PATHS:
        add_route(app, _TAG, "GET", f"{model}/config", configuration, "ModelConfig", schemas.FOR_A_MODEL)
        add_route(app, _TAG, "GET", f"{model}/stats", model_statistics, "Statistics", schemas.FOR_A_MODEL)


async def configuration(request: Request) -> Response:
    """A model's configuration, as Triton's ModelConfig."""
    repository = repository_of(request)
    model = repository.find_main(*address_of(request))
    if model.described == NOTHING_KNOWN:
        check_ready(model)
    try:
        return JSONAnswer(model_config(model, repository.settings.for_model(model.name)))
    except TensorError as error:
        raise Problem(500, str(error)) from None


async def all_statistics(request: Request) -> Response:
    """The statistics of every model that the key is for, summed over all workers."""
    models = current_client.get().visible(repository_of(request).models)
    return await _statistics(request, list(models.values()))


async def model_statistics(request: Request) -> Response:
    """The statistics of a model's versions, or of one, summed over all workers."""
    repository, (name, version) = repository_of(request), address_of(request)
    model = repository.find_main(name, version)
    return await _statistics(request, [model] if version or "@" in name else repository.versions(model.name) or [model])


async def _statistics(request: Request, models: list[Model]) -> Response:
    repository = repository_of(request)
    return JSONAnswer(await read_metrics(repository.settings, lambda: statistics(repository.metrics, models)))
