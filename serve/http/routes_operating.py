"""The operator's paths: metrics and, with --admin, loading and unloading models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.changes import Action
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.statistics import read_metrics
from trnrt.serve.http import operating, schemas
from trnrt.serve.http.answers import JSONAnswer
from trnrt.serve.http.bodies import INLINE, read_body
from trnrt.serve.http.limits import METRICS
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.routes import add_route, repository_of

Parsed = TypeVar("Parsed")


def add_operating(app: FastAPI) -> None:
    """Add /metrics and the repository extension."""
    add_route(app, "Operating", "GET", METRICS, metrics, schemas.METRICS_SUCCESS, schemas.EVERYWHERE)
    failures = schemas.FOR_A_MODEL
    for path, handler, body, success in (
        ("index", repository_index, "IndexRequest", "RepositoryIndex"),
        ("models/{model}/load", repository_load, "LoadRequest", "Empty"),
        ("models/{model}/unload", repository_unload, "UnloadRequest", "Empty"),
        ("models/{model}/canary", repository_canary, "CanaryRequest", "Empty"),
    ):
        extra = schemas.body_of(body)
        add_route(app, "Model repository", "POST", f"/v2/repository/{path}", handler, success, failures, extra)
    path = "/v2/repository/models/{model}/canary"
    add_route(app, "Model repository", "GET", path, canary_state, "CanaryState", failures)


async def metrics(request: Request) -> Response:
    """The server's metrics, for Prometheus. A key for some models only may not read them (403)."""
    current_client.get().check_sees_all()
    repository = repository_of(request)
    body, content_type = await read_metrics(repository.settings, repository.metrics.render)
    return Response(body, headers={"Content-Type": content_type})


async def repository_index(request: Request) -> Response:
    """The models and their states. Off (403) unless the server was started with --admin."""
    repository = _admin_repository(request)
    only_ready = await _read(request, operating.parse_index)
    return JSONAnswer([row for row in repository.index() if not only_ready or row["state"] == "READY"])


async def repository_load(request: Request) -> Response:
    """Load or reload a model on all workers, or on none. Off (403) unless the server was started with --admin."""
    return await _act_on_all(request, "load", operating.check_load)


async def repository_unload(request: Request) -> Response:
    """Unload a model on all workers. Off (403) unless the server was started with --admin."""
    return await _act_on_all(request, "unload", operating.check_unload)


async def repository_canary(request: Request) -> Response:
    """Give a version a share of its model's requests, on all workers. Off (403) unless the server was started with
    --admin.

    A share of 0 sends every request to the highest other version, and 1 every request to this one.
    """
    repository = _admin_repository(request)
    canary = await _read(request, operating.parse_canary)
    await repository.set_canary(request.path_params["model"], canary)
    return JSONAnswer({})


async def canary_state(request: Request) -> Response:
    """The version that has a share of a model's requests, as set last. Off (403) unless the server was started with
    --admin.

    Empty if there is none: then the highest version that is ready has every request.
    """
    canary = _admin_repository(request).canary_of(request.path_params["model"])
    return JSONAnswer({} if canary is None else {"version": canary.version, "share": canary.share})


async def _act_on_all(request: Request, action: Action, check: Callable[[bytes], None]) -> Response:
    repository = _admin_repository(request)
    await _read(request, check)
    await repository.act_on_all(action, request.path_params["model"])
    return JSONAnswer({})


async def _read(request: Request, parse: Callable[[bytes], Parsed]) -> Parsed:
    """The request's body, read by ``parse``. Problem: 400 for a wrong one, 413 for one that is larger than the event
    loop parses: no right one is."""

    def refuse(size: int) -> None:
        repository_of(request).metrics.count_rejection("body")
        raise Problem(413, f"the body has {size} bytes; the limit for the operator's requests is {INLINE} bytes")

    body = await read_body(request, refuse)
    assert isinstance(body, bytes)
    try:
        return parse(body)
    except RequestError as error:
        raise Problem(400, str(error)) from None


def _admin_repository(request: Request) -> Repository:
    """The repository. Problem(403) unless it may be changed over HTTP."""
    repository = repository_of(request)
    if not repository.settings.admin:
        raise Problem(403, "this server does not load or unload models over HTTP; start it with --admin to allow it")
    current_client.get().check_administers()
    return repository
