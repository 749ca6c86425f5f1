"""Pictures of many parts are refused before they are decoded; what encoders and cameras write is not."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from trnrt.errors import InputError
from trnrt.inputs.anatomy import MOST_CHUNKS, MOST_SCANS, MOST_SEGMENTS, check_anatomy
from trnrt.inputs.decoding import NamedPicture

MOST_PIXELS = 1 << 20


def photo(kind: str, **options: object) -> bytes:
    pixels = np.random.default_rng(3).integers(0, 255, (90, 70, 3), dtype=np.uint8)
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, kind, **options)
    return made.getvalue()


def chunk(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


PROGRESSIVE, PLAIN, PNG = photo("JPEG", progressive=True), photo("JPEG"), photo("PNG")
LAST_SCAN = PROGRESSIVE[PROGRESSIVE.rindex(b"\xff\xda") : -2]
SCANS = PROGRESSIVE.count(b"\xff\xda")
AFTER_HEAD = 8 + 25
REMARK = b"\xff\xfe\x00\x02"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (PROGRESSIVE[:-2] + LAST_SCAN * (MOST_SCANS - SCANS + 1) + b"\xff\xd9", "64 scans"),
        (PLAIN[:2] + REMARK * (MOST_SEGMENTS + 1) + PLAIN[2:], "4,096 segments"),
        (PLAIN[:2] + b"\xff\xd9" + REMARK * (MOST_SEGMENTS + 1) + PLAIN[2:], "4,096 segments"),
        (PLAIN[:2] + b"\xff\xf0" + REMARK * (MOST_SEGMENTS + 1) + PLAIN[2:], "4,096 segments"),
        (PLAIN[:2] + b"\xff" * (MOST_SEGMENTS + 1) + PLAIN[2:], "bytes between them"),
        (PLAIN[:2] + b"\xff\x00" * MOST_SEGMENTS + PLAIN[2:], "bytes between them"),
        (PNG[:AFTER_HEAD] + chunk(b"tEXt", b"k\0v") * MOST_CHUNKS + PNG[AFTER_HEAD:], "32,768 chunks"),
        (PNG[:AFTER_HEAD] + chunk(b"IDAT") * MOST_CHUNKS + PNG[AFTER_HEAD:], "32,768 chunks"),
    ],
    ids=["scans", "segments", "behind an end", "no length", "filling", "escaped", "texts", "empty data"],
)
def test_many_parts_are_refused(content: bytes, told: str) -> None:
    """Each of these took a decoder minutes, in a body of 64 MiB."""
    with pytest.raises(InputError, match=told):
        NamedPicture("a picture", content).check_pixels(MOST_PIXELS)


@pytest.mark.parametrize(
    "content",
    [
        PROGRESSIVE,
        PROGRESSIVE[:-2] + LAST_SCAN * (MOST_SCANS - SCANS) + b"\xff\xd9",
        PLAIN + LAST_SCAN * (MOST_SCANS + 1),
        PLAIN[:2] + REMARK * 100 + PLAIN[2:],
        photo("JPEG", restart_marker_blocks=1),
        photo("JPEG", icc_profile=b"\xff\xda" * 60_000),
        PNG,
        PNG + bytes(1 << 20),
        photo("PNG", optimize=True),
    ],
    ids=["progressive", "64 scans", "behind the end", "remarks", "restarts", "profile", "png", "zeros", "optimized"],
)
def test_what_encoders_write_is_taken(content: bytes) -> None:
    NamedPicture("a picture", content).check_pixels(MOST_PIXELS)


@pytest.mark.parametrize("content", [PROGRESSIVE, PLAIN, PNG, LAST_SCAN, b"\xff\xd8\xff\xda", b"\xff\xd8\xff"])
def test_cut_files_are_left_to_the_decoder(content: bytes) -> None:
    for end in range(0, len(content), max(1, len(content) // 97)):
        check_anatomy(memoryview(content)[:end], "a picture")


def test_a_palette_that_is_missing() -> None:
    """Pillow asserts that there is one."""
    from trnrt.inputs.decoding import read_photo

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 3, 0, 0, 0))
    content = PNG[:8] + head + chunk(b"IDAT", zlib.compress(bytes(72))) + chunk(b"IEND")
    with pytest.raises(InputError, match="palette"):
        read_photo(NamedPicture("a picture", content))
