"""How a route is made: it takes the request and gives a response, and what /openapi.json says of it stands beside it.

FastAPI would read parameters and bodies itself, and answer in its own words; nothing here asks it to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trnrt.serve.http.limits import header
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import dumps
from trnrt.serve.http.schemas import Schema

Handler = Callable[[Request], Awaitable[Response]]


class PlainRoute(APIRoute):
    """A route whose function is called with the request and nothing else: FastAPI only describes it."""

    def __init__(self, path: str, endpoint: Handler, **options: Any) -> None:
        super().__init__(path, endpoint, **options)

        async def plain(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)

        self.app = plain


class JSONAnswer(Response):
    """JSON in ASCII, which any text can be written in; numbers must be finite."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return dumps(content)


def add_route(
    app: FastAPI,
    method: str,
    path: str,
    handler: Handler,
    *,
    tag: str,
    responses: dict[int | str, Schema],
    extra: Schema | None = None,
    hidden: bool = False,
) -> None:
    """Add a path; its title and description are the handler's docstring."""
    title, _, rest = (handler.__doc__ or "").partition("\n")
    app.router.routes.append(
        PlainRoute(
            path,
            handler,
            methods=[method],
            tags=[tag],
            summary=title.rstrip("."),
            description=" ".join(rest.split()),
            response_model=None,
            responses=responses,
            openapi_extra=extra,
            include_in_schema=not hidden,
            # Without a type of its own FastAPI describes no answer by itself.
            response_class=Response,
            operation_id=f"{handler.__name__}{'_version' if '{version}' in path else ''}",
        )
    )


def media_type(request: Request, allowed: Sequence[str]) -> str:
    """What the body is, one of ``allowed``; "" where the client does not say. Problem(415) for others."""
    given = (header(request.scope, b"content-type") or "").partition(";")[0].strip().lower()
    if given and given not in allowed:
        told = f"Content-Type {given[:80]!a} is not taken here; it is {' or '.join(allowed)}"
        raise Problem(415, f"{told}, as with curl -H 'Content-Type: {allowed[0]}'")
    return given
