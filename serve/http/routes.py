"""Routes: each handler takes the request and returns a response. FastAPI only describes them in /openapi.json.

It does not parse parameters or bodies here, as its error messages are not the protocol's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http import schemas
from trnrt.serve.http.converting import Converter
from trnrt.serve.http.limits import header
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.schemas import Schema

Handler = Callable[[Request], Awaitable[Response]]


class PlainRoute(APIRoute):
    """A route that calls its handler with the request, without FastAPI's parsing."""

    def __init__(self, path: str, endpoint: Handler, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def plain(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

        self.app = plain


def add_route(
    app: FastAPI,
    tag: str,
    method: str,
    path: str,
    handler: Handler,
    success: str | Mapping[str, Schema],
    failures: tuple[int, ...],
    extra: Schema | None = None,
) -> None:
    """Add a path; its title and description are the handler's docstring, its other statuses are ``failures``."""
    title, _, rest = (handler.__doc__ or "").partition("\n")
    parameters = [parameter for name, parameter in schemas.PATH_PARAMETERS.items() if f"{{{name}}}" in path]
    described = {} if extra is None else dict(extra)
    if parameters:
        described["parameters"] = [*parameters, *described.get("parameters", ())]
    app.router.routes.append(
        PlainRoute(
            path,
            handler,
            methods=[method],
            tags=[tag],
            summary=title.rstrip("."),
            description=" ".join(rest.split()),
            response_model=None,
            responses=schemas.responses(success, failures),
            openapi_extra=described,
            include_in_schema=path == path.rstrip("/"),  # the other one is the same
            # A class without a media type, so that FastAPI adds no description of its own.
            response_class=Response,
            operation_id=f"{handler.__name__}{'_version' if '{version}' in path else ''}",
        )
    )


def repository_of(request: Request) -> Repository:
    """The repository of the request's application."""
    repository: Repository = request.scope["app"].state.repository
    return repository


def converter_of(request: Request) -> Converter:
    """The converter of the request's application."""
    converter: Converter = request.scope["app"].state.converter
    return converter


def media_type(request: Request, allowed: Sequence[str]) -> str:
    """The body's type, one of ``allowed``; "" if the client does not say. Problem(415) for others."""
    given = header(request.scope, b"content-type") or ""
    if given in allowed:
        return given
    given = given.partition(";")[0].strip().lower()
    if given and given not in allowed:
        refusal = f"Content-Type {given[:80]!a} is not taken here; it is {' or '.join(allowed)}"
        raise Problem(415, f"{refusal}, as with curl -H 'Content-Type: {allowed[0]}'")
    return given
