"""The server keeps what its own description says, whatever is sent to the paths that it describes.

Schemathesis makes the requests, good and bad, out of /openapi.json. ``TRNRT_SCHEMATHESIS_EXAMPLES`` is how many a path
gets at most.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from serving import MadeUpModel, MadeUpRepository, app_of
from starlette.types import ASGIApp, Receive, Scope, Send

from trnrt.serve.hosting.description import TensorMeta

EXAMPLES = int(os.environ.get("TRNRT_SCHEMATHESIS_EXAMPLES", "100"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    allow_header_conformance,
]


def clipping() -> MadeUpModel:
    """Rows of two numbers, kept between -1 and 1: no request makes it answer infinity, which JSON has not."""
    x, y = TensorMeta("x", "float32", (-1, 2)), TensorMeta("y", "float32", (-1, 2))
    return MadeUpModel("clipping", [x], [y], lambda feeds: {"y": np.clip(feeds["x"], -1, 1)})


def at_localhost(app: ASGIApp) -> ASGIApp:
    """The application with this machine's name as Host; the client's own is that of no server."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        fields = [field for field in scope.get("headers", ()) if field[0] != b"host"]
        await app({**scope, "headers": [*fields, (b"host", b"localhost")]}, receive, send)

    return call


APP = at_localhost(app_of(MadeUpRepository(clipping(), admin=True)))
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP)
LOCKED = schemathesis.openapi.from_asgi("/openapi.json", app_of(MadeUpRepository(clipping(), api_keys="key")))
SEEN: set[tuple[str, int]] = set()


# Of a tensor of two numbers: mostly right, else of more, below 0, or none.
SHAPES = ([1, 2], [1, 2], [1, 2], [1, 2], [1, 3], [-1, -2], 7)


def aimed(case: Any) -> None:
    """Random names are nobody's and random tensors fit nothing: of half of the requests the model's own are put in."""
    names = case.path_parameters or {}
    number, is_random = divmod(len(f"{names}{case.body}{case.query}"), 2)
    if is_random:
        return
    for name, known in (("model", "clipping"), ("version", "1")):
        if name in names:
            names[name] = known
    body = case.body if isinstance(case.body, dict) else {}
    (case.headers or {}).pop("Inference-Header-Content-Length", None)
    for tensor in only(body, "inputs"):
        tensor.update(name="x", datatype="FP32", shape=SHAPES[number % len(SHAPES)], data=[0.5, len(tensor)])
        tensor.pop("parameters", None)
    for output in only(body, "outputs"):
        output["name"] = "y"
    if "share" in body:  # few random texts are a version's number
        body["version"] = "1"
    if isinstance(body.get("instances"), list):
        body["instances"][:] = [[1, 2] for _ in body["instances"]]
        case.query = {"model": "clipping"}


def only(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The first object of a list in the body, the others taken out."""
    found = body.get(name)
    if not isinstance(found, list):
        return []
    found[:] = [item for item in found if isinstance(item, dict)][:1]
    return found


@pytest.fixture(scope="module", autouse=True)
def what_was_reached() -> Iterator[None]:
    """A path that never succeeded was hardly tested."""
    SEEN.clear()
    yield
    assert {path for path, _ in SEEN} == {path for path, status in SEEN if status == 200}


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_description_is_kept(case: Any) -> None:
    aimed(case)
    response = case.call_and_validate(checks=CHECKS)
    SEEN.add((case.operation.path, response.status_code))


@LOCKED.parametrize()
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_without_a_key(case: Any) -> None:
    # What is there is nobody's business without a key: a method that a path does not take, too, is 401.
    response = case.call_and_validate(checks=CHECKS[:5])
    assert (response.status_code == 401) != ("/health/" in case.operation.path)
