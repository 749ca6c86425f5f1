"""The log: JSON lines on stderr, each with its request's id and, if it belongs to a trace, that one's ids.

``log`` only queues a line; a thread writes it, so that a slow reader of the log does not slow the server. The queue is
bounded; if it is full, lines are dropped, and the log says how many.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import TextIO

from trnrt.serve.http.quick_json import dumps_or_none
from trnrt.serve.processes.traces import current_trace

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is being answered; set by the outermost middleware."""

_encode_slowly = json.JSONEncoder(default=str, separators=(",", ":")).encode
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
MOST_WAITING = 20_000
_PAUSE_S = 0.05
_CLOSE_S = 1.0


class Log:
    """Lines for one stream; each has ``fields``."""

    def __init__(self, stream: TextIO, level: str = "info", **fields: object) -> None:
        self._stream, self._least, self._fields = stream, LEVELS[level], fields
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._writing = threading.Lock()
        self._wanted = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._write_on, name="log", daemon=True)
        self._thread.start()

    def write(self, level: str, event: str, fields: dict[str, object]) -> None:
        """Queue a line; never wait."""
        if LEVELS[level] < self._least:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
            return
        line: dict[str, object] = {"time": _now(), "level": level, "event": event, **self._fields}
        if current := request_id.get():
            line["request_id"] = current
        if ids := current_trace.get().fields:
            line |= ids
        line |= fields
        # Encode first: a value's own str() may run, and the thread may write meanwhile.
        encoded = _encode(line)
        self._waiting.append(encoded)
        if not self._wanted.is_set():
            self._wanted.set()

    def flush(self) -> None:
        """Write the queued lines."""
        with self._writing:
            # Do not replace the deque: another thread may be about to append to it.
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = {"time": _now(), "level": "warning", "event": "log_lines_dropped", "count": dropped}
                lines.append(_encode(line | self._fields))
            if not lines:
                return
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # continue to serve when nobody reads the log any more
                return

    def close(self) -> None:
        """Write the queued lines, and end the thread."""
        self._closed = True
        self._wanted.set()
        self._thread.join(_CLOSE_S)
        self.flush()

    def _write_on(self) -> None:
        while not self._closed:
            self._wanted.wait()
            time.sleep(_PAUSE_S)
            self._wanted.clear()
            self.flush()


class _Bridge(logging.Handler):
    """Turns the libraries' records of Python's logging into our lines."""

    def __init__(self, write: Callable[[str, str, dict[str, object]], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """One record; a traceback goes into the field ``details``."""
        level = "error" if record.levelno >= 40 else "warning" if record.levelno >= 30 else "debug"
        fields: dict[str, object] = {"logger": record.name, "text": record.getMessage()}
        if record.exc_info:
            fields["details"] = logging.Formatter().formatException(record.exc_info)
        self._write(level, "library", fields)


_current: list[Log] = []


def start_logging(level: str, stream: TextIO | None = None, **fields: object) -> Log:
    """Let ``log`` write from now on, with ``fields`` in every line. Python's own logging goes there, too."""
    made = Log(stream or sys.stderr, level, **fields)
    _current[:] = [made]
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_Bridge(made.write)], level=logging.DEBUG if level == "debug" else 30, force=True)
    return made


def log(level: str, event: str, **fields: object) -> None:
    """Queue one line: time, level, event, the request's id if there is one, and the fields."""
    if _current:
        _current[0].write(level, event, fields)


def _encode(line: dict[str, object]) -> str:
    """The line as JSON in ASCII; values that JSON does not know as text."""
    quick = dumps_or_none(line)
    return _encode_slowly(line) if quick is None else quick.decode("ascii")


def _now() -> str:
    seconds, milliseconds = divmod(time.time_ns() // 1_000_000, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    """A second of Unix time, as ISO 8601 has it in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
