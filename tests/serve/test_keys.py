"""Keys with names and limits, and wrong keys that are slowed. No text ever has a key."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from engines import RELU, save
from pydantic import ValidationError
from serving import (
    MadeUpMetrics,
    MadeUpRepository,
    app_of,
    ask,
    client_of,
    computing,
    doubling,
    error_of,
    lines_logged,
    run,
)

from trnrt.errors import OptionError
from trnrt.serve.hosting import clients, guessing
from trnrt.serve.hosting.clients import Allowance, Client
from trnrt.serve.hosting.guessing import BURST, MOST_ADDRESSES, Guesses, network_of
from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.models import ServedModel
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.problems import Problem
from trnrt.serve.settings import ServeSettings, read_settings
from trnrt.serve.settings_keys import Key, hash_key

INFER = "/v2/models/doubling/infer"
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
ALICE, BOB, SECRET = "alices-key", "bobs-key", "open-sesame"


def key_of(secret: str, **limits: Any) -> dict[str, Any]:
    return {"sha256": sha256(secret.encode()).hexdigest(), **limits}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# -- where keys come from ------------------------------------------------------------------------------------------


def read(tmp_path: Path, text: str, **flags: object) -> dict[str, Key]:
    path = tmp_path / "server.toml"
    path.write_text(text, encoding="utf-8")
    return read_settings({"config": path, **flags}).named_keys


def test_a_key_is_a_hash_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n", encoding="utf-8")
    monkeypatch.setenv("BOBS", BOB)
    monkeypatch.setenv("TRNRT_API_KEYS", "plain,other,plain")
    text = f"""[key.alice]
        sha256 = "{hash_key(ALICE.encode()).upper()}"
        requests_per_second = 2.5
        [key.bob]
        env = "BOBS"
        [key.carol]
        file = "{tmp_path / "secret"}"
        models = ["one"]
        """
    keys = read(tmp_path, text)
    assert {name: key.sha256 for name, key in keys.items()} == {
        "key-1": hash_key(b"plain"),
        "key-2": hash_key(b"other"),
        "alice": hash_key(ALICE.encode()),
        "bob": hash_key(BOB.encode()),
        "carol": hash_key(SECRET.encode()),
    }
    assert keys["alice"].requests_per_second == 2.5 and keys["carol"].models == ["one"]
    assert keys["key-1"].admin and not keys["alice"].admin
    settings = read_settings({"config": tmp_path / "server.toml"})
    shown = repr(settings) + str(settings) + str(keys)
    assert not [one for one in (SECRET, BOB, ALICE, "plain") if one in shown]
    assert hash_key(SECRET.encode()) not in shown


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"[key.a]\nsha256 = '{SECRET}'\n", r"server.toml': \[key.a\]: sha256 is no hash .* sha256sum"),
        (f"[key.a]\nsecret = '{SECRET}'\nenv = 'BOBS'\n", r"\[key.a\]: 'secret' is no setting of a key"),
        ("[key.a]\nconcurrency = 1\n", r"\[key.a\]: give one of sha256, file and env, not none of them"),
        (f"[key.a]\nfile = '{SECRET}'\nenv = '{SECRET}'\n", r"\[key.a\]: give one of .*, not file and env"),
        (f"[key.a]\nenv = '{SECRET}'\n", r"\[key.a\]: the variable of env is not set"),
        (f"[key.a]\nfile = '{SECRET}'\n", r"\[key.a\]: can't read the file of file: no such file"),
        (f"[key.a]\nfile = '{SECRET}\\u0000'\n".replace("'", '"'), r"\[key.a\]: can't read the file of file"),
        ("[key.a]\nenv = 'BOBS'\nconcurrency = 0\n", r"\[key.a\] concurrency: it must be at least 1, not 0"),
        ("[key.a]\nenv = 'BOBS'\nburst = 3\n", r"\[key.a\]: burst has no meaning without requests_per_second"),
        ("[key.a]\nenv = 'BOBS'\nmodels = []\n", r"\[key.a\]: models is empty"),
        ("admin = true\n[key.a]\nenv = 'BOBS'\nmodels = ['m']\nadmin = true\n", r"\[key.a\]: admin = true lets"),
        ("[key.a]\nenv = 'BOBS'\nadmin = true\n", r"\[key.a\]: admin = true has no meaning without --admin"),
        ("[key.a]\nenv = 'BOBS'\n[key.b]\nenv = 'BOBS'\n", r"\[key.b\]: this key is that of a, too"),
        ("[key.key-1]\nenv = 'BOBS'\n", r"\[key.key-1\]: key-1 is the name of one of TRNRT_API_KEYS"),
        ("[key.'a b']\nenv = 'BOBS'\n", r"a key's name has up to 64 letters"),
        (f"[key]\na = '{SECRET}'\n", r"\[key.a\]: a key is a table"),
        (f"key = '{SECRET}'\n", r"keys are tables of the settings' file"),
    ],
)
def test_a_wrong_key_is_told_and_never_shown(
    tmp_path: Path, text: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOBS", BOB)
    monkeypatch.setenv("TRNRT_API_KEYS", "plain")
    with pytest.raises(OptionError, match=told) as caught:
        read(tmp_path, text)
    shown = str(caught.value)
    assert SECRET not in shown and BOB not in shown and "plain" not in shown
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_a_traceback_has_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that a wrong setting raises inside, nor that of a request that fails."""
    for given in ({"api_keys": {SECRET: 1}}, {"api_keys": [SECRET], "port": -1}, {"key": {"a": {"sha256": SECRET}}}):
        with pytest.raises(ValidationError) as caught:
            ServeSettings(**given)
        assert SECRET not in "".join(traceback.format_exception(caught.value))
    model, lines = doubling(), lines_logged(monkeypatch)
    model.error = RuntimeError("worse")
    app = app_of(MadeUpRepository(model, key={"alice": key_of(ALICE)}))
    assert ask(app, "POST", INFER, json=BODY, headers=bearer(ALICE)).status_code == 500
    assert "worse" in str(lines) and ALICE not in str(lines)


def test_an_environment_can_not_hold_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_KEY", SECRET)
    with pytest.raises(OptionError, match="tables of the settings' file") as caught:
        read_settings({})
    assert SECRET not in str(caught.value)


def test_named_keys_open_an_address_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOBS", BOB)
    assert list(read(tmp_path, "[key.bob]\nenv = 'BOBS'\n", host="0.0.0.0")) == ["bob"]


# -- limits --------------------------------------------------------------------------------------------------------


def test_a_bucket_of_tokens() -> None:
    clock = Clock()
    bucket = Allowance(2.0, 3.0, clock)
    for _ in range(3):
        assert bucket.wait_s() == 0
        bucket.take()
    assert bucket.wait_s() == pytest.approx(0.5)
    clock.now += 0.5
    assert bucket.wait_s() == 0
    bucket.take(10)  # a request of ten rows
    assert bucket.wait_s() == pytest.approx(5.0)
    clock.now += 1000
    bucket.take(3)
    assert bucket.wait_s() == pytest.approx(0.5)
    bucket.change(4.0, 4.0)
    assert bucket.wait_s() == 0, "the larger burst counts at once"


def test_a_key_that_sends_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(clients.Allowance.__init__, "__defaults__", (clock,))
    repository = MadeUpRepository(
        doubling(), key={"alice": key_of(ALICE, requests_per_second=0.5, burst=2), "bob": key_of(BOB)}
    )
    app, lines = app_of(repository), lines_logged(monkeypatch)
    for wanted in (200, 200, 429, 429):
        response = ask(app, "POST", INFER, json=BODY, headers=bearer(ALICE))
        assert response.status_code == wanted
    text = error_of(response, 429)
    assert "the key 'alice' may send 0.5 requests a second" in text and ALICE not in text
    assert response.headers["retry-after"] == "2"
    assert ask(app, "POST", INFER, json=BODY, headers=bearer(BOB)).status_code == 200
    clock.now += 2
    assert ask(app, "POST", INFER, json=BODY, headers=bearer(ALICE)).status_code == 200
    assert repository.metrics.refused == ["key_limit"] * 2
    assert repository.metrics.keys == [("alice", s) for s in (200, 200, 429, 429)] + [("bob", 200), ("alice", 200)]
    assert [line["key"] for line in lines] == ["alice"] * 4 + ["bob", "alice"]
    assert ALICE not in str(lines) and BOB not in str(lines)


def test_a_key_with_too_many_requests_at_once() -> None:
    model = doubling()
    model.go = go = asyncio.Event()
    repository = MadeUpRepository(model, key={"alice": key_of(ALICE, concurrency=2), "bob": key_of(BOB)})
    app = app_of(repository)

    async def work() -> None:
        async with client_of(app) as client:

            async def post(secret: str) -> httpx.Response:
                return await client.post(INFER, json=BODY, headers=bearer(secret))

            inside = [asyncio.create_task(post(ALICE)) for _ in range(2)]
            await computing(model, 2)
            refused = await post(ALICE)
            assert "the key 'alice' has 2 requests here already" in error_of(refused, 429)
            assert int(refused.headers["retry-after"]) >= 1
            other = asyncio.create_task(post(BOB))
            await computing(model, 3)
            go.set()
            assert {one.status_code for one in await asyncio.gather(*inside, other)} == {200}
            assert (await post(ALICE)).status_code == 200

    run(work())
    assert repository.admission.inside == 0


def test_a_workers_share_of_a_limit() -> None:
    key = Key.model_validate(key_of(ALICE, requests_per_second=10, concurrency=5))
    metrics = cast(Metrics, MadeUpMetrics())
    half, tiny = Client("alice", key, 1 / 2), Client("alice", key, 1 / 64)
    for client, most in ((half, 2), (tiny, 1)):
        for _ in range(most):
            client.take_request(metrics)
        with pytest.raises(Problem, match="which is its limit"):
            client.take_request(metrics)


def alices_settings(folder: Path) -> ServeSettings:
    """One model, and a key that may send 4 rows a second."""
    path = save(folder, "relu", RELU)
    (folder / "server.toml").write_text(f"[key.alice]\nsha256 = '{hash_key(ALICE.encode())}'\nrows_per_second = 4\n")
    return read_settings({"config": folder / "server.toml", "models": [path], "backend": "simulator", "max_batch": 2})


def test_rows_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(clients.Allowance.__init__, "__defaults__", (clock,))
    settings = alices_settings(tmp_path)

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        async with client_of(make_app(repository)) as client:

            async def post(rows: int) -> httpx.Response:
                rows_of = {"instances": [[1, 2, 3, 4]] * rows}
                return await client.post("/predict", json=rows_of, headers=bearer(ALICE))

            assert (await post(10)).status_code == 200
            refused = await post(1)
            assert "the key 'alice' may send 4 rows a second" in error_of(refused, 429)
            assert refused.headers["retry-after"] == "2"  # until one of 4 - 10 + 4 a second
            clock.now += 2
            assert (await post(1)).status_code == 200

    run(work())


def test_rows_that_the_queue_refuses_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(clients.Allowance.__init__, "__defaults__", (clock,))
    settings = alices_settings(tmp_path)

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        model = repository.models["relu"]
        assert isinstance(model, ServedModel) and model._engine is not None
        rows = {"instances": [[1, 2, 3, 4]] * 3}

        def refuse(rows: int = 1) -> None:
            if rows > 1:  # before the body is read, a place is free
                raise Problem(429, "the queue is full", retry_after=1)

        async with client_of(make_app(repository)) as client:
            with monkeypatch.context() as patch:
                patch.setattr(model._engine.batcher, "admit", refuse)
                for _ in range(5):
                    answer = await client.post("/predict", json=rows, headers=bearer(ALICE))
                    assert "the queue is full" in error_of(answer, 429)
            for status in (200, 200, 429):  # 4, 1 and -2 rows are left
                assert (await client.post("/predict", json=rows, headers=bearer(ALICE))).status_code == status

    run(work())


def test_what_is_given_back_is_at_most_the_burst() -> None:
    allowance = clients.Allowance(1.0, 4.0, lambda: 0.0)
    allowance.take(3)
    allowance.give_back(100)
    allowance.take(4)
    assert allowance.wait_s() == 1.0


def test_readiness_names_no_model_when_there_are_keys(tmp_path: Path) -> None:
    late = doubling(name="secret-project")
    late.state, late.reason = "loading", "it compiles"
    for keys, told in (([ALICE], "not ready: 1 of 2 models"), ([], "not ready: 'secret-project' is loading")):
        repository = MadeUpRepository(doubling(), late, api_keys=keys)
        assert error_of(ask(app_of(repository), "GET", "/v2/health/ready"), 503) == told


# -- what a key may do ---------------------------------------------------------------------------------------------


def test_a_key_for_some_models(tmp_path: Path) -> None:
    paths = [save(tmp_path, name, RELU) for name in ("one", "two")]
    (tmp_path / "server.toml").write_text(
        f"admin = true\n[key.alice]\nsha256 = '{hash_key(ALICE.encode())}'\nmodels = ['one']\n"
        f"[key.ops]\nsha256 = '{hash_key(BOB.encode())}'\nadmin = true\n"
    )
    settings = read_settings(
        {"config": tmp_path / "server.toml", "models": paths, "backend": "simulator", "max_batch": 1}
    )
    rows = {"instances": [[1, 2, 3, 4]]}

    async def work() -> None:
        repository = Repository(settings, Metrics())
        await repository.start()
        async with client_of(make_app(repository)) as client:

            async def send(method: str, path: str, secret: str = ALICE, **options: Any) -> httpx.Response:
                return await client.request(method, path, headers=bearer(secret), **options)

            assert (await send("POST", "/predict?model=one", json=rows)).status_code == 200
            assert (await send("POST", "/predict", json=rows)).json()["model"] == "one", "the only one for this key"
            texts = [error_of(await send("POST", f"/predict?model={name}", json=rows), 404) for name in ("two", "no")]
            assert (
                texts[0]
                == texts[1].replace("'no'", "'two'")
                == ("there is no model 'two' for the key 'alice'; its models are 'one'")
            )
            for path in ("/v2/models/two", "/v2/models/two/ready"):
                error_of(await send("GET", path), 404)
            assert [m["name"] for m in (await send("GET", "/models.json")).json()["models"]] == ["one"]
            assert (await send("GET", "/v1/models")).json() == {"models": ["one"]}
            assert [m["name"] for m in (await send("GET", "/v2/models/stats")).json()["model_stats"]] == ["one"]
            assert "for some models only" in error_of(await send("GET", "/metrics"), 403)
            for path in ("index", "models/one/load", "models/two/unload"):
                assert "the key 'alice' may not" in error_of(await send("POST", f"/v2/repository/{path}"), 403)
            assert (await send("POST", "/v2/repository/models/two/unload", BOB)).status_code == 200
            page = (await send("GET", "/metrics", BOB)).text
            assert 'trnrt_key_requests_total{code="404",key="alice"} 4.0' in page and "key_limit" in page
            assert (await client.get("/v2/health/ready")).status_code == 200

    run(work())


# -- wrong keys ----------------------------------------------------------------------------------------------------


def guesses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server's slowing of wrong keys use this clock."""
    monkeypatch.setattr(guessing.Guesses.__init__, "__defaults__", (clock,))


Post = Callable[[str, str], Any]


async def post_from(app: Any, address: str, secret: str) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.get("/v2", headers=bearer(secret))


def test_wrong_keys_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    guesses(clock, monkeypatch)
    repository = MadeUpRepository(doubling(), api_keys=f"{ALICE},{BOB}", max_concurrency=1)
    app = app_of(repository)

    async def work() -> None:
        assert (await post_from(app, "10.0.0.1", ALICE)).status_code == 200
        for count in range(BURST):
            assert (await post_from(app, "10.0.0.1", f"guess-{count}")).status_code == 401
        for count in range(20):
            slowed = await post_from(app, "10.0.0.1", f"guess-{count}")
            text = error_of(slowed, 429)
            assert "too many wrong API keys" in text and "guess" not in text
            assert slowed.headers["retry-after"] == "12"
        # Not compared: a guesser does not learn that this one is right. It is, once there is a try again.
        assert (await post_from(app, "10.0.0.1", BOB)).status_code == 429
        # Others behind the address, and other addresses, are not harmed.
        assert (await post_from(app, "10.0.0.1", ALICE)).status_code == 200
        assert (await post_from(app, "10.0.0.2", BOB)).status_code == 200
        clock.now += 12
        assert (await post_from(app, "10.0.0.1", BOB)).status_code == 200, "a right key costs no try"
        assert (await post_from(app, "10.0.0.1", "wrong")).status_code == 401
        assert (await post_from(app, "10.0.0.1", "wrong")).status_code == 429
        assert (await post_from(app, "10.0.0.1", BOB)).status_code == 200
        assert repository.admission.inside == 0

    run(work())
    assert repository.metrics.refused == ["key"] * BURST + ["key_slowed"] * 21 + ["key", "key_slowed"]


def test_wrong_keys_of_many_addresses_are_slowed_in_bounded_memory() -> None:
    clock = Clock()
    found = Guesses(clock)
    compared = 0
    for number in range(3 * MOST_ADDRESSES):
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        if not found.wait_s(address, b"wrong"):
            compared += 1
            found.note_wrong(address, b"wrong")
    assert compared == guessing.ALL_BURST
    clock.now += 10
    for number in range(3 * MOST_ADDRESSES):
        found.note_wrong(str(number), b"wrong")
    for number in range(2 * guessing.MOST_PROVEN):
        found.note_right("10.0.0.1", str(number).encode())
    assert len(found._addresses) == MOST_ADDRESSES and len(found._proven) == guessing.MOST_PROVEN


def test_a_key_that_was_taken_away_is_a_wrong_one() -> None:
    found = Guesses(Clock())
    found.note_right("10.0.0.1", b"once")
    for _ in range(BURST):
        found.note_wrong("10.0.0.1", b"once")
    assert found.wait_s("10.0.0.1", b"once") > 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "testclient", False),
    ],
)
def test_who_counts_as_one_sender(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) is same
