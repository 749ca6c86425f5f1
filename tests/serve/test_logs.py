"""The log: one JSON document a line, the request's id in it, and nobody who waits for it."""

from __future__ import annotations

import io
import json
import logging
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trnrt.serve.processes import logs
from trnrt.serve.processes.logs import Log, log, request_id, start_logging


@pytest.fixture
def restored() -> Iterator[None]:
    """Python's own logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level
    logs._current.clear()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.usefixtures("restored")
def test_a_line_has_time_level_event_fields_and_the_requests_id() -> None:
    stream = io.StringIO()
    made = start_logging("info", stream, worker=3)
    token = request_id.set("abc")
    log("info", "one", model="a\nb\x1b[31m", path=object)
    request_id.reset(token)
    log("warning", "two")
    log("debug", "never")
    made.close()
    first, second = lines(stream)
    assert first["time"].endswith("Z") and first["level"] == "info" and first["worker"] == 3
    assert first["request_id"] == "abc" and first["model"] == "a\nb\x1b[31m"
    assert "request_id" not in second and second["event"] == "two"
    assert "\x1b" not in stream.getvalue()


@pytest.mark.usefixtures("restored")
def test_what_libraries_log_and_warn_is_a_line_too() -> None:
    stream = io.StringIO()
    made = start_logging("info", stream)
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("it went\nwrong")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    made.close()
    first, second = lines(stream)
    assert first["logger"] == "uvicorn.error" and first["text"] == "it went\nwrong" and first["level"] == "error"
    assert "ValueError: why" in first["details"]
    assert second["level"] == "warning" and "old" in second["text"]


def test_lines_are_written_without_being_asked_for() -> None:
    stream = io.StringIO()
    made = Log(stream)
    made.write("info", "one", {})
    end = time.monotonic() + 120
    while not stream.getvalue():
        assert time.monotonic() < end
        time.sleep(0.01)
    made.close()


def test_a_line_is_kept_if_others_are_written_while_it_is_made() -> None:
    stream = io.StringIO()
    made = Log(stream)

    class Value:
        def __str__(self) -> str:
            made.flush()
            return "told"

    made.write("info", "one", {})
    made.write("info", "two", {"value": Value()})
    made.close()
    assert [line["event"] for line in lines(stream)] == ["one", "two"] and lines(stream)[1]["value"] == "told"


def test_a_reader_who_is_slow_costs_lines_and_not_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    made = Log(stream)
    monkeypatch.setattr(logs, "MOST_WAITING", 10)
    with made._writing:
        time.sleep(0.2)
        for _ in range(25):
            made.write("info", "one", {})
        assert len(made._waiting) == 10
    made.close()
    found = lines(stream)
    assert len(found) == 11
    assert found[-1]["event"] == "log_lines_dropped" and found[-1]["count"] == 15


def test_a_reader_who_is_gone_harms_nobody() -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    made = Log(Gone())
    made.write("info", "one", {})
    made.flush()
    made.write("info", "two", {})
    made.close()
    assert not made._waiting


def test_a_line_is_ascii_whatever_its_values_are() -> None:
    stream = io.StringIO()
    made = Log(stream)
    values = {"name": "Zürich", "none": None, "wide": 1 << 80, "path": Path("a/b"), "list": [1, 0.5, True]}
    made.write("info", "one", dict(values))
    made.write("info", "two", {"status": 200, "ms": 0.512})
    made.close()
    first, second = lines(stream)
    assert stream.getvalue().isascii()
    assert {name: first[name] for name in values} == values | {"path": "a/b"}
    assert (second["status"], second["ms"]) == (200, 0.512)


@pytest.mark.parametrize("moment", [0, 1_700_000_000_007, 1_700_000_059_999, 4_102_444_800_000])
def test_a_lines_time_is_iso_8601_in_utc(moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: moment * 1_000_000 + 999_999)
    told = datetime.fromtimestamp(moment // 1000, UTC).replace(microsecond=moment % 1000 * 1000)
    assert logs._now() == told.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_a_plain_line_does_not_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_encode_slowly", None)
    stream = io.StringIO()
    made = Log(stream)
    made.write("info", "request", {"method": "POST", "path": "/v2/models/m/infer", "status": 200, "ms": 0.5})
    made.close()
    assert lines(stream)[0]["path"] == "/v2/models/m/infer"
