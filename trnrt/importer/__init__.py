"""ONNX file to graph: read, check, make static, fold, rewrite.

``describe`` lists the graph at two stages: *imported* (``ImportedModel.model``, the graph as read) and *rewritten*
(``GraphView.model``, made by ``ImportedModel.bind`` for concrete input shapes). This room knows ONNX, but not NKI.

Importing this package imports neither ``onnx`` nor ``onnx_ir`` nor ``onnxscript``: together they take most of a second,
and commands that read no model should not wait for them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.importer.model import ImportedModel
from trnrt.importer.records import GivenWeights, GraphView, OpenSizes, TensorInfo

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = [
    "GivenWeights",
    "GraphView",
    "ImportedModel",
    "OpenSizes",
    "TensorInfo",
    "check_file",
    "describe",
    "import_model",
    "replace_weights",
]

_NO_SIZES = OpenSizes()


def import_model(
    source: str | os.PathLike[str] | bytes, *, name: str | None = None, sizes: OpenSizes = _NO_SIZES
) -> ImportedModel:
    """Read and check an ONNX model.

    ``source`` is a file's path, or the file's content. ``name`` is the model's name: by default the file's name without
    its suffix, or "model" for bytes. External data is read from the model file's folder only. Model and external data
    together may have up to 2 GiB. ``sizes``: of dimensions that the file leaves open, as if it had them.

    Raises:
        ModelFileError: for anything that is wrong with the file.
        OptionError: if ``sizes`` contradict the file.
    """
    from trnrt.importer.reading.model_file import read_model

    return read_model(source, name, sizes)


def check_file(path: Path) -> None:
    """Check that a file is an ONNX model, and that its data files are there, without importing it.

    Raises:
        ModelFileError: if it isn't, as ``import_model`` says it.
    """
    from trnrt.importer.reading import model_file

    model_file.check_file(path)


def replace_weights(source: str | os.PathLike[str] | bytes, given: GivenWeights) -> bytes:
    """The content of a model's file with these weights in the place of its own, and with all external data in it.

    Raises:
        ModelFileError: for a file that can't be read, or is no ONNX model.
        OptionError: for a weight that the model has not, or of another dtype or shape.
    """
    from trnrt.importer.reading import replacing

    return replacing.replace_weights(source, given)


def describe(model: ir.Model) -> str:
    """List ``model`` with a line for each input, constant, node and output; names are escaped."""
    from trnrt.importer.reading.listing import list_model

    return list_model(model)
