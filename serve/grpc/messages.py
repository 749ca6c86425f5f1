"""The messages of the protocol, as classes.

``protocol.binpb`` is what protoc makes of the two ``.proto`` files beside it: data, which every release of protobuf
reads, while generated code runs with some releases only. The descriptors are in a pool of their own, so that clients of
the same protocol in this process keep theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

DESCRIPTORS = Path(__file__).with_name("protocol.binpb")
_POOL = DescriptorPool()
for _file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
    _POOL.Add(_file)


def message_class(name: str) -> Any:
    """The class of a message by its full name, such as inference.ModelInferRequest. KeyError if there is none."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))


InferContents = message_class("inference.InferTensorContents")
InferAnswer = message_class("inference.ModelInferResponse")
LiveAnswer = message_class("inference.ServerLiveResponse")
ReadyAnswer = message_class("inference.ServerReadyResponse")
ServerAnswer = message_class("inference.ServerMetadataResponse")
NamedModel = message_class("inference.ModelReadyRequest")
"""A model's name and version; ModelMetadataRequest has the same fields."""
ModelReadyAnswer = message_class("inference.ModelReadyResponse")
MetadataAnswer = message_class("inference.ModelMetadataResponse")
InferCall = message_class("trnrt.InferCall")
InferInput = message_class("trnrt.InferInput")
InferOutput = message_class("trnrt.InferOutput")
ParameterName = message_class("trnrt.ParameterName")
StreamAnswer = message_class("trnrt.StreamAnswer")
IndexRequest = message_class("trnrt.IndexRequest")
IndexAnswer = message_class("trnrt.IndexAnswer")
ModelRequest = message_class("trnrt.ModelRequest")
ModelAnswer = message_class("trnrt.ModelAnswer")
HealthRequest = message_class("trnrt.HealthRequest")
HealthAnswer = message_class("trnrt.HealthAnswer")
ConfigAnswer = message_class("trnrt.ConfigAnswer")
StatisticsAnswer = message_class("trnrt.StatisticsAnswer")
