"""Answers of many bytes: sent in pieces, and compressed if the client accepts that and it helps."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Part = bytes | memoryview

COMPRESS_FROM = 4 << 10
"""Bytes of an answer that are worth compressing: less fits into three packets anyway."""
WORTH = 0.8
"""An answer is compressed if that makes a sample smaller than this share. Random float32 gets to 0.87."""
_SAMPLE = 8 << 10
_LEVEL = 1
_ENCODINGS = {"gzip": 31, "deflate": 15}
"""By preference, with zlib's ``wbits``."""
_PIECE = 256 << 10
_ON_LOOP = 32 << 10
"""Bytes that are compressed on the event loop, within a millisecond; a thread does more."""


def make_answer(
    parts: Sequence[Part], media_type: str, accepted: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer with a body of these parts; ``accepted``: the request's Accept-Encoding."""
    size = sum(map(len, parts))
    if size < COMPRESS_FROM:
        return SmallAnswer(parts[0] if len(parts) == 1 else b"".join(parts), media_type=media_type, headers=headers)
    return LargeAnswer(parts, size, media_type, choose_encoding(accepted), headers)


class SmallAnswer(Response):
    """A body in one piece, with its own headers alone: the framework takes several times as long to make them."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers."""
        own = {"content-length": str(len(self.body)), "content-type": self.media_type or "", **(headers or {})}
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in own.items()]


class LargeAnswer(Response):
    """Sends its parts without joining them."""

    def __init__(
        self, parts: Sequence[Part], size: int, media_type: str, encoding: str | None, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(None, media_type=media_type, headers=headers)
        self._parts, self._encoding = parts, encoding if encoding and is_worth(parts) else None
        self.headers["vary"] = "Accept-Encoding"
        if self._encoding:
            self.headers["content-encoding"] = self._encoding
            del self.headers["content-length"]  # it is known only at the end
        else:
            self.headers["content-length"] = str(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        sent = _compress_parts(self._parts, self._encoding) if self._encoding else _plain_parts(self._parts)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in sent:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def is_worth(parts: Sequence[Part]) -> bool:
    """True if a sample of the longest part shrinks."""
    sample = max(parts, key=len)[:_SAMPLE]
    return len(zlib.compress(sample, _LEVEL)) < WORTH * len(sample)


def choose_encoding(accepted: str | None) -> str | None:
    """The encoding that an Accept-Encoding header likes best of ours; None for none."""
    if not accepted:
        return None
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _weight(parameters)
    found = max(_ENCODINGS, key=lambda name: weights.get(name, 0.0))
    return found if weights.get(found, 0.0) > 0 else None


def _weight(parameters: str) -> float:
    """The ``q`` of an item; 0, which refuses it, for what is no number."""
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0


def _pieces(parts: Sequence[Part]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]


async def _plain_parts(parts: Sequence[Part]) -> AsyncIterator[bytes]:
    for piece in _pieces(parts):
        yield bytes(piece)


async def _compress_parts(parts: Sequence[Part], encoding: str) -> AsyncIterator[bytes]:
    compressor = zlib.compressobj(_LEVEL, wbits=_ENCODINGS[encoding])
    for piece in _pieces(parts):
        small = len(piece) <= _ON_LOOP
        made = compressor.compress(piece) if small else await asyncio.to_thread(compressor.compress, piece)
        if made:
            yield made
    yield compressor.flush()
