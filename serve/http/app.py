"""The server as one ASGI application: the routes, and the layers around them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trnrt import __version__
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http import routes_pages, schemas
from trnrt.serve.http.answers import error_answer
from trnrt.serve.http.converting import Converter
from trnrt.serve.http.dispatch import Dispatch, framework_layers
from trnrt.serve.http.limits import Tracked
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes_operating import add_operating
from trnrt.serve.http.routes_predict import add_predict
from trnrt.serve.http.routes_protocol import add_infer, add_protocol
from trnrt.serve.http.routes_triton import add_triton
from trnrt.serve.http.routes_v1 import add_v1
from trnrt.serve.http.tensors import value_text

DESCRIPTION = """ONNX models, served by the Open Inference Protocol (version 2), by version 1 of KServe's protocol,
and by a simple `POST /predict`.

Every failure, of every path, is `{"error": "text"}`."""


class Application(FastAPI):
    """FastAPI with the schemas of ``schemas``, inside the server's own layers."""

    layers: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.layers(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The content of /openapi.json, for the models that there are now."""
        described = super().openapi()
        components = described.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas.SCHEMAS)
        components["securitySchemes"] = schemas.KEYS
        # Any of them, or none: the operator decides if there are keys.
        described["security"] = [{}, *({name: []} for name in schemas.KEYS)]
        repository: Repository = self.state.repository
        # This page needs no key: on a server with keys it doesn't name the models.
        names = () if repository.settings.has_keys else tuple(repository.models)
        schemas.describe_choice(described, names, required=len(repository.models) != 1)
        return described


def make_app(repository: Repository) -> FastAPI:
    """The application that serves the models of ``repository``."""
    app = Application(
        title="trnrt",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: _http_error},
    )
    app.state.repository = repository
    app.state.converter = Converter(repository)
    add_infer(app)
    add_triton(app)
    add_protocol(app)
    add_predict(app)
    add_v1(app)
    add_operating(app)
    app.include_router(routes_pages.router)
    app.layers = Tracked(Dispatch(app, framework_layers(app.build_middleware_stack())), repository)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals: unknown paths and methods, and malformed forms."""
    assert isinstance(error, HTTPException)
    path, method = value_text(request.scope["path"]), value_text(request.scope["method"])
    texts = {
        404: f"there is no {path} here; /openapi.json has the paths of this server",
        405: f"{path} does not take {method}; it takes {(error.headers or {}).get('Allow', 'others')}",
    }
    text = texts.get(error.status_code, str(error.detail))
    return error_answer(Problem(error.status_code, text, error.headers))
