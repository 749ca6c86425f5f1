"""Clients that mean harm: what a gRPC server refuses, closes or outlives, with frames made by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from engines import run
from grpc_serving import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    Caller,
    InferRequest,
    frame,
    headers,
    message,
    raw_request,
    serving_grpc,
    typed_request,
    window,
)
from serving import MadeUpRepository, doubling

from trnrt.serve.grpc import inference, messages, server
from trnrt.serve.grpc.inference import LARGEST_TYPED, MOST_PARTS, parse, parse_infer
from trnrt.serve.http.protocol import RequestError

INFER = "/inference.GRPCInferenceService/ModelInfer"
ROW = np.ones((1, 4), np.float32)


def options_with(patch: pytest.MonkeyPatch, **changed: int) -> None:
    """Let servers have other options, such as max_connection_idle_ms."""
    real = server.server_options

    def options(*arguments: Any, **named: Any) -> list[tuple[str, int]]:
        return list(
            (dict(real(*arguments, **named)) | {f"grpc.{name}": value for name, value in changed.items()}).items()
        )

    patch.setattr(server, "server_options", options)


@asynccontextmanager
async def connection(caller: Caller) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection without any protocol."""
    reader, writer = await asyncio.open_connection("127.0.0.1", caller.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def is_closed(reader: asyncio.StreamReader, seconds: float = 20.0) -> bool:
    """True if the server closes the connection in time."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(1 << 16):
                pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


async def still_answers(caller: Caller) -> None:
    answer = await caller.infer(raw_request("doubling", ROW))
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [2.0] * 4


def resident() -> int:
    """Memory of the process, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


def test_silent_and_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    options_with(monkeypatch, server_handshake_timeout_ms=300, max_connection_idle_ms=300)

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller, connection(caller) as (silent, _):
            async with connection(caller) as (half, half_writer), connection(caller) as (idle, idle_writer):
                half_writer.write(PREFACE[:10])
                idle_writer.write(PREFACE + window(100))
                assert all(await asyncio.gather(is_closed(silent), is_closed(half), is_closed(idle)))
            await still_answers(caller)

    run(work())


def test_connections_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            await still_answers(caller)  # the first connection
            async with contextlib.AsyncExitStack() as stack:
                opened = [(await stack.enter_async_context(connection(caller)))[0] for _ in range(20)]
                closed = await asyncio.gather(*(is_closed(reader, 1.0) for reader in opened))
                assert closed.count(False) == 2
                await still_answers(caller)

    run(work())


@pytest.mark.parametrize("pieces", [1, 400])
def test_large_metadata_is_refused(pieces: int) -> None:
    async def work() -> None:
        repository = MadeUpRepository(doubling())
        async with serving_grpc(repository) as caller:
            metadata = [(f"x-{k}", "a" * (40_000 // pieces)) for k in range(pieces)]
            error = await caller.refusal("ModelInfer", raw_request("doubling", ROW), metadata=metadata)
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await still_answers(caller)
        assert {code for _, _, code in repository.metrics.requests} <= {200, 499}
        assert repository.models["doubling"].answered == 1

    run(work())


def test_headers_without_an_end_take_no_memory() -> None:
    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller, connection(caller) as (reader, writer):
            before = resident()
            writer.write(PREFACE + window(100) + frame(HEADERS, 0, 1, headers(INFER)))
            filler = frame(CONTINUATION, 0, 1, headers(INFER, ("x-filler", "a" * 8000)))
            with contextlib.suppress(ConnectionError):
                for _ in range(4000):  # 32 MB
                    writer.write(filler)
                    await writer.drain()
            assert resident() - before < 16
            await still_answers(caller)
            del reader

    run(work())


def test_streams_that_are_opened_and_reset_leave_nothing() -> None:
    async def work() -> None:
        repository = MadeUpRepository(doubling())
        async with serving_grpc(repository) as caller:
            for _ in range(3):
                async with connection(caller) as (_reader, writer):
                    writer.write(PREFACE + window(100))
                    with contextlib.suppress(ConnectionError):
                        for stream in range(1, 2001, 2):
                            writer.write(frame(HEADERS, END_HEADERS, stream, headers(INFER)))
                            writer.write(frame(RESET, 0, stream, b"\0\0\0\x08"))
                            await writer.drain()
            await still_answers(caller)
        assert {code for _, _, code in repository.metrics.requests} <= {200, 499}

    run(work())


def test_a_flood_of_pings_is_cut_off() -> None:
    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller, connection(caller) as (reader, writer):
            writer.write(PREFACE + window(100))
            with contextlib.suppress(ConnectionError):
                for _ in range(100):
                    writer.write(frame(PING, 0, 0, bytes(8)))
                    await writer.drain()
            assert await is_closed(reader)
            await still_answers(caller)

    run(work())


def test_unread_answers_hold_their_places_until_the_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    options_with(monkeypatch, max_connection_age_ms=1000, max_connection_age_grace_ms=500)

    async def work() -> None:
        repository = MadeUpRepository(doubling(), max_concurrency=5)
        async with serving_grpc(repository) as caller, connection(caller) as (reader, writer):
            data = message(raw_request("doubling", np.zeros((1000, 4), np.float32)).SerializeToString())
            writer.write(PREFACE + window(0))
            for stream in range(1, 16, 2):
                writer.write(frame(HEADERS, END_HEADERS, stream, headers(INFER)))
                for at in range(0, len(data), 16000):
                    last = END_STREAM if at + 16000 >= len(data) else 0
                    writer.write(frame(DATA, last, stream, data[at : at + 16000]))
            await writer.drain()
            while repository.admission.inside < 5 or len(repository.metrics.requests) < 3:
                await asyncio.sleep(0.01)
            assert [code for _, _, code in repository.metrics.requests] == [503] * 3
            assert repository.models["doubling"].answered == 5
            assert await is_closed(reader)
            while repository.admission.inside:
                await asyncio.sleep(0.01)
            await still_answers(caller)

    run(work())


NOISE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    bytes(1000),
    PREFACE + bytes(range(256)) * 40,
    PREFACE + window(100) + frame(DATA, 0, 1, b"no headers"),
    PREFACE + window(100) + frame(HEADERS, END_HEADERS, 1, b"\xff" * 50),
    PREFACE + window(100) + frame(HEADERS, END_HEADERS, 1, headers(INFER, ("x", "a\nb"))),
    PREFACE + window(100) + frame(CONTINUATION, END_HEADERS, 1, headers(INFER)),
    PREFACE + window(100) + frame(99, 0, 1, bytes(100)) + frame(HEADERS, END_HEADERS, 2, headers(INFER)),
]


def test_noise_does_no_harm() -> None:
    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            for noise in NOISE:
                async with connection(caller) as (_, writer):
                    with contextlib.suppress(ConnectionError):
                        writer.write(noise)
                        await writer.drain()
                        await asyncio.sleep(0.02)
            await still_answers(caller)

    run(work())


# -- messages that ask for memory ----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [b"\x2a\x00", b"\x32\x00", b"\x22\x00", b"\x3a\x00", b"\x0a\x00", b"\x08\x00"])
def test_many_parts_are_refused_before_they_take_memory(part: bytes) -> None:
    """4 MiB of empty inputs, outputs, parameters and so on; protobuf would take up to 44 times as much."""
    before = resident()
    with pytest.raises(RequestError, match="more than 1024 fields"):
        parse(messages.InferCall, part * (2 << 20))
    assert resident() - before < 16
    few = parse(messages.InferCall, part * MOST_PARTS)
    assert len(few.inputs) + len(few.outputs) + len(few.parameters) + len(few.raw_input_contents) in (0, MOST_PARTS)


def test_a_group_hides_no_parts() -> None:
    with pytest.raises(RequestError, match="wire type 3"):
        parse(messages.InferCall, b"\x43\x44" + b"\x2a\x00" * (1 << 20))


def call_of(*inputs: Any, raw: tuple[bytes, ...] = ()) -> Any:
    """A request as the server reads it."""
    made = InferRequest(inputs=inputs, raw_input_contents=raw)
    return parse(messages.InferCall, made.SerializeToString())


def test_shapes_and_contents_are_checked_before_memory_is_allocated() -> None:
    described, tensor = doubling().described, messages.message_class("inference.ModelInferRequest.InferInputTensor")
    before = resident()
    for shape, told in (
        ([2**62, 2**62], "the limit of this server is 1000"),
        ([1] * 100_000, "100000 dimensions"),
        ([-1, 4], "dimension 0 of its shape is -1"),
        ([200, 4], "8 bytes"),
    ):
        made = tensor(name="x", datatype="FP32", shape=shape)
        with pytest.raises(RequestError, match=told):
            parse_infer(call_of(made, raw=(bytes(8),)), described, 1000)
    wide = tensor(name="x", datatype="FP32", shape=[1, 4])
    wide.contents.int64_contents.extend([1] * 1000)
    with pytest.raises(RequestError, match="it has int64_contents"):
        parse_infer(call_of(wide), described, 1000)
    assert resident() - before < 64


def test_large_typed_contents_are_to_be_sent_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGEST_TYPED == 16 << 20
    monkeypatch.setattr(inference, "LARGEST_TYPED", 1 << 10)
    described = doubling().described
    request = parse(messages.InferCall, typed_request("doubling", 65).SerializeToString())
    with pytest.raises(RequestError, match="send it in raw_input_contents"):
        parse_infer(request, described, 1 << 24)
    assert parse_infer(
        parse(messages.InferCall, typed_request("doubling", 60).SerializeToString()), described, 1 << 24
    ).feeds["x"].shape == (60, 4)


def test_large_messages_do_not_stop_the_loop() -> None:
    """They are parsed on another thread, which lets this one run."""

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            request = typed_request("doubling", 500_000).SerializeToString()
            call = asyncio.ensure_future(caller.infer(request))
            longest, last = 0.0, asyncio.get_running_loop().time()
            while not call.done():
                await asyncio.sleep(0.001)
                now = asyncio.get_running_loop().time()
                longest, last = max(longest, now - last), now
            assert len((await call).outputs[0].contents.fp32_contents) == 2_000_000
            assert longest < 3.0

    run(work())
