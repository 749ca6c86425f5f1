"""The content of /openapi.json: the shapes of requests and answers, and every status that each path can have.

These only describe: ``protocol`` parses requests itself, which is faster and has better error messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trnrt.inputs.fitting import FITS
from trnrt.inputs.images import CHANNELS, LAYOUTS
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


_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}

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
        digest={"type": "string", "description": "sha256: and the digest of the content; empty if there is none."},
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
        "model_name model_version outputs",
        model_name=_STRING,
        model_version=_STRING,
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
        "model version predictions timing",
        model=_STRING,
        version=_STRING,
        predictions={
            "type": "array",
            "description": "One item a row: its class, the values of the outputs, or a picture's boxes and mask.",
        },
        kind={"type": "string", "enum": ["boxes", "mask"]},
        rule=_STRING,
        labels=_list(_STRING),
        probabilities=_list(_list(_NUMBER)),
        activation=_record(
            kind={"type": "string", "enum": ["softmax", "sigmoid"]},
            by={"type": "string", "enum": ["model", "server"]},
            known_by={"type": "string", "enum": ["graph", "numbers"]},
        ),
        top=_list(_list(_record(label=_STRING, probability=_NUMBER))),
        timing=ref("Timing"),
    ),
    "ModelConfig": _record(
        name=_STRING,
        platform=_STRING,
        backend=_STRING,
        max_batch_size=_COUNT,
        input=_list(ref("ModelTensor")),
        output=_list(ref("ModelTensor")),
        instance_group=_list(_PARAMETERS),
        model_transaction_policy=_PARAMETERS,
    ),
    "ModelTensor": _record(name=_STRING, data_type=_STRING, dims=_list({"type": "integer", "minimum": -1})),
    "Statistics": _record(model_stats=_list(ref("ModelStatistics"))),
    "ModelStatistics": _record(
        name=_STRING,
        version=_STRING,
        last_inference={**_COUNT, "description": "When a batch was last computed, milliseconds of Unix time."},
        inference_count=_COUNT,
        execution_count=_COUNT,
        inference_stats={"type": "object", "additionalProperties": ref("Duration")},
        response_stats={"type": "object"},
        batch_stats=_list(
            _record(
                batch_size=_COUNT,
                compute_input=ref("Duration"),
                compute_infer=ref("Duration"),
                compute_output=ref("Duration"),
            )
        ),
        memory_usage={"type": "array"},
    ),
    "Duration": _record(count=_COUNT, ns=_COUNT),
    "V1Models": _record(models=_list(_STRING)),
    "V1Request": {
        "type": "object",
        "description": "instances or inputs, not both.",
        "properties": {
            "instances": {"type": "array", "minItems": 1, "description": "Rows, as of /predict."},
            "inputs": {
                "type": ["array", "object"],
                "description": "Columns: for each input all its rows, nested like its shape. A list is instances.",
            },
        },
    },
    "V1Answer": {
        "type": "object",
        "properties": {
            "predictions": {"type": "array", "description": "For instances: the outputs of each row."},
            "outputs": {"description": "For columns: the only output, or an object with each of them."},
        },
    },
    "IndexRequest": _object("", ready={"type": "boolean", "description": "True: only models that are ready."}),
    "LoadRequest": _object("", parameters={"type": "object", "maxProperties": 0}),
    "UnloadRequest": _object(
        "",
        parameters={
            "type": "object",
            "properties": {"unload_dependents": {"type": "boolean", "description": "No model has any."}},
            "additionalProperties": False,
        },
    ),
    "CanaryRequest": _record(version=_STRING, share=_SHARE),
    "CanaryState": _object("", version=_STRING, share=_SHARE),
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
    403: "Another site's web page; or the server or the key does not allow this.",
    404: "There is no such model, version or path.",
    405: "The path does not take this method.",
    408: "The request came too slowly.",
    413: "The body is larger than the server's limit.",
    414: "The request's target is longer than the server's limit.",
    415: "The body's type or encoding is none that is taken.",
    421: "The Host header names another server.",
    429: "The model's queue is full, or the key's limit is reached; Retry-After says when to come back.",
    431: "The headers are larger than the server's limit, or too many.",
    500: "The server's own fault; the text has the request's id and no details.",
    501: "A method or a Transfer-Encoding that the server does not have.",
    503: "Not ready, shutting down, or too many requests at once.",
    504: "The request took longer than the server's limit; its work is dropped.",
    505: "The server speaks HTTP/1.1.",
}
EVERYWHERE = (400, 401, 403, 405, 408, 413, 414, 415, 421, 429, 431, 500, 501, 503, 504, 505)
"""The statuses of the layers in ``limits`` and of the connection, which every path has."""
FOR_A_MODEL = (404, *EVERYWHERE)
FOR_INPUT = (404, *EVERYWHERE)

PATH_PARAMETERS: dict[str, Schema] = {
    name: {"name": name, "in": "path", "required": True, "schema": _STRING, "description": description}
    for name, description in (
        ("model", "A model's name, or NAME@VERSION, or NAME@sha256: with at least 12 digits of its content's digest."),
        ("version", "A version of the model; that of a file is 1."),
    )
}
_WHICH: Schema = {
    "name": "model",
    "in": "query",
    "schema": _STRING,
    "description": "A model's name, or NAME@VERSION; required unless the server has one model.",
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


def _preparing(name: str, schema: Schema, meaning: str) -> Schema:
    """A parameter of ``preparing``."""
    text = f"Pictures: {meaning}; by default as the model declares."
    return {"name": name, "in": "query", "schema": schema, "description": text}


_PREPARING = [
    _preparing("layout", {"type": "string", "enum": list(LAYOUTS)}, "the order of the input's dimensions"),
    _preparing("color", {"type": "string", "enum": list(CHANNELS)}, "the input's channels, in order"),
    _preparing("fit", {"type": "string", "enum": list(FITS)}, "how one of another size is fitted"),
    _preparing("scale", _NUMBER, "value = (pixel * scale - mean) / std, for pixels of 0 to 255"),
    _preparing("mean", _STRING, "see scale; one number, or one per channel with commas between"),
    _preparing("std", _STRING, "see scale; one number, or one per channel with commas between"),
]


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
V1: Schema = {"requestBody": {"required": True, "content": {JSON: {"schema": ref("V1Request")}}}}


def body_of(name: str) -> Schema:
    """A path's optional body, one of SCHEMAS."""
    return {"requestBody": {"required": False, "content": {JSON: {"schema": ref(name)}}}}


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
    "parameters": [_WHICH, _DRAW, _MIN_SCORE, *_PREPARING],
}
