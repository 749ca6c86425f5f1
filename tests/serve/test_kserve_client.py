"""KServe's own client over gRPC, against a real server. Its package is large: `pip install kserve` to run these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from engines import run
from serving import MODELS, ServerProcess, digits, server_process

from trnrt import InferenceSession

kserve = pytest.importorskip("kserve")
ROWS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = [str(MODELS / f"{name}.onnx") for name in ("digits_cnn", "digits_ffnn")]
    flags = ("--max-batch", "8", "--max-body-mib", "1", "--grpc-port", "0")
    with server_process(tmp_path_factory.mktemp("server"), *models, *flags) as made:
        yield made


def request_of(array: Any, name: str = "image", model: str = "digits_cnn", binary: bool = True, **fields: Any) -> Any:
    """A request with one tensor."""
    tensor = kserve.InferInput(name=name, shape=list(array.shape), datatype=fields.pop("datatype", "FP32"))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return kserve.InferRequest(infer_inputs=[tensor], model_name=model, **fields)


def test_health(server: ServerProcess) -> None:
    async def work() -> None:
        async with kserve.InferenceGRPCClient(url=server.grpc_address) as client:
            assert await client.is_server_live() and await client.is_server_ready()
            assert await client.is_model_ready("digits_cnn") and not await client.is_model_ready("nobody")

    run(work())


@pytest.mark.parametrize("binary", [True, False])
def test_infer(server: ServerProcess, binary: bool) -> None:
    images, _ = digits(ROWS)
    expected = InferenceSession(MODELS / "digits_cnn.onnx", buckets=(8,)).run(["logits"], {"image": images})[0]

    async def work() -> None:
        async with kserve.InferenceGRPCClient(url=server.grpc_address) as client:
            answer = await client.infer(request_of(images, binary=binary, request_id="mine"))
            assert (answer.id, answer.model_name) == ("mine", "digits_cnn")
            np.testing.assert_allclose(answer.outputs[0].as_numpy(), expected, rtol=1e-5, atol=1e-5)
            answer = await client.infer(request_of(images, model="digits_ffnn", binary=binary))
            found = {output.name: output.as_numpy() for output in answer.outputs}
            assert found["label"].dtype == np.int64
            assert found["label"].tolist() == found["probabilities"].argmax(axis=1).tolist()

    run(work())


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (lambda: request_of(np.zeros((1, 1, 8, 7), np.float32)), "INVALID_ARGUMENT", "image"),
        (lambda: request_of(np.zeros((1, 1, 8, 8), np.int32), datatype="INT32"), "INVALID_ARGUMENT", "wants FP32"),
        (
            lambda: request_of(np.zeros((1, 1, 8, 8), np.float32), name="pixels"),
            "INVALID_ARGUMENT",
            "no input 'pixels'",
        ),
        (lambda: request_of(np.zeros((1, 1, 8, 8), np.float32), model="nobody"), "NOT_FOUND", "nobody"),
        (lambda: request_of(np.zeros((5000, 1, 8, 8), np.float32)), "RESOURCE_EXHAUSTED", "bytes"),
    ],
)
def test_bad_requests_raise(server: ServerProcess, request_: Any, code: str, told: str) -> None:
    async def work() -> None:
        async with kserve.InferenceGRPCClient(url=server.grpc_address, retries=0) as client:
            with pytest.raises(grpc.RpcError) as caught:
                await client.infer(request_())
            assert caught.value.code().name == code and told in caught.value.details()

    run(work())
