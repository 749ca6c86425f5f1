"""The way of requests to their handlers: the most frequent path goes straight, all others through FastAPI.

FastAPI's own layers, and trying the routes one after the other, take longer than reading a small request's JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from trnrt.serve.http.routes import PlainRoute

STRAIGHT = "/v2/models/{model}/infer"
_BEFORE, _, _BEHIND = STRAIGHT.partition("{model}")


class Dispatch:
    """The innermost of the server's own layers. It sets of a request's scope what the framework sets."""

    def __init__(self, app: FastAPI, framework: ASGIApp) -> None:
        self._app, self._framework = app, framework
        (self._straight,) = [one for one in app.routes if isinstance(one, PlainRoute) and one.path == STRAIGHT]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        scope["app"] = self._app
        model = _straight_model(scope) if scope["type"] == "http" else ""
        if not model:
            return self._framework(scope, receive, send)
        scope["route"], scope["path_params"] = self._straight, {"model": model}
        return self._straight.app(scope, receive, send)


def _straight_model(scope: Scope) -> str:
    """The model of a request for the straight path; "" for all others."""
    path: str = scope["path"]
    if scope["method"] != "POST" or scope.get("root_path") or not (path.startswith(_BEFORE) and path.endswith(_BEHIND)):
        return ""
    model = path[len(_BEFORE) : -len(_BEHIND)]
    return "" if "/" in model else model


def framework_layers(stack: ASGIApp) -> ASGIApp:
    """FastAPI's layers without the outermost, which answers exceptions: that is the server's own layers' task."""
    assert isinstance(stack, ServerErrorMiddleware)
    return stack.app
