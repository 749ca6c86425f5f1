"""gRPC calls for ``benchmarks.serve.fuzzing``: right ones whose answer is known, and wrong ones."""

from __future__ import annotations

import asyncio
import random
import struct
from dataclasses import dataclass, field
from typing import Any

import grpc

from benchmarks.serve.mutating import FACTORS, KEYS, NUMBERS
from trnrt.serve.grpc import messages
from trnrt.serve.grpc.methods import SERVICE

InferRequest = messages.message_class("inference.ModelInferRequest")
PATIENCE_S = 60.0
SIZES = (0, 1, 2, 4, -1, 7, 2**31, 2**62)
DATATYPES = ("FP32", "FP64", "INT8", "BOOL", "BYTES", "FP16", "BF16", "", "FP8")
OTHERS = (
    *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "RepositoryIndex", "Nothing"),
    *("RepositoryModelLoad", "RepositoryModelUnload", "ModelStreamInfer", "ModelConfig", "ModelStatistics"),
    *("/grpc.health.v1.Health/Check", "/inference/x", "/"),
)
_COMPRESSIONS = (None, None, None, grpc.Compression.Gzip)


@dataclass(frozen=True)
class Call:
    """A call. ``factors``: the right answer is one of these times ``numbers``; empty if it isn't known.

    ``timeout``: the client's deadline in seconds; ``cancel``: it goes away at once.
    """

    path: str
    message: bytes
    key: str = KEYS["user"]
    numbers: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()
    timeout: float = PATIENCE_S
    cancel: bool = False
    compression: Any = None


@dataclass(frozen=True)
class Ended:
    """The end of a call: its code, the error's text and the request's id, and the answer's bytes."""

    code: Any
    text: str = ""
    identity: str = ""
    answers: list[bytes] = field(default_factory=list)


def right_call(rng: random.Random) -> Call:
    """A call whose answer is known."""
    numbers, version = tuple(rng.choices(NUMBERS, k=4 * rng.choice((1, 1, 2, 5)))), rng.choice(("", "1", "2"))
    request = InferRequest(model_name="counting", model_version=version, id="7")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[len(numbers) // 4, 4])
    if rng.random() < 0.5:
        request.raw_input_contents.append(struct.pack(f"<{len(numbers)}f", *numbers))
    else:
        tensor.contents.fp32_contents.extend(numbers)
    data, packed = request.SerializeToString(), rng.choice(_COMPRESSIONS)
    return Call(SERVICE + "ModelInfer", data, numbers=numbers, factors=FACTORS[version], compression=packed)


def wrong_call(rng: random.Random) -> Call:
    """A call with something changed; it may still be right, and then its answer isn't known."""
    right, kind = right_call(rng), rng.random()
    path, key, data = right.path, right.key, right.message
    if kind < 0.45:
        data = _change_message(data, rng)
    elif kind < 0.65:
        data = _change_bytes(data, rng)
    elif kind < 0.9:
        other = rng.choice(OTHERS)
        path = other if other.startswith("/") else SERVICE + other
        # In all of these requests a name, or an earlier field, is a string in field 1 or 2.
        named = b"".join(bytes([field << 3 | 2, 5]) + b"spare" for field in rng.choice(((1,), (2,), (1, 2))))
        data = rng.choice((b"", named, _change_bytes(named, rng), data, _change_bytes(data, rng)))
        key = rng.choice((key, KEYS["ops"], KEYS["ops"]))
    if rng.random() < 0.05:
        key = rng.choice(("wrong", "", KEYS["few"]))
    timeout = rng.choice((0.0, 0.002)) if rng.random() < 0.03 else PATIENCE_S
    return Call(path, data, key, timeout=timeout, cancel=rng.random() < 0.03, compression=right.compression)


async def make_call(channel: Any, call: Call) -> Ended:
    """Make the call; a stream of one message for the method that takes one."""
    options = {"metadata": (("x-api-key", call.key),), "timeout": call.timeout, "compression": call.compression}
    answers: list[bytes] = []
    try:
        if call.path.endswith("ModelStreamInfer"):
            stream = channel.stream_stream(call.path)(_one(call.message), **options)
            answers = [answer async for answer in stream]
            return Ended(grpc.StatusCode.OK, answers=answers, identity=_identity(await stream.trailing_metadata()))
        unary = channel.unary_unary(call.path)(call.message, **options)
        if call.cancel:
            await asyncio.sleep(0)
            unary.cancel()
        answers = [await unary]
        return Ended(grpc.StatusCode.OK, answers=answers, identity=_identity(await unary.trailing_metadata()))
    except grpc.aio.AioRpcError as error:
        return Ended(error.code(), error.details() or "", _identity(error.trailing_metadata()), answers)
    except asyncio.CancelledError:
        if not call.cancel:
            raise
        return Ended(grpc.StatusCode.CANCELLED)


def is_right(call: Call, answer: bytes) -> bool:
    """True if the answer holds a right call's outputs."""
    got = messages.InferAnswer.FromString(answer)
    if [output.name for output in got.outputs] != ["y"] or got.id != "7":
        return False
    if got.raw_output_contents:
        size = len(got.raw_output_contents[0]) // 4
        found = list(struct.unpack(f"<{size}f", got.raw_output_contents[0][: 4 * size]))
    else:
        found = list(got.outputs[0].contents.fp32_contents)
    factors = FACTORS[got.model_version]
    return set(factors) <= set(call.factors) and found == [factors[0] * number for number in call.numbers]


async def _one(message: bytes) -> Any:
    yield message


def _identity(metadata: Any) -> str:
    return next((str(value) for name, value in metadata or () if name == "x-request-id"), "")


def _change_message(data: bytes, rng: random.Random) -> bytes:
    """Change fields of the request."""
    request = InferRequest.FromString(data)
    tensor = request.inputs[0]
    for _ in range(rng.randrange(1, 4)):
        action = rng.randrange(9)
        if action == 0:
            request.model_name = rng.choice(("nobody", "spare", "counting@2", "counting@", "", "\0", "a" * 300))
        elif action == 1:
            request.model_version = rng.choice(("3", "-1", "x", "01", "9" * 40))
        elif action == 2:
            tensor.name = rng.choice(("", "y", "\ud7ff", "x" * 300))
        elif action == 3:
            tensor.datatype = rng.choice(DATATYPES)
        elif action == 4:
            tensor.shape[:] = rng.choices(SIZES, k=rng.randrange(6))
        elif action == 5:
            tensor.parameters[rng.choice(("classification", "binary_data", "shared_memory_region"))].int64_param = 7
        elif action == 6:
            request.raw_input_contents.append(rng.randbytes(rng.randrange(40)))
        elif action == 7:
            request.outputs.add(name=rng.choice(("y", "z", "")))
        else:
            tensor.contents.int64_contents.extend([2**62] * rng.randrange(9))
    changed: bytes = request.SerializeToString()
    return changed


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut or turn some bytes, or send none of them."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(200))
    if kind < 0.3:
        return data[: rng.randrange(len(data) + 1)]
    sent = bytearray(data)
    for place in rng.choices(range(len(sent)), k=3) if sent else ():
        sent[place] = rng.randrange(256)
    return bytes(sent)
