"""gRPC servers for tests: in this process, around models that are made up; and frames of HTTP/2 to attack them with."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import numpy as np
from engines import PATIENCE_S
from numpy.typing import NDArray
from serving import MadeUpRepository

from trnrt.serve.grpc import messages
from trnrt.serve.grpc.methods import SERVICE
from trnrt.serve.grpc.server import GrpcServer
from trnrt.serve.hosting.repository import Repository

Array = NDArray[Any]
Metadata = Iterable[tuple[str, str]]

InferRequest = messages.message_class("inference.ModelInferRequest")


class Caller:
    """A client of a server in this process."""

    def __init__(self, server: GrpcServer, channel: Any) -> None:
        self.server, self.channel, self.port = server, channel, server.port

    async def call(self, method: str, message: Any = b"", **options: Any) -> bytes:
        """The bytes of a method's answer; a path, or the name of one of the service."""
        path = method if method.startswith("/") else SERVICE + method
        data = message if isinstance(message, bytes) else message.SerializeToString()
        answer: bytes = await self.channel.unary_unary(path)(
            data, timeout=options.pop("timeout", PATIENCE_S), **options
        )
        return answer

    async def infer(self, request: Any, **options: Any) -> Any:
        """The answer to a request."""
        return messages.InferAnswer.FromString(await self.call("ModelInfer", request, **options))

    async def refusal(self, method: str, message: Any = b"", **options: Any) -> grpc.aio.AioRpcError:
        """The error that a call ends with."""
        try:
            answer = await self.call(method, message, **options)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"it was answered: {answer!r}")


@asynccontextmanager
async def serving_grpc(repository: MadeUpRepository, *options: tuple[str, int]) -> AsyncIterator[Caller]:
    """A server on a port of its own, and a client with these options. At the end all of its calls are answered."""
    server = GrpcServer(cast(Repository, repository), "127.0.0.1:0", shared=False)
    await server.start()
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.enable_retries", 0), *options]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=unlimited) as channel:
            yield Caller(server, channel)
        async with asyncio.timeout(PATIENCE_S):
            await server.leave()
        assert server.pending_calls == repository.admission.inside == repository.admission.held == 0
    finally:
        await server.stop()


def raw_request(model: str, array: Array, name: str = "x", datatype: str = "FP32", **fields: Any) -> Any:
    """A request with one raw tensor."""
    made = InferRequest(model_name=model, raw_input_contents=[array.tobytes()], **fields)
    made.inputs.add(name=name, datatype=datatype, shape=array.shape)
    return made


def typed_request(model: str, rows: int = 1, **fields: Any) -> Any:
    """A request with ``rows`` rows of 0, 1, 2 and so on in fp32_contents."""
    made = InferRequest(model_name=model, **fields)
    tensor = made.inputs.add(name="x", datatype="FP32", shape=[rows, 4])
    tensor.contents.fp32_contents.extend(np.arange(rows * 4))
    return made


# -- HTTP/2 by hand ----------------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def window(size: int) -> bytes:
    """The client's settings: the server may send so many bytes on a stream."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", 4, size))


def headers(path: str, *more: tuple[str, str]) -> bytes:
    """A call's headers, none of them compressed."""
    fixed = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
    own = [("te", "trailers"), ("content-type", "application/grpc")]
    return b"".join(b"\x00" + _text(name) + _text(value) for name, value in (*fixed, *own, *more))


def message(data: bytes) -> bytes:
    """A message of gRPC, with its length before it."""
    return struct.pack(">BI", 0, len(data)) + data


def _text(value: str) -> bytes:
    data, size = value.encode("latin-1"), len(value)
    if size < 127:
        return bytes([size]) + data
    length, size = b"\x7f", size - 127
    while size >= 128:
        length, size = length + bytes([size % 128 + 128]), size // 128
    return length + bytes([size]) + data
