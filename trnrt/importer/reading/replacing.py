"""A model's file with other weights: those that a session's options give, or the data of files that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from trnrt.errors import ModelFileError, OptionError
from trnrt.importer.naming import root_cause
from trnrt.importer.reading import checking, external
from trnrt.importer.reading.limits import LARGEST_MODEL
from trnrt.importer.reading.model_file import parse, read_content
from trnrt.importer.records import GivenWeights
from trnrt.text import list_text, one_line, quote


def replace_weights(source: str | os.PathLike[str] | bytes, given: GivenWeights) -> bytes:
    """See ``trnrt.importer.replace_weights``."""
    folder = None if given.folder is None else Path(given.folder)
    if isinstance(source, bytes):
        data, where = source, "the model"
    else:
        where = one_line(os.fspath(source))
        data, folder = read_content(Path(source), where), folder or Path(source).parent
    proto = parse(data, where)
    checking.check_names(proto, where)
    checking.check_tensors(proto, where)
    _replace_arrays(proto, given.arrays)
    external.load(proto, folder, where, LARGEST_MODEL - len(data), given.files)
    try:
        return bytes(proto.SerializeToString())
    except Exception as error:  # protobuf's own, whose class depends on the version
        raise ModelFileError(f"{where}: the model with its weights is too large ({root_cause(error)})") from None


def _replace_arrays(model: onnx.ModelProto, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put the arrays in the place of the initializers of their names; OptionError for one that doesn't fit."""
    known = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, array in arrays.items():
        if name not in known:
            hint = f"its weights are {list_text(map(quote, known)) or 'none'}"
            raise OptionError(f"the model has no weight {quote(name)}", hint=hint)
        old, new = known[name], numpy_helper.from_array(array, name)
        if (old.data_type, list(old.dims)) != (new.data_type, list(new.dims)):
            raise OptionError(
                f"the weight {quote(name)} is {_type_text(old)}; the value given for it is {_type_text(new)}",
                hint="give a value of the same dtype and shape",
            )
        old.CopyFrom(new)


def _type_text(tensor: onnx.TensorProto) -> str:
    return f"{onnx.TensorProto.DataType.Name(tensor.data_type).lower()} {list(tensor.dims)}"
