"""The content of /openapi.json: the shapes of requests and answers, and every status that each path can have.

These only describe: ``protocol`` parses requests itself, which is faster and has better error messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnrt.serve.http.protocol import BINARY, HEADER_LENGTH, JSON
from trnrt.serve.http.tensors import DATATYPES, NAN_POLICIES

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_BYTES: Schema = {"type": "string", "format": "binary"}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_BOOL: Schema = {"type": "boolean"}
_SHAPE: Schema = {"type": "array", "items": _COUNT}
_DATATYPE: Schema = {"type": "string", "enum": list(DATATYPES)}
_PARAMETERS: Schema = {"type": "object", "additionalProperties": True}


def ref(name: str) -> Schema:
    """A reference to one of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": properties}


def _record(**properties: Schema) -> Schema:
    """An object that has all of its properties."""
    return _object(" ".join(properties), **properties)


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


SCHEMAS: dict[str, Schema] = {
    "Empty": {"type": "object"},
    "Error": {**_record(error=_STRING), "additionalProperties": False},
    "Live": _record(live={"type": "boolean", "const": True}),
    "Ready": _record(ready={"type": "boolean", "const": True}),
    "ModelReady": _record(name=_STRING, ready={"type": "boolean", "const": True}),
    "Server": _record(name=_STRING, version=_STRING, extensions=_list(_STRING)),
    "TensorMetadata": _record(name=_STRING, datatype=_DATATYPE, shape=_list({"type": "integer", "minimum": -1})),
    "Model": _record(
        name=_STRING,
        versions=_list(_STRING),
        platform=_STRING,
        inputs=_list(ref("TensorMetadata")),
        outputs=_list(ref("TensorMetadata")),
    ),
    "InputTensor": _object(
        "name shape datatype",
        name=_STRING,
        shape=_SHAPE,
        datatype=_DATATYPE,
        data={"description": "Row-major, nested like the shape or flat; left out where binary data follow."},
        parameters={**_PARAMETERS, "properties": {"binary_data_size": _COUNT}},
    ),
    "RequestedOutput": _object("name", name=_STRING, parameters={**_PARAMETERS, "properties": {"binary_data": _BOOL}}),
    "InferRequest": _object(
        "inputs",
        id=_STRING,
        inputs=_list(ref("InputTensor")),
        outputs=_list(ref("RequestedOutput")),
        parameters={
            **_PARAMETERS,
            "properties": {"binary_data_output": _BOOL, "nan_policy": {"type": "string", "enum": list(NAN_POLICIES)}},
        },
    ),
    "OutputTensor": _object(
        "name datatype shape",
        name=_STRING,
        datatype=_DATATYPE,
        shape=_SHAPE,
        data={"type": "array"},
        parameters=_PARAMETERS,
    ),
    "InferResponse": _object(
        "model_name outputs",
        model_name=_STRING,
        id=_STRING,
        outputs=_list(ref("OutputTensor")),
        parameters={
            **_PARAMETERS,
            "description": "Where the time went, milliseconds, and in which batch the rows were.",
        },
    ),
    "PredictRequest": _object(
        "instances",
        instances={
            "type": "array",
            "minItems": 1,
            "description": "One item a row: its values, nested or flat; for several inputs an object of them.",
        },
    ),
    "Timing": _object(
        "queue_ms batch_ms compute_ms total_ms rows batch_rows bucket predicted_device_us",
        queue_ms=_NUMBER,
        batch_ms=_NUMBER,
        compute_ms=_NUMBER,
        total_ms=_NUMBER,
        rows=_COUNT,
        batch_rows=_COUNT,
        bucket=_COUNT,
        length=_COUNT,
        length_bucket=_COUNT,
        predicted_device_us={"type": ["number", "null"]},
    ),
    "Prediction": _object(
        "model predictions timing",
        model=_STRING,
        predictions={
            "type": "array",
            "description": "One item a row: its class, the values of the outputs, or a picture's boxes and mask.",
        },
        kind={"type": "string", "enum": ["boxes", "mask"]},
        rule=_STRING,
        labels=_list(_STRING),
        probabilities=_list(_list(_NUMBER)),
        top=_list(_list(_record(label=_STRING, probability=_NUMBER))),
        timing=ref("Timing"),
    ),
    "RepositoryIndex": _list(_object("name state", name=_STRING, version=_STRING, state=_STRING, reason=_STRING)),
}

KEYS: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
"""How a client sends an API key, if the server has any."""

WHY = {
    400: "The request or a tensor is wrong; the text says where, what was expected and what was given.",
    401: "The server has API keys, and this request none of them.",
    403: "The server does not load or unload models over HTTP.",
    404: "There is no such model, version or path.",
    405: "The path does not take this method.",
    413: "The body is larger than the server's limit.",
    415: "The body's type or encoding is none that is taken.",
    429: "The model's queue is full; Retry-After says when to come back.",
    500: "The server's own fault; the text has the request's id and no details.",
    503: "Not ready, shutting down, or too many requests at once.",
    504: "The request took longer than the server's limit; its work is dropped.",
}
EVERYWHERE = (401, 405, 413, 415, 500, 503, 504)
"""The statuses of the layers in ``limits``, which every path has."""
FOR_A_MODEL = (404, *EVERYWHERE)
FOR_INPUT = (400, 404, 429, *EVERYWHERE)

PATH_PARAMETERS: dict[str, Schema] = {
    name: {"name": name, "in": "path", "required": True, "schema": _STRING, "description": description}
    for name, description in (("model", "A model's name."), ("version", "A version of the model; the only one is 1."))
}
_WHICH: Schema = {
    "name": "model",
    "in": "query",
    "schema": _STRING,
    "description": "A model's name; required unless the server has one model.",
}

_DRAW: Schema = {
    "name": "draw",
    "in": "query",
    "schema": {"type": "string", "enum": ["auto", "boxes", "mask", "none"]},
    "description": "Pictures: boxes or a mask if that is sure (auto, the default), one of them, or raw outputs (none).",
}
_MIN_SCORE: Schema = {
    "name": "min_score",
    "in": "query",
    "schema": {"type": "number", "minimum": 0, "maximum": 1},
    "description": "Pictures: the least score of a box; by default 0.25.",
}


def describe_choice(document: Schema, names: Sequence[str], *, required: bool) -> None:
    """Say in /openapi.json if ``/predict`` needs the name of a model, and which names there are.

    They are examples and no enumeration, as models come and go, and a name may have a version.
    """
    for parameter in document["paths"]["/predict"]["post"]["parameters"]:
        if parameter["name"] == _WHICH["name"]:
            parameter["required"] = required
            parameter["examples"] = {name: {"value": name} for name in names}


def responses(success: str | Mapping[str, Schema], failures: tuple[int, ...]) -> dict[int | str, Schema]:
    """The statuses of a path: 200 with ``success``, a schema's name or content by type, and failures."""
    content = {JSON: {"schema": ref(success)}} if isinstance(success, str) else success
    found: dict[int | str, Schema] = {200: {"description": "Success", "content": content}}
    error = {JSON: {"schema": ref("Error")}}
    return found | {status: {"description": WHY[status], "content": error} for status in sorted(failures)}


_BINARY_CONTENT: Schema = {BINARY: {"schema": _BYTES}}
INFER_SUCCESS: Schema = {JSON: {"schema": ref("InferResponse")}, **_BINARY_CONTENT}
METRICS_SUCCESS: Schema = {"text/plain": {"schema": _STRING}}

INFER: Schema = {
    "requestBody": {"required": True, "content": {JSON: {"schema": ref("InferRequest")}, **_BINARY_CONTENT}},
    "parameters": [
        {
            "name": HEADER_LENGTH,
            "in": "header",
            "schema": _COUNT,
            "description": "The length of the JSON, behind which binary tensors stand.",
        }
    ],
}
PREDICT: Schema = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": ref("PredictRequest")},
            "image/png": {"schema": _BYTES},
            "image/jpeg": {"schema": _BYTES},
            "multipart/form-data": {"schema": _record(image=_BYTES)},
        },
    },
    "parameters": [_WHICH, _DRAW, _MIN_SCORE],
}
