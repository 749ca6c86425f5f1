"""``python -m benchmarks.serve.bare MODEL --port 0 --workers N``: a bare application, to compare ``trnrt serve`` with.

What one writes by hand: FastAPI on uvicorn, with httptools and uvloop, and an async handler that parses the request's
JSON, runs onnxruntime with one thread, and returns the answer's JSON. It has no batches, limits, keys, metrics or log,
and checks nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.requests import Request

MODEL = "BARE_MODEL"
"""The environment variable with the model's file, for the workers, which import this module."""


def make_app() -> FastAPI:
    """The application for the model in the environment."""
    app, path = FastAPI(), Path(os.environ[MODEL])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (taken,), (given,) = session.get_inputs(), session.get_outputs()

    @app.get("/v2/health/ready")
    async def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/v2/models/{model}/infer")
    async def infer(model: str, request: Request) -> JSONResponse:
        asked: dict[str, Any] = await request.json()
        (tensor,) = asked["inputs"]
        rows = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        (logits,) = session.run(None, {taken.name: rows})
        output = {"name": given.name, "datatype": "FP32", "shape": logits.shape, "data": logits.ravel().tolist()}
        answer = {"model_name": model, "model_version": "1", "id": asked.get("id"), "outputs": [output]}
        return JSONResponse(answer, headers={"X-Request-Id": request.headers.get("x-request-id", "")})

    return app


def main(arguments: list[str]) -> None:
    """Serve the model in the first argument."""
    import argparse
    import socket

    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve.bare")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    os.environ[MODEL] = given.model
    if not given.port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            given.port = free.getsockname()[1]
    print(f"listening on http://127.0.0.1:{given.port};", flush=True)
    uvicorn.run(
        "benchmarks.serve.bare:make_app",
        factory=True,
        port=given.port,
        workers=given.workers,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_config=None,
    )


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
