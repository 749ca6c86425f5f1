"""The server as one ASGI application: the routes, and around them what every request passes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from trnrt import __version__
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http import schemas
from trnrt.serve.http.limits import Deadline, Gate, Tracked
from trnrt.serve.http.routes import JSONAnswer
from trnrt.serve.http.routes_operating import add_operating
from trnrt.serve.http.routes_pages import router_for
from trnrt.serve.http.routes_predict import add_predict
from trnrt.serve.http.routes_protocol import add_protocol
from trnrt.serve.http.tensors import value_text

DESCRIPTION = """ONNX models, served by the Open Inference Protocol (version 2) and by a simple `POST /predict`.

Every failure, of every path, is `{"error": "text"}`."""


class Application(FastAPI):
    """FastAPI, with the schemas of ``schemas`` in its description."""

    def openapi(self) -> dict[str, Any]:
        """What /openapi.json says; made once."""
        made = self.openapi_schema is None
        described = super().openapi()
        if made:
            components = described.setdefault("components", {})
            components.setdefault("schemas", {}).update(schemas.SCHEMAS)
            components["securitySchemes"] = schemas.KEYS
            # Any of them, or none: whether there are keys is for the operator to say.
            described["security"] = [{}, *({name: []} for name in schemas.KEYS)]
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
        exception_handlers={HTTPException: _http_error, RequestValidationError: _invalid},
        middleware=[Middleware(layer, repository=repository) for layer in (Tracked, Gate, Deadline)],
    )
    add_protocol(app, repository)
    add_predict(app, repository)
    add_operating(app, repository)
    app.include_router(router_for(repository))
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods, and forms that are none."""
    assert isinstance(error, HTTPException)
    path, method = value_text(request.scope["path"]), value_text(request.scope["method"])
    texts = {
        404: f"there is no {path} here; /openapi.json has the paths of this server",
        405: f"{path} does not take {method}; it takes {(error.headers or {}).get('Allow', 'others')}",
    }
    text = texts.get(error.status_code, str(error.detail))
    return JSONAnswer({"error": text}, status_code=error.status_code, headers=error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    """What FastAPI finds wrong with parameters: a bad request, in the words of the protocol."""
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
    return JSONAnswer({"error": told}, status_code=400)
