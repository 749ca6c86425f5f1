"""The operator's paths: metrics and, with --admin, loading and unloading models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.repository import Action, Repository
from trnrt.serve.http import schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.limits import METRICS
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes import add_route, repository_of
from trnrt.serve.settings import ServeSettings

Found = TypeVar("Found")


def add_operating(app: FastAPI) -> None:
    """Add /metrics and the repository extension."""
    add_route(app, "Operating", "GET", METRICS, metrics, schemas.METRICS_SUCCESS, schemas.EVERYWHERE)
    failures = (400, 403, *schemas.FOR_A_MODEL)
    for path, handler, success in (
        ("index", repository_index, "RepositoryIndex"),
        ("models/{model}/load", repository_load, "Empty"),
        ("models/{model}/unload", repository_unload, "Empty"),
    ):
        add_route(app, "Model repository", "POST", f"/v2/repository/{path}", handler, success, failures)


async def metrics(request: Request) -> Response:
    """The server's metrics, for Prometheus."""
    repository = repository_of(request)
    body, content_type = await read_metrics(repository.settings, repository.metrics.render)
    return Response(body, headers={"Content-Type": content_type})


async def read_metrics(settings: ServeSettings, read: Callable[[], Found]) -> Found:
    """What ``read`` finds in all workers' metrics.

    Those of several workers come from files, those of replicas by request, so not on the event loop. A single worker's
    take 2 ms; a thread would wait longer than that for a busy loop.
    """
    several = settings.workers > 1 or settings.engine == "ray"
    return await asyncio.to_thread(read) if several else read()


async def repository_index(request: Request) -> Response:
    """The models and their states. Off (403) unless the server was started with --admin."""
    return JSONAnswer(_admin_repository(request).index())


async def repository_load(request: Request) -> Response:
    """Load or reload a model on all workers. Off (403) unless the server was started with --admin."""
    return await _act_on_all(request, "load")


async def repository_unload(request: Request) -> Response:
    """Unload a model on all workers. Off (403) unless the server was started with --admin."""
    return await _act_on_all(request, "unload")


async def _act_on_all(request: Request, action: Action) -> Response:
    await _admin_repository(request).act_on_all(action, request.path_params["model"])
    return JSONAnswer({})


def _admin_repository(request: Request) -> Repository:
    """The repository. Problem(403) unless it may be changed over HTTP."""
    repository = repository_of(request)
    if not repository.settings.admin:
        raise Problem(403, "this server does not load or unload models over HTTP; start it with --admin to allow it")
    return repository
