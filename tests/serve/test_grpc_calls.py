"""Calls over gRPC: answers, and every refusal with its code, its words, its id and its count."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from engines import run
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_serving import Caller, InferRequest, raw_request, serving_grpc, typed_request
from serving import MadeUpRepository, computing, doubling, echo, lines_logged

from trnrt.errors import DeviceError
from trnrt.serve.grpc import calls, health, messages, methods
from trnrt.serve.http import limits
from trnrt.serve.http.problems import Problem

Code = grpc.StatusCode
FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_the_descriptors_are_those_of_the_files(tmp_path: Path) -> None:
    """After a change: python -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=protocol.binpb *.proto"""
    protoc = pytest.importorskip("grpc_tools.protoc")
    made, folder = tmp_path / "made.binpb", messages.DESCRIPTORS.parent
    options = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={made}"]
    assert protoc.main(["protoc", *options, "open_inference.proto", "extensions.proto"]) == 0
    read = FileDescriptorSet.FromString
    assert read(made.read_bytes()) == read(messages.DESCRIPTORS.read_bytes())


def test_it_is_answered_raw_or_typed_as_it_was_asked() -> None:
    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            answer = await caller.infer(raw_request("doubling", FOUR, id="7", model_version="1"))
            assert (answer.model_name, answer.model_version, answer.id) == ("doubling", "1", "7")
            assert [(o.name, o.datatype, list(o.shape)) for o in answer.outputs] == [("y", "FP32", [1, 4])]
            assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [0, 2, 4, 6]
            assert answer.parameters["rows"].int64_param == 1 and answer.parameters["queue_ms"].double_param == 0.1
            answer = await caller.infer(typed_request("doubling", 2))
            assert list(answer.outputs[0].contents.fp32_contents) == [0, 2, 4, 6, 8, 10, 12, 14]
            assert not answer.raw_output_contents

    run(work())


def test_half_floats_are_raw_whatever_was_asked() -> None:
    async def work() -> None:
        model = echo("float32", "float16")
        model.compute = lambda feeds: {f"out_{d}": feeds["in_float32"].astype(d) for d in ("float32", "float16")}
        model.described = echo("float32").described.__class__(
            inputs=echo("float32").described.inputs, outputs=model.described.outputs, batch="N"
        )
        async with serving_grpc(MadeUpRepository(model)) as caller:
            request = InferRequest(model_name="echo")
            tensor = request.inputs.add(name="in_float32", datatype="FP32", shape=[1, 2])
            tensor.contents.fp32_contents.extend([1, 2])
            answer = await caller.infer(request)
            assert [len(raw) for raw in answer.raw_output_contents] == [8, 4]
            assert not any(output.HasField("contents") for output in answer.outputs)

    run(work())


def test_a_compressed_message_is_unpacked_within_the_limit() -> None:
    async def work() -> None:
        repository = MadeUpRepository(doubling(), max_body_mib=1)
        async with serving_grpc(repository) as caller:
            request = raw_request("doubling", np.zeros((1000, 4), np.float32))
            answer = await caller.infer(request, compression=grpc.Compression.Gzip)
            assert len(answer.raw_output_contents[0]) == 16000
            bomb = gzip.compress(bytes(2 << 20))
            error = await caller.refusal("ModelInfer", bomb)
            assert error.code() is Code.RESOURCE_EXHAUSTED and "1 MiB" in error.details()
            for wrong in (bomb[:100], gzip.compress(b"")[:-1] + b"x", gzip.compress(b"") + b"more"):
                error = await caller.refusal("ModelInfer", wrong)
                assert error.code() is Code.INVALID_ARGUMENT and "compressed" in error.details()
        assert repository.metrics.refused == ["body"]

    run(work())


PROBLEMS = [
    (Problem(400, "wrong"), Code.INVALID_ARGUMENT, {}),
    (Problem(404, "none"), Code.NOT_FOUND, {}),
    (Problem(413, "large"), Code.RESOURCE_EXHAUSTED, {}),
    (Problem(418, "other"), Code.INVALID_ARGUMENT, {}),
    (
        Problem(429, "full", retry_after=3),
        Code.RESOURCE_EXHAUSTED,
        {"retry-after": "3", "grpc-retry-pushback-ms": "3000"},
    ),
    (Problem(500, "ours"), Code.INTERNAL, {}),
    (Problem(503, "later", retry_after=1), Code.UNAVAILABLE, {"retry-after": "1"}),
    (Problem(504, "long"), Code.DEADLINE_EXCEEDED, {}),
    (DeviceError("it burns", usable=True), Code.UNAVAILABLE, {"retry-after": "2"}),
]


@pytest.mark.parametrize(("error", "code", "trailing"), PROBLEMS, ids=lambda value: str(value))
def test_failures_have_codes(error: Exception, code: Any, trailing: dict[str, str]) -> None:
    async def work() -> None:
        model = doubling()
        model.error = error
        async with serving_grpc(MadeUpRepository(model)) as caller:
            got = await caller.refusal("ModelInfer", raw_request("doubling", FOUR), metadata=[("x-request-id", "mine")])
            assert got.code() is code and str(error) in got.details()
            assert dict(got.trailing_metadata()).items() >= ({"x-request-id": "mine"} | trailing).items()

    run(work())


def test_our_own_fault_tells_the_id_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logged(monkeypatch)

    async def work() -> None:
        model = doubling()
        model.error = KeyError("secret")
        async with serving_grpc(MadeUpRepository(model)) as caller:
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR), metadata=[("x-request-id", "n1")])
            assert error.code() is Code.INTERNAL and "n1" in error.details() and "secret" not in error.details()

    run(work())
    assert "secret" in next(line for line in lines if line["event"] == "unhandled")["traceback"]


def logged(patch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The log's lines, of HTTP and of gRPC."""
    lines = lines_logged(patch)
    patch.setattr("trnrt.serve.grpc.calls.log", limits.log)  # type: ignore[attr-defined]
    return lines


def test_calls_are_counted_and_logged_with_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logged(monkeypatch)
    repository = MadeUpRepository(doubling())

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            call = caller.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
                raw_request("doubling", FOUR).SerializeToString(), metadata=[("x-request-id", "mine")]
            )
            await call
            assert dict(await call.trailing_metadata()) == {"x-request-id": "mine"}
            error = await caller.refusal("ModelInfer", raw_request("nobody", FOUR), metadata=[("x-request-id", "a b")])
            assert len(dict(error.trailing_metadata())["x-request-id"]) == 32
            error = await caller.refusal("/made.Up/\u00fc".encode().decode("latin-1"))
            assert error.code() is Code.UNIMPLEMENTED and "made.Up" in error.details()

    run(work())
    path = "/inference.GRPCInferenceService/ModelInfer"
    assert repository.metrics.requests == [(path, "GRPC", 200), (path, "GRPC", 404), ("other", "GRPC", 501)]
    first, second, third = lines
    assert (first["request_id"], first["method"], first["path"], first["status"]) == ("mine", "GRPC", path, 200)
    assert second["error"] == "there is no model 'nobody'" and third["path"] == "other"


def test_without_a_key_nothing_is_read() -> None:
    repository = MadeUpRepository(doubling(), api_keys=["sesame", "k\u00fc"], max_body_mib=1)

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            for metadata, told in (([], "no API key"), ([("x-api-key", "wrong")], "a wrong API key")):
                # Over the limit: had it been read, that would be the error.
                error = await caller.refusal("ModelInfer", bytes(2 << 20), metadata=metadata)
                assert error.code() is Code.UNAUTHENTICATED and told in error.details()
            for metadata in ([("x-api-key", "sesame")], [("authorization", "Bearer sesame")]):
                await caller.infer(raw_request("doubling", FOUR), metadata=metadata)
            for method in ("ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"):
                await caller.call(method)
            for method in ("ServerMetadata", "ModelReady", "/not/there"):
                assert (await caller.refusal(method)).code() is Code.UNAUTHENTICATED

    run(work())
    assert repository.metrics.refused == ["key"] * 5


def test_too_large_a_message_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = MadeUpRepository(doubling(), max_body_mib=1)

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            error = await caller.refusal("ModelInfer", bytes((1 << 20) + 1))
            assert error.code() is Code.RESOURCE_EXHAUSTED and "1048576 bytes (1 MiB)" in error.details()
            error = await caller.refusal("ModelInfer", bytes((2 << 20) + 1))  # this one by grpc itself
            assert error.code() is Code.RESOURCE_EXHAUSTED and "2097153 vs. 2097152" in error.details()
            await caller.infer(raw_request("doubling", FOUR))

    run(work())
    assert repository.metrics.refused == ["body"]
    assert [code for _, _, code in repository.metrics.requests] == [413, 499, 200]


def test_above_the_limit_calls_are_refused_and_health_is_answered() -> None:
    repository = MadeUpRepository(doubling(), max_concurrency=2)

    async def work() -> None:
        model = repository.models["doubling"]
        model.go = asyncio.Event()
        async with serving_grpc(repository) as caller:
            waiting = [asyncio.ensure_future(caller.infer(raw_request("doubling", FOUR))) for _ in range(2)]
            await computing(model, 2)
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR))
            assert error.code() is Code.UNAVAILABLE and "answers 2 requests already" in error.details()
            assert dict(error.trailing_metadata())["retry-after"] == "1"
            assert messages.ReadyAnswer.FromString(await caller.call("ServerReady")).ready
            model.go.set()
            await asyncio.gather(*waiting)

    run(work())
    assert repository.metrics.refused == ["concurrency"]


def test_a_deadline_or_a_client_that_goes_frees_the_place() -> None:
    repository = MadeUpRepository(doubling(), request_timeout=0.2)

    async def work() -> None:
        model = repository.models["doubling"]
        model.go = asyncio.Event()
        async with serving_grpc(repository) as caller:
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR))
            assert error.code() is Code.DEADLINE_EXCEEDED and "0.2 s, the server's limit" in error.details()
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR), timeout=0.05)
            assert error.code() is Code.DEADLINE_EXCEEDED
            call = asyncio.ensure_future(caller.infer(raw_request("doubling", FOUR)))
            await computing(model, 1)
            call.cancel()
            while model.waiting:
                await asyncio.sleep(0.001)
            assert model.cancelled == 3

    run(work())
    assert repository.metrics.requests[0][2] == 504 and repository.metrics.requests[2][2] == 499


def test_a_deadline_is_the_batchers_limit() -> None:
    given: list[float | None] = []

    async def work() -> None:
        model = doubling()
        real = model.infer

        async def infer(feeds: Any, outputs: Any = None, *, timeout_s: float | None = None) -> Any:
            given.append(timeout_s)
            return await real(feeds, outputs)

        model.infer = infer  # type: ignore[method-assign]
        async with serving_grpc(MadeUpRepository(model, request_timeout=20)) as caller:
            await caller.infer(raw_request("doubling", FOUR), timeout=1000)
            await caller.infer(raw_request("doubling", FOUR), timeout=10)

    run(work())
    first, second = given
    assert first is not None and second is not None and 11 < first <= 20 and 0 < second < 11


@pytest.mark.parametrize("streams", [False, True])
def test_a_model_has_its_own_time_and_largest_tensor(streams: bool) -> None:
    """Longer or shorter than the server's, as over HTTP."""
    own = {"doubling": {"request_timeout": 1.0, "max_tensor_elements": 4}, "slow": {"request_timeout": 60.0}}
    repository = MadeUpRepository(doubling(), doubling(2.5, name="slow"), request_timeout=2.0, model=own)

    async def ask(caller: Caller, request: Any) -> str:
        if not streams:
            try:
                return "" if (await caller.infer(request)).raw_output_contents else "no output"
            except grpc.aio.AioRpcError as error:
                return str(error.details())
        stream = caller.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await stream.write(request.SerializeToString())
        answer = messages.StreamAnswer.FromString(await stream.read())
        await stream.done_writing()
        assert await stream.code() is Code.OK
        return str(answer.error_message)

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            assert await ask(caller, raw_request("slow", FOUR)) == ""
            assert "the limit" in await ask(caller, raw_request("doubling", np.zeros((2, 4), np.float32)))
            repository.models["doubling"].go = asyncio.Event()
            assert "longer than 1 s, the server's limit" in await ask(caller, raw_request("doubling", FOUR))

    run(work())
    assert repository.metrics.refused == ["timeout"]


@pytest.mark.parametrize(
    ("field", "value", "seconds"),
    [
        ("int64_param", 250_000, 0.25),
        ("uint64_param", 5, 5e-6),
        ("int64_param", 0, None),
        ("int64_param", 1 << 62, None),
    ],
)
def test_the_parameter_timeout_is_the_clients_wait(field: str, value: int, seconds: float | None) -> None:
    """tritonclient's ``timeout=``: the batcher drops the request then, as over HTTP."""
    given: list[Any] = []

    async def work() -> None:
        model = doubling()
        real = model.infer

        async def infer(feeds: Any, outputs: Any = None, *, timeout_s: float | None = None) -> Any:
            given.append(timeout_s)
            return await real(feeds, outputs)

        model.infer = infer  # type: ignore[method-assign]
        async with serving_grpc(MadeUpRepository(model, request_timeout=20)) as caller:
            request = raw_request("doubling", FOUR)
            setattr(request.parameters["timeout"], field, value)
            await caller.infer(request)
            request.parameters["timeout"].string_param = "soon"
            error = await caller.refusal("ModelInfer", request)
            assert error.code() is Code.INVALID_ARGUMENT and "a number of microseconds" in error.details()

    run(work())
    assert given == [seconds] if seconds is not None else 10 < given[0] <= 20


def test_in_a_shutdown_what_was_accepted_is_answered() -> None:
    repository = MadeUpRepository(doubling())

    async def work() -> None:
        model = repository.models["doubling"]
        model.go = asyncio.Event()
        async with serving_grpc(repository) as caller:
            stream = caller.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            await stream.write(b"\xff")
            assert "can't be read" in messages.StreamAnswer.FromString(await stream.read()).error_message
            call = asyncio.ensure_future(caller.infer(raw_request("doubling", FOUR)))
            await computing(model, 1)
            repository.admission.draining = True
            leaving = asyncio.ensure_future(caller.server.leave())
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR))
            assert error.code() is Code.UNAVAILABLE and "shutting down" in error.details()
            assert not messages.ReadyAnswer.FromString(await caller.call("ServerReady")).ready
            with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
                await stream.read()
            assert not leaving.done()
            model.go.set()
            assert (await call).raw_output_contents
            await leaving

    run(work())


def test_a_model_that_is_not_ready_is_unavailable() -> None:
    async def work() -> None:
        model = doubling()
        model.state, model.reason, model.retry_after = "recovering", "it burnt", 9
        async with serving_grpc(MadeUpRepository(model)) as caller:
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR))
            assert error.code() is Code.UNAVAILABLE and "it burnt" in error.details()
            assert dict(error.trailing_metadata())["retry-after"] == "9"
            named = messages.NamedModel(name="doubling")
            assert not messages.ModelReadyAnswer.FromString(await caller.call("ModelReady", named)).ready
            assert not messages.ReadyAnswer.FromString(await caller.call("ServerReady")).ready

    run(work())


def test_a_stream_is_answered_message_by_message() -> None:
    repository = MadeUpRepository(doubling())

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            stream = caller.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            for model in ("doubling", "nobody", "doubling"):
                await stream.write(raw_request(model, FOUR, id=model).SerializeToString())
                answer = messages.StreamAnswer.FromString(await stream.read())
                if model == "nobody":
                    assert answer.error_message == "there is no model 'nobody'"
                else:
                    assert answer.infer_response.id == model and not answer.error_message
                    assert np.frombuffer(answer.infer_response.raw_output_contents[0], "<f4").tolist() == [0, 2, 4, 6]
            assert repository.admission.inside == 1
            await stream.done_writing()
            assert await stream.code() is Code.OK

    run(work())
    assert [code for _, _, code in repository.metrics.requests] == [200, 404, 200]


def test_an_idle_stream_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "STREAM_IDLE_S", 0.1)

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling())) as caller:
            stream = caller.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            with pytest.raises(grpc.aio.AioRpcError, match=r"no message came for 0\.1 s"):
                await stream.read()

    run(work())


def test_streams_that_wait_leave_room_for_others() -> None:
    """A stream that sends nothing holds its place for minutes, and costs its client nothing."""

    async def work() -> None:
        async with serving_grpc(MadeUpRepository(doubling(), max_concurrency=4)) as caller:
            open_stream = caller.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            streams = [open_stream() for _ in range(9)]
            for each in streams:
                with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
                    await asyncio.wait_for(each.wait_for_connection(), 0.1)
            while sum(each.done() for each in streams) < 7:
                await asyncio.sleep(0.01)
            told = {await each.details() for each in streams if each.done()}
            assert "no message came, and many streams wait; open another one" in told
            assert messages.ReadyAnswer.FromString(await caller.call("ServerReady")).ready
            waiting = [each for each in streams if not each.done()]
            for each in waiting:
                await each.write(typed_request("doubling").SerializeToString())
                assert not messages.StreamAnswer.FromString(await each.read()).error_message
                each.cancel()
            assert len(waiting) == 2

    run(work())


async def status(caller: Caller, service: str) -> str:
    """The health check's answer."""
    request = messages.HealthRequest(service=service)
    answer = messages.HealthAnswer.FromString(await caller.call("/grpc.health.v1.Health/Check", request))
    return str(messages.HealthAnswer.Status.Name(answer.status))


def test_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "WATCH_S", 0.01)
    monkeypatch.setattr(health, "MOST_WATCHES", 1)
    repository = MadeUpRepository(doubling())

    async def work() -> None:
        model = repository.models["doubling"]
        async with serving_grpc(repository) as caller:
            watch = caller.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            assert messages.HealthAnswer.FromString(await watch.read()).status == 1
            other = caller.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
            with pytest.raises(grpc.aio.AioRpcError, match="1 clients watch already"):
                await other.read()
            assert {await status(caller, name) for name in (*health.READY, health.LIVE)} == {"SERVING"}
            model.state = "failed"
            assert messages.HealthAnswer.FromString(await watch.read()).status == 2
            assert {await status(caller, name) for name in health.READY} == {"NOT_SERVING"}
            assert await status(caller, health.LIVE) == "SERVING"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status(caller, "doubling")
            assert caught.value.code() is Code.NOT_FOUND
            watch.cancel()
            await asyncio.sleep(0.05)

    run(work())
    assert repository.metrics.refused == ["concurrency"]


def test_slow_messages_have_places_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpc holds what has arrived of a message, which the server can't count."""
    monkeypatch.setattr(calls, "SLOW_S", 0.05)
    monkeypatch.setattr(calls, "SLOW_PLACES", 2)
    repository = MadeUpRepository(doubling())

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            path = "/inference.GRPCInferenceService/ModelInfer"
            slow = [caller.channel.stream_unary(path)() for _ in range(3)]
            for stream in slow:
                await stream.wait_for_connection()
            codes = [asyncio.ensure_future(stream.code()) for stream in slow]
            done, _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result() for task in done] == [Code.UNAVAILABLE]
            await caller.infer(raw_request("doubling", FOUR))
            left = slow[next(k for k, task in enumerate(codes) if task not in done)]
            await left.write(raw_request("doubling", FOUR).SerializeToString())
            await left.done_writing()
            assert messages.InferAnswer.FromString(await left).raw_output_contents
            for stream in slow:
                stream.cancel()
            await asyncio.wait(codes)

    run(work())
    assert repository.metrics.refused == ["concurrency"]
