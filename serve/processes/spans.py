"""Spans of requests, sent to an OpenTelemetry collector (OTLP over HTTP): the extra ``otel``.

A request has a server span, with its parts below it: receive, parse, queue, compute, render. They are written when the
request ends, from times that are measured anyway. A thread sends them; its queue is bounded, and what a slow or absent
collector leaves no room for is dropped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trnrt import __version__
from trnrt.errors import BackendError
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.traces import IdentifiedTrace, Parent, Trace, Value, recorders

if TYPE_CHECKING:
    from trnrt.serve.settings import ServeSettings

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
"""OpenTelemetry's own environment variables, as its specification of exporters has them; the first one wins."""
PROTOCOL = "http/protobuf"
CLOSE_S = 2.0
"""The longest wait of a shutdown until the last spans are sent."""
_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def check_tracing(settings: ServeSettings) -> None:
    """BackendError if spans are asked for by a setting, and the packages for them are missing."""
    if settings.otlp_endpoint is not None and (missing := _missing()):
        raise BackendError(f"--otlp-endpoint needs {missing}", hint="pip install 'trnrt[otel]'")


def start_tracing(settings: ServeSettings) -> Spans | None:
    """Record spans from now on, if a setting or OpenTelemetry's environment says where to send them."""
    recorders.clear()
    if _environment("OTEL_SDK_DISABLED").lower() == "true":
        return None
    endpoint = None if settings.otlp_endpoint is None else f"{settings.otlp_endpoint.rstrip('/')}/v1/traces"
    if endpoint is None:
        if not _asked_by_environment():
            return None
        # A variable may be set for all that runs in a cluster: it must not stop this server.
        reason = _missing() and f"{_missing()} is not installed (pip install 'trnrt[otel]')"
        protocol = next(filter(None, map(_environment, PROTOCOLS)), PROTOCOL)
        if protocol != PROTOCOL:
            reason = f"the environment asks for the protocol {protocol[:40]!r}; this server speaks {PROTOCOL}"
        if reason:
            log("warning", "tracing_off", reason=reason)
            return None
    spans = Spans(_exporting(endpoint, settings.trace_ratio))
    recorders.append(spans)
    log("info", "tracing", endpoint=endpoint or "of the environment", ratio=settings.trace_ratio)
    return spans


def _asked_by_environment() -> bool:
    return _environment("OTEL_TRACES_EXPORTER").lower() in ("", "otlp") and any(map(_environment, ENDPOINTS))


def _environment(name: str) -> str:
    return os.environ.get(name, "").strip()


def _missing() -> str:
    """The first missing package; "" if all are there."""
    for name in _NEEDED:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # its parent is missing
            return name
    return ""


def _exporting(endpoint: str | None, ratio: float) -> Any:
    """A provider that sends in the background. ``endpoint``: None is the environment's."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = make_provider(ratio)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider


def make_provider(ratio: float) -> Any:
    """A provider without a destination: the caller's flag decides, and without a caller ``ratio`` of the requests."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    named = {"service.version": __version__, "process.pid": os.getpid()}
    if not _environment("OTEL_SERVICE_NAME") and "service.name=" not in _environment("OTEL_RESOURCE_ATTRIBUTES"):
        named["service.name"] = "trnrt"
    sampler = ParentBased(TraceIdRatioBased(ratio))
    return TracerProvider(sampler=sampler, resource=Resource.create(named), shutdown_on_exit=False)


class Spans:
    """Records the spans of requests with a provider of OpenTelemetry's SDK."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace

        self._provider, self._api = provider, trace
        self.tracer = provider.get_tracer("trnrt.serve", __version__)

    def begin(self, parent: Parent | None, tracestate: str | None) -> Trace:
        """The trace of a request, from now on."""
        span = self.tracer.start_span("request", self._context(parent, tracestate), kind=self._api.SpanKind.SERVER)
        found = span.get_span_context()
        trace_id, span_id = f"{found.trace_id:032x}", f"{found.span_id:016x}"
        if not span.is_recording():
            return IdentifiedTrace(trace_id, span_id)
        return RecordedTrace(self, span, trace_id, span_id)

    def close(self) -> None:
        """Send what is left, for at most ``CLOSE_S``: the process ends whether the collector answers or not."""
        if self in recorders:
            recorders.remove(self)
        ending = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        if ending.is_alive():
            log("warning", "spans_dropped", reason=f"the collector did not take the last ones within {CLOSE_S:g} s")

    def child_context(self, span: Any) -> Any:
        """The context of spans below this one."""
        return self._api.set_span_in_context(span)

    def fail(self, span: Any, error: str) -> None:
        """Mark a span as failed."""
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))

    def _context(self, parent: Parent | None, tracestate: str | None) -> Any:
        api = self._api
        if parent is None:
            return api.set_span_in_context(api.INVALID_SPAN)
        flags = api.TraceFlags(api.TraceFlags.SAMPLED if parent.sampled else api.TraceFlags.DEFAULT)
        state = api.TraceState.from_header([tracestate]) if tracestate else None
        ids = int(parent.trace_id, 16), int(parent.span_id, 16)
        return self.child_context(api.NonRecordingSpan(api.SpanContext(*ids, True, flags, state)))


class RecordedTrace(IdentifiedTrace):
    """A request whose spans are recorded."""

    recording = True

    def __init__(self, spans: Spans, span: Any, trace_id: str, span_id: str) -> None:
        super().__init__(trace_id, span_id, sampled=True)
        self._spans, self._span = spans, span
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self._last_ns = time.perf_counter_ns()
        self._parts: list[tuple[str, int, int, Mapping[str, Value]]] = []

    def lap(self, name: str) -> None:
        """A part of the request ends now; it began when the last one ended."""
        now = time.perf_counter_ns()
        self._parts.append((name, self._last_ns, now, {}))
        self._last_ns = now

    def divide(self, *parts: tuple[str, float, Mapping[str, Value]]) -> None:
        """The time since the last part is these, one after the other; what is left belongs to none."""
        begin, now = self._last_ns, time.perf_counter_ns()
        for name, seconds, attributes in parts:
            end = min(now, begin + round(seconds * 1e9))
            self._parts.append((name, begin, end, attributes))
            begin = end
        self._last_ns = now

    def end(self, name: str, attributes: Mapping[str, Value], error: str = "") -> None:
        """Write the spans: the parts, and the request around them."""
        context, offset = self._spans.child_context(self._span), self._offset_ns
        for part, begin, end, of_part in self._parts:
            child = self._spans.tracer.start_span(part, context, attributes=dict(of_part), start_time=begin + offset)
            child.end(end + offset)
        self._span.update_name(name)
        self._span.set_attributes(dict(attributes))
        if error:
            self._spans.fail(self._span, error)
        self._span.end()
