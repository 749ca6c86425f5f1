"""Compressed bodies: taken within the limit of their real size, and refused when they are cut, garbage or a bomb."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from serving import MadeUpRepository, app_of, ask, client_of, doubling, error_of, run
from starlette.types import Message

from trnrt.serve.http import inflating
from trnrt.serve.http.inflating import MOST_MEMBERS, Inflating, encoding_of
from trnrt.serve.http.problems import Problem

INFER = "/v2/models/doubling/infer"
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
TEXT = json.dumps(BODY).encode()
PACKED = gzip.compress(TEXT, mtime=0)
MIB = 1 << 20


def post(body: Any, encoding: str, path: str = INFER, headers: dict[str, str] | None = None, **settings: Any) -> Any:
    """The answer to a body with this Content-Encoding, and the repository."""
    repository = MadeUpRepository(doubling(), **settings)
    given = {"Content-Encoding": encoding, **(headers or {})}
    return ask(app_of(repository), "POST", path, content=body, headers=given), repository


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", " GZIP", "deflate"])
def test_compressed_json(encoding: str) -> None:
    pack = zlib.compress if encoding == "deflate" else gzip.compress
    answer, _ = post(pack(TEXT), encoding)
    assert answer.json()["outputs"][0]["data"] == [2, 4, 6, 8]
    answer, _ = post(pack(json.dumps({"instances": [[1, 2, 3, 4]]}).encode()), encoding, "/predict")
    assert answer.json()["predictions"] == [[2, 4, 6, 8]]


@pytest.mark.parametrize("encoding", ["br", "zstd", "identity, gzip", "gzip, gzip", "gzip,", "x", "gzip;q=1"])
def test_other_encodings(encoding: str) -> None:
    answer, _ = post(TEXT, encoding)
    assert "gzip, deflate, identity" in error_of(answer, 415)
    assert answer.headers["accept-encoding"] == "gzip, deflate, identity"


@pytest.mark.parametrize("encoding", ["identity", "", "Identity "])
def test_no_encoding(encoding: str) -> None:
    assert encoding_of(encoding) is None
    assert post(TEXT, encoding)[0].status_code == 200


def test_the_length_of_the_json_is_that_of_the_decompressed_body() -> None:
    x = np.arange(8, dtype=np.float32)
    tensor = {"name": "x", "shape": [2, 4], "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer, _ = post(gzip.compress(head + x.tobytes()), "gzip", headers=headers)
    assert answer.json()["outputs"][0]["data"] == (x * 2).tolist()


def test_several_members() -> None:
    middle = len(TEXT) // 2
    parts = [gzip.compress(part) for part in (TEXT[:middle], b"", TEXT[middle:])]
    assert post(b"".join(parts), "gzip")[0].status_code == 200


BROKEN: list[tuple[bytes, str, str]] = [
    (PACKED[:-1], "gzip", "ends in the middle"),
    (PACKED[:-9], "gzip", "ends in the middle"),
    (zlib.compress(TEXT)[:-1], "deflate", "ends in the middle"),
    (b"", "gzip", "ends in the middle"),
    (TEXT, "gzip", "incorrect header"),
    (TEXT, "deflate", "incorrect header"),
    (zlib.compress(TEXT)[2:-4], "deflate", "no deflate"),
    (PACKED + b"more", "gzip", "incorrect header"),
    (PACKED + PACKED[:9], "gzip", "ends in the middle"),
    (zlib.compress(TEXT) + b"more", "deflate", "4 bytes follow its end"),
    (PACKED[:-8] + bytes(8), "gzip", "incorrect data check"),
    (gzip.compress(b"", mtime=0) * (MOST_MEMBERS + 1), "gzip", f"more than {MOST_MEMBERS} members"),
]


@pytest.mark.parametrize(("body", "encoding", "told"), BROKEN, ids=lambda value: str(value)[:20])
def test_broken_bodies(body: bytes, encoding: str, told: str) -> None:
    assert told in error_of(post(body, encoding)[0], 400)


def test_a_bomb_stops_at_the_limit() -> None:
    """64 MiB of zeros in 64 KiB: no more is decompressed than the limit and a piece."""
    bomb = gzip.compress(bytes(64 * MIB), 9)
    assert len(bomb) < 70_000
    made = [0]
    original = zlib.decompressobj

    class Counted:
        def __init__(self, wbits: int) -> None:
            self._inner = original(wbits)

        def decompress(self, data: bytes, most: int) -> bytes:
            piece = self._inner.decompress(data, most)
            made[0] += len(piece)
            return piece

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zlib, "decompressobj", Counted)
        answer, repository = post(bomb, "gzip", max_body_mib=1)
    assert "more than 1048576 bytes" in error_of(answer, 413)
    assert repository.metrics.refused == ["body"]
    assert MIB < made[0] <= MIB + inflating._PIECE
    assert repository.admission.held == 0


def test_the_limit_of_json_is_of_its_real_size() -> None:
    answer, repository = post(gzip.compress(TEXT + b" " * (2 * MIB)), "gzip", max_json_mib=1)
    assert "--max-json-mib" in error_of(answer, 413)
    assert repository.metrics.refused == ["body"]


def test_compressed_bytes_without_content_are_limited() -> None:
    """Empty blocks decompress to nothing, for ever."""
    packer = zlib.compressobj(wbits=31)
    head, block = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH), b"\0\0\0\xff\xff"

    async def blocks() -> Any:
        yield head
        for _ in range(30):
            yield block * 10_000

    answer, repository = post(blocks(), "gzip", max_body_mib=1)
    error_of(answer, 413)
    assert repository.metrics.refused == ["body"]


def messages(*parts: bytes) -> Iterator[Message]:
    for place, part in enumerate(parts):
        yield {"type": "http.request", "body": part, "more_body": place + 1 < len(parts)}
    while True:
        yield {"type": "http.disconnect"}


def inflating_of(*parts: bytes, encoding: str = "gzip") -> tuple[Inflating, list[int], list[int]]:
    source, counts, sent = messages(*parts), list[int](), list[int]()

    async def receive() -> Message:
        return next(source)

    return Inflating(receive, encoding, counts.append, sent.append), counts, sent


@pytest.mark.parametrize("size", [0, 1, inflating._PIECE - 1, inflating._PIECE, inflating._PIECE + 1, 3 * MIB])
@pytest.mark.parametrize("step", [1000, 10**9])
def test_pieces(size: int, step: int) -> None:
    """Whatever the sizes, the pieces make the body, each is small, and the last one says so."""
    text = np.random.default_rng(size).integers(0, 4, size, np.uint8).tobytes()
    packed = gzip.compress(text[: size // 2], 1) + gzip.compress(text[size // 2 :], 1)
    parts = [packed[at : at + step] for at in range(0, len(packed), step)]
    receive, counts, sent = inflating_of(*parts, b"")

    async def work() -> None:
        got = []
        while True:
            message = await receive()
            assert message["type"] == "http.request" and len(message["body"]) <= inflating._PIECE
            got.append(message["body"])
            if not message["more_body"]:
                break
        assert b"".join(got) == text and sum(counts) == size and sent[-1] == len(packed)
        assert (await receive())["type"] == "http.disconnect"

    run(work())


def test_a_client_that_goes() -> None:
    source = iter([{"type": "http.request", "body": gzip.compress(TEXT)[:9], "more_body": True}])

    async def receive() -> Message:
        return next(source, {"type": "http.disconnect"})

    async def work() -> None:
        assert (await Inflating(receive, "gzip", lambda _: None, lambda _: None)())["type"] == "http.disconnect"

    run(work())


def test_others_have_a_turn_while_a_bomb_is_decompressed() -> None:
    """The event loop runs other tasks between the pieces."""
    receive, _, _ = inflating_of(gzip.compress(bytes(32 * MIB)))

    async def work() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(count())
        while (await receive())["more_body"]:
            pass
        task.cancel()
        return turns

    assert run(work()) > 16 * MIB // inflating._PIECE


def test_refusals_are_problems() -> None:
    with pytest.raises(Problem) as caught:
        encoding_of("br")
    assert caught.value.status == 415


def test_a_body_that_comes_slowly_is_taken() -> None:
    app = app_of(MadeUpRepository(doubling()))

    async def slowly() -> Any:
        for byte in gzip.compress(TEXT):
            yield bytes([byte])

    async def work() -> httpx.Response:
        async with client_of(app) as client:
            return await client.post(INFER, content=slowly(), headers={"Content-Encoding": "gzip"})

    assert run(work()).json()["outputs"][0]["data"] == [2, 4, 6, 8]
