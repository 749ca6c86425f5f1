"""Host and Origin: whom a browser may bring in, and who may load and unload models."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving import MODELS, MadeUpRepository, app_of, ask, doubling, error_of

from trnrt.errors import OptionError
from trnrt.serve.http.limits import HEALTH
from trnrt.serve.processes import running, worker
from trnrt.serve.processes.listening import listen
from trnrt.serve.settings import ServeSettings, read_settings

PREDICT = "/predict"
INFER = "/v2/models/doubling/infer"
UNLOAD = "/v2/repository/models/doubling/unload"
ROW = {"instances": [[1, 2, 3, 4]]}
HERE = "http://localhost:8000"
KEYS: dict[str, Any] = {"api_keys": "k"}


def answer(method: str, path: str, headers: dict[str, str], **settings: Any) -> tuple[httpx.Response, MadeUpRepository]:
    repository = MadeUpRepository(doubling(), **settings)
    options: dict[str, Any] = {"json": ROW} if path == PREDICT else {}
    return ask(app_of(repository), method, path, headers={"Host": "localhost:8000", **headers}, **options), repository


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.0.0.9", "[::1]:8000", "[::1]"])
def test_this_machines_names(host: str) -> None:
    for path in ("/v2", "/", *HEALTH):
        assert answer("GET", path, {"Host": host})[0].status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.test", "evil.test:8000", "localhost.evil.test", "127.0.0.1.evil.test", "0.0.0.0", "10.0.0.1", "[::2]"],
)
def test_a_name_that_somebody_points_to_this_machine(host: str) -> None:
    """DNS rebinding: for the browser, the page and this server are one origin."""
    for method, path in (("GET", "/v2"), ("POST", PREDICT), ("POST", UNLOAD), ("GET", "/"), ("GET", HEALTH[0])):
        headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        response, repository = answer(method, path, headers, admin=True)
        assert "--allowed-host" in error_of(response, 421)
        assert (repository.metrics.refused, repository.done) == (["host"], [])


@pytest.mark.parametrize(
    ("host", "settings", "status"),
    [
        ("models.test", {"allowed_host": "models.test"}, 200),
        ("Models.Test:8080", {"allowed_host": "models.test"}, 200),
        ("models.test:8080", {"allowed_host": "models.test:8080"}, 200),
        ("models.test:8081", {"allowed_host": "models.test:8080"}, 421),
        ("localhost", {"allowed_host": "models.test"}, 200),
        ("other.test", {"allowed_host": "models.test"}, 421),
        ("other.test", {"allowed_host": "models.test", **KEYS}, 421),
        ("other.test", {"allowed_host": "models.test,*"}, 200),
        ("other.test", KEYS, 200),
        ("other.test", {"host": "0.0.0.0", "insecure": True}, 200),
        ("other.test", {"host": "0.0.0.0", "insecure": True, "allowed_host": "models.test"}, 421),
    ],
)
def test_which_hosts_are_allowed(host: str, settings: dict[str, Any], status: int) -> None:
    headers = {"Host": host, "X-API-Key": "k"}
    assert answer("POST", PREDICT, headers, **settings)[0].status_code == status


OTHERS = [
    {"Origin": "https://evil.test"},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://127.0.0.1:8000"},
    {"Origin": "http://localhost"},
    {"Origin": "null"},
    {"Origin": "file://"},
    {"Origin": "http://localhost:8000@evil.test"},
    {"Origin": "http://localhost:8000.evil.test"},
    {"Origin": "https://evil.test", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Origin": HERE, "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", OTHERS, ids=str)
@pytest.mark.parametrize(("method", "path"), [("POST", PREDICT), ("POST", INFER), ("POST", UNLOAD), ("DELETE", "/v2")])
def test_another_sites_page_changes_nothing(method: str, path: str, headers: dict[str, str]) -> None:
    response, repository = answer(method, path, headers, admin=True)
    assert "a web page of" in error_of(response, 403)
    assert (repository.metrics.refused, repository.done, repository.models["doubling"].answered) == (["origin"], [], 0)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_simple_request_needs_no_consent_and_is_refused(kind: str) -> None:
    """These types need no preflight, so a browser sends them for any page."""
    repository = MadeUpRepository(doubling())
    headers = {"Host": "localhost:8000", "Origin": "https://evil.test", "Content-Type": kind}
    for path in (PREDICT, INFER):
        error_of(ask(app_of(repository), "POST", path, headers=headers, content=b'{"instances": [[1, 2, 3, 4]]}'), 403)
    assert repository.models["doubling"].answered == 0


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": HERE},
        {"Origin": HERE, "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://proxy.test", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://localhost", "Host": "localhost:443"},
        {"Origin": "http://localhost", "Host": "localhost"},
    ],
    ids=str,
)
def test_its_own_page_and_other_programs_are_served(headers: dict[str, str]) -> None:
    assert answer("POST", PREDICT, headers)[0].status_code == 200


def test_pages_that_the_operator_allows() -> None:
    for headers in ({"Origin": "https://app.test"}, {"Origin": "https://app.test:8", "Sec-Fetch-Site": "cross-site"}):
        assert answer("POST", PREDICT, headers, allowed_host="app.test")[0].status_code == 200
        assert answer("POST", PREDICT, headers, allowed_host="*")[0].status_code == 200


def test_a_key_is_what_no_other_page_has() -> None:
    """A gateway may pass a page's Origin on; it adds the key."""
    headers = {"Origin": "https://app.test", "Sec-Fetch-Site": "cross-site"}
    assert answer("POST", PREDICT, headers, **KEYS)[0].status_code == 401
    assert answer("POST", PREDICT, {**headers, "X-API-Key": "k"}, **KEYS)[0].status_code == 200


def test_reading_is_no_change() -> None:
    for method in ("GET", "HEAD"):
        assert answer(method, "/v2", {"Origin": "https://evil.test"})[0].status_code == 200


OPEN = {"host": "0.0.0.0", "insecure": True}


@pytest.mark.parametrize(
    ("host", "settings", "status"),
    [
        ("localhost:8000", {}, 200),
        ("127.0.0.1", {}, 200),
        ("proxy.test", {"allowed_host": "proxy.test"}, 403),
        ("localhost:8000", OPEN, 403),
        ("models.test", {**OPEN, "allowed_host": "models.test"}, 403),
        ("models.test", {**OPEN, **KEYS}, 200),
        ("models.test", KEYS, 200),
    ],
)
def test_who_may_load_and_unload(host: str, settings: dict[str, Any], status: int) -> None:
    headers = {"Host": host, "X-API-Key": "k"}
    for path in (UNLOAD, "/v2/repository/models/doubling/load", "/v2/repository/index"):
        response, repository = answer("POST", path, headers, admin=True, **settings)
        assert response.status_code == status, response.text
        if status == 403:
            assert "TRNRT_API_KEYS" in error_of(response, 403) and not repository.done


@pytest.mark.parametrize("host", ["http://models.test", "models.test/x", "a b", "x:123456", "*.test", ""])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(OptionError, match="is no host"):
        read_settings({"allowed_host": [host]})


@pytest.mark.parametrize(("flags", "said"), [({}, True), (KEYS, False), ({"host": "127.0.0.1"}, False)])
def test_the_start_says_that_admin_has_no_effect(
    flags: dict[str, Any], said: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(running, "listen", lambda _host, _port: listen("127.0.0.1", 0))
    monkeypatch.setattr(worker, "run_worker", lambda _share, listener, *_: listener.close() or 0)
    monkeypatch.setattr(worker, "leave", lambda code: code)
    models = [MODELS / "digits_ffnn.onnx"]
    assert running.serve(ServeSettings(models=models, **{**OPEN, **flags}, admin=True, backend="simulator")) == 0
    assert ("--admin has no effect without API keys" in capsys.readouterr().err) is said
