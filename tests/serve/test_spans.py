"""Spans of requests: what is in them, who decides if they are recorded, and that no collector can harm a request."""

from __future__ import annotations

import gzip
import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import run
from serving import MODELS, MadeUpModel, MadeUpRepository, app_of, ask, digits, doubling, events, fetch, server_process

from trnrt.errors import BackendError, OptionError
from trnrt.serve.http.problems import Problem
from trnrt.serve.processes import spans as module
from trnrt.serve.processes.spans import Spans, check_tracing, make_provider, start_tracing
from trnrt.serve.processes.traces import begin_trace, current_trace, recorders
from trnrt.serve.settings import ServeSettings, read_settings

sdk = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = {"inputs": [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6, 7, 8]}]}
PATH = "/v2/models/doubling/infer"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody else's environment, and no recorder left."""
    for name in (
        *module.ENDPOINTS,
        *module.PROTOCOLS,
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        "OTEL_SERVICE_NAME",
    ):
        monkeypatch.delenv(name, raising=False)
    yield
    recorders.clear()


@contextmanager
def recording(ratio: float = 1.0) -> Iterator[Any]:
    """Spans kept in memory: a function that gives those so far, by name."""
    provider, kept = make_provider(ratio), memory.InMemorySpanExporter()
    provider.add_span_processor(sdk.SimpleSpanProcessor(kept))
    recorders.append(Spans(provider))
    yield lambda: {span.name: span for span in kept.get_finished_spans()}
    recorders.clear()


def infer(traceparent: str | None = None, model: MadeUpModel | None = None, **options: Any) -> httpx.Response:
    headers = {} if traceparent is None else {"traceparent": traceparent, "tracestate": "vendor=x"}
    app = app_of(MadeUpRepository(model or doubling()))
    return ask(app, "POST", PATH, **({"json": BODY} | options), headers=headers)


def test_a_request_has_a_span_and_its_parts_below_it() -> None:
    with recording() as found:
        response = infer(f"00-{TRACE}-{SPAN}-01")
        spans = found()
    assert set(spans) == {"POST /v2/models/{model}/infer", "receive", "parse", "queue", "compute", "render"}
    server = spans.pop("POST /v2/models/{model}/infer")
    assert (server.kind.name, server.parent.span_id, server.parent.is_remote) == ("SERVER", int(SPAN, 16), True)
    assert dict(server.attributes) == {
        "http.request.method": "POST",
        "url.path": PATH,
        "http.route": "/v2/models/{model}/infer",
        "http.response.status_code": 200,
    }
    assert {span.context.trace_id for span in (server, *spans.values())} == {int(TRACE, 16)}
    assert server.context.trace_state.get("vendor") == "x"
    assert response.headers["traceresponse"] == f"00-{TRACE}-{server.context.span_id:016x}-01"
    last = server.start_time
    for name in ("receive", "parse", "queue", "compute", "render"):
        part = spans[name]
        assert part.parent.span_id == server.context.span_id, name
        assert last <= part.start_time <= part.end_time <= server.end_time, name
        last = part.end_time
    assert dict(spans["compute"].attributes) == {
        "trnrt.model": "doubling",
        "trnrt.version": "1",
        "trnrt.rows": 2,
        "trnrt.batch_rows": 2,
        "trnrt.bucket": 1,
    }


def test_predict_and_version_1_have_the_same_parts() -> None:
    rows = {"instances": [[1, 2, 3, 4]]}
    for path in ("/predict", "/v1/models/doubling:predict"):
        with recording() as found:
            assert ask(app_of(MadeUpRepository(doubling())), "POST", path, json=rows).status_code == 200
            assert {"receive", "parse", "queue", "compute", "render"} < set(found())


def test_the_times_are_those_of_the_request() -> None:
    with recording() as found:
        before = time.time_ns()
        infer(model=doubling(0.05))
        after, spans = time.time_ns(), found()
    server = spans["POST /v2/models/{model}/infer"]
    assert before - 10**9 <= server.start_time and server.end_time <= after + 10**9
    assert server.end_time - server.start_time >= 5 * 10**7


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("flag", ["00", "01", None])
def test_the_caller_decides_and_without_one_the_ratio(ratio: float, flag: str | None) -> None:
    with recording(ratio) as found:
        response = infer(None if flag is None else f"00-{TRACE}-{SPAN}-{flag}")
        recorded = bool(found())
    assert recorded == (ratio == 1.0 if flag is None else flag == "01")
    assert response.headers["traceresponse"].endswith("-01" if recorded else "-00")


def test_a_wrong_traceparent_begins_a_trace() -> None:
    with recording() as found:
        assert infer(f"00-{'0' * 32}-{SPAN}-01").status_code == 200
        assert all(span.parent is None for name, span in found().items() if name.startswith("POST"))


def test_failures_are_marked_and_refusals_are_not() -> None:
    model = doubling()
    model.error = Problem(503, "the device failed")
    with recording() as found:
        assert infer(model=model).status_code == 503
        failed = found()["POST /v2/models/{model}/infer"]
    assert failed.status.status_code.name == "ERROR" and failed.status.description == "the device failed"
    assert failed.attributes["error.type"] == "503"
    with recording() as found:
        assert infer(content=b"{").status_code in (400, 415)
        refused = found()["POST /v2/models/{model}/infer"]
    assert refused.status.status_code.name == "UNSET" and "error.type" not in refused.attributes


def test_unknown_paths_and_methods_make_no_names() -> None:
    with recording() as found:
        ask(app_of(MadeUpRepository(doubling())), "GET", "/nobody/knows")
        ask(app_of(MadeUpRepository(doubling())), "BREW", "/nobody/knows")
        assert set(found()) == {"GET", "HTTP"}


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/metrics"])
def test_probes_have_no_spans_of_their_own(path: str) -> None:
    with recording() as found:
        assert ask(app_of(MadeUpRepository(doubling())), "GET", path).status_code == 200
        assert found() == {}


def test_a_call_over_grpc_is_a_span_with_its_parts() -> None:
    pytest.importorskip("grpc")
    from grpc_serving import raw_request, serving_grpc

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            request = raw_request("doubling", np.ones((1, 4), np.float32))
            await caller.infer(request, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
            error = await caller.refusal("ModelMetadata", metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
            assert [value[3:35] for name, value in error.trailing_metadata() if name == "traceresponse"] == [TRACE]
            await caller.call("/grpc.health.v1.Health/Check")

    with recording() as found:
        run(work())
        spans = found()
    named = spans["inference.GRPCInferenceService/ModelInfer"]
    assert named.context.trace_id == int(TRACE, 16) and named.parent.span_id == int(SPAN, 16)
    assert named.attributes["rpc.system"] == "grpc" and named.attributes["rpc.grpc.status_code"] == 0
    assert spans["compute"].parent.span_id == named.context.span_id
    assert spans["inference.GRPCInferenceService/ModelMetadata"].attributes["rpc.grpc.status_code"] == 5
    assert not [name for name in spans if "Health" in name]


# -- collectors ----------------------------------------------------------------------------------------------------


@contextmanager
def collector() -> Iterator[tuple[str, list[Any]]]:
    """A collector of OTLP over HTTP: its URL, and the spans that it was sent."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *_arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", received
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """A collector that accepts a connection and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def nobody() -> Iterator[str]:
    """A collector that is not there."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{closed.getsockname()[1]}"


@pytest.mark.parametrize("away", [silent, nobody])
def test_a_collector_that_is_away_harms_no_request(away: Any) -> None:
    with away() as url:
        spans = start_tracing(ServeSettings(otlp_endpoint=url))
        assert spans is not None
        statuses = {infer().status_code for _ in range(60)}
        began = time.monotonic()
        spans.close()
        took = time.monotonic() - began
    assert statuses == {200}
    assert took < module.CLOSE_S + 5, "a shutdown does not wait for it"
    assert infer().status_code == 200 and not recorders


def test_what_waits_for_a_collector_is_bounded() -> None:
    with silent() as url:
        spans = start_tracing(ServeSettings(otlp_endpoint=url))
        assert spans is not None
        for _ in range(6000):
            token = begin_trace(None, None)
            current_trace.get().end("one", {})
            current_trace.reset(token)
        (processor,) = spans._provider._active_span_processor._span_processors
        assert len(processor._batch_processor._queue) <= 2048
        spans.close()


def test_a_real_server_sends_to_a_collector(tmp_path: Path) -> None:
    rows, shown = digits(1)
    with collector() as (url, received):
        model = str(MODELS / "digits_cnn.onnx")
        with server_process(tmp_path, model, "--max-batch", "1", "--otlp-endpoint", url) as server:
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
            body = {"instances": rows.tolist()}
            answer = fetch("POST", f"{server.url}/predict", json=body, headers=headers)
            assert np.array_equal(answer.json()["predictions"], [str(shown[0])])
            assert server.stop() == 0
            (line,) = [line for line in events(server, "request") if line["path"] == "/predict"]
    assert {path for path, _ in received} == {"/v1/traces"}
    resources = [resource for _, request in received for resource in request.resource_spans]
    told = {pair.key: pair.value.string_value for resource in resources for pair in resource.resource.attributes}
    assert told["service.name"] == "trnrt"
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans} == {TRACE} == {line["trace_id"]}
    by_name = {span.name: span for span in spans}
    assert set(by_name) == {"POST /predict", "receive", "parse", "queue", "compute", "render"}
    assert by_name["POST /predict"].span_id.hex() == line["span_id"]
    attributes = {pair.key: pair.value for pair in by_name["compute"].attributes}
    assert attributes["trnrt.model"].string_value == "digits_cnn" and attributes["trnrt.bucket"].int_value == 1


# -- settings ------------------------------------------------------------------------------------------------------


def told(patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    patch.setattr(module, "log", lambda level, event, **fields: lines.append({"event": event, **fields}))
    return lines


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, False),
    ],
)
def test_opentelemetrys_own_variables(environment: dict[str, str], on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    lines = told(monkeypatch)
    spans = start_tracing(ServeSettings())
    assert (spans is not None) == bool(recorders) == on
    if "grpc" in environment.values():
        assert lines[0]["event"] == "tracing_off" and "http/protobuf" in lines[0]["reason"]
    if spans is not None:
        spans.close()


def test_without_the_packages_a_setting_is_refused_and_a_variable_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NEEDED", ("opentelemetry.no.such.module",))
    with pytest.raises(BackendError, match="--otlp-endpoint needs opentelemetry") as caught:
        check_tracing(ServeSettings(otlp_endpoint="http://127.0.0.1:4318"))
    assert caught.value.hint == "pip install 'trnrt[otel]'"
    check_tracing(ServeSettings())
    lines = told(monkeypatch)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert start_tracing(ServeSettings()) is None
    assert "trnrt[otel]" in lines[0]["reason"]


@pytest.mark.parametrize("wrong", ["127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://h/?x=1", "nonsense"])
def test_an_endpoint_is_a_url(wrong: str) -> None:
    with pytest.raises(OptionError, match="--otlp-endpoint") as caught:
        read_settings({"otlp_endpoint": wrong})
    assert "http://127.0.0.1:4318" in str(caught.value)


@pytest.mark.parametrize("wrong", ["-0.1", "1.5", "half"])
def test_a_ratio_is_a_share(wrong: str) -> None:
    with pytest.raises(OptionError, match="--trace-ratio"):
        read_settings({"trace_ratio": wrong})


def test_the_service_has_the_name_that_the_environment_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_provider(1.0).resource.attributes["service.name"] == "trnrt"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "digits")
    assert json.loads(make_provider(1.0).resource.to_json())["attributes"]["service.name"] == "digits"
