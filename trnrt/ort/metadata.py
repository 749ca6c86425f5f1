"""A model file's metadata in onnxruntime's terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from trnrt.importer import ImportedModel

_NO_VERSION = 2**63 - 1
"""onnxruntime's version of a model whose file has none."""


@dataclass(frozen=True)
class ModelMetadata:
    """The model file's notes on itself."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = _NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


def metadata_of(model: ImportedModel) -> ModelMetadata:
    """The metadata of a model as read."""
    read = model.model
    return ModelMetadata(
        producer_name=read.producer_name or "",
        graph_name=read.graph.name or "",
        domain=read.domain or "",
        description=read.doc_string or "",
        graph_description=read.graph.doc_string or "",
        version=_NO_VERSION if read.model_version is None else read.model_version,
        custom_metadata_map=dict(model.metadata),
    )
