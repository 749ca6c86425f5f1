"""What Ray's proxies have around them: a request that was not answered is asked for again, and no other."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from engines import run
from starlette.types import Message, Receive, Scope, Send

pytest.importorskip("ray")

import ray_quietly  # noqa: F401 - before whatever else imports it
from ray.serve._private import constants
from ray.serve._private.http_util import validate_http_proxy_callback_return
from ray.serve._private.utils import call_function_from_import_path

from trnrt.serve.ray import proxy as ray_proxy
from trnrt.serve.ray.front import _entrance
from trnrt.serve.ray.proxy import ATTEMPTS, BODY, CALLBACK, LAYERS, AskAgain

Proxy = Callable[[Receive, Send], Coroutine[Any, Any, None]]
PIECES = [b"one ", b"two ", b"three"]
DISCONNECT: Message = {"type": "http.disconnect"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_proxy, "PAUSE_S", 0.0)


async def whole(receive: Receive) -> bytes:
    """A body, as the proxy reads it before anything else."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += bytes(message["body"])
        if not message["more_body"]:
            return body


async def dies(receive: Receive, _send: Send) -> None:
    """A front that ends when it has read the request: the proxy says nothing."""
    await whole(receive)


async def dies_early(receive: Receive, _send: Send) -> None:
    await receive()


async def answers(receive: Receive, send: Send) -> None:
    body = await whole(receive)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def breaks_off(_receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


class Ray:
    """Ray's proxy, with fronts that do these things, one after the other."""

    def __init__(self, *fronts: Proxy) -> None:
        self.fronts = list(fronts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["headers"]:
            scope["headers"] = [(b"x-request-id", b"mine")]  # Ray's own layer is further inside
        await self.fronts.pop(0)(receive, send)


def asked(
    layer: AskAgain,
    method: str = "POST",
    path: str = "/v2/models/m/infer",
    gone: bool = False,
    pause_s: float = 0.0,
) -> list[Message]:
    """What a client is sent who asks for this, with a pause before each piece of its body."""
    sent: list[Message] = []
    coming: list[Message] = [{"type": "http.request", "body": piece, "more_body": True} for piece in PIECES]
    coming[-1]["more_body"] = False
    coming = coming[:1] if gone else coming

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        return coming.pop(0) if coming else DISCONNECT

    async def send(message: Message) -> None:
        sent.append(message)

    async def work() -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": []}
        await asyncio.wait_for(layer(scope, receive, send), 30)

    run(work())
    return sent


def test_ray_finds_it_where_it_is_said_to_be() -> None:
    found: list[Any] = validate_http_proxy_callback_return(call_function_from_import_path(LAYERS))
    assert [layer.cls for layer in found] == [AskAgain] and hasattr(constants, CALLBACK)


@pytest.mark.parametrize("path", ["/predict", "/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/under/predict"])
def test_what_a_front_died_with_another_answers(path: str) -> None:
    ray = Ray(dies, dies_early, answers)
    start, body = asked(AskAgain(ray), path=path)
    assert (start["status"], body["body"], ray.fronts) == (200, b"".join(PIECES), [])


class OtherFront:
    """Ray, which sends the head of a request to another front after one that died with the body, or with none of it.

    ``heads``: whether the body went along, for each request.
    """

    def __init__(self, *, died_with_body: bool) -> None:
        self._died_with_body = died_with_body
        self.heads: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.heads.append(BODY in scope.get("extensions", {}))
        if self._died_with_body:
            await whole(receive)
        head = pickle.loads(pickle.dumps(scope))
        await _entrance(self._front, self._front)(head, receive, send)

    async def _front(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await answers(receive, send)
        assert await receive() == DISCONNECT, "the body is read once, wherever it came from"


@pytest.mark.parametrize("died_with_body", [True, False])
def test_a_front_that_ray_itself_asks_after_another_has_the_body(died_with_body: bool) -> None:
    ray = OtherFront(died_with_body=died_with_body)
    start, body = asked(AskAgain(ray))
    assert (start["status"], body["body"], ray.heads) == (200, b"".join(PIECES), [True])


def test_a_body_that_comes_slowly_or_has_no_room_is_passed_on_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = OtherFront(died_with_body=False)
    assert asked(AskAgain(small, most=len(PIECES[0])))[1]["body"] == b"".join(PIECES) and small.heads == [False]
    monkeypatch.setattr(ray_proxy, "GATHER_S", 0.15)
    slow = OtherFront(died_with_body=False)
    assert asked(AskAgain(slow), pause_s=0.1)[1]["body"] == b"".join(PIECES) and slow.heads == [False]
    ray = Ray(dies, answers)
    assert asked(AskAgain(ray), pause_s=0.1)[1]["body"] == b"".join(PIECES), "and can be asked for again"


def test_what_has_no_effect_may_be_asked_for_twice_and_nothing_else() -> None:
    assert asked(AskAgain(Ray(dies, answers)), "GET", "/any")[0]["status"] == 200
    for method, path in (("POST", "/orders"), ("DELETE", "/predict")):
        ray = Ray(dies, answers)
        assert asked(AskAgain(ray), method, path) == [] and ray.fronts == [answers], "Ray's 500 is the answer"


def test_an_answer_that_began_is_not_begun_again() -> None:
    ray = Ray(breaks_off, answers)
    assert len(asked(AskAgain(ray))) == 1 and ray.fronts == [answers]


def test_nothing_is_asked_for_whom_nobody_waits() -> None:
    ray = Ray(dies, answers)
    assert asked(AskAgain(ray), gone=True) == [] and ray.fronts == [answers]


def test_a_request_that_kills_every_front_is_given_up() -> None:
    ray = Ray(*[dies] * (ATTEMPTS + 1))
    layer = AskAgain(ray)
    start, body = asked(layer)
    headers = dict(start["headers"])
    assert (start["status"], headers[b"retry-after"], headers[b"x-request-id"]) == (503, b"1", b"mine")
    assert b'{"error":"4 of this server\'s processes ended' in body["body"] and len(ray.fronts) == 1


def test_bodies_are_kept_as_long_as_there_is_room() -> None:
    size = sum(map(len, PIECES))
    layer = AskAgain(Ray(dies, answers, dies, dies, answers), most=size)
    assert asked(layer)[0]["status"] == 200, "and the room is free again"
    small = AskAgain(Ray(dies, answers), most=size - 1)
    (start, _) = asked(small)
    assert start["status"] == 503 and small.keep(size - 1), "nothing of it is kept"
    assert not layer.keep(size + 1) and layer.keep(size) and not layer.keep(1)
