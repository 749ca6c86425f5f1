"""The pages: one to try models, the API's reference, and the files that both load.

All files are in ``pages``; the policy in their headers lets a browser load nothing from elsewhere.
"""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from trnrt import __version__
from trnrt.serve.hosting.clients import current_client
from trnrt.serve.hosting.description import NOTHING_KNOWN
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.forms import form_of
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.routes import repository_of

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""blob: shows the chosen picture, data: is the empty icon."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of pages and their files, besides those of every answer (see ``limits``)."""

PAGES = {"/": "index.html", "/docs": "docs.html"}
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_FILES = {path.name: path.read_bytes() for path in files(__package__).joinpath("pages").iterdir() if path.is_file()}

router = APIRouter(include_in_schema=False)
"""The pages and their files, which hold no secrets; ``/models.json`` is what they show of the repository."""


@router.get("/")
@router.get("/docs")
async def page(request: Request) -> Response:
    """A page."""
    return _file(request, PAGES[request.scope["route"].path])


@router.get("/pages/{name}")
async def part(request: Request, name: str) -> Response:
    """A file that the pages load."""
    return _file(request, name)


@router.get("/models.json")
async def models(request: Request) -> Response:
    """The server and its models."""
    headers = {**HEADERS, "Cache-Control": "no-store"}
    return JSONResponse(server_document(repository_of(request)), headers=headers)


def _file(request: Request, name: str) -> Response:
    """A file by its name, among those read at the start: a name is never a path."""
    media_type = TYPES.get(name.rpartition(".")[2])
    if name not in _FILES or media_type is None:
        raise Problem(404, f"there is no page {request.url.path}")
    tag = f'"{sha256(_FILES[name]).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(_FILES[name], headers=headers, media_type=media_type)


def server_document(repository: Repository) -> dict[str, Any]:
    """The server and its models, as the page shows them."""
    settings = repository.settings
    server = {
        "version": __version__,
        "dtype": settings.dtype,
        "max_body_mib": settings.max_body_mib,
        "draining": repository.draining,
    }
    models = current_client.get().visible(repository.models)
    return {"server": server, "models": [_model(key, model) for key, model in models.items()]}


def _model(key: str, model: Model) -> dict[str, Any]:
    ready = model.state == "ready"
    described = model.described if ready else NOTHING_KNOWN
    predicted = {str(rows): found for rows, found in sorted(described.predictions.items())}
    return {
        "name": key,
        "version": model.version,
        "digest": model.digest,
        "state": model.state,
        "reason": model.reason,
        "inputs": [asdict(tensor) for tensor in described.inputs],
        "outputs": [asdict(tensor) for tensor in described.outputs],
        "labels": described.labels,
        "predicted_us": {rows: found.us for rows, found in predicted.items()},
        "low_us": {rows: found.least_us for rows, found in predicted.items()},
        "high_us": {rows: found.most_us for rows, found in predicted.items()},
        "form": form_of(described) if ready else None,
    }
