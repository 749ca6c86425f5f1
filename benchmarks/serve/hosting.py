"""``python -m benchmarks.serve.hosting``: measure the host's cost of a request, for ``trnrt plan``.

The cost is the CPU time of the server's process, all its threads. The models answer at once, on a thread as a device's
do. They are measured for a lone client, whose requests are batches of their own, for 64 clients, whose requests are
merged, and for a lone one that pauses after each answer. Rows come as JSON and as binary tensors, small and large.
Unlike a rate, CPU time is nearly the same on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serve.quiet import cpu_seconds
from benchmarks.serve.samples import zeros
from benchmarks.serve.servers import Server, serving
from benchmarks.serve.wire import Answer, Connection

SHAPES: tuple[tuple[int, ...], ...] = ((1, 8, 8), (3, 224, 224))
CLIENTS = (1, 64)
SECONDS = 2.0
REQUESTS = 150
"""The least requests measured of each kind, however long that takes."""
PAUSES = (0.016, 0.064)
"""Pauses in seconds: after the first a server has cooled down by about half, after the second it is cold."""
SETTLED_S = 0.5
_LEAST = 0.05
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Spent:
    """CPU microseconds of a request, its bytes, and how it was sent: the number of clients, and their pause (s)."""

    body: int
    binary: bool
    clients: int
    microseconds: float
    requests: int
    pause: float = 0.0


def request(port: int, model: str, shape: tuple[int, ...], *, binary: bool) -> tuple[bytes, int]:
    """A row of the Open Inference Protocol as bytes, and the size of its body."""
    row = np.round(np.random.default_rng(0).random(shape, np.float32) * 16) / 16
    tensor: dict[str, Any] = {"name": "image", "shape": [1, *shape], "datatype": "FP32"}
    kind = "application/json"
    if binary:
        tensor["parameters"] = {"binary_data_size": row.nbytes}
        text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body, kind = text + row.tobytes(), f"application/octet-stream\r\n{HEADER_LENGTH}: {len(text)}"
    else:
        body = json.dumps({"inputs": [tensor | {"data": row.ravel().tolist()}]}, separators=(",", ":")).encode()
    lines = (f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Type: {kind}")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}\r\n\r\n"]).encode() + body, len(body)


async def answered(port: int, content: bytes, clients: int, seconds: float, least: int = 1, pause: float = 0.0) -> int:
    """Send a request repeatedly on ``clients`` connections, with a pause each time, for at least ``seconds`` and
    ``least`` requests; returns the number of answers. Raises RuntimeError for any other than 200."""
    loop, count, end = asyncio.get_running_loop(), 0, time.monotonic() + seconds
    over, wrong = asyncio.Event(), set[int]()

    def got(connection: Connection, answer: Answer) -> None:
        nonlocal count
        count += 1
        wrong.update({answer.status} - {200})
        if time.monotonic() < end or count < least:
            send = partial(connection.send, content, count)
            if pause:
                loop.call_later(pause, send)
            else:
                send()
        else:
            over.set()

    made = [
        (await loop.create_connection(lambda: Connection(got, lambda _c: None), "127.0.0.1", port))[1]
        for _ in range(clients)
    ]
    for connection in made:
        connection.send(content, 0)
    await over.wait()
    for connection in made:
        connection.close()
    if wrong:
        raise RuntimeError(f"the server answered with {sorted(wrong)}")
    return count


def spent(
    server: Server, model: str, shape: tuple[int, ...], clients: int, *, binary: bool, pause: float = 0.0
) -> Spent:
    """The CPU time of a request, with ``clients`` that pause ``pause`` seconds after each answer."""
    content, body = request(server.port, model, shape, binary=binary)
    asyncio.run(answered(server.port, content, clients, SETTLED_S))
    before = cpu_seconds(server.process.pid)
    count = asyncio.run(answered(server.port, content, clients, SECONDS, REQUESTS, pause))
    return Spent(body, binary, clients, (cpu_seconds(server.process.pid) - before) / count * 1e6, count, pause)


@dataclass(frozen=True)
class Kind:
    """Rows of a shape, as JSON or binary, from ``clients`` with a pause (s)."""

    shape: tuple[int, ...]
    binary: bool
    clients: int
    pause: float = 0.0


# Large rows only in binary: nobody would send them as JSON.
KINDS = [Kind(SHAPES[n], binary, clients) for n, binary in ((0, False), (0, True), (1, True)) for clients in CLIENTS]
KINDS += [Kind(SHAPES[0], False, 1, pause) for pause in PAUSES]


def measured(take: Callable[[Server, Callable[[], Spent]], Spent] = lambda _, measure: measure()) -> Iterator[Spent]:
    """The CPU time of each kind of request; ``take`` decides when and how often to measure a server."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        servers = {shape: stack.enter_context(_instant(folder, shape)) for shape in SHAPES}
        for kind in KINDS:
            server, model = servers[kind.shape], f"zeros_{math.prod(kind.shape)}"
            measure = partial(spent, server, model, kind.shape, kind.clients, binary=kind.binary, pause=kind.pause)
            yield take(server, measure)


def _instant(folder: Path, shape: tuple[int, ...]) -> AbstractContextManager[Server]:
    return serving([str(zeros(folder, shape))], folder / "cache", module=("benchmarks.serve.waiting", "0"))


def told(found: Sequence[Spent]) -> dict[str, float]:
    """The values for ``trnrt/capacity/assumptions.toml`` that follow from the measurements."""
    alone, merged, alone_small, small, alone_large, merged_large, cooled, cold = (one.microseconds for one in found)
    size = math.prod(SHAPES[1]) * 4 / 1e6
    read = (alone_large - alone_small) / size
    merging = (merged_large - small) / size - read
    cold_us = max(1.0, cold - alone)
    # The share that is left after the shorter pause tells how fast a server cools down.
    share = min(max((cooled - alone) / cold_us, _LEAST), 1 - _LEAST)
    return {
        "request_us": merged,
        "batch_us": alone - merged,
        "read_us_per_mb": read,
        "merge_us_per_mb": merging,
        "cold_us": cold_us,
        "cooling_us": PAUSES[0] * 1e6 / -math.log1p(-share),
    }


def main() -> None:
    """Print a line for each, and the resulting values."""
    found = []
    for one in measured():
        sys.stdout.write(f"{one}\n")
        sys.stdout.flush()
        found.append(one)
    sys.stdout.write(json.dumps({name: round(value) for name, value in told(found).items()}) + "\n")


if __name__ == "__main__":
    main()
