"""Sizes for dimensions that a file leaves open, written into the model as if the file had them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from trnrt.errors import OptionError
from trnrt.importer.reading.protos import all_graphs
from trnrt.importer.records import OpenSizes
from trnrt.text import quote


def set_sizes(model: onnx.ModelProto, sizes: OpenSizes) -> None:
    """Give each dimension with one of these names, or denotations in an input, its size. Other names are ignored.

    OptionError for a denotation whose dimension the file gives another size.
    """
    named = dict(sizes.named)
    for info in model.graph.input:
        for dim in _dims(info.type):
            if dim.denotation in sizes.denoted:
                _note_size(named, info.name, dim, sizes.denoted[dim.denotation])
    for graph in all_graphs(model):
        for infos in (graph.input, graph.output, graph.value_info):
            for info in infos:
                for dim in _dims(info.type):
                    if dim.dim_param in named:
                        dim.dim_value = named[dim.dim_param]


def _note_size(named: dict[str, int], name: str, dim: onnx.TensorShapeProto.Dimension, size: int) -> None:
    """Give an open dimension ``size``; one with a name also wherever else the name stands."""
    if dim.dim_param:
        named.setdefault(dim.dim_param, size)
    elif not dim.HasField("dim_value"):
        dim.dim_value = size
    elif dim.dim_value != size:
        raise OptionError(f"the {dim.denotation} of input {quote(name)} is {dim.dim_value}, not {size}")


def _dims(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    if kind.HasField("tensor_type"):
        yield from kind.tensor_type.shape.dim
