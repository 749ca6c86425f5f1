"""A client written by others, against a real server's process: it works unmodified."""

from __future__ import annotations

import gzip
import json
import urllib.request
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from serving import MODELS, ServerProcess, digits, server_process
from tritonclient.http import (  # type: ignore[import-untyped]
    InferenceServerClient,
    InferInput,
    InferRequestedOutput,
)
from tritonclient.utils import InferenceServerException  # type: ignore[import-untyped]

from trnrt import InferenceSession, __version__

ROWS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = [str(MODELS / f"{name}.onnx") for name in ("digits_cnn", "digits_ffnn")]
    with server_process(tmp_path_factory.mktemp("server"), *models, "--max-batch", "8", "--max-body-mib", "1") as made:
        yield made
        assert made.stop() == 0


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    made = InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=8)
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected() -> Any:
    images, _ = digits(ROWS)
    return InferenceSession(MODELS / "digits_cnn.onnx", buckets=(8,)).run(["logits"], {"image": images})[0]


def images_input(binary: bool, rows: int = ROWS) -> Any:
    images, _ = digits(rows)
    made = InferInput("image", list(images.shape), "FP32")
    return made.set_data_from_numpy(images, binary_data=binary)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits_cnn") and client.is_model_ready("digits_ffnn", "1")
    assert not client.is_model_ready("nobody") and not client.is_model_ready("digits_cnn", "2")
    told = client.get_server_metadata()
    assert (told["name"], told["version"]) == ("trnrt", __version__)
    model = client.get_model_metadata("digits_cnn")
    assert model["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert model["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]


@pytest.mark.parametrize("binary_input", [True, False])
@pytest.mark.parametrize("binary_output", [True, False, None])
def test_infer(client: Any, expected: Any, binary_input: bool, binary_output: bool | None) -> None:
    outputs = None if binary_output is None else [InferRequestedOutput("logits", binary_data=binary_output)]
    answer = client.infer("digits_cnn", [images_input(binary_input)], outputs=outputs, request_id="mine")
    assert answer.get_response()["id"] == "mine"
    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sends", ["gzip", "deflate", None])
@pytest.mark.parametrize("takes", ["gzip", "deflate", None])
@pytest.mark.parametrize("binary", [True, False])
def test_compression(
    client: Any,
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
    options = {"request_compression_algorithm": sends, "response_compression_algorithm": takes}
    outputs = [InferRequestedOutput("logits", binary_data=binary)]
    answer = client.infer("digits_cnn", [images_input(binary)], outputs=outputs, **options)
    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)
    assert unpacked == []
    zeros = InferInput("image", [200, 1, 8, 8], "FP32").set_data_from_numpy(np.zeros((200, 1, 8, 8), np.float32))
    answer = client.infer("digits_cnn", [zeros], outputs=outputs, **options)
    logits = answer.as_numpy("logits")
    assert logits.shape == (200, 10) and np.ptp(logits, axis=0).max() < 1e-5
    assert unpacked == ([takes] if takes else [])


def test_several_outputs_and_versions(client: Any) -> None:
    _, labels = digits(ROWS)
    answer = client.infer("digits_ffnn", [images_input(True)], model_version="1")
    assert answer.as_numpy("label").dtype == np.int64
    assert answer.as_numpy("label").tolist() == answer.as_numpy("probabilities").argmax(axis=1).tolist()
    assert (answer.as_numpy("label") == labels).mean() > 0.5
    answer = client.infer("digits_ffnn", [images_input(True)], outputs=[InferRequestedOutput("label")])
    assert answer.as_numpy("probabilities") is None


def test_async_infer(client: Any, expected: Any) -> None:
    waiting = [client.async_infer("digits_cnn", [images_input(k % 2 == 0)], request_id=str(k)) for k in range(24)]
    for k, item in enumerate(waiting):
        answer = item.get_result()
        assert answer.get_response()["id"] == str(k)
        np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-5, atol=1e-5)


def bad_input(name: str, array: Any, datatype: str) -> Any:
    return InferInput(name, list(array.shape), datatype).set_data_from_numpy(array)


BAD: list[tuple[Any, dict[str, Any], str, str]] = [
    (lambda: [bad_input("image", np.zeros((1, 1, 8, 7), np.float32), "FP32")], {}, "400", "image"),
    (lambda: [bad_input("image", np.zeros((1, 64), np.float32), "FP32")], {}, "400", "image"),
    (lambda: [bad_input("image", np.zeros((1, 1, 8, 8), np.int32), "INT32")], {}, "400", "the model wants FP32"),
    (lambda: [bad_input("pixels", np.zeros((1, 1, 8, 8), np.float32), "FP32")], {}, "400", "no input 'pixels'"),
    (lambda: [bad_input("image", np.zeros((0, 1, 8, 8), np.float32), "FP32")], {}, "400", "image"),
    (lambda: [bad_input("image", np.array([b"x"], object), "BYTES")], {}, "400", "BYTES"),
    (list, {}, "400", "image"),
    (lambda: [images_input(True)], {"model_name": "nobody"}, "404", "nobody"),
    (lambda: [images_input(True)], {"model_version": "7"}, "404", "version"),
    (lambda: [bad_input("image", np.zeros((5000, 1, 8, 8), np.float32), "FP32")], {}, "413", "bytes"),
    (
        lambda: [images_input(True)],
        {"outputs": [InferRequestedOutput("logits", class_count=3)]},
        "400",
        "classification",
    ),
    (lambda: [images_input(True)], {"outputs": [InferRequestedOutput("scores")]}, "400", "no output 'scores'"),
]


@pytest.mark.parametrize(("inputs", "options", "status", "told"), BAD)
def test_bad_requests_raise(client: Any, inputs: Any, options: dict[str, Any], status: str, told: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(**{"model_name": "digits_cnn", "inputs": inputs(), **options})
    assert caught.value.status() == status
    assert told in caught.value.message()
    # The connection is good for more.
    client.infer("digits_cnn", [images_input(True)])


def test_repository_is_closed(client: Any) -> None:
    for call in (client.get_model_repository_index, lambda: client.unload_model("digits_cnn")):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == "403"
    assert client.is_model_ready("digits_cnn")


def test_what_is_not_served_is_an_error_that_the_client_can_read(client: Any) -> None:
    for call in (client.get_inference_statistics, lambda: client.get_model_config("digits_cnn")):
        with pytest.raises(InferenceServerException, match="there is no"):
            call()


def test_predict_through_a_real_server(server: ServerProcess) -> None:
    images, labels = digits(1)
    body = json.dumps({"instances": images.tolist()}).encode()
    url = f"{server.url}/predict?model=digits_cnn"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as response:
        assert json.load(response)["predictions"] == [str(labels[0])]
