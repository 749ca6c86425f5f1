"""A request's place in a distributed trace: ids for the log and the answer and, with ``spans``, its spans.

The ids are W3C's (Trace Context). A caller sends ``traceparent``; the answer has ``traceresponse``, as in the draft of
W3C's Trace Response Headers, as the recommendation defines ``traceparent`` for requests alone. A request without
``traceparent`` belongs to no trace, unless spans are recorded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Protocol

# The first version, and later ones, of which the first four fields are known.
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
Header = tuple[bytes, bytes]
Value = str | int | float | bool


@dataclass(frozen=True)
class Parent:
    """The caller's span, as ``traceparent`` names it; ``sampled``: the caller records it."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str) -> Parent | None:
    """The caller's span; None if the header is not exactly as W3C has it. Such a request begins a trace of its own."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


class Trace:
    """A request that belongs to no trace. Its subclasses do more.

    ``fields``: for lines of the log; ``headers``: for the answer; ``recording``: if spans are kept
    """

    fields: Mapping[str, str] = {}
    headers: tuple[Header, ...] = ()
    recording = False

    def lap(self, name: str) -> None:
        """A part of the request ends now; it began when the last one ended."""

    def divide(self, *parts: tuple[str, float, Mapping[str, Value]]) -> None:
        """The time since the last part is these, one after the other: name, seconds and attributes."""

    def end(self, name: str, attributes: Mapping[str, Value], error: str = "") -> None:
        """The request has its answer. ``error``: the server's own failure."""


class IdentifiedTrace(Trace):
    """A request with ids, and without spans."""

    def __init__(self, trace_id: str, span_id: str, *, sampled: bool = False) -> None:
        self.fields = {"trace_id": trace_id, "span_id": span_id}
        self.headers = ((b"traceresponse", f"00-{trace_id}-{span_id}-{int(sampled):02x}".encode("ascii")),)


class Recorder(Protocol):
    """Records spans."""

    def begin(self, parent: Parent | None, tracestate: str | None) -> Trace:
        """The trace of a request, from now on."""
        ...


NO_TRACE = Trace()
current_trace: ContextVar[Trace] = ContextVar("current_trace", default=NO_TRACE)
"""The trace of the request that is being answered."""
recorders: list[Recorder] = []
"""The recorder of spans: none, or one ``spans.Spans``."""


def begin_trace(traceparent: str | None, tracestate: str | None) -> Token[Trace]:
    """Set the trace of a request; reset ``current_trace`` with the token at its end."""
    parent = None if traceparent is None else parse_traceparent(traceparent)
    if recorders:
        return current_trace.set(recorders[0].begin(parent, tracestate))
    trace_id = os.urandom(16).hex() if parent is None else parent.trace_id
    return current_trace.set(IdentifiedTrace(trace_id, os.urandom(8).hex()))
