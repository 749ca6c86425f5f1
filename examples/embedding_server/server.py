"""Serve embeddings over HTTP: ``POST /embed``, and ``POST /v1/embeddings`` for clients of OpenAI's API.

python server.py all-MiniLM-L6-v2 minilm.onnx --dtype bfloat16 --port 8001
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import uvicorn
from embedding import BATCHES, Embedder
from fastapi import FastAPI, HTTPException, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from folder import FolderError, read_folder
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from tokenizers import Encoding

from trnrt.errors import TrnrtError
from trnrt.running.buckets import parse_buckets
from trnrt.running.lengths import parse_lengths

MOST_TEXTS, MOST_CHARACTERS, MOST_WAITING = 256, 100_000, 4096
"""Limits: texts of a request, characters of a text, texts that wait for the core."""

Text = Annotated[str, Field(max_length=MOST_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MOST_TEXTS)]
Vectors = NDArray[np.float32]


class EmbedRequest(BaseModel):
    """The body of ``/embed``."""

    texts: Texts


class OpenAIRequest(BaseModel):
    """The body of ``/v1/embeddings``; other fields are ignored."""

    input: Text | Texts
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"


class Queue:
    """Requests that came while the core was busy run together: their texts share batches."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._waiting: list[tuple[list[Encoding], asyncio.Future[Vectors]]] = []
        self._came = asyncio.Event()

    async def embed(self, tokens: list[Encoding]) -> Vectors:
        """The embeddings of a request. HTTPException(503) if too many texts wait."""
        if sum(len(one) for one, _ in self._waiting) + len(tokens) > MOST_WAITING:
            raise HTTPException(503, f"{MOST_WAITING} texts wait, which is the limit", {"Retry-After": "1"})
        answer: asyncio.Future[Vectors] = asyncio.get_running_loop().create_future()
        self._waiting.append((tokens, answer))
        self._came.set()
        return await answer

    async def work(self) -> None:
        """Compute the waiting requests, again and again."""
        while True:
            await self._came.wait()
            self._came.clear()
            batch, self._waiting = self._waiting, []
            tokens = [one for given, _ in batch for one in given]
            try:
                vectors = await asyncio.to_thread(self._embedder.embed, tokens)
            except Exception as error:
                _settle_all(batch, error)
                continue
            start = 0
            for given, answer in batch:
                if not answer.done():  # a client may have gone
                    answer.set_result(vectors[start : start + len(given)])
                start += len(given)


def _settle_all(batch: Sequence[tuple[list[Encoding], asyncio.Future[Vectors]]], error: Exception) -> None:
    for _, answer in batch:
        if not answer.done():
            answer.set_exception(error)


def make_app(embedder: Embedder, name: str) -> FastAPI:
    """The application; it takes requests once every length is compiled."""
    queue: Queue

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal queue
        await asyncio.to_thread(embedder.warm_up)
        queue = Queue(embedder)
        worker = asyncio.create_task(queue.work())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        embedder.session.close()

    app = FastAPI(title="trnrt embedding server", lifespan=lifespan)
    app.add_exception_handler(RequestValidationError, _refuse)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"model": name, "lengths": embedder.lengths, "backend": embedder.session.backend}

    @app.post("/embed")
    async def embed(request: EmbedRequest) -> dict[str, Any]:
        tokens = await asyncio.to_thread(embedder.tokenize, request.texts)
        vectors = await queue.embed(tokens)
        return {"embeddings": vectors.tolist(), "tokens": [len(one.ids) for one in tokens]}

    @app.post("/v1/embeddings")
    async def openai_embeddings(request: OpenAIRequest) -> dict[str, Any]:
        texts = [request.input] if isinstance(request.input, str) else request.input
        tokens = await asyncio.to_thread(embedder.tokenize, texts)
        rows = await queue.embed(tokens)
        as_text = request.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _base64(row) if as_text else row.tolist()}
            for index, row in enumerate(rows)
        ]
        count = sum(len(one.ids) for one in tokens)
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": name, "usage": usage}

    return app


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    """422 with the reasons, but without the input: it may be long, or hold what no JSON can (NaN, half a character)."""
    assert isinstance(error, RequestValidationError)
    reasons = [{name: value for name, value in reason.items() if name != "input"} for reason in error.errors()]
    return JSONResponse({"detail": jsonable_encoder(reasons)}, 422)


def _base64(row: Vectors) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")


def main() -> int:
    """Read the command line, compile, and serve."""
    parser = argparse.ArgumentParser(description="Serve a sentence-transformers model's embeddings over HTTP.")
    parser.add_argument("folder", type=Path, help="the folder, for its tokenizer and settings")
    parser.add_argument("model", type=Path, help="the .onnx file that export.py wrote")
    parser.add_argument("--lengths", type=parse_lengths, help="lengths in tokens to compile for: 32,64,128")
    parser.add_argument("--buckets", type=parse_buckets, default=BATCHES, help="batch sizes to compile for: 1,8,32")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--target", help="trn1, trn2 or trn3; by default this machine's device, else trn2")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    try:
        given = parser.parse_args()
        folder = read_folder(given.folder)
        embedder = Embedder(
            folder, given.model, lengths=given.lengths, buckets=given.buckets, dtype=given.dtype, target=given.target
        )
    except (FolderError, TrnrtError) as error:
        hint = getattr(error, "hint", None)
        print(f"error: {error}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
        return 2
    uvicorn.run(make_app(embedder, given.folder.resolve().name), host=given.host, port=given.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
