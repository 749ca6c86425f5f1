"""Conversions of requests and answers: the small ones on the event loop, the large ones elsewhere.

Large JSON is read and written by another process, as Python's parser can't be interrupted; large binary tensors by a
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from trnrt.serve.hosting.batching import Inference
from trnrt.serve.hosting.description import Description
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model
from trnrt.serve.http.bodies import INLINE, Spool
from trnrt.serve.http.columns import feeds_of_v1, outputs_of_v1
from trnrt.serve.http.large import essence, pack_strings, unpack_strings
from trnrt.serve.http.predicting import feeds_of, instances_of, predictions_of
from trnrt.serve.http.problems import RETRY_AFTER_S, Problem
from trnrt.serve.http.protocol import HEADER_LENGTH, InferRequest, answer_head, dumps, parse_infer, render_infer
from trnrt.serve.processes.logs import log
from trnrt.serve.processes.readers import Reader, ReaderLost

Array = NDArray[Any]

MOST_ELEMENTS = 1 << 12
"""Elements of an answer that the event loop writes as JSON: they take it 3 ms."""
MOST_ROWS = 1 << 7
"""Rows of a small body that the event loop reads: wrong ones take it 10 microseconds each, however short they are."""
MOST_STRINGS_SIZE = 8 << 10
"""Bytes of binary tensors with strings that the event loop reads: 2,048 strings, in a millisecond."""
SMALL_TENSORS = 1 << 20
"""Bytes of binary tensors that the event loop copies."""
_BINARY_INSTEAD = f"send the tensors as binary data, with the header {HEADER_LENGTH}"
_BINARY_OUTPUTS = "ask for the outputs as binary data, by the protocol's infer"


class Converter:
    """Reads the requests and writes the answers of one application."""

    def __init__(self, repository: Repository) -> None:
        self._repository, self._metrics = repository, repository.metrics
        self.reader = Reader(self.largest_json)

    @property
    def largest_json(self) -> int:
        """The limit of a request's JSON, bytes, which a reload changes."""
        settings = self._repository.settings
        return min(settings.max_json_mib, settings.max_body_mib) << 20

    def check_json(self, size: int) -> None:
        """Problem(413) if JSON of so many bytes is too large."""
        if size <= self.largest_json:
            return
        self._metrics.count_rejection("body")
        limit = f"the server's limit (--max-json-mib) is {self.largest_json} bytes ({self.largest_json >> 20} MiB)"
        raise Problem(413, f"the JSON has {size} bytes; {limit}: {_BINARY_INSTEAD}")

    async def read_infer(
        self, body: bytes | Spool, length: int | None, described: Description, most_elements: int
    ) -> InferRequest:
        """``parse_infer``, wherever it disturbs nobody."""
        if isinstance(body, bytes):
            if length is not None and len(body) > MOST_STRINGS_SIZE and any(m.dtype == "str" for m in described.inputs):
                return await asyncio.to_thread(parse_infer, body, length, described, most_elements)
            return parse_infer(body, length, described, most_elements)
        json_size = len(body) if length is None else min(length, len(body))
        if json_size > INLINE:
            self.check_json(json_size)
            request: InferRequest
            request, packed = await self._run("read_infer", length, essence(described), most_elements, body=body)
            return replace(request, feeds=await _unpack(packed))
        if len(body) <= SMALL_TENSORS:
            return parse_infer(body.map(), length, described, most_elements)
        return await asyncio.to_thread(parse_infer, body.map(), length, described, most_elements)

    async def read_rows(self, body: bytes | Spool, described: Description, most_elements: int) -> dict[str, Array]:
        """``feeds_of`` a body, wherever it disturbs nobody."""
        if isinstance(body, bytes):
            instances = instances_of(body)
            if isinstance(instances, list):
                described.check_rows(len(instances))
                if len(instances) > MOST_ROWS:
                    return await asyncio.to_thread(feeds_of, instances, described.inputs, most_elements)
            return feeds_of(instances, described.inputs, most_elements)
        return await _unpack(await self._run("read_rows", essence(described), most_elements, body=body))

    async def read_v1(
        self, body: bytes | Spool, described: Description, most_elements: int
    ) -> tuple[dict[str, Array], bool]:
        """``feeds_of_v1`` a body, wherever it disturbs nobody."""
        if isinstance(body, bytes):
            return feeds_of_v1(body, described, most_elements)
        packed, by_column = await self._run("read_v1", essence(described), most_elements, body=body)
        return await _unpack(packed), by_column

    async def write_infer(
        self, model: Model, request: InferRequest, inference: Inference, parameters: Mapping[str, float]
    ) -> tuple[list[bytes | memoryview], int | None]:
        """The parts of ``render_infer``'s answer, and the length of its JSON if binary data follow."""
        outputs, described = inference.outputs, inference.described
        in_json, is_large = 0, False
        for name in request.outputs:
            in_json += outputs[name].size if name not in request.binary else 0
            is_large = is_large or _is_large(outputs[name])
        if in_json <= MOST_ELEMENTS:
            arguments = model.name, request, outputs, described.outputs, parameters, model.version
            return await asyncio.to_thread(render_infer, *arguments) if is_large else render_infer(*arguments)
        chosen = {name: outputs[name] for name in request.outputs}
        packed = await asyncio.to_thread(pack_strings, chosen)
        plain = InferRequest(request.id, {}, request.outputs, request.binary, request.nan_policy)
        parts, length = await self._run(
            "write_infer", answer_head(model.name, model.version), plain, packed, essence(described), parameters
        )
        return [part.data for part in parts], length

    async def write_predictions(self, inference: Inference) -> bytes | memoryview:
        """``predictions_of`` as JSON."""
        outputs, described = inference.outputs, inference.described
        if sum(array.size for array in outputs.values()) <= MOST_ELEMENTS:
            return dumps(predictions_of(outputs, described, inference.rows))
        packed = await asyncio.to_thread(pack_strings, outputs)
        made: Array = await self._run("write_predictions", packed, essence(described), inference.rows)
        return made.data

    async def write_v1(self, inference: Inference, by_column: bool) -> bytes | memoryview:
        """``outputs_of_v1``."""
        outputs, described = inference.outputs, inference.described
        if sum(array.size for array in outputs.values()) <= MOST_ELEMENTS:
            return outputs_of_v1(outputs, described, inference.rows, by_column)
        packed = await asyncio.to_thread(pack_strings, outputs)
        made: Array = await self._run("write_v1", packed, essence(described), inference.rows, by_column)
        return made.data

    async def _run(self, function: str, *arguments: object, body: Spool | None = None) -> Any:
        """The reader's result. Problem for its failures."""
        self.reader.allow(self.largest_json)
        try:
            if body is None:
                return await self.reader.run(function, *arguments)
            return await self.reader.run(function, body.start, *arguments, body=body.file)
        except MemoryError:
            self._metrics.count_rejection("body")
            problem = f"takes more than {self.reader.memory} bytes of memory, the server's limit by --max-json-mib"
            if body is not None:
                raise Problem(413, f"the JSON {problem}: {_BINARY_INSTEAD}") from None
            raise Problem(400, f"the answer as JSON {problem}: {_BINARY_OUTPUTS}") from None
        except ReaderLost as error:
            log("error", "reader_lost", error=str(error))
            self._metrics.count_rejection("reader")
            raise Problem(503, f"{error}; a new one starts", retry_after=RETRY_AFTER_S) from None


def _is_large(array: Array) -> bool:
    """True if to write an array as binary data takes the event loop too long; numbers are not even copied."""
    return array.size > MOST_ELEMENTS and array.dtype.kind in "OUS"


async def _unpack(packed: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays of numbers are there; a thread makes strings."""
    if all(hasattr(item, "dtype") for item in packed.values()):
        return dict(packed)
    return await asyncio.to_thread(unpack_strings, packed)
