"""The models to measure the server with, and rows with onnxruntime's outputs for them.

The digits CNN and its neighbour are those of ``models/``. Two are made here: one whose single row takes the simulator
milliseconds, so that merging rows pays off, and one that a session answers without computing anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT

Array = NDArray[Any]

ROWS = 128
_DIGITS = ROOT / "models"
_DEEP = (64, 256, 200, 10)  # inputs, width, layers, outputs


@dataclass(frozen=True)
class Sample:
    """A model's file, and an .npz file with ``rows`` for its input and their ``expected`` outputs."""

    model: Path
    input: str
    output: str
    examples: Path

    @property
    def name(self) -> str:
        """The server's name for it."""
        return self.model.stem


def digits(folder: Path, name: str = "digits_cnn") -> Sample:
    """A sample model of this repository with test images."""
    with np.load(_DIGITS / "digits_test.npz") as held:
        rows = held["image"][:ROWS]
    return _sample(_DIGITS / f"{name}.onnx", rows, folder)


def deep(folder: Path) -> Sample:
    """Many small layers: one row and 64 take about as many instructions, and half of the time is theirs."""
    inputs, width, layers, outputs = _DEEP
    sizes = [inputs, *[width] * (layers - 1), outputs]
    generator = np.random.default_rng(0)
    weights = [generator.standard_normal((k, n), np.float32) * np.float32(math.sqrt(2 / k)) for k, n in pairwise(sizes)]
    model = folder / "deep.onnx"
    _write(model, "rows", (inputs,), weights)
    rows = np.round(generator.standard_normal((ROWS, inputs)) * 16) / 16  # as short in JSON as pixels
    return _sample(model, rows.astype(np.float32), folder)


def instant(folder: Path) -> Sample:
    """The digits CNN's interface with zero weights: so the answers of ``benchmarks.serve.instant`` are right."""
    like = digits(folder)
    with np.load(like.examples) as held:
        rows, outputs = held["rows"], held["expected"].shape[1]
    model = folder / "instant.onnx"
    _write(model, like.input, rows.shape[1:], [np.zeros((math.prod(rows.shape[1:]), outputs), np.float32)])
    return _sample(model, rows, folder)


def zeros(folder: Path, shape: tuple[int, ...], outputs: int = 10) -> Path:
    """A model that gives zeros for any number of rows of this shape, in an input called ``image``."""
    path = folder / f"zeros_{math.prod(shape)}.onnx"
    _write(path, "image", shape, [np.zeros((math.prod(shape), outputs), np.float32)])
    return path


def _write(path: Path, name: str, shape: tuple[int, ...], weights: list[Array]) -> None:
    """A model of dense layers with ReLU between them; its input has this name and shape, and any number of rows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, value = [helper.make_node("Flatten", [name], ["flat"])], "flat"
    for number, _ in enumerate(weights):
        made = "numbers" if number == len(weights) - 1 else f"product{number}"
        nodes.append(helper.make_node("MatMul", [value, f"weights{number}"], [made]))
        value = f"layer{number}"
        if made != "numbers":
            nodes.append(helper.make_node("Relu", [made], [value]))
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["batch", weights[-1].shape[1]])],
        [numpy_helper.from_array(array, f"weights{number}") for number, array in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _sample(model: Path, rows: Array, folder: Path) -> Sample:
    """The rows with onnxruntime's first output for each."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (taken,), given = session.get_inputs(), session.get_outputs()[0]
    (expected,) = session.run([given.name], {taken.name: rows})
    examples = folder / f"{model.stem}.npz"
    np.savez(examples, rows=rows, expected=expected)
    return Sample(model, taken.name, given.name, examples)
