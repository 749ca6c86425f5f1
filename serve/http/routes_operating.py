"""What an operator asks: the metrics, and, where --admin is on, models loaded and unloaded."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http import schemas
from trnrt.serve.http.limits import METRICS
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes import JSONAnswer, add_route


def add_operating(app: FastAPI, repository: Repository) -> None:
    """Add /metrics and the repository extension."""

    async def metrics(request: Request) -> Response:
        """The server's metrics, for Prometheus."""
        render = repository.metrics.render
        # Those of several workers are read from files, those of replicas are asked for: not in the loop that answers
        # requests. A worker's own take 2 ms, and a thread would wait longer than that for a busy loop.
        several = repository.settings.workers > 1 or repository.settings.engine == "ray"
        body, content_type = await asyncio.to_thread(render) if several else render()
        return Response(body, headers={"Content-Type": content_type})

    answers = schemas.responses(schemas.METRICS_SUCCESS, schemas.EVERYWHERE)
    add_route(app, "GET", METRICS, metrics, tag="Operating", responses=answers)
    _add_repository(app, repository)


def _add_repository(app: FastAPI, repository: Repository) -> None:
    def check_allowed() -> None:
        if not repository.settings.admin:
            raise Problem(
                403, "this server does not load or unload models over HTTP; start it with --admin to allow it"
            )

    async def repository_index(request: Request) -> Response:
        """The models and their states. Off (403) unless the server was started with --admin."""
        check_allowed()
        return JSONAnswer(repository.index())

    async def repository_load(request: Request) -> Response:
        """Load a model, or load it anew, on all workers. Off (403) unless the server was started with --admin."""
        check_allowed()
        await repository.load(request.path_params["model"])
        return JSONAnswer({})

    async def repository_unload(request: Request) -> Response:
        """Unload a model on all workers. Off (403) unless the server was started with --admin."""
        check_allowed()
        await repository.unload(request.path_params["model"])
        return JSONAnswer({})

    tag = "Model repository"
    failures = (400, 403, *schemas.FOR_A_MODEL)
    for path, handler, success in (
        ("index", repository_index, "RepositoryIndex"),
        ("models/{model}/load", repository_load, "Empty"),
        ("models/{model}/unload", repository_unload, "Empty"),
    ):
        extra = schemas.with_parameters({}, schemas.MODEL) if "{model}" in path else None
        answers = schemas.responses(success, failures)
        add_route(app, "POST", f"/v2/repository/{path}", handler, tag=tag, responses=answers, extra=extra)
