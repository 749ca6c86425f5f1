"""``PYTHON -m benchmarks.serve.mlserver_app MODEL``: MLServer with a model run by onnxruntime, to compare with.

PYTHON's environment has mlserver and onnxruntime. The model runs in the server's own process (no parallel workers),
with one thread, which is MLServer's fastest setting for a small one.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, Parameters, ResponseOutput


class OnnxModel(MLModel):  # type: ignore[misc]
    """An ONNX model with one float32 input and one output."""

    async def load(self) -> bool:
        """Make the session."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = self.settings.parameters.uri
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (self._taken,), (self._given,) = self._session.get_inputs(), self._session.get_outputs()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run it. The answer repeats the request's X-Request-Id, for the ledger of the load."""
        (tensor,) = payload.inputs
        rows = np.array(tensor.data, np.float32).reshape(tensor.shape)
        (numbers,) = self._session.run(None, {self._taken.name: rows})
        output = ResponseOutput(
            name=self._given.name, datatype="FP32", shape=list(numbers.shape), data=numbers.ravel().tolist()
        )
        headers = (payload.parameters.headers if payload.parameters else None) or {}
        named = Parameters(headers={"X-Request-Id": headers.get("x-request-id", "")})
        return InferenceResponse(id=payload.id, model_name=self.name, parameters=named, outputs=[output])


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main(arguments: list[str]) -> None:
    """Serve the model in the first argument."""
    model, port = Path(arguments[0]), free_port()
    settings = Settings(
        debug=False,
        host="127.0.0.1",
        http_port=port,
        grpc_port=free_port(),
        metrics_port=free_port(),
        parallel_workers=0,
        load_models_at_startup=False,
    )
    parameters = ModelParameters(uri=str(model), version="1")
    loaded = ModelSettings(name=model.stem, implementation=OnnxModel, parameters=parameters)
    sys.stdout.write(f"listening on http://127.0.0.1:{port};\n")
    sys.stdout.flush()

    async def serve() -> None:
        await MLServer(settings).start([loaded])

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1:])
