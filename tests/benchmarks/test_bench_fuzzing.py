"""The fuzzer of the server: a small run, and that it sees what must not be."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.serve.fuzzing import Found, check_answer, check_end, check_log, fuzz
from benchmarks.serve.fuzzing_calls import Call, Ended, is_right, right_call, wrong_call
from benchmarks.serve.mutating import Sent, right_request, wrong_request
from benchmarks.serve.wire import Answer
from trnrt.serve.grpc import messages

RIGHT = Sent("POST", "/v2/models/counting@2/infer", numbers=(3.0, -1.25), factors=(3.0,))
CALL = Call("/x", b"", numbers=(3.0, -1.25), factors=(3.0,))


def infer_answer(data: list[float], version: str = "2") -> dict[str, Any]:
    return {"model_name": "counting", "model_version": version, "id": "7", "outputs": [{"name": "y", "data": data}]}


def answer(status: int, body: Any, more: str = "\r\nx-request-id: 1") -> Answer:
    return Answer(status, f"HTTP/1.1 {status} X{more}".encode(), json.dumps(body).encode())


FAULTS: list[tuple[Answer, str]] = [
    (answer(200, infer_answer([9.0, -3.75]), ""), "no request id"),
    (answer(200, infer_answer([9.0, -3.5])), "a wrong answer"),
    (answer(200, infer_answer([6.0, -2.5], "1")), "a wrong answer"),
    (answer(200, {"predictions": [[9.0]]}), "a wrong answer"),
    (answer(400, {"error": "x"}), "a right request was refused"),
    (answer(400, {"detail": "x"}), "not the form of an error"),
    (answer(500, {"error": "the server failed to answer this request"}), "500 for no known cause"),
    (answer(503, {"error": "sorry"}), "503 for no known cause"),
    (answer(504, {"error": "late"}), "504 for no known cause"),
]


@pytest.mark.parametrize(("given", "told"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_what_must_not_be_is_seen(given: Answer, told: str) -> None:
    found = Found()
    check_answer(given, RIGHT, found)
    assert any(fault.startswith(told) for fault in found.faults), found.faults


def test_what_may_be_is_no_fault() -> None:
    found = Found()
    check_answer(answer(200, infer_answer([9.0, -3.75])), RIGHT, found)
    check_answer(answer(503, {"error": "the server answers 16 requests already, which is its limit"}), RIGHT, found)
    check_answer(answer(400, {"error": "malformed HTTP"}), None, found)
    check_end(replace(CALL, cancel=True), Ended(grpc.StatusCode.CANCELLED), found)
    check_end(replace(CALL, timeout=0.002), Ended(grpc.StatusCode.DEADLINE_EXCEEDED, "late"), found)
    assert (found.faults, found.right) == ([], 1)


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (Ended(grpc.StatusCode.UNKNOWN, "x", "1"), "500 for no known cause"),
        (Ended(grpc.StatusCode.UNAVAILABLE, "x", "1"), "503 for no known cause"),
        (Ended(grpc.StatusCode.INVALID_ARGUMENT, "x", "1"), "a right call was refused"),
        (Ended(grpc.StatusCode.NOT_FOUND, "x"), "no request id"),
        (Ended(grpc.StatusCode.CANCELLED, "x", "1"), "500 for no known cause"),
    ],
)
def test_how_a_call_must_not_end(ended: Ended, told: str) -> None:
    found = Found()
    check_end(CALL, ended, found)
    assert any(fault.startswith(told) for fault in found.faults), found.faults


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"event": "request", "status": 500, "error": "the server failed"}', "500 for no known cause"),
        ('{"event": "request", "status": 503, "error": "sorry"}', "503 for no known cause"),
        ('{"event": "unhandled", "level": "error"}', "the log has"),
        ("Traceback (most recent call last):", "the log has"),
        ('{"event": "request", "status": 503, "error": "model \'a\' is not ready, but loading"}', ""),
        ('{"event": "request", "status": 499}', ""),
    ],
)
def test_the_servers_log_is_checked(line: str, told: str) -> None:
    found = Found()
    check_log(f"listening\n{line}\n", found)
    assert [fault.startswith(told) for fault in found.faults] == [True] * bool(told), found.faults


def test_a_calls_numbers_are_checked() -> None:
    made = messages.InferAnswer(model_version="2", id="7")
    made.outputs.add(name="y").contents.fp32_contents.extend([9.0, -3.75])
    assert is_right(CALL, made.SerializeToString())
    made.model_version = "1"
    assert not is_right(CALL, made.SerializeToString())


def test_a_seed_makes_the_same_requests() -> None:
    for make in (right_request, wrong_request):
        first, second = (make(random.Random(3)).wire(last=True) for _ in range(2))
        assert first == second
    assert (right_call(random.Random(3)), wrong_call(random.Random(4))) == (
        right_call(random.Random(3)),
        wrong_call(random.Random(4)),
    )


def test_random_requests_to_a_real_server(tmp_path: Path, count: int = 600) -> None:
    """``python -m benchmarks.serve.fuzzing 50000`` sends more of them."""
    found = fuzz(tmp_path, count, seed=3)
    assert not found.faults, found.document()
    assert found.sent >= count and found.right > count // 10, found.document()
    statuses = found.document()["answers"]
    assert {"HTTP 200", "HTTP 400", "HTTP 405", "gRPC OK", "gRPC INVALID_ARGUMENT", "gRPC NOT_FOUND"} <= set(statuses)
