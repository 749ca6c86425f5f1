"""Rights over gRPC: those of operators, and of keys with limits."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import grpc
import numpy as np
from engines import run
from grpc_serving import raw_request, serving_grpc
from pydantic import SecretStr
from serving import MadeUpRepository, doubling

from trnrt.serve.grpc import messages
from trnrt.serve.settings import ServeSettings

Code = grpc.StatusCode
FOUR = np.arange(4, dtype=np.float32).reshape(1, 4)


def test_each_message_of_a_stream_counts_for_its_key() -> None:
    """A stream holds one place, and would otherwise pass any number of requests a second."""
    keys = {"alice": {"sha256": sha256(b"a").hexdigest(), "requests_per_second": 0.01, "burst": 2, "concurrency": 1}}
    repository = MadeUpRepository(doubling(), key=keys)

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            path, metadata = "/inference.GRPCInferenceService/ModelStreamInfer", [("x-api-key", "a")]
            stream, texts = caller.channel.stream_stream(path)(metadata=metadata), list[str]()
            for settings in (None, None, None, ServeSettings(api_keys=[SecretStr("b")])):
                if settings is not None:
                    repository.admission.change(settings)
                await stream.write(raw_request("doubling", FOUR).SerializeToString())
                texts.append(messages.StreamAnswer.FromString(await stream.read()).error_message)
            assert texts[:2] == ["", ""] and "'alice' may send 0.01 requests a second" in texts[2]
            assert "the API key was taken away" in texts[3]
            await stream.done_writing()
            assert await stream.code() is Code.OK

    run(work())
    assert repository.metrics.refused == ["key_limit", "key"]
    assert [code for _, _, code in repository.metrics.requests] == [200, 200, 429, 401]


def test_the_repository_is_for_administrators() -> None:
    async def work() -> None:
        closed, open_one = MadeUpRepository(doubling()), MadeUpRepository(doubling(), admin=True)
        kserves, tritons = messages.ModelRequest(first="doubling"), messages.ModelRequest(second="doubling")
        async with serving_grpc(closed) as caller:
            for method in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
                error = await caller.refusal(method, kserves)
                assert error.code() is Code.PERMISSION_DENIED and "--admin" in error.details()
        async with serving_grpc(open_one) as caller:
            answer = messages.ModelAnswer.FromString(await caller.call("RepositoryModelLoad", kserves))
            assert (answer.model_name, answer.done) == ("doubling", True)
            await caller.call("RepositoryModelUnload", tritons)
            tritons.parameters.append(messages.ParameterName(key="config").SerializeToString())
            error = await caller.refusal("RepositoryModelLoad", tritons)
            assert error.code() is Code.INVALID_ARGUMENT and "'config'" in error.details()
            index = messages.IndexAnswer.FromString(await caller.call("RepositoryIndex"))
            assert [(row.name, row.version, row.state) for row in index.models] == [("doubling", "1", "READY")]
        assert open_one.done == ["load doubling", "unload doubling"]

    run(work())


def test_without_keys_only_this_machine_administers() -> None:
    async def work() -> None:
        far = MadeUpRepository(doubling(), admin=True, host="0.0.0.0", insecure=True)
        async with serving_grpc(far) as caller:
            for method in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
                error = await caller.refusal(method, messages.ModelRequest(first="doubling"))
                assert error.code() is Code.PERMISSION_DENIED and "need API keys" in error.details()
        assert far.done == []

    run(work())


def test_named_keys_have_their_limits_and_are_counted() -> None:
    def key(text: str, **limits: Any) -> dict[str, Any]:
        return {"sha256": sha256(text.encode()).hexdigest(), **limits}

    keys = {"alice": key("a", requests_per_second=0.01, burst=2), "root": key("r", admin=True)}
    repository = MadeUpRepository(doubling(), admin=True, key=keys)

    async def work() -> None:
        async with serving_grpc(repository) as caller:
            alice, root = [("x-api-key", "a")], [("x-api-key", "r")]
            await caller.infer(raw_request("doubling", FOUR), metadata=alice)
            error = await caller.refusal("RepositoryIndex", metadata=alice)
            assert error.code() is Code.PERMISSION_DENIED and "alice" in error.details()
            error = await caller.refusal("ModelInfer", raw_request("doubling", FOUR), metadata=alice)
            assert error.code() is Code.RESOURCE_EXHAUSTED and "alice" in error.details()
            await caller.call("RepositoryIndex", metadata=root)

    run(work())
    assert repository.metrics.keys == [("alice", 200), ("alice", 403), ("alice", 429), ("root", 200)]
