"""Compressed bodies of requests: decompressed as they come, and counted by their real size.

A body that grows beyond the limit is refused at the limit, however small it was sent; nothing is decompressed before
its reader takes it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from starlette.types import Message, Receive

from trnrt.serve.http.problems import Problem
from trnrt.serve.http.tensors import value_text

WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
"""The encodings that are taken, and zlib's ``wbits`` for each: deflate is zlib's format (RFC 9110, 8.4.1.2)."""
ACCEPTED = "gzip, deflate, identity"
MOST_MEMBERS = 4096
"""The members of a gzip body: each costs time, whatever it holds."""
_PIECE = 256 << 10
"""Bytes that are decompressed at once: they take a millisecond."""


def encoding_of(header: str | None) -> str | None:
    """The encoding of a body by its Content-Encoding; None for none. Problem(415) for others, and for lists."""
    name = "" if header is None else header.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in WINDOWS:
        text = f"Content-Encoding {value_text(name)} is not taken; it is one of {ACCEPTED}"
        raise Problem(415, text, {"Accept-Encoding": ACCEPTED})
    return name


class Inflating:
    """ASGI's ``receive``, for a compressed body.

    ``count`` gets the number of bytes of each decompressed piece, ``count_sent`` that of all compressed ones so far;
    they raise Problem beyond the limits.
    """

    def __init__(
        self, receive: Receive, encoding: str, count: Callable[[int], None], count_sent: Callable[[int], None]
    ) -> None:
        self._receive, self._encoding, self._count, self._count_sent = receive, encoding, count, count_sent
        self._sent = 0
        self._inflater = zlib.decompressobj(WINDOWS[encoding])
        self._rest = b""
        self._more, self._ended = True, False
        self._members = 0

    async def __call__(self) -> Message:
        """The next piece of the body; behind its end, whatever the client sends."""
        if self._ended:
            return await self._receive()
        while True:
            if not self._rest and self._more:
                message = await self._receive()
                if message["type"] != "http.request":
                    return message
                self._rest, self._more = message.get("body", b""), message.get("more_body", False)
                self._sent += len(self._rest)
                self._count_sent(self._sent)
            else:
                await asyncio.sleep(0)  # between two pieces, others have a turn
            piece = self._inflate()
            self._ended = not self._rest and not self._more and not self._holds_more(piece)
            if self._ended and not self._inflater.eof:
                raise self._refusal("it ends in the middle")
            if piece or self._ended:
                self._count(len(piece))
                return {"type": "http.request", "body": piece, "more_body": not self._ended}

    def _holds_more(self, piece: bytes) -> bool:
        """True if the decompressor may have more output for input that it took."""
        return len(piece) == _PIECE and not self._inflater.eof

    def _inflate(self) -> bytes:
        """The next piece, of what is left of the input."""
        if self._inflater.eof and self._rest:
            self._begin_member()
        try:
            piece = self._inflater.decompress(self._rest, _PIECE)
        except zlib.error as error:
            raise self._refusal(str(error).rpartition(": ")[2]) from None
        self._rest = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
        return piece

    def _begin_member(self) -> None:
        """Another member of a gzip body."""
        self._members += 1
        if WINDOWS[self._encoding] == WINDOWS["deflate"]:
            raise self._refusal(f"{len(self._rest)} bytes follow its end")
        if self._members >= MOST_MEMBERS:
            raise self._refusal(f"it has more than {MOST_MEMBERS} members")
        self._inflater = zlib.decompressobj(WINDOWS[self._encoding])

    def _refusal(self, why: str) -> Problem:
        return Problem(400, f"the body is no {self._encoding}, as its Content-Encoding says: {why}")
