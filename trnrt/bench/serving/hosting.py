"""``python -m trnrt.bench.serving.hosting``: what the host spends on a request, for ``trnrt plan``.

CPU time of the server's process, all its threads, with models that answer at once: of a lone client, whose requests
are batches of their own, and of 64, whose requests are merged. Rows come as JSON and as binary tensors, small and
large. The CPU time is nearly the same whatever else the machine does, as a rate is not.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.bench.serving.samples import zeros
from trnrt.bench.serving.servers import Server, serving
from trnrt.bench.serving.wire import Answer, Connection

SHAPES = ((1, 8, 8), (3, 224, 224))
CLIENTS = (1, 64)
SECONDS = 4.0
SETTLED_S = 1.0
_BINARY = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Spent:
    """CPU microseconds of a request, its bytes, and how many were merged on average."""

    body: int
    binary: bool
    clients: int
    microseconds: float
    requests: int


def request(port: int, model: str, shape: tuple[int, ...], *, binary: bool) -> tuple[bytes, int]:
    """A row of the Open Inference Protocol as bytes, and the size of its body."""
    row = np.round(np.random.default_rng(0).random(shape, np.float32) * 16) / 16
    tensor: dict[str, Any] = {"name": "image", "shape": [1, *shape], "datatype": "FP32"}
    kind = "application/json"
    if binary:
        tensor["parameters"] = {"binary_data_size": row.nbytes}
        text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        body, kind = text + row.tobytes(), f"application/octet-stream\r\n{_BINARY}: {len(text)}"
    else:
        body = json.dumps({"inputs": [tensor | {"data": row.ravel().tolist()}]}, separators=(",", ":")).encode()
    lines = (f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Content-Type: {kind}")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}\r\n\r\n"]).encode() + body, len(body)


async def answered(port: int, content: bytes, clients: int, seconds: float) -> int:
    """Send it over and over on so many connections; how many answers came. RuntimeError for any that is not 200."""
    loop, count, end = asyncio.get_running_loop(), 0, time.monotonic() + seconds
    over, wrong = asyncio.Event(), set[int]()

    def got(connection: Connection, answer: Answer) -> None:
        nonlocal count
        count += 1
        wrong.update({answer.status} - {200})
        if time.monotonic() < end:
            connection.send(content, count)
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


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has taken so far; proc(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spent(server: Server, model: str, shape: tuple[int, ...], clients: int, *, binary: bool) -> Spent:
    """The CPU time of a request, with so many clients."""
    content, body = request(server.port, model, shape, binary=binary)
    asyncio.run(answered(server.port, content, clients, SETTLED_S))
    before = cpu_seconds(server.process.pid)
    count = asyncio.run(answered(server.port, content, clients, SECONDS))
    return Spent(body, binary, clients, (cpu_seconds(server.process.pid) - before) / count * 1e6, count)


def measured() -> Iterator[Spent]:
    """The CPU time of each kind of request; large rows only in binary, as JSON of them is nobody's choice."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shape in SHAPES:
            model = zeros(folder, shape)
            module = ("trnrt.bench.serving.instant",)
            with serving([str(model)], folder / "cache", module=module) as server:
                for binary in (False, True) if shape == SHAPES[0] else (True,):
                    for clients in CLIENTS:
                        yield spent(server, model.stem, shape, clients, binary=binary)


def main() -> None:
    """Print a line for each, and what they say of ``trnrt/capacity/assumptions.toml``."""
    found = []
    for one in measured():
        sys.stdout.write(f"{one}\n")
        sys.stdout.flush()
        found.append(one.microseconds)
    alone, merged, _, small, alone_large, merged_large = found
    alone_small, size = found[2], math.prod(SHAPES[1]) * 4 / 1e6
    read = (alone_large - alone_small) / size
    told = {"request_us": merged, "batch_us": alone - merged, "read_us_per_mb": read}
    told["merge_us_per_mb"] = (merged_large - small) / size - read
    sys.stdout.write(json.dumps({name: round(value) for name, value in told.items()}) + "\n")


if __name__ == "__main__":
    main()
