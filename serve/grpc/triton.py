"""Triton's extensions over gRPC that its tools read: a model's configuration, and statistics."""

from __future__ import annotations

from google.protobuf.json_format import ParseDict

from trnrt.serve.grpc import messages
from trnrt.serve.grpc.calls import Call, Method
from trnrt.serve.grpc.inference import parse
from trnrt.serve.hosting.configuration import configuration_of
from trnrt.serve.hosting.statistics import read_statistics


def make_methods() -> dict[str, Method]:
    """The methods by name."""
    return {"ModelConfig": Method(configuration), "ModelStatistics": Method(statistics)}


async def configuration(call: Call) -> bytes:
    """A model's configuration."""
    given = parse(messages.NamedModel, await call.read())
    config = configuration_of(call.repository, given.name, given.version)
    return _encode(messages.ConfigAnswer, {"config": config})


async def statistics(call: Call) -> bytes:
    """The statistics of a model's versions, or of one, or of all models, summed over all workers."""
    given = parse(messages.NamedModel, await call.read())
    return _encode(messages.StatisticsAnswer, await read_statistics(call.repository, given.name, given.version))


def _encode(kind: type, document: dict[str, object]) -> bytes:
    """JSON's form of a message as bytes; members that we never fill are not in the message."""
    made: bytes = ParseDict(document, kind(), ignore_unknown_fields=True).SerializeToString()
    return made
