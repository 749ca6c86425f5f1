"""A model's configuration in Triton's form: the fields of its ModelConfig message, as JSON has them.

``google.protobuf.json_format.ParseDict`` makes the message of it. Triton's documentation: docs/protocol/
extension_model_configuration.md of triton-inference-server/server, protobuf/model_config.proto of .../common.
"""

from __future__ import annotations

from typing import Any

from trnrt.serve.hosting.description import NOTHING_KNOWN, Description, TensorMeta
from trnrt.serve.hosting.repository import Repository
from trnrt.serve.hosting.served import Model, check_ready
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import output_datatype
from trnrt.serve.http.tensors import TensorError
from trnrt.serve.settings import ServeSettings

PLATFORM = "trnrt_onnx"
BACKEND = "trnrt"


def configuration_of(repository: Repository, name: str, version: str = "") -> dict[str, Any]:
    """A model's configuration. Problem: 404 for an unknown one, 503 for one that was never loaded, 500 if the protocol
    has no datatype for a tensor."""
    model = repository.find_main(name, version)
    if model.described == NOTHING_KNOWN:
        check_ready(model)
    try:
        return model_config(model, repository.settings.for_model(model.name))
    except TensorError as error:
        raise Problem(500, str(error)) from None


def model_config(model: Model, settings: ServeSettings) -> dict[str, Any]:
    """The configuration of a model that was loaded. TensorError if the protocol has no datatype for a tensor.

    ``max_batch_size`` is the most rows that share a batch; 0 if its tensors have no rows, or its rows can't share one.
    As in Triton, ``dims`` leave the rows out unless it is 0. Requests of more rows are answered, too, in several runs.
    """
    described = model.described
    rows = most_rows(described)
    config: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": rows,
        "input": [_tensor(meta, rows) for meta in described.inputs],
        "output": [_tensor(meta, rows) for meta in described.outputs],
        # The backend itself decides what runs an instance: NeuronCores, or the CPU that simulates them.
        "instance_group": [{"name": f"{model.name}_0", "kind": "KIND_MODEL", "count": _instances(settings)}],
        "model_transaction_policy": {"decoupled": False},
    }
    if rows and settings.batching:
        config["dynamic_batching"] = {
            "preferred_batch_size": list(described.buckets),
            "max_queue_delay_microseconds": round(settings.max_delay_ms * 1e3),
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": round(settings.request_timeout * 1e6),
                "max_queue_size": settings.max_queue,
            },
        }
    return config


def most_rows(described: Description) -> int:
    """The most rows of a batch, if every tensor has them and rows of different requests can share a batch; else 0."""
    if described.batch is None or described.mixing is not None or described.parameters:
        return 0
    leading = (-1, described.batch)
    has_rows = all(meta.shape and meta.shape[0] in leading for meta in (*described.inputs, *described.outputs))
    return max(described.buckets, default=0) if has_rows else 0


def _tensor(meta: TensorMeta, rows: int) -> dict[str, Any]:
    name = output_datatype(meta).name
    data_type = "TYPE_STRING" if name == "BYTES" else f"TYPE_{name}"
    return {"name": meta.name, "data_type": data_type, "dims": list(meta.shape[1:] if rows else meta.shape)}


def _instances(settings: ServeSettings) -> int:
    """Copies of the model, in all processes together."""
    return settings.replicas if settings.engine == "ray" else settings.workers * settings.instances
