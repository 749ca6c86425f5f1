"""Bodies of requests, read as they come: small ones in one piece, large ones into a file in memory.

A large body stands once in memory, without joins, and the reader maps the same file.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from trnrt.serve.processes.parcels import MemoryFile

INLINE = 64 << 10
"""Bytes of JSON that the event loop parses: ordinary numbers take it 2 ms, small lists and objects up to 8 ms."""


_ALIGNMENT = 64


class Spool:
    """A large body: its ``file``, where it begins at ``start``, and as its length the number of bytes.

    With ``json_size`` bytes of JSON first, what follows is aligned, so that tensors need no copy.
    """

    def __init__(self, json_size: int = 0) -> None:
        self.file, self._size = MemoryFile(), 0
        self.start = -json_size % _ALIGNMENT
        self.file.write(bytes(self.start))

    def __len__(self) -> int:
        return self._size

    def map(self) -> memoryview:
        """The body as memory."""
        return self.file.map()[self.start :]

    def append(self, data: bytes) -> None:
        """Add the next bytes."""
        self.file.write(data)
        self._size += len(data)


async def read_body(request: Request, check: Callable[[int], None] | None = None, json_size: int = 0) -> bytes | Spool:
    """The body of a request; a Spool if it has more than ``INLINE`` bytes.

    ``check`` gets the size of a large body so far, and before that the declared one; it raises beyond the limit.
    """
    receive = request.receive
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False) and len(body) <= INLINE:
        return body
    parts, size = [body], len(body)
    while size <= INLINE and message.get("more_body", False):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
    if size <= INLINE:
        return b"".join(parts)
    if check is not None:
        check(max(size, _declared_size(request)))
    spool = Spool(json_size)
    for part in parts:
        spool.append(part)
    del parts, body
    while message.get("more_body", False):
        message = await receive()
        spool.append(message.get("body", b""))
        if check is not None:
            check(len(spool))
    return spool


def _declared_size(request: Request) -> int:
    """The size that the client declares; 0 if that is unknown, or of the compressed body."""
    length = request.headers.get("content-length", "")
    known = length.isdecimal() and "content-encoding" not in request.headers
    return int(length[:19]) if known else 0
