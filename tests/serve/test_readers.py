"""The process that reads large JSON: its answers, its limits, its end, and the event loop meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from serving import run

from trnrt.serve.hosting.description import Description, TensorMeta
from trnrt.serve.http.bodies import Spool
from trnrt.serve.http.large import unpack_strings
from trnrt.serve.http.protocol import RequestError, parse_infer
from trnrt.serve.processes import readers
from trnrt.serve.processes.parcels import MemoryFile, pack, unpack
from trnrt.serve.processes.reader import ReaderError
from trnrt.serve.processes.readers import Reader, ReaderLost

MODEL = Description((TensorMeta("x", "float32", (-1,)), TensorMeta("s", "str", (-1,))))
MIB = 1 << 20


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    made = Reader(4 * MIB)
    yield made
    made.close()


def spooled(data: bytes) -> Spool:
    made = Spool()
    made.append(data)
    return made


def infer_body(numbers: Any, texts: Any = ("a", "ß")) -> bytes:
    x = {"name": "x", "datatype": "FP32", "shape": [len(numbers)], "data": list(numbers)}
    s = {"name": "s", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    return json.dumps({"id": "7", "inputs": [x, s]}).encode()


async def read(reader: Reader, body: bytes) -> Any:
    spool = spooled(body)
    return await reader.run("read_infer", spool.start, None, MODEL, 10**7, body=spool.file)


# -- parcels -------------------------------------------------------------------------------------------------------

VALUES = [
    None,
    ("text", 7, [1.5]),
    {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros((0, 3)), "c": np.int64(3)},
    [np.arange(5, dtype=ml_dtypes.bfloat16), np.array([True, False]), np.arange(9)[::2], np.arange(6).reshape(2, 3).T],
    np.array(["a", "ß"], object),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(type(value)))
def test_parcels(value: Any) -> None:
    found = unpack(pack(value))
    np.testing.assert_equal(found, value)
    if isinstance(value, dict):
        assert found["a"].flags.aligned and found["a"].base is not None
        found["a"][0, 0] = 5  # a copy on write: the file keeps what it has


def test_files_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = [unpack(pack(np.arange(1000))) for _ in range(50)]
    assert all(array[-1] == 999 for array in made)
    del made
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert len(MemoryFile().map()) == 0


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_it_reads_as_the_worker_does(reader: Reader) -> None:
    body = infer_body([0.5, 1e-7, 3], ["", "a", "ß" * 100])
    request, packed = run(read(reader, body))
    here = parse_infer(body, None, MODEL, 100)
    assert (request.id, request.outputs, request.binary) == (here.id, here.outputs, here.binary)
    found = unpack_strings(packed)
    for name, array in here.feeds.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_errors_are_the_requests(reader: Reader) -> None:
    pid = run(read(reader, infer_body([1]))) and reader.pid
    for body, told in (
        (b"{", "no JSON"),
        (infer_body([1e39]), "FP32 holds"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"[" + b"9" * 5000 + b"]", "too many digits"),
        (b"[1e99999999999999999999]", "it is an object"),
        (b'{"inputs": [], "x": 1' + b"0" * 400 + b".0}", None),
    ):
        if told is None:
            run(read(reader, body))
            continue
        with pytest.raises(RequestError, match=told):
            run(read(reader, body))
    assert reader.pid == pid


def test_our_own_faults_say_where(reader: Reader) -> None:
    with pytest.raises(ReaderError, match="KeyError: 'nothing'"):
        run(reader.run("nothing"))


def test_many_keys(reader: Reader) -> None:
    body = json.dumps({str(k): k for k in range(100_000)} | json.loads(infer_body([1]))).encode()
    assert run(read(reader, body))[0].id == "7"


def test_jobs_wait_for_their_turn(reader: Reader) -> None:
    async def work() -> list[Any]:
        return await asyncio.gather(*(read(reader, infer_body([k] * 1000)) for k in range(20)))

    for k, (_, packed) in enumerate(run(work())):
        assert set(packed["x"].tolist()) == {k}


# -- its limits and its end ----------------------------------------------------------------------------------------


def test_memory_is_limited() -> None:
    """Lists in lists take 30 times their text; the process that was short of memory is replaced."""
    reader = Reader(0)
    reader.memory = 24 * MIB

    async def work() -> None:
        with pytest.raises(MemoryError):
            await read(reader, b"[" + b"[]," * MIB + b"1]")
        assert reader.pid is None
        assert (await read(reader, infer_body([1])))[0].id == "7"

    try:
        run(work())
    finally:
        reader.close()


def test_a_job_that_is_cancelled_frees_the_reader() -> None:
    """A request that timed out, or whose client has gone, leaves nothing that runs."""
    reader = Reader(64 * MIB)

    async def work() -> None:
        first = asyncio.create_task(read(reader, infer_body([1])))
        await first
        pid = reader.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # hangs
        hanging = asyncio.create_task(read(reader, infer_body([1])))
        waiting = asyncio.create_task(read(reader, infer_body([2])))
        await asyncio.sleep(0.2)
        assert not hanging.done()
        hanging.cancel()
        assert (await waiting)[1]["x"].tolist() == [2]
        assert reader.pid != pid
        with pytest.raises(asyncio.CancelledError):
            await hanging

    try:
        run(work())
    finally:
        reader.close()


def test_a_killed_reader_fails_its_job_alone() -> None:
    reader = Reader(64 * MIB)

    async def work() -> None:
        await read(reader, infer_body([1]))
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGSTOP)
        lost = asyncio.create_task(read(reader, infer_body([1])))
        await asyncio.sleep(0.1)
        os.kill(reader.pid, signal.SIGKILL)
        with pytest.raises(ReaderLost):
            await lost
        assert (await read(reader, infer_body([2])))[1]["x"].tolist() == [2]

    try:
        run(work())
    finally:
        reader.close()


def test_it_starts_when_needed_and_ends_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "IDLE_S", 0.05)
    reader = Reader(MIB)
    assert reader.pid is None

    async def work() -> None:
        await read(reader, infer_body([1]))
        while reader.pid is not None:
            await asyncio.sleep(0.01)
        await read(reader, infer_body([1]))

    try:
        run(work())
    finally:
        reader.close()


def test_it_ends_with_its_worker_and_ignores_the_terminal() -> None:
    reader = Reader(MIB)

    async def work() -> None:
        await read(reader, infer_body([1]))
        assert reader.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(reader.pid, number)
        await read(reader, infer_body([1]))

    run(work())
    assert reader._socket is not None and reader._process is not None
    reader._socket.close()  # as the end of the worker does
    assert reader._process.wait(30) == 0
    reader.close()


def test_the_event_loop_goes_on() -> None:
    """Half a second of parsing; a turn of the loop takes a small part of that, here and on a busy machine."""
    reader = Reader(64 * MIB)
    body = infer_body(np.random.default_rng(0).random(10**6).tolist())

    async def work() -> tuple[float, float]:
        await read(reader, infer_body([1]))
        began = time.perf_counter()
        task, worst = asyncio.create_task(read(reader, body)), 0.0
        while not task.done():
            turn = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - turn)
        await task
        return worst, time.perf_counter() - began

    try:
        worst, took = run(work())
    finally:
        reader.close()
    assert worst < took / 2


def test_the_worker_takes_no_memory_for_it() -> None:
    """The body and its arrays are in files that both map."""
    reader = Reader(64 * MIB)
    spool = spooled(infer_body([1.5] * 10**6))
    before = _own_memory()
    try:
        _, packed = run(reader.run("read_infer", 0, None, MODEL, 10**7, body=spool.file))
    finally:
        reader.close()
    assert _own_memory() - before < 2 * MIB
    assert packed["x"].sum() == 1.5e6


def _own_memory() -> int:
    """Bytes that are this process's alone."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) << 10
