"""A client written by others, against a real server's process, over HTTP and gRPC: it works unmodified."""

from __future__ import annotations

import gzip
import json
import queue
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from google.protobuf.json_format import MessageToDict
from serving import MODELS, ServerProcess, digits, server_process
from tritonclient.utils import InferenceServerException

from trnrt import InferenceSession, __version__

ROWS = 5
OPTIONS = ("--max-body-mib", "1", "--grpc-port", "0")


@dataclass(frozen=True)
class Transport:
    """One of Triton's two clients, which are nearly the same; ``codes``: how it writes the status of a failure."""

    name: str
    library: Any
    codes: dict[str, str]

    def make_client(self, server: ServerProcess) -> Any:
        """A client of a server."""
        if self.name == "grpc":
            return self.library.InferenceServerClient(server.grpc_address)
        return self.library.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8)

    def make_input(self, name: str, array: Any, datatype: str = "FP32", **options: Any) -> Any:
        """A tensor."""
        return self.library.InferInput(name, list(array.shape), datatype).set_data_from_numpy(array, **options)

    def output(self, name: str, **options: Any) -> Any:
        """An output to ask for."""
        return self.library.InferRequestedOutput(name, **options)

    def read(self, message: Any) -> Any:
        """A message as a dictionary."""
        if self.name == "http":
            return message
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(message, preserving_proto_field_name=True)


HTTP = Transport("http", tritonclient.http, {**{code: code for code in ("400", "403", "404", "413")}, "unknown": "404"})
GRPC = Transport(
    "grpc",
    tritonclient.grpc,
    {
        "400": "StatusCode.INVALID_ARGUMENT",
        "403": "StatusCode.PERMISSION_DENIED",
        "404": "StatusCode.NOT_FOUND",
        "unknown": "StatusCode.UNIMPLEMENTED",
        "413": "StatusCode.RESOURCE_EXHAUSTED",
    },
)


@pytest.fixture(params=[HTTP, GRPC], ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    found: Transport = request.param
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = [str(MODELS / f"{name}.onnx") for name in ("digits_cnn", "digits_ffnn")]
    with server_process(tmp_path_factory.mktemp("server"), *models, "--max-batch", "8", *OPTIONS) as made:
        yield made
        assert made.stop() == 0


@pytest.fixture
def client(server: ServerProcess, transport: Transport) -> Iterator[Any]:
    made = transport.make_client(server)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected() -> Any:
    images, _ = digits(ROWS)
    return InferenceSession(MODELS / "digits_cnn.onnx", buckets=(8,)).run(["logits"], {"image": images})[0]


def images_input(transport: Transport, **options: Any) -> Any:
    return transport.make_input("image", digits(ROWS)[0], **options)


def test_health_and_metadata(client: Any, transport: Transport) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits_cnn") and client.is_model_ready("digits_ffnn", "1")
    assert not client.is_model_ready("nobody") and not client.is_model_ready("digits_cnn", "2")
    told = transport.read(client.get_server_metadata())
    assert (told["name"], told["version"]) == ("trnrt", __version__)
    model = transport.read(client.get_model_metadata("digits_cnn"))
    for tensor in (*model["inputs"], *model["outputs"]):
        tensor["shape"] = [int(size) for size in tensor["shape"]]  # protobuf writes int64 as text
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert model["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
def test_infer_over_http(server: ServerProcess, expected: Any, binary_input: bool, binary_output: bool | None) -> None:
    outputs = None if binary_output is None else [HTTP.output("logits", binary_data=binary_output)]
    with HTTP.make_client(server) as client:
        inputs = [images_input(HTTP, binary_data=binary_input)]
        answer = client.infer("digits_cnn", inputs, outputs=outputs, request_id="mine")
    assert answer.get_response()["id"] == "mine"
    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_infer_over_grpc(server: ServerProcess, expected: Any, compression: str | None) -> None:
    with GRPC.make_client(server) as client:
        given = [images_input(GRPC)]
        answer = client.infer("digits_cnn", given, request_id="mine", compression_algorithm=compression)
    assert (answer.get_response().id, answer.get_response().model_version) == ("mine", "1")
    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sends", ["gzip", "deflate", None])
@pytest.mark.parametrize("takes", ["gzip", "deflate", None])
@pytest.mark.parametrize("binary", [True, False])
def test_compression_over_http(
    server: ServerProcess,
    expected: Any,
    sends: str | None,
    takes: str | None,
    binary: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer of 5 rows is too small to be worth it; that of 200 rows isn't."""
    unpacked: list[str] = []
    for module, name in ((gzip, "gzip"), (zlib, "deflate")):

        def decompress(data: bytes, name: str = name, original: Any = module.decompress) -> bytes:
            unpacked.append(name)
            made: bytes = original(data)
            return made

        monkeypatch.setattr(module, "decompress", decompress)
    with HTTP.make_client(server) as client:
        options = {"request_compression_algorithm": sends, "response_compression_algorithm": takes}
        outputs = [HTTP.output("logits", binary_data=binary)]
        answer = client.infer("digits_cnn", [images_input(HTTP)], outputs=outputs, **options)
        np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
        assert unpacked == []
        batch = tritonclient.http.InferInput("image", [200, 1, 8, 8], "FP32").set_data_from_numpy(
            np.zeros((200, 1, 8, 8), np.float32)
        )
        answer = client.infer("digits_cnn", [batch], outputs=outputs, **options)
        logits = answer.as_numpy("logits")
        assert logits.shape == (200, 10) and np.ptp(logits, axis=0).max() < 1e-5
        assert unpacked == ([takes] if takes else [])


def test_several_outputs_and_versions(client: Any, transport: Transport) -> None:
    _, labels = digits(ROWS)
    answer = client.infer("digits_ffnn", [images_input(transport)], model_version="1")
    assert answer.as_numpy("label").dtype == np.int64
    assert answer.as_numpy("label").tolist() == answer.as_numpy("probabilities").argmax(axis=1).tolist()
    assert (answer.as_numpy("label") == labels).mean() > 0.5
    answer = client.infer("digits_ffnn", [images_input(transport)], outputs=[transport.output("label")])
    assert answer.as_numpy("probabilities") is None


def test_async_infer_over_http(server: ServerProcess, expected: Any) -> None:
    with HTTP.make_client(server) as client:
        inputs = [[images_input(HTTP, binary_data=k % 2 == 0)] for k in range(24)]
        waiting = [client.async_infer("digits_cnn", given, request_id=str(k)) for k, given in enumerate(inputs)]
        for k, item in enumerate(waiting):
            answer = item.get_result()
            assert answer.get_response()["id"] == str(k)
            np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("streams", [False, True])
def test_async_infer_over_grpc(server: ServerProcess, expected: Any, streams: bool) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()

    def keep(result: Any, error: Any) -> None:
        answers.put((result, error))

    with GRPC.make_client(server) as client:
        if streams:
            client.start_stream(keep)
        for k in range(24):
            if streams:
                client.async_stream_infer("digits_cnn", [images_input(GRPC)], request_id=str(k))
            else:
                client.async_infer("digits_cnn", [images_input(GRPC)], keep, request_id=str(k))
        found = [answers.get(timeout=60) for _ in range(24)]
        assert [error for _, error in found] == [None] * 24
        ids = [result.get_response().id for result, _ in found]
        assert ids == [str(k) for k in range(24)] if streams else sorted(ids, key=int) == [str(k) for k in range(24)]
        for result, _ in found:
            np.testing.assert_allclose(result.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
        if streams:
            client.async_stream_infer("nobody", [images_input(GRPC)])
            result, error = answers.get(timeout=60)
            assert result is None and "nobody" in str(error)


def zeros(*shape: int, dtype: type = np.float32, name: str = "image", datatype: str = "FP32") -> Any:
    """A function that makes an input tensor of these sizes for a transport."""
    return lambda transport: [transport.make_input(name, np.zeros(shape, dtype), datatype)]


def text(transport: Transport) -> list[Any]:
    return [transport.make_input("image", np.array([b"x"], object), "BYTES")]


def good(transport: Transport) -> list[Any]:
    return [images_input(transport)]


BAD: list[tuple[Any, dict[str, Any], str, str]] = [
    (zeros(1, 1, 8, 7), {}, "400", "image"),
    (zeros(1, 64), {}, "400", "image"),
    (zeros(1, 1, 8, 8, dtype=np.int32, datatype="INT32"), {}, "400", "the model wants FP32"),
    (zeros(1, 1, 8, 8, name="pixels"), {}, "400", "no input 'pixels'"),
    (zeros(0, 1, 8, 8), {}, "400", "image"),
    (text, {}, "400", "BYTES"),
    (lambda _transport: [], {}, "400", "image"),
    (good, {"model_name": "nobody"}, "404", "nobody"),
    (good, {"model_version": "7"}, "404", "version"),
    (zeros(5000, 1, 8, 8), {}, "413", "bytes"),
    (good, {"outputs": ["logits"], "class_count": 3}, "400", "classification"),
    (good, {"outputs": ["scores"]}, "400", "no output 'scores'"),
]


@pytest.mark.parametrize(("make", "options", "status", "told"), BAD)
def test_bad_requests_raise(
    client: Any, transport: Transport, make: Any, options: dict[str, Any], status: str, told: str
) -> None:
    given = dict(options)
    count = given.pop("class_count", 0)
    if "outputs" in given:
        given["outputs"] = [transport.output(name, class_count=count) for name in given["outputs"]]
    with pytest.raises(InferenceServerException) as caught:
        client.infer(**{"model_name": "digits_cnn", "inputs": make(transport), **given})
    assert caught.value.status() == transport.codes[status]
    assert told in caught.value.message()
    # The connection is good for more.
    client.infer("digits_cnn", [images_input(transport)])


def test_repository_is_closed(client: Any, transport: Transport) -> None:
    for call in (client.get_model_repository_index, lambda: client.unload_model("digits_cnn")):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == transport.codes["403"]
    assert client.is_model_ready("digits_cnn")


def test_configuration_and_statistics(client: Any, transport: Transport) -> None:
    def read(answer: Any) -> Any:
        return answer if transport is HTTP else MessageToDict(answer, preserving_proto_field_name=True)

    config = read(client.get_model_config("digits_cnn", "1"))
    config = config.get("config", config)
    assert (config["name"], config["max_batch_size"]) == ("digits_cnn", 8)
    (tensor,) = config["input"]
    assert (tensor["name"], tensor["data_type"]) == ("image", "TYPE_FP32")
    assert list(map(int, tensor["dims"])) == [1, 8, 8]
    assert config["instance_group"][0]["kind"] == "KIND_MODEL"
    assert int(config["dynamic_batching"]["default_queue_policy"]["max_queue_size"]) == 256
    (before,) = read(client.get_inference_statistics("digits_cnn"))["model_stats"]
    client.infer("digits_cnn", [images_input(transport)])
    (after,) = read(client.get_inference_statistics("digits_cnn", "1"))["model_stats"]
    assert int(after["inference_count"]) - int(before.get("inference_count", 0)) == ROWS
    assert int(after["execution_count"]) - int(before.get("execution_count", 0)) == 1
    names = [each["name"] for each in read(client.get_inference_statistics())["model_stats"]]
    assert names == ["digits_cnn", "digits_ffnn"]
    with pytest.raises(InferenceServerException) as caught:
        client.get_model_config("nobody")
    assert caught.value.status() == transport.codes["404"]


def test_what_is_not_served_is_an_error_that_the_client_can_read(client: Any, transport: Transport) -> None:
    for call in (
        client.get_trace_settings,
        lambda: client.get_trace_settings("digits_cnn"),
        lambda: client.update_trace_settings("digits_cnn", {"trace_rate": "1"}),
        client.get_log_settings,
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        lambda: client.register_system_shared_memory("region", "/key", 16),
    ):
        with pytest.raises(InferenceServerException, match="there is no") as caught:
            call()
        assert caught.value.status() == transport.codes["unknown"]


def test_predict_through_a_real_server(server: ServerProcess) -> None:
    images, labels = digits(1)
    body = json.dumps({"instances": images.tolist()}).encode()
    url = f"{server.url}/predict?model=digits_cnn"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as response:
        assert json.load(response)["predictions"] == [str(labels[0])]
