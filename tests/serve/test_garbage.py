"""A request leaves no objects that refer to each other: only the garbage collector would free them, and all other
requests wait while it runs."""

from __future__ import annotations

import gc
import http.client
import json
from collections import Counter
from collections.abc import Iterator

import pytest
from engines import PATIENCE_S
from serving import MadeUpRepository, app_of, doubling, listening

REQUESTS = 20
INFER = "/v2/models/doubling/infer"
TENSOR = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
JSON = json.dumps({"inputs": [TENSOR | {"data": [1, 2, 3, 4]}]}).encode()
HEAD = json.dumps({"inputs": [TENSOR | {"parameters": {"binary_data_size": 16}}]}).encode()
BINARY = {"Inference-Header-Content-Length": str(len(HEAD))}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    repository = MadeUpRepository(doubling(), max_body_mib=1)
    with listening(app_of(repository), repository) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        pytest.param("POST", INFER, JSON, {}, 200, id="JSON"),
        pytest.param("POST", INFER, HEAD + bytes(16), BINARY, 200, id="binary"),
        pytest.param("POST", INFER, JSON.replace(b"[1, 4]", b"[1, 5]"), {}, 400, id="wrong shape"),
        pytest.param("POST", INFER, b"{", {}, 400, id="no JSON"),
        pytest.param("POST", INFER.replace("doubling", "x"), JSON, {}, 404, id="no model"),
        pytest.param("POST", INFER, bytes(2**20 + 1), {}, 413, id="too large"),
        pytest.param("GET", "/nothing", None, {}, 404, id="no path"),
        pytest.param("GET", "/v2/health/live", None, {}, 200, id="health"),
    ],
)
def test_a_request_leaves_no_rings(
    port: int, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
) -> None:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)

    def ask() -> None:
        client.request(method, path, body, headers)
        answer = client.getresponse()
        answer.read()
        assert answer.status == status

    ask()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(REQUESTS):
            ask()
        gc.collect()
        found = Counter(type(one).__qualname__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        client.close()
    assert found.total() < REQUESTS, found
