"""Triton's extensions of the protocol that its tools read: a model's configuration, and statistics."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.configuration import configuration_of
from trnrt.serve.hosting.statistics import read_statistics
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.routes import add_route, repository_of
from trnrt.serve.http.routes_protocol import MODEL_PATHS, address_of

_TAG = "Triton's extensions"


def add_triton(app: FastAPI) -> None:
    """Add the extensions' paths. Those of all models come before those of one: a model may be called ``stats``."""
    add_route(app, _TAG, "GET", "/v2/models/stats", all_statistics, "Statistics", schemas.EVERYWHERE)
    for model in MODEL_PATHS:
        add_route(app, _TAG, "GET", f"{model}/config", configuration, "ModelConfig", schemas.FOR_A_MODEL)
        add_route(app, _TAG, "GET", f"{model}/stats", model_statistics, "Statistics", schemas.FOR_A_MODEL)


async def configuration(request: Request) -> Response:
    """A model's configuration, as Triton's ModelConfig."""
    return JSONAnswer(configuration_of(repository_of(request), *address_of(request)))


async def all_statistics(request: Request) -> Response:
    """The statistics of every model, summed over all workers."""
    return JSONAnswer(await read_statistics(repository_of(request)))


async def model_statistics(request: Request) -> Response:
    """The statistics of a model's versions, or of one, summed over all workers."""
    return JSONAnswer(await read_statistics(repository_of(request), *address_of(request)))
