"""Values handed between a worker and its reader: in files without a name, in memory, that both map.

A pickle holds the value, and the memory of its arrays stands behind it. Whoever opens a parcel gets arrays that are
views of the file, so that nothing large is copied, and nothing large passes through a pipe. Only this server's own
processes write parcels.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import tempfile
from typing import Any

_ALIGNMENT = 64
_COUNTS = struct.Struct("<QQ")
_SIZE = struct.Struct("<Q")


class MemoryFile:
    """A file without a name, gone with the last reference: in memory, or on systems without that on the disk."""

    __slots__ = ("number",)

    def __init__(self, number: int | None = None) -> None:
        self.number = _open_new() if number is None else number

    def __del__(self) -> None:
        os.close(self.number)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of ``data``: a single call of the system may write less."""
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.write(self.number, rest) :]

    def map(self) -> memoryview:
        """The content as memory. It may be written to; the file keeps what it has."""
        if not os.fstat(self.number).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(self.number, 0, access=mmap.ACCESS_COPY))


def _open_new() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trnrt", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def pack(value: object) -> MemoryFile:
    """A file with ``value``."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    head = _COUNTS.pack(len(text), len(views)) + b"".join(_SIZE.pack(len(view)) for view in views) + text
    file = MemoryFile()
    file.write(head)
    at = len(head)
    for view in views:
        gap = -at % _ALIGNMENT
        file.write(bytes(gap))
        file.write(view)
        at += gap + len(view)
    return file


def unpack(file: MemoryFile) -> Any:
    """The value in a file; its arrays are views of the file's memory, which lives as long as they do."""
    memory = file.map()
    length, count = _COUNTS.unpack_from(memory)
    at = _COUNTS.size + count * _SIZE.size
    sizes = [_SIZE.unpack_from(memory, _COUNTS.size + k * _SIZE.size)[0] for k in range(count)]
    text = memory[at : at + length]
    at += length
    buffers = []
    for size in sizes:
        at += -at % _ALIGNMENT
        buffers.append(memory[at : at + size])
        at += size
    return pickle.loads(text, buffers=buffers)
