"""HTTP requests for ``benchmarks.serve.fuzzing``, as bytes: right ones whose answer is known, and wrong ones.

They go to the model ``counting`` of float rows (N, 4), whose version V answers V + 1 times its input, to
``digits_ffnn`` with pictures, and to the operator's paths.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

KEYS = {"user": "u" * 40, "few": "f" * 40, "ops": "o" * 40}
"""The server's keys by name: ``few`` has a limit, and ``ops`` may load and unload."""
FACTORS = {"": (2.0, 3.0), "1": (2.0,), "2": (3.0,)}
"""The factor by which each version of the model ``counting`` multiplies. A request without a version gets either's."""
NUMBERS = (0.75, 3.0, -1.25, 0.0, 1024.0)
"""Of these no products without a sign add up to 1, which /predict would take for the probabilities of classes."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1.5, 2**31, 2**63, 10**40, 1e308, "", "x", "FP32", "\ud800", "\0", "ü" * 100),
    *([], [[]], [[1, 2], [3]], [None], {}, {"name": "x"}, {"binary_data_size": 10**12}, {"nan_policy": []}),
)
WORDS = (b"NaN", b"Infinity", b"1e999", b"-", b"{", b"]", b'"', b"\\", b"\xff", b"\0", b'"id":1,', b"[" * 3000)
NAMES = (
    *("counting", "counting@1", "counting@2", "counting@3", "counting@", "@", "counting@sha256:0123456789ab", "nobody"),
    *("counting%2F..", "%2e%2e", "..", "%00", "%2Fcounting", "counting%20", "%F0%9F%90%8D", "%ff", "c%6funting"),
    *("digits_ffnn", "spare", "counting:predict", "counting/versions/1", "counting/versions/%32", "counting/versions/"),
    "a" * 300,
)
PATHS = (
    *("/v2/models/NAME/infer", "/v2/models/NAME/infer/", "/v2/models/NAME", "/v2/models/NAME/ready"),
    *("/v2/models/NAME/config", "/v2/models/NAME/stats", "/v2/models/stats"),
    *("/v1/models/NAME:predict", "/v1/models/NAME", "/v1/models"),
    *("/predict?model=NAME", "/predict", "/predict?model=NAME&draw=mask", "/predict?draw=%ff&min_score=nan"),
    *("/v2", "/v2/health/ready", "/v2/health/live?x=%00", "/metrics", "/", "/docs", "/openapi.json", "/pages/../NAME"),
    *(
        "/v2/repository/index",
        "/v2/repository/models/NAME/load",
        "/v2/repository/models/NAME/canary",
        "*",
        "",
        "v2",
        "//v2",
    ),
    *("http://127.0.0.1/v2", "http://elsewhere/v2/models/NAME/infer", "https://127.0.0.1/v2/models/NAME/infer?q#f"),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW", "CONNECT", "TRACE", "PRI", "get")
TYPES = ("application/json", "application/octet-stream", "text/plain", "multipart/form-data", "\xff", "image/png", "")
HEADERS = (
    *(("Inference-Header-Content-Length", text) for text in ("0", "-1", "x", "", "1e3", "9" * 30, "7", "\xb2")),
    *(("Content-Type", text) for text in TYPES),
    *(("Content-Encoding", text) for text in ("gzip", "identity", "", "zstd, br", "gzip, gzip", "deflate", "x" * 200)),
    *(("X-API-Key", text) for text in ("wrong", "", "\xff" * 50, KEYS["few"])),
    *(("Host", text) for text in ("127.0.0.1", "elsewhere", "a b", "", "[::1]:9", "%00")),
    *(("Origin", text) for text in ("http://elsewhere", "null", "http://127.0.0.1", "\xff")),
    *(("X-Request-Id", text) for text in ("sane-1", "<insane>", "x" * 200, "")),
    *(("Accept-Encoding", text) for text in ("gzip", "deflate;q=2", "*;q=x", "gzip;q=0")),
    *(("traceparent", text) for text in ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "00-0-0-0", "\xff")),
    *(("Upgrade", "websocket"), ("X-" + "h" * 400, "v"), ("X-Long", "v" * 9000), ("Range", "bytes=0-1")),
)
ADMIN_BODIES = (
    *(b"", b"{}", b"[]", b"null", b"{", b'{"parameters":{}}', b'{"parameters":{"config":"{}"}}', b'{"ready":true}'),
    *(b'{"ready":1}', b'{"version":"2","share":0.5}', b'{"version":"2","share":7}', b'{"version":2}', b'{"share":1}'),
    *(b'{"parameters":{"unload_dependents":true}}', b'{"parameters":{"file:1/model.onnx":"AA=="}}', b"\xff\xfe"),
)
FRAMING = (
    *(b"\n", b"\r", b" ", b"\0", b":", b"\t", b"\r\n\r\n"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"),
)
PICTURE = base64.b64decode(
    b"iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAPklEQVR4nGNgYOj/f9+AAQgc3iesfw9iMCgwBPxXALMa7p9ngDLeC0BY"
    b"Av8dgKTB+4T+/yBtAvP/v09gYAAAq5MTb46oRkoAAAAASUVORK5CYII="
)
"""A three, 8 by 8 pixels, grey."""


@dataclass(frozen=True)
class Sent:
    """A request's parts. ``factors``: the right answer is one of these times ``numbers``; empty if it isn't known.

    ``chunks``: sizes of the body's chunks; empty for a Content-Length. ``bent``: the bytes on the wire are changed by
    this function, so that nobody knows how many answers come.
    """

    method: str
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    numbers: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    chunks: int = 0
    bent: Callable[[bytes], bytes] | None = None

    def wire(self, *, last: bool) -> bytes:
        """Its bytes; after the ``last`` one of a connection the server closes it."""
        headers = {"Host": "127.0.0.1", "X-API-Key": KEYS["user"], **self.headers}
        body = self.body
        if self.chunks:
            headers["Transfer-Encoding"] = "chunked"
            pieces = [body[at : at + self.chunks] for at in range(0, len(body), self.chunks)]
            body = b"".join(b"%x;e=1\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        elif body or self.method == "POST":
            headers["Content-Length"] = str(len(body))
        if last:
            headers["Connection"] = "close"
        lines = [f"{self.method} {self.target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        return data if self.bent is None else self.bent(data)


def right_request(rng: random.Random) -> Sent:
    """A request whose answer is known."""
    if rng.random() < 0.1:
        return _picture(rng)
    rows = rng.choice((1, 1, 1, 2, 5, 64))
    numbers = tuple(rng.choices(NUMBERS, k=4 * rows))
    version = rng.choice(("", "1", "2"))
    sent = rng.choice((_infer, _infer, _predict, _predict_v1))(rng, numbers, version)
    return _encode(replace(sent, numbers=numbers, factors=FACTORS[version]), rng)


def wrong_request(rng: random.Random) -> Sent:
    """A request with something changed; it may still be right, and then its answer isn't known."""
    kind = rng.random()
    if kind < 0.1:
        sent = _operator_request(rng)
    elif kind < 0.25:
        target = rng.choice(PATHS).replace("NAME", rng.choice(NAMES))
        sent = replace(right_request(rng), method=rng.choice((*METHODS, "POST", "GET")), target=target)
    elif kind < 0.55:
        sent = _change_json(right_request(rng), rng)
    elif kind < 0.7:
        sent = _change_body(right_request(rng), rng)
    else:
        sent = right_request(rng)
        for name, value in rng.choices(HEADERS, k=rng.randrange(1, 3)):
            sent = replace(sent, headers={**sent.headers, name: value})
    sent = replace(sent, numbers=(), factors=())
    if rng.random() < 0.06:
        seed = rng.random()
        return replace(sent, bent=lambda data: _bend(data, random.Random(seed)))
    return sent


# -- right requests ----------------------------------------------------------------------------------------------------


def _rows(numbers: tuple[float, ...]) -> list[list[float]]:
    return [list(numbers[at : at + 4]) for at in range(0, len(numbers), 4)]


def _infer(rng: random.Random, numbers: tuple[float, ...], version: str) -> Sent:
    path = rng.choice(("counting@{}", "counting/versions/{}")).format(version) if version else "counting"
    tensor: dict[str, Any] = {"name": "x", "shape": [len(numbers) // 4, 4], "datatype": "FP32"}
    request: dict[str, Any] = {"id": "7", "inputs": [tensor], "parameters": {"binary_data_output": rng.random() < 0.4}}
    if rng.random() < 0.2:
        request["outputs"] = [{"name": "y", "parameters": {"binary_data": rng.random() < 0.5}}]
    headers, binary = {"Content-Type": "application/json"}, b""
    if rng.random() < 0.4:
        binary = struct.pack(f"<{len(numbers)}f", *numbers)
        tensor["parameters"] = {"binary_data_size": len(binary)}
    else:
        tensor["data"] = rng.choice((list(numbers), _rows(numbers)))
    text = json.dumps(request).encode()
    if binary:
        headers["Inference-Header-Content-Length"] = str(len(text))
    return Sent("POST", f"/v2/models/{path}/infer", headers, text + binary)


def _predict(rng: random.Random, numbers: tuple[float, ...], version: str) -> Sent:
    name = f"counting@{version}" if version else "counting"
    body = json.dumps({"instances": _rows(numbers)}).encode()
    return Sent("POST", f"/predict?model={name}", {"Content-Type": "application/json"}, body)


def _predict_v1(rng: random.Random, numbers: tuple[float, ...], version: str) -> Sent:
    name = f"counting@{version}" if version else "counting"
    body = json.dumps({rng.choice(("instances", "inputs")): _rows(numbers)}).encode()
    return Sent("POST", f"/v1/models/{name}:predict", {"Content-Type": "application/json"}, body)


def _picture(rng: random.Random) -> Sent:
    """A picture of a three, as it is or in a form."""
    target, numbers = "/predict?model=digits_ffnn", (3.0,)
    if rng.random() < 0.5:
        return Sent("POST", target, {"Content-Type": "image/png"}, PICTURE, numbers, (1.0,))
    part = b'--cut\r\nContent-Disposition: form-data; name="f"; filename="3.png"\r\nContent-Type: image/png\r\n\r\n'
    body = part + PICTURE + b"\r\n--cut--\r\n"
    return Sent("POST", target, {"Content-Type": "multipart/form-data; boundary=cut"}, body, numbers, (1.0,))


def _encode(sent: Sent, rng: random.Random) -> Sent:
    """The same request, perhaps compressed, and perhaps in chunks."""
    if rng.random() < 0.2:
        coding, packed = rng.choice((("gzip", gzip.compress), ("deflate", zlib.compress)))
        sent = replace(sent, headers={**sent.headers, "Content-Encoding": coding}, body=packed(sent.body))
    return replace(sent, chunks=rng.choice((1, 7, 1000))) if rng.random() < 0.2 else sent


# -- wrong requests ----------------------------------------------------------------------------------------------------


def _operator_request(rng: random.Random) -> Sent:
    """One for the operator, who unloads only the model ``spare``."""
    action = rng.choice(("index", "models/counting/load", "models/spare/unload", "models/spare/load", "models/x/load"))
    action = rng.choice((action, action, "models/counting/canary", "models/counting@2/load", "models/%2e%2e%2fx/load"))
    headers = {"X-API-Key": KEYS["ops" if rng.random() < 0.5 else "user"], "Content-Type": rng.choice(TYPES)}
    return Sent("POST", f"/v2/repository/{action}", headers, rng.choice(ADMIN_BODIES))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in a JSON value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [(value, key) for key, _ in items] + [place for _, item in items for place in _places(item)]


def _change_json(sent: Sent, rng: random.Random) -> Sent:
    """Replace, drop, double or move something of the JSON."""
    length = sent.headers.get("Inference-Header-Content-Length")
    size = len(sent.body) if length is None else int(length)
    if "Content-Encoding" in sent.headers or not sent.body.startswith(b"{"):
        return _change_body(sent, rng)
    request = json.loads(sent.body[:size])
    for _ in range(rng.randrange(1, 3)):
        places = _places(request)
        if not places:
            break
        holder, key = rng.choice(places)
        action = rng.randrange(4)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, list):
            holder.append(deepcopy(holder[key]))
        else:
            holder[key] = deepcopy(rng.choice(HOSTILE))
    text = json.dumps(request).encode()
    headers = dict(sent.headers)
    if length is not None:
        headers["Inference-Header-Content-Length"] = str(len(text))
    return replace(sent, headers=headers, body=text + sent.body[size:])


def _change_body(sent: Sent, rng: random.Random) -> Sent:
    """Cut, turn, put in or repeat some bytes; or send far too many that compress well."""
    body = sent.body or b" "
    at = rng.randrange(len(body))
    end = at + rng.randrange(1, 8)
    if rng.random() < 0.03:
        bomb = zlib.compress(b" " * (3 << 20))
        return replace(sent, headers={**sent.headers, "Content-Encoding": "deflate"}, body=bomb)
    changed = rng.choice(
        (
            body[:at],
            body[:at] + body[end:],
            body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :],
            body[:at] + rng.choice(WORDS) + body[at:],
            body[:end] + body[at:],
            b'{"instances": [' + b"[1,2,3,4]," * 30_000 + b"[0]]}" if rng.random() < 0.1 else body + body,
        )
    )
    return replace(sent, body=changed)


def _bend(data: bytes, rng: random.Random) -> bytes:
    """Change bytes of what is on the wire, mostly in the head."""
    head = data.find(b"\r\n\r\n")
    if rng.random() < 0.2:
        return data[: rng.randrange(len(data))]
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(head)
        end = at + rng.choice((0, 0, 1, 5))
        data = data[:at] + rng.choice((*FRAMING, rng.randbytes(1))) + data[end:]
    return data
