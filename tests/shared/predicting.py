"""What the tests of batch prediction share: small models, inputs of every kind, and what a directory holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

MODELS = Path(__file__).parents[2] / "models"
FFNN = MODELS / "digits_ffnn.onnx"

Array = np.ndarray[Any, Any]
Value = tuple[str, int, Sequence[int | str]]


def save_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    weights: Mapping[str, Array] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """A model of these nodes, as a file."""
    held = [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    values = ([helper.make_tensor_value_info(*value) for value in values] for values in (inputs, outputs))
    graph = helper.make_graph(list(nodes), path.stem, *values, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, dict(metadata or {}))
    onnx.save(model, path)
    return path


def linear(path: Path, width: int = 3, dtype: int = TensorProto.FLOAT) -> Path:
    """y = relu(x) for rows ``x`` of ``width`` numbers: an answer shows which row it is of."""
    relu = helper.make_node("Relu", ["x"], ["y"])
    return save_model(path, [relu], [("x", dtype, ["N", width])], [("y", dtype, ["N", width])])


def averages(path: Path) -> Path:
    """The mean of each channel of an RGB picture of any size, of values from 0 to 1."""
    nodes = [helper.make_node("GlobalAveragePool", ["image"], ["m"]), helper.make_node("Flatten", ["m"], ["y"])]
    source: Value = ("image", TensorProto.FLOAT, ["N", 3, "H", "W"])
    scale = {"image.scale": str(1 / 255)}
    return save_model(path, nodes, [source], [("y", TensorProto.FLOAT, ["N", 3])], metadata=scale)


def parts(directory: Path) -> list[dict[str, Any]]:
    """All rows that were predicted, part by part."""
    files = sorted(directory.glob("part-*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def quarantine(directory: Path) -> list[dict[str, Any]]:
    """All rows that were set aside."""
    files = sorted((directory / "_quarantine").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def digests(directory: Path) -> dict[str, str]:
    """Every file of a directory, hidden ones, too."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def lists(array: Array) -> pa.Array:
    """Rows as lists of open length, nested as deep as a row has dimensions."""
    values = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        offsets = pa.array(np.arange(0, len(values) + 1, size, dtype=np.int32))
        values = pa.ListArray.from_arrays(offsets, values)
    return values
