"""The serving benchmark's own parts: reading responses, judging answers, counting ids. Nothing is timed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.measuring import Row
from benchmarks.serve import cases, samples
from benchmarks.serve import load as load_module
from benchmarks.serve.__main__ import app
from benchmarks.serve.cases import Bench
from benchmarks.serve.ledger import Expected, Ledger, Verdict, duplicates, id_of, judge, quantile
from benchmarks.serve.load import Generator, Load, Requests, as_json
from benchmarks.serve.servers import children, resident, sockets
from benchmarks.serve.wire import Answer, WireError, take

EXPECTED = Expected("m", "y", np.array([1.0, -2.0]))


def answer(body: object, status: int = 200, request_id: str | None = id_of(3), more: str = "") -> Answer:
    given = "" if request_id is None else f"\r\nX-Request-Id: {request_id}"
    return Answer(status, f"HTTP/1.1 {status} X{given}{more}".encode(), json.dumps(body).encode())


def right(numbers: list[float] | None = None, **changed: Any) -> dict[str, Any]:
    outputs = [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": numbers or [1.0, -2.0]}]
    return {"model_name": "m", "id": id_of(3), "outputs": outputs} | changed


JUDGED: list[tuple[Answer, Verdict]] = [
    (answer(right()), Verdict.RIGHT),
    (answer(right([1.0001, -2.0])), Verdict.RIGHT),
    (answer(right([1.01, -2.0])), Verdict.WRONG_NUMBERS),
    (answer(right([1.0, -2.0, 0.0])), Verdict.WRONG_NUMBERS),
    (answer(right([1.0, float("nan")])), Verdict.WRONG_NUMBERS),
    (answer(right(id=id_of(4))), Verdict.WRONG_ID),
    (answer(right(), request_id=id_of(4)), Verdict.WRONG_ID),
    (answer(right(), request_id=None), Verdict.UNREADABLE),
    (answer(right(model_name="n")), Verdict.UNREADABLE),
    (answer(right(outputs=[])), Verdict.UNREADABLE),
    (answer([1]), Verdict.UNREADABLE),
    (Answer(200, b"HTTP/1.1 200 OK\r\nx-request-id: x", b"{"), Verdict.UNREADABLE),
    (answer({"error": "full"}, 429, more="\r\nRetry-After: 1"), Verdict.REJECTED),
    (answer({"error": "full"}, 429), Verdict.ERROR),
    (answer({"error": "draining"}, 503), Verdict.REJECTED),
    (answer({"error": "oh"}, 500), Verdict.ERROR),
    (answer({"detail": "oh"}, 503), Verdict.UNREADABLE),
]


ROWS_OF_TWO = Expected("m", "y", np.array([[1.0, -2.0], [100.0, 0.0]]))


def binary_answer(numbers: list[float], cut: int | None = None) -> Answer:
    outputs = [{"name": "y", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}]
    text = json.dumps({"model_name": "m", "id": id_of(3), "outputs": outputs}).encode()
    head = f"HTTP/1.1 200 OK\r\nx-request-id: {id_of(3)}\r\ninference-header-content-length: {len(text)}"
    return Answer(200, head.encode(), text + np.array(numbers, "<f4").tobytes()[:cut])


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (answer(right([1.0, -2.0, 100.0, 0.0])), Verdict.RIGHT),
        (answer(right([1.0, -2.0, 100.0, 0.01])), Verdict.RIGHT),
        (answer(right([1.01, -2.0, 100.0, 0.0])), Verdict.WRONG_NUMBERS),  # small beside the other row's numbers
        (answer(right([1.0, -2.0])), Verdict.WRONG_NUMBERS),
        (binary_answer([1.0, -2.0, 100.0, 0.0]), Verdict.RIGHT),
        (binary_answer([1.0, -2.0, 100.0, 1.0]), Verdict.WRONG_NUMBERS),
        (binary_answer([1.0, -2.0, 100.0]), Verdict.WRONG_NUMBERS),
        (binary_answer([1.0, -2.0, 100.0, 0.0], -1), Verdict.UNREADABLE),
    ],
)
def test_judge_several_rows_and_binary_data(given: Answer, verdict: Verdict) -> None:
    assert judge(given, id_of(3), ROWS_OF_TWO) is verdict


@pytest.mark.parametrize(("given", "verdict"), JUDGED)
def test_judge(given: Answer, verdict: Verdict) -> None:
    assert judge(given, id_of(3), EXPECTED) is verdict


def test_take_one_response_at_a_time_however_it_is_cut() -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Request-Id: a\r\n\r\nhello"
    second = b"HTTP/1.1 503 No\r\nx-request-id: b\r\ncontent-length: 0\r\n\r\n"
    for size in range(len(first)):
        assert take(first[:size]) == (None, first[:size])
    found, left = take(first + second)
    assert found == Answer(200, first[: first.index(b"\r\n\r\n")], b"hello")
    assert (found.header("x-request-id"), found.header("retry-after")) == ("a", None)
    assert left == second
    assert take(second) == (Answer(503, second[:-4], b""), b"")


@pytest.mark.parametrize("held", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
def test_take_refuses_what_it_does_not_read(held: bytes) -> None:
    with pytest.raises(WireError):
        take(held)


def test_quantile_is_a_value_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values[::-1], share) for share in (0.0, 0.01, 0.5, 0.99, 1.0)] == [1.0, 1.0, 50.0, 99.0, 100.0]
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_duplicates_are_counted_beyond_the_first() -> None:
    assert duplicates(["a", "b", "a", "a", None, None]) == 2
    assert duplicates([]) == 0


def ledger(*lines: tuple[float, float, Verdict]) -> Ledger:
    sent, answered, verdict = zip(*lines, strict=True)
    status = [200 if v is Verdict.RIGHT else 503 if v is Verdict.REJECTED else 0 for v in verdict]
    return Ledger(np.array(sent), np.array(answered), np.array(status), np.array(verdict))


NEVER = float("nan")
MIXED = ledger(
    (0.0, 1.0, Verdict.RIGHT),
    (1.0, 2.0, Verdict.RIGHT),
    (1.5, NEVER, Verdict.CUT),
    (1.9, 2.1, Verdict.REJECTED),
    (2.5, 5.0, Verdict.RIGHT),
)


def test_a_ledger_counts(tmp_path: Path) -> None:
    MIXED.write(tmp_path / "ledger.npz")
    read = Ledger.read(tmp_path / "ledger.npz")
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(vars(read).values(), vars(MIXED).values(), strict=True)
    )
    assert read.count(Verdict.RIGHT) == 3
    assert read.count(Verdict.CUT, Verdict.REJECTED, Verdict.LOST) == 2
    assert read.rate == 0.5
    assert read.latencies.tolist() == [1.0, 1.0, 2.5]
    assert (len(read.before(1.5).verdict), len(read.since(1.5).verdict)) == (2, 3)
    assert read.told() == "3 right, 1 cut, 1 rejected; 1 of status 503"


def test_in_flight_and_silence() -> None:
    assert cases.in_flight(MIXED, 1.95) == 3
    assert cases.in_flight(MIXED, 0.0) == 0
    assert cases.silence(MIXED, 1.5) == 3.0
    assert cases.silence(ledger((0.0, 0.1, Verdict.RIGHT), (4.0, NEVER, Verdict.LOST)), 0.5) == 3.5


def test_growth_is_that_of_the_second_half() -> None:
    seen = [(moment / 10, 100) for moment in range(10)] + [(1 + moment / 10, 130) for moment in range(20)]
    assert cases.growth(MIXED, seen) == 0
    assert cases.growth(MIXED, [(moment, size) for moment, size in seen if moment < 1.55] + [(9.0, 170)] * 5) == 70 - 30


Handler = Callable[[int, bytes], bytes]
SAMPLE = Load(0, "m", "x", "y", "", clients=4, seconds=600.0, requests=60, patience_s=60.0)
"""A load that its requests end; the seconds are for a machine that is busy with other tests."""


def reply(request: bytes, numbers: list[float], status: str = "200 OK") -> bytes:
    name = request.partition(b"X-Request-Id: ")[2].split(b"\r\n")[0].decode()
    body = json.dumps(right(numbers, id=name) if status == "200 OK" else {"error": status}).encode()
    return (
        f"HTTP/1.1 {status}\r\nx-request-id: {name}\r\nretry-after: 1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )


async def exchange(handle: Handler, load: Load, made: Callable[[Generator], None] = lambda _: None) -> Ledger:
    """Run a load against a server that answers with what ``handle`` makes of a request's number and bytes; b"" cuts.

    ``made`` is given the generator before it begins.
    """
    served = 0
    ends: set[asyncio.Task[Any] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        ends.add(asyncio.current_task())
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            body = await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0]))
            served += 1
            given = handle(served - 1, head + body)
            if not given:
                break
            writer.write(given)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        load = replace(load, port=server.sockets[0].getsockname()[1])
        generator = Generator(load, Requests(load))
        made(generator)
        await generator.run(lambda: None)
        await asyncio.gather(*(task for task in ends if task is not None))
    return generator.ledger()


@pytest.fixture
def load(tmp_path: Path) -> Load:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "examples.npz", rows=rows, expected=rows * 2)
    return replace(SAMPLE, examples=str(tmp_path / "examples.npz"))


def doubled(number: int, request: bytes) -> bytes:
    data = json.loads(request.partition(b"\r\n\r\n")[2])["inputs"][0]["data"]
    return reply(request, [2 * value for value in data])


def test_a_load_is_sent_and_judged(load: Load) -> None:
    found = asyncio.run(exchange(doubled, load))
    assert found.count(Verdict.RIGHT) == len(found.sent) == 60
    assert (found.duplicated, found.unasked, found.refused) == (0, 0, 0)
    assert (found.answered >= found.sent).all()


def test_several_rows_and_binary_tensors_are_sent(load: Load) -> None:
    """What the server would read: the protocol's own parser takes the requests."""
    from trnrt.serve.hosting.description import Description, TensorMeta
    from trnrt.serve.http.protocol import parse_infer

    described = Description(
        inputs=(TensorMeta("x", "float32", (-1, 2)),), outputs=(TensorMeta("y", "float32", (-1, 2)),)
    )
    with np.load(load.examples) as held:
        rows = held["rows"]
    for binary in (False, True):
        requests = Requests(replace(load, rows=3, binary=binary))
        head, _, body = requests(7).partition(b"\r\n\r\n")
        fields = dict(line.split(": ") for line in head.decode().split("\r\n")[1:])
        assert int(fields["Content-Length"]) == len(body) and fields["X-Request-Id"] == id_of(7)
        length = int(fields["Inference-Header-Content-Length"]) if binary else None
        parsed = parse_infer(body, length, described, 100)
        assert parsed.id == id_of(7) and parsed.binary == (frozenset({"y"}) if binary else frozenset())
        assert np.array_equal(parsed.feeds["x"], rows[:3])
        assert np.array_equal(requests.expected_answer(7).numbers, 2 * rows[:3])
    with pytest.raises(ValueError, match="has 4 rows, fewer than the 5"):
        Requests(replace(load, rows=5))


def test_a_rate_is_kept(load: Load) -> None:
    found = asyncio.run(exchange(doubled, replace(load, rate=300.0)))
    assert found.count(Verdict.RIGHT) == 60
    assert found.sent[-1] - found.sent[0] >= 0.15  # 60 at 300/s are due over 0.2 s: never all at once


def test_a_neighbours_answer_is_wrong(load: Load) -> None:
    def swapped(number: int, request: bytes) -> bytes:
        return reply(request, [14.0, 14.0]) if number == 10 else doubled(number, request)

    found = asyncio.run(exchange(swapped, load))
    assert (found.count(Verdict.WRONG_NUMBERS), found.count(Verdict.RIGHT)) == (1, 59)


def test_an_answer_sent_twice_is_counted(load: Load) -> None:
    def twice(number: int, request: bytes) -> bytes:
        return doubled(number, request) * (2 if number == 59 else 1)

    found = asyncio.run(exchange(twice, load))
    assert (found.duplicated, found.unasked) == (1, 1)


def test_a_cut_connection_is_made_anew(load: Load) -> None:
    found = asyncio.run(exchange(lambda n, request: b"" if n in (5, 6) else doubled(n, request), load))
    assert (found.count(Verdict.CUT), found.count(Verdict.RIGHT)) == (2, 58)


def test_no_answer_is_lost(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patience ends when all have their answers but the one whose answer never ends."""
    held: list[Generator] = []

    def monotonic() -> float:
        over = any(len(one._sent) == 60 and one._waiting == 1 for one in held)
        return time.monotonic() + (load.seconds + load.patience_s if over else 0.0)

    monkeypatch.setattr(load_module, "time", SimpleNamespace(monotonic=monotonic))
    found = asyncio.run(exchange(lambda n, request: b"HTTP/1.1 " if n == 5 else doubled(n, request), load, held.append))
    assert (found.count(Verdict.LOST), found.count(Verdict.RIGHT)) == (1, 59)


def test_rejections_are_answers(load: Load) -> None:
    def full(number: int, request: bytes) -> bytes:
        return reply(request, [], "429 Too Many Requests") if number % 2 else doubled(number, request)

    found = asyncio.run(exchange(full, load))
    assert (found.count(Verdict.REJECTED), found.count(Verdict.RIGHT)) == (30, 30)


def test_nobody_listens(load: Load) -> None:
    with socket.socket() as held:  # nobody else can take the port, and nobody can connect to it
        held.bind(("127.0.0.1", 0))
        free = held.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.serve.load", as_json(replace(load, port=free)), "x"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and f"nobody listens on port {free}" in done.stderr and not done.stdout


@pytest.mark.parametrize("make", [samples.digits, samples.deep, samples.instant])
def test_samples_have_answers_that_tell_rows_apart(make: Callable[[Path], samples.Sample], tmp_path: Path) -> None:
    from benchmarks.serve.ledger import TOLERANCE
    from trnrt.session import InferenceSession

    sample = make(tmp_path)
    with np.load(sample.examples) as held:
        rows, expected = held["rows"], held["expected"]
    assert len(rows) == len(expected) == samples.ROWS
    found = InferenceSession(sample.model, cache=False).run([sample.output], {sample.input: rows})[0]
    limit = TOLERANCE * np.abs(expected).max(axis=1)
    assert (np.abs(found - expected).max(axis=1) <= limit / 4).all()
    apart = np.abs(expected[:, None] - expected[None]).max(axis=2) + np.diag(np.full(len(rows), np.inf))
    assert (sample.name == "instant") or (apart.min(axis=1) > 4 * limit).all()


def test_an_instant_session_answers_without_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.serve.instant import run
    from trnrt.session import InferenceSession

    sample = samples.instant(tmp_path)
    monkeypatch.setattr(InferenceSession, "run", run)
    session = InferenceSession(sample.model, cache=False)
    (found,) = session.run(None, {sample.input: np.ones((3, 1, 8, 8), np.float32)})
    assert found.shape == (3, 10) and found.dtype == np.float32 and not found.any()
    assert not session._programs.loaded


def test_processes_are_looked_at() -> None:
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert child.pid in children(os.getpid())
        assert resident(child.pid) > 1e6
        child.stdin.write("end\n")
        child.stdin.close()
    assert child.pid not in children(os.getpid())
    assert resident(child.pid) == 0
    before = sockets(os.getpid())
    with socket.socket():
        assert sockets(os.getpid()) == before + 1


ROWS = [Row("a", 1.0, "ms", 2.0), Row("b", 3.0, "x", 4.0, at_least=True)]


@pytest.mark.parametrize(("rows", "code"), [(ROWS[:1], 0), (ROWS, 1), ([replace(ROWS[1], bar=None)], 0)])
def test_the_verb_tells_rows_and_missed_bars(
    rows: list[Row], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Bench] = []

    def case(bench: Bench) -> list[Row]:
        assert bench.folder.is_dir()
        seen.append(bench)
        return rows

    monkeypatch.setattr(cases, "CASES", {"one": case})
    monkeypatch.setattr(cases, "require", lambda: None)
    result = CliRunner().invoke(app, ["--quick", "--json", "--json-out", str(tmp_path / "rows.json")])
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert (document["benchmark"], document["quick"]) == ("serve", True)
    assert [row["passed"] for row in document["rows"]] == [row.passed for row in rows]
    assert [bench.effort for bench in seen] == [cases.QUICK]


def test_a_case_that_fails_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(bench: Bench) -> list[Row]:
        raise RuntimeError("not every request was answered")

    monkeypatch.setattr(cases, "CASES", {"one": failing, "two": lambda bench: ROWS[:1]})
    monkeypatch.setattr(cases, "require", lambda: None)
    result = CliRunner().invoke(app, ["--quick", "--json"])
    assert result.exit_code == 1
    first, second = json.loads(result.stdout)["rows"]
    assert (first["case"], first["value"], first["note"]) == ("one", None, "not every request was answered")
    assert (second["case"], second["passed"]) == ("a", True)


def test_without_the_server_the_verb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "find_spec", lambda name: None)
    result = CliRunner().invoke(app)
    assert result.exit_code == 2
    assert "pip install 'trnrt[serve]'" in result.output


def test_a_load_that_was_not_answered_is_no_measurement() -> None:
    cases._require_right(ledger((0.0, 1.0, Verdict.RIGHT)))
    with pytest.raises(RuntimeError, match="1 cut"):
        cases._require_right(MIXED)


def test_the_bars_are_for_the_sizes_that_the_issue_names() -> None:
    assert (cases.Effort().flood, cases.CLIENTS, cases.THROUGHPUT, cases.MERGED) == (20_000, 64, 60.0, 4.0)
    assert (cases.ADDED_MS, cases.IDLE_MB, cases.PROBE_MS) == ((3.0, 10.0), 400.0, 50.0)
