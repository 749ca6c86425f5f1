"""What a person sees: the page to try models, the API's reference, and the files that both are made of.

Everything that a page needs is a file in ``pages``; the policy in its headers lets a browser load nothing from
elsewhere.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from trnrt import __version__
from trnrt.serve.hosting.models import TensorMeta
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.forms import form_of
from trnrt.serve.http.problems import Problem

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""blob: shows the picture that somebody chose, data: is the empty icon."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""What pages and their files say besides what every answer says; ``limits`` has that."""

PAGES = {"/": "index.html", "/docs": "docs.html"}
TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


def router_for(repository: Repository) -> APIRouter:
    """The pages; ``/models.json`` is what they show of the repository. Pages and their files hold no secrets."""
    router = APIRouter(include_in_schema=False)
    kept = {path.name: path.read_bytes() for path in files(__package__).joinpath("pages").iterdir() if path.is_file()}

    async def page(request: Request) -> Response:
        return _file(request, PAGES[request.scope["route"].path], kept)

    for path in PAGES:
        router.add_api_route(path, page)

    @router.get("/pages/{name}")
    async def part(request: Request, name: str) -> Response:
        return _file(request, name, kept)

    @router.get("/models.json")
    async def models() -> Response:
        return JSONResponse(server_document(repository), headers={**HEADERS, "Cache-Control": "no-store"})

    return router


def _file(request: Request, name: str, kept: dict[str, bytes]) -> Response:
    """A file by its name among those that were there at the start: a name is never a path."""
    if name not in kept or name.rpartition(".")[2] not in TYPES:
        raise Problem(404, f"there is no page {request.url.path}")
    tag = f'"{sha256(kept[name]).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(kept[name], headers=headers, media_type=TYPES[name.rpartition(".")[2]])


def server_document(repository: Repository) -> dict[str, Any]:
    """The server and its models, as the page shows them."""
    settings = repository.settings
    server = {
        "version": __version__,
        "dtype": settings.dtype,
        "max_body_mib": settings.max_body_mib,
        "draining": repository.draining,
    }
    return {"server": server, "models": [_model(model) for model in repository.models.values()]}


def _model(model: Model) -> dict[str, Any]:
    ready = model.state == "ready"
    predicted = {str(rows): found for rows, found in sorted(model.predictions.items())} if ready else {}
    return {
        "name": model.name,
        "state": model.state,
        "reason": model.reason,
        "inputs": [_tensor(tensor) for tensor in model.inputs] if ready else [],
        "outputs": [_tensor(tensor) for tensor in model.outputs] if ready else [],
        "labels": model.labels if ready else None,
        "predicted_us": {rows: found.us for rows, found in predicted.items()},
        "low_us": {rows: found.least_us for rows, found in predicted.items()},
        "high_us": {rows: found.most_us for rows, found in predicted.items()},
        "form": form_of(model) if ready else None,
    }


def _tensor(tensor: TensorMeta) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
