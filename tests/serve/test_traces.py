"""W3C's trace context: the ids of a request in the log and in its answer, without any package for spans."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from engines import Doubling, batcher_of, numbers
from serving import MadeUpModel, MadeUpRepository, app_of, ask, doubling, run

from trnrt.serve.http.problems import Problem
from trnrt.serve.processes import logs
from trnrt.serve.processes.logs import Log
from trnrt.serve.processes.traces import begin_trace, current_trace, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"
BODY = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The log's lines from here on."""
    made = io.StringIO()
    logs._current[:] = [Log(made)]
    yield made
    logs._current.pop().close()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    logs._current[0].flush()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def infer(traceparent: str | None = None, model: MadeUpModel | None = None, body: Any = None) -> httpx.Response:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    app = app_of(MadeUpRepository(model or doubling()))
    return ask(app, "POST", "/v2/models/doubling/infer", json=body or BODY, headers=headers)


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (GIVEN, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"00-{TRACE}-{SPAN}-fe", False),
        # Later versions may have more fields.
        (f"cc-{TRACE}-{SPAN}-01", True),
        (f"cc-{TRACE}-{SPAN}-01-more", True),
    ],
)
def test_a_callers_span(text: str, sampled: bool) -> None:
    parent = parse_traceparent(text)
    assert parent is not None
    assert (parent.trace_id, parent.span_id, parent.sampled) == (TRACE, SPAN, sampled)


WRONG = [
    "",
    "00",
    GIVEN.upper(),
    f"{GIVEN}-more",
    f"{GIVEN}-",
    f"{GIVEN}x",
    f" {GIVEN}",
    f"{GIVEN}\n",
    f"ff-{TRACE}-{SPAN}-01",
    f"0-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE[1:]}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-0x",
    f"00_{TRACE}_{SPAN}_01",
    f"00-{TRACE[:-1]}٣-{SPAN}-01",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_the_log_and_the_answer_have_a_callers_trace(stream: io.StringIO) -> None:
    response = infer(GIVEN)
    assert response.status_code == 200
    found = re.fullmatch(rf"00-{TRACE}-([0-9a-f]{{16}})-00", response.headers["traceresponse"])
    assert found is not None, response.headers
    assert found[1] != SPAN, "this server's span, not the caller's"
    (line,) = lines(stream)
    assert (line["trace_id"], line["span_id"]) == (TRACE, found[1])
    assert "traceparent" not in response.headers, "it is defined for requests"
    assert current_trace.get().fields == {}, "the next request of this task has none"


def test_a_wrong_header_begins_a_trace_and_fails_nothing(stream: io.StringIO) -> None:
    response = infer("nonsense\x7f")
    assert response.status_code == 200
    (line,) = lines(stream)
    assert re.fullmatch(f"00-{line['trace_id']}-{line['span_id']}-00", response.headers["traceresponse"])
    assert re.fullmatch("[0-9a-f]{32}", line["trace_id"]) and "nonsense" not in stream.getvalue()


def test_without_a_header_there_are_no_ids(stream: io.StringIO) -> None:
    assert "traceresponse" not in infer().headers
    (line,) = lines(stream)
    assert "trace_id" not in line and "span_id" not in line and line["request_id"]


def test_a_refusal_and_a_failure_have_the_ids_too(stream: io.StringIO) -> None:
    model = doubling()
    model.error = RuntimeError("why")
    for response in (infer(GIVEN, model), infer(GIVEN, body={"inputs": []})):
        assert response.headers["traceresponse"].startswith(f"00-{TRACE}-")
    found = lines(stream)
    assert {line["event"] for line in found} == {"unhandled", "request"} and len(found) == 3
    assert {line["trace_id"] for line in found} == {TRACE}


def test_the_errors_of_a_batch_have_each_requests_ids(stream: io.StringIO) -> None:
    """They are logged on the model's thread, where no request's context is."""

    async def work() -> None:
        runnable = Doubling()
        runnable.error = lambda _x: ValueError("why")
        batcher = batcher_of(runnable)

        async def one(number: int) -> None:
            token = begin_trace(f"00-{number:032x}-{SPAN}-01", None)
            with pytest.raises(Problem):
                await batcher.infer({"x": numbers(1, 4)}, 1, (), 60.0)
            current_trace.reset(token)

        await one(1)
        await one(2)

    run(work())
    failures = [line for line in lines(stream) if line["event"] == "inference_failed"]
    assert [line["trace_id"] for line in failures] == [f"{1:032x}", f"{2:032x}"]
    assert all(re.fullmatch("[0-9a-f]{16}", line["span_id"]) for line in failures)


def test_new_ids_are_new() -> None:
    found = set()
    for _ in range(100):
        token = begin_trace("", None)
        found.add(tuple(current_trace.get().fields.values()))
        current_trace.reset(token)
    assert len({trace for trace, _ in found}) == len({span for _, span in found}) == 100
