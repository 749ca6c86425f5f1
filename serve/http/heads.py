"""The head of a request, checked before anything else sees it: request line, Host, Transfer-Encoding.

llhttp, the parser, is strict by itself. It refuses bare line feeds, folded lines, spaces before a colon, control
characters, two or wrong lengths, and a length beside chunks (RFC 9112, 2.2, 5.1, 5.2, 6.3). Here is what it lets pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from trnrt.serve.http.problems import Problem

Fields = list[tuple[bytes, bytes]]

FIELD_BYTES = 4
"""A field's colon, space and line end."""
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]+)(?::[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_LOOKED_AT = frozenset((b"host", b"expect", b"transfer-encoding"))
_OF_UPGRADES = frozenset((b"upgrade", b"http2-settings"))
_TLS_HANDSHAKE = b"\x16\x03"
_HTTP2 = b"PRI * HTTP/2"


class Refusal(Exception):
    """A head that is refused; ``reason`` is the metrics' word."""

    def __init__(self, reason: str, problem: Problem) -> None:
        super().__init__(problem.text)
        self.reason, self.problem = reason, problem


@dataclass(frozen=True, slots=True)
class Head:
    """The parts of a head that the server uses. ``expects``: the client waits for 100 Continue to send the body."""

    path: str
    raw_path: bytes
    query: bytes
    expects: bool


def malformed_refusal(text: str, status: int = 400) -> Refusal:
    """The refusal of what is no HTTP that this server speaks."""
    return Refusal("malformed", Problem(status, text))


def check_head(method: str, target: bytes, version: str, fields: Fields, most_bytes: int) -> Head:
    """The head of a request; names of fields are in lower case. Refusal if it is malformed or too large."""
    size = len(target)
    host: bytes | None = None
    expects = False
    for name, value in fields:
        size += len(name) + len(value) + FIELD_BYTES
        if name not in _LOOKED_AT:
            continue
        if name == b"expect":
            expects = value.lower() == b"100-continue"
        elif name == b"transfer-encoding":
            _check_coding(value, version)
        elif host is None:
            host = value
        else:
            raise malformed_refusal("the request has more than one Host header; send one")
    if size > most_bytes:
        raise too_large(most_bytes)
    if version not in ("1.1", "1.0"):
        raise malformed_refusal(f"this is HTTP/{version}; the server speaks HTTP/1.1", 505)
    if host is None:
        if version == "1.1":
            raise malformed_refusal("the request has no Host header; HTTP/1.1 requires one")
    elif not _HOST.fullmatch(host):
        raise malformed_refusal(f"the Host header is {host[:80]!r}; it is a name or an address, and perhaps a port")
    return _split(method, target, host, expects)


def _check_coding(value: bytes, version: str) -> None:
    if version != "1.1":
        raise malformed_refusal(f"HTTP/{version} has no Transfer-Encoding; send Content-Length")
    if value.strip().lower() != b"chunked":
        raise malformed_refusal(f"Transfer-Encoding is {value[:80]!r}; the server takes chunked alone", 501)


def _split(method: str, target: bytes, host: bytes | None, expects: bool) -> Head:
    """The target's path and query. The absolute form is taken if it names the host that Host does."""
    if method == "CONNECT":
        raise malformed_refusal("CONNECT is for proxies, and this server is none", 501)
    found = None if target.startswith(b"/") else _ABSOLUTE.fullmatch(target)
    if found is not None:
        authority, target = found[1], found[2]
        if host is None or authority.lower() != host.lower():
            raise malformed_refusal(f"the target names the host {authority[:80]!r}, and the Host header another one")
        if not target.startswith(b"/"):
            target = b"/" + target
    elif not target.startswith(b"/") and (method, target) != ("OPTIONS", b"*"):
        raise malformed_refusal(f"the target is {target[:80]!r}; it begins with a slash")
    if b"#" in target:
        raise malformed_refusal("the target has a fragment (#); clients keep that for themselves")
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")  # llhttp refuses other bytes
    return Head(unquote(path) if "%" in path else path, raw_path, query, expects)


def too_large(most_bytes: int) -> Refusal:
    """The refusal of a head of too many bytes."""
    text = f"the request line and the headers have more than {most_bytes} bytes, the server's limit"
    return Refusal("headers", Problem(431, text))


def too_many(most: int) -> Refusal:
    """The refusal of too many header or trailer fields."""
    return Refusal("headers", Problem(431, f"the request has more than {most} header fields, the server's limit"))


def target_too_long(most_bytes: int) -> Refusal:
    """The refusal of a long target."""
    text = f"the request's target has more than {most_bytes} bytes, the server's limit for all of the head"
    return Refusal("headers", Problem(414, text))


def unparsable(error: Exception, data: bytes) -> Refusal:
    """The refusal of bytes that the parser refuses; ``data`` is what it was given last."""
    if data.startswith(_TLS_HANDSHAKE):
        return malformed_refusal(
            "this is TLS, and the server speaks plain HTTP: use http://, or a proxy with TLS before it"
        )
    if data.startswith(_HTTP2):
        return malformed_refusal("this is HTTP/2; the server speaks HTTP/1.1", 505)
    return malformed_refusal(f"malformed HTTP: {error}")


def without_upgrade(method: str, target: bytes, fields: Fields) -> bytes:
    """The head's bytes, as if the client had not offered another protocol: a server may ignore an Upgrade
    (RFC 9110, 7.8)."""
    lines = [method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    for name, value in fields:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _OF_UPGRADES)
        if name not in _OF_UPGRADES and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return b"\r\n".join([*lines, b"", b""])
