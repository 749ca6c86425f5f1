"""Attacks on the merged whole: odd targets on the straight path, bombs at every door, and operators' large bodies."""

from __future__ import annotations

import gzip
import json
from typing import Any, cast

import httpx
import pytest
from engines import RELU, save
from serving import MadeUpRepository, app_of, ask, client_of, doubling, error_of, run

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http import dispatch
from trnrt.serve.http.app import make_app
from trnrt.serve.http.bodies import INLINE
from trnrt.serve.settings import read_settings
from trnrt.serve.settings_keys import hash_key

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()
NAMES = (
    *(
        "doubling",
        "doub%6cing",
        "doubling%2Fversions%2F1",
        "doubling%2F..%2Fdoubling",
        "doubling@1",
        "doubling@2",
        "@1",
    ),
    *("%00", "..", "%2e%2e", "%2F", "%ff", "%F0%9F%90%8D", "doubling%20", "doubling;x", "doubling%0d%0aX-Y:1", "stats"),
    *("doubling/versions/1", "doubling/versions/2", "doubling/versions/%2e", "", "doubling@sha256:0123456789ab"),
)
TARGETS = [
    *(f"/v2/models/{name}/infer" for name in NAMES),
    *(
        "/v2/models/infer",
        "/v2/models/doubling/infer/",
        "/v2/models/doubling/infer?x=/infer",
        "//v2/models/doubling/infer",
    ),
    *("/v2%2Fmodels%2Fdoubling%2Finfer", "/v2/models/doubling/infer%00", "/v2/models/doubling/./infer"),
]


def asked(app: Any, method: str, target: str) -> tuple[int, Any, str | None]:
    """The status, the body without the times, and the methods that the path takes."""
    content = BODY if method == "POST" else b""
    url = httpx.URL("http://localhost", raw_path=target.encode("ascii"))
    answer = ask(app, method, cast(str, url), content=content, headers={"Content-Type": "application/json"})
    body: Any = answer.json() if answer.content else None
    if answer.status_code == 200:
        del body["parameters"]
    return answer.status_code, body, answer.headers.get("allow")


def test_the_straight_path_answers_as_the_framework_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every target and method has one answer, and one label in the metrics, whichever way it takes."""
    first, second = MadeUpRepository(doubling()), MadeUpRepository(doubling())
    cases = [(method, target) for method in ("POST", "GET", "HEAD", "OPTIONS", "BREW") for target in TARGETS]
    straight = app_of(first)
    found = [asked(straight, *case) for case in cases]
    monkeypatch.setattr(dispatch, "_straight_model", lambda _scope: "")
    framework = app_of(second)
    for case, answer in zip(cases, found, strict=True):
        assert asked(framework, *case) == answer, case
    assert first.metrics.requests == second.metrics.requests
    assert {status for status, _, _ in found} == {200, 404, 405}
    assert sum(status == 200 for status, _, _ in found) >= 4


DOORS = [
    "/v2/models/doubling/infer",
    "/v2/models/doubling/versions/1/infer",
    "/v1/models/doubling:predict",
    "/predict?model=doubling",
    "/v2/repository/index",
    "/v2/repository/models/doubling/load",
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("fill", [b" ", b"[", b"[1],", b'"a":1,'])
def test_a_bomb_stops_at_the_limit_at_every_door(door: str, fill: bytes) -> None:
    """A few kilobytes that become 4 MiB, on a server that takes one."""
    repository = MadeUpRepository(doubling(), max_body_mib=1, admin=True)
    bomb = gzip.compress(b'{"instances": [' + fill * ((4 << 20) // len(fill)))
    assert len(bomb) < 40_000
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    error_of(ask(app_of(repository), "POST", door, content=bomb, headers=headers), 413)
    assert repository.metrics.refused == ["body"]
    assert repository.admission.inside == repository.admission.held == 0


@pytest.mark.parametrize("door", DOORS[4:])
@pytest.mark.parametrize("declared", [True, False])
def test_an_operators_large_body_is_not_parsed(door: str, declared: bool) -> None:
    """The event loop would do that, and answer nobody meanwhile; other bodies may be a thousand times larger."""
    repository = MadeUpRepository(doubling(), admin=True)
    app, most = app_of(repository), b'{"parameters": {}}'.ljust(INLINE)

    async def pieces(body: bytes) -> Any:
        for at in range(0, len(body), 10_000):
            yield body[at : at + 10_000]

    for size, status in ((len(most), 200), (len(most) + 1, 413)):
        body = most.ljust(size) if "load" in door else b"{}".ljust(size)
        response = ask(app, "POST", door, content=body if declared else pieces(body))
        assert response.status_code == status, response.text
    assert f"{INLINE} bytes" in error_of(response, 413)
    assert repository.metrics.refused == ["body"]


@pytest.mark.parametrize("door", DOORS[:4])
def test_a_key_over_its_limit_costs_no_parsing(tmp_path: Any, door: str) -> None:
    """A large body with a key that sent too much is refused before a byte of it is read."""
    (tmp_path / "server.toml").write_text(
        f"[key.few]\nsha256 = '{hash_key(b'few')}'\nrequests_per_second = 0.001\nburst = 1\n"
    )
    paths = [save(tmp_path, "doubling", RELU)]
    settings = read_settings({"config": tmp_path / "server.toml", "models": paths, "backend": "simulator"})
    repository = Repository(settings, Metrics())
    read = 0

    async def large() -> Any:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b"[1,2,3,4]," * 10_000

    async def work() -> None:
        async with client_of(make_app(repository)) as client:
            headers = {"X-API-Key": "few", "Content-Type": "application/json"}
            assert (await client.get("/v2", headers=headers)).status_code == 200
            refused = await client.post(door, content=large(), headers=headers)
            assert "'few' may send 0.001 requests" in error_of(refused, 429) and refused.headers["retry-after"]

    run(work())
    assert read <= 1, "httpx reads the first piece to send it"
    assert repository.admission.inside == repository.admission.held == 0
