"""The parts of a picture's file, counted before anything decodes it.

Pixels are no measure for the time that a file takes. A progressive JPEG of 90 KB may tell a decoder 2,000 times to go
over all of its pixels, and each part of a PNG costs, however empty it is.
"""

from __future__ import annotations

import re

from trnrt.errors import InputError
from trnrt.text import quote

MOST_SCANS = 64
"""The scans of a JPEG: encoders write up to about a dozen. At 2**25 pixels each takes some 0.15 s."""
MOST_SEGMENTS = 4096
"""The segments of a JPEG, and the bytes that fill the gaps between them."""
MOST_CHUNKS = 1 << 15
"""The chunks of a PNG: a few, and one for each 8 KiB or for each row of its pixels. Each takes some 13 us."""

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_CHUNK_BYTES = 12
"""A chunk's length, name and checksum."""
_MARKER = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]", re.DOTALL)
"""A JPEG's marker, in or behind a scan: no escaped byte, and no restart."""
_START_OF_SCAN, _END = 0xDA, 0xD9
_BARE = frozenset((0x01, 0xC8, 0xD8, 0xD9, *range(0xF0, 0xFE)))
"""Markers that no length follows, or behind which Pillow does not look for one."""


def check_anatomy(content: memoryview, name: str) -> None:
    """Refuse a PNG or JPEG with more parts than the limits, as decoding it would take long. Damaged files pass.

    Raises:
        InputError: if it has more.
    """
    if bytes(content[:8]) == _PNG and _has_many_chunks(content):
        raise InputError(f"{quote(name)} has more than {MOST_CHUNKS:,} chunks", hint="save it again")
    if bytes(content[:2]) == _JPEG:
        scans, segments, filling = _count_segments(content)
        if scans > MOST_SCANS:
            raise InputError(f"{quote(name)} has more than {MOST_SCANS} scans", hint="save it again")
        if segments > MOST_SEGMENTS or filling > MOST_SEGMENTS:
            raise InputError(
                f"{quote(name)} has more than {MOST_SEGMENTS:,} segments or bytes between them", hint="save it again"
            )


def _has_many_chunks(content: memoryview) -> bool:
    place = len(_PNG)
    for _ in range(MOST_CHUNKS + 1):
        if place + _CHUNK_BYTES > len(content) or bytes(content[place + 4 : place + 8]) == b"IEND":
            return False
        place += _CHUNK_BYTES + int.from_bytes(content[place : place + 4], "big")
    return True


def _count_segments(content: memoryview) -> tuple[int, int, int]:
    """The scans and the segments of a JPEG, and the bytes between segments, as far as none is over its limit."""
    scans = segments = filling = 0
    place, in_scan = len(_JPEG), False
    while scans <= MOST_SCANS and segments <= MOST_SEGMENTS and filling <= MOST_SEGMENTS:
        found = _MARKER.search(content, place)
        if not in_scan:
            filling += (len(content) if found is None else found.end() - 2) - place
        if found is None:
            break
        place, kind = found.end(), content[found.end() - 1]
        if kind == _END and scans:
            break
        segments += 1
        in_scan = kind == _START_OF_SCAN
        scans += in_scan
        if kind not in _BARE:
            place += max(2, int.from_bytes(content[place : place + 2], "big"))
    return scans, segments, filling
