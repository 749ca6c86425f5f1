"""Ten thousand requests with something wrong: each is refused in the protocol's words, or answered as it should be."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines import save
from serving import MadeUpModel, MadeUpRepository, app_of, doubling, echo, run
from starlette.types import ASGIApp, Message, Scope

from trnrt.serve.hosting.metrics import Metrics
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.http.app import make_app
from trnrt.serve.http.tensors import DATATYPES, datatype_of
from trnrt.serve.settings import ServeSettings

REQUESTS = 10_000
SEED = 9
ANSWERS = {200, 400, 404, 405, 413, 415}
"""And 500 for one reason: an output with NaN, which the protocol wants to be that."""

BOTH = ("echo", "doubling")
DTYPES = ("float32", "float16", "bool", "int8", "uint64", "str", "float64")
HOSTILE: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1.5,
    -0.0,
    2**31,
    2**63,
    2**64,
    10**40,
    -(10**40),
    1e308,
    "",
    "x",
    "FP32",
    "\ud800",
    "\0",
    "ü" * 100,
    [],
    [[]],
    [[1, 2], [3]],
    [None],
    {},
    {"name": "x"},
    {"binary_data_size": 10**12},
    {"nan_policy": []},
    {"binary_data": "yes"},
]
WORDS = [b"NaN", b"Infinity", b"1e999", b"-", b"{", b"]", b'"', b"\\", b"\xff", b"\0", b"null", b'"id":1,', b"[" * 2000]
PATHS = ["", "/versions/1", "/versions/2", "/versions/", "/versions/1/versions/1", "/%00", "/../x", "/versions/%2e"]
TYPES = [
    "application/json",
    "application/octet-stream",
    "text/plain",
    "multipart/form-data",
    "\xff",
    "application/json;",
]


@dataclass(frozen=True)
class Call:
    """A request, as bytes; ``length`` is that of the JSON where binary data follow."""

    model: str
    body: bytes
    method: str = "POST"
    tail: str = ""
    verb: str = "infer"
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return self.verb if self.verb.startswith("/") else f"/v2/models/{self.model}{self.tail}/{self.verb}"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


def values_for(kind: str, generator: random.Random) -> list[Any]:
    made: dict[str, Callable[[], Any]] = {
        "bool": lambda: generator.random() < 0.5,
        "int": lambda: generator.randrange(100),
        "float": lambda: generator.choice([0.5, 3, -1.25]),
        "str": lambda: generator.choice(["", "a", "ü"]),
    }
    return [made[kind]() for _ in range(2)]


def good_request(generator: random.Random, names_of_models: tuple[str, ...]) -> tuple[dict[str, Any], bytes, Call]:
    """A request that is right: its JSON, its binary data, and where it goes."""
    binary = b""
    inputs: list[dict[str, Any]] = []
    model = generator.choice(names_of_models)
    names = [("x", "float32", [1, 4])] if model == "doubling" else [(f"in_{d}", d, [1, 2]) for d in DTYPES]
    for name, dtype, shape in names:
        datatype = datatype_of(dtype)
        assert datatype is not None
        tensor: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype.name}
        values = values_for(datatype.kind, generator) * (shape[1] // 2)
        if generator.random() < 0.3 and dtype == "float32":
            raw = struct.pack(f"<{len(values)}f", *values)
            tensor["parameters"] = {"binary_data_size": len(raw)}
            binary += raw
        else:
            tensor["data"] = generator.choice([values, [values]])
        inputs.append(tensor)
    request: dict[str, Any] = {
        "id": "i",
        "inputs": inputs,
        "parameters": {"binary_data_output": generator.random() < 0.3},
    }
    if generator.random() < 0.3:
        request["outputs"] = [
            {"name": "y" if model == "doubling" else "out_bool", "parameters": {"binary_data": False}}
        ]
    return request, binary, Call(model, b"")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in a JSON value."""
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [(value, key) for key, _ in items] + [place for _, item in items for place in places(item)]


def change_value(request: dict[str, Any], generator: random.Random) -> None:
    """Replace, drop, double or move something of the JSON."""
    holder, key = generator.choice(places(request))
    action = generator.randrange(4)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.append(deepcopy(holder[key]))
    elif action == 2:
        other, place = generator.choice(places(request))
        if not isinstance(other[place], (dict, list)):
            holder[key] = other[place]
    else:
        holder[key] = deepcopy(generator.choice(HOSTILE))


def change_bytes(body: bytes, generator: random.Random) -> bytes:
    """Cut, turn, put in or repeat some bytes."""
    at = generator.randrange(len(body))
    end = at + generator.randrange(1, 8)
    return generator.choice(
        [
            body[:at],
            body[:at] + body[end:],
            body[:at] + bytes([body[at] ^ 1 << generator.randrange(8)]) + body[at + 1 :],
            body[:at] + generator.choice(WORDS) + body[at:],
            body[:end] + body[at:],
        ]
    )


def change_call(call: Call, generator: random.Random) -> Call:
    """Change a header, the path or the method."""
    headers = dict(call.headers)
    action = generator.randrange(7)
    if action == 0:
        headers["inference-header-content-length"] = generator.choice(["0", "-1", "x", "", "1e3", "9" * 30, "7", "²"])
    elif action == 1:
        headers["content-type"] = generator.choice(TYPES)
    elif action == 2:
        headers["content-encoding"] = generator.choice(["gzip", "identity", "", "zstd, br"])
    elif action == 3:
        headers["content-length"] = generator.choice(["0", "99999999999999999999", str(len(call.body))])
    elif action == 4:
        return replace(call, tail=generator.choice(PATHS))
    elif action == 5:
        return replace(call, method=generator.choice(["GET", "PUT", "HEAD", "BREW", "OPTIONS"]))
    else:
        return replace(
            call, verb=generator.choice(["ready", "", "infer/", "predict", "/v2/repository/index", "/predict"])
        )
    return replace(call, headers=headers)


def mutated(generator: random.Random, names_of_models: tuple[str, ...]) -> Call:
    """A request with up to three things wrong."""
    request, binary, call = good_request(generator, names_of_models)
    for _ in range(generator.randrange(3)):
        change_value(request, generator)
    text = json.dumps(request).encode()
    headers = {"inference-header-content-length": str(len(text))} if binary else {}
    call = replace(call, body=text + binary, headers=headers)
    for _ in range(generator.randrange(2)):
        call = replace(call, body=change_bytes(call.body, generator))
        if not call.body:
            return call
    return change_call(call, generator) if generator.random() < 0.25 else call


async def answer_to(app: ASGIApp, call: Call) -> Answer:
    """Give the application a request as a server does."""
    messages: list[Message] = [{"type": "http.request", "body": call.body, "more_body": False}]
    sent: list[Message] = []
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "path": call.path,
        "raw_path": call.path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in call.headers.items()],
        "client": None,
        "server": None,
    }

    async def receive() -> Message:
        assert messages, "nothing more is to be received"
        return messages.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def check_answer(call: Call, answer: Answer) -> str:
    """What was said: the text of a failure, "" for a success; both as the protocol has them."""
    described = f"{call} -> {answer}"
    if call.method == "HEAD":
        assert answer.body == b"", described
        return ""
    if answer.status == 200:
        length = answer.headers.get("inference-header-content-length")
        told = json.loads(answer.body if length is None else answer.body[: int(length)])
        if "outputs" in told and "id" in told:
            sizes = [tensor.get("parameters", {}).get("binary_data_size", 0) for tensor in told["outputs"]]
            assert sum(sizes) == (0 if length is None else len(answer.body) - int(length)), described
        return ""
    assert answer.headers["content-type"] == "application/json", described
    told = json.loads(answer.body)
    assert list(told) == ["error"] and isinstance(told["error"], str) and told["error"], described
    assert len(told["error"]) < 500, described
    if answer.status == 500:
        assert "NaN or infinity" in told["error"], described
    else:
        assert answer.status in ANSWERS | {403}, described
    return str(told["error"])


def test_good_requests_are_good() -> None:
    generator = random.Random(SEED)

    async def work() -> None:
        app = app_of(MadeUpRepository(*models()))
        for _ in range(100):
            request, binary, call = good_request(generator, BOTH)
            text = json.dumps(request).encode()
            headers = {"inference-header-content-length": str(len(text))} if binary else {}
            answer = await answer_to(app, replace(call, body=text + binary, headers=headers))
            assert answer.status == 200, answer

    run(work())


def models() -> list[MadeUpModel]:
    assert {datatype_of(dtype) for dtype in DTYPES} <= set(DATATYPES.values())
    return [doubling(), echo(*DTYPES)]


async def tried(app: ASGIApp, count: int, names_of_models: tuple[str, ...]) -> tuple[Counter[int], set[str]]:
    """How often each status came, and all that was said."""
    generator = random.Random(SEED)
    statuses: Counter[int] = Counter()
    texts: set[str] = set()
    for _ in range(count):
        call = mutated(generator, names_of_models)
        answer = await answer_to(app, call)
        statuses[answer.status] += 1
        texts.add(check_answer(call, answer))
    return statuses, texts


def test_mutated_requests() -> None:
    statuses, texts = run(tried(app_of(MadeUpRepository(*models())), REQUESTS, BOTH))
    assert sum(statuses.values()) == REQUESTS
    # What is tried reaches far: most are refused, for many reasons, and some things are no harm.
    assert set(statuses) >= {200, 400, 403, 404, 405, 413, 415}, statuses
    assert statuses[400] > REQUESTS // 3, statuses
    assert len(texts) > 300


def test_mutated_requests_to_a_real_model(tmp_path: Path) -> None:
    """Whatever comes through the protocol, the model's own checks refuse in the same words; then it still answers."""
    path = save(tmp_path, "doubling", "(float[N,4] x) => (float[N,4] y) { y = Add(x, x) }")

    async def work() -> Counter[int]:
        settings = ServeSettings(models=[path], max_delay_ms=0.0, max_batch=4)
        repository = Repository(settings, Metrics())
        await repository.start()
        app = make_app(repository)
        statuses, _ = await tried(app, REQUESTS // 10, ("doubling",))
        body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
        answer = await answer_to(app, Call("doubling", json.dumps(body).encode()))
        assert json.loads(answer.body)["outputs"][0]["data"] == [2, 4, 6, 8]
        await repository.act_on_all("unload", "doubling")
        return statuses

    statuses = run(work())
    assert statuses[200] > 100 and statuses[400] > 300, statuses
