"""Shared by the tests of quantising: small float models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


def save(
    path: Path, nodes: list[Any], weights: dict[str, Array], shapes: tuple[list[Any], list[Any]], **how: Any
) -> Path:
    """A model from the input "x" to the output "y" as a file; ``how``: its ``opset`` and ``dtype``."""
    dtype = how.get("dtype", TensorProto.FLOAT)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", dtype, shapes[0])],
        [helper.make_tensor_value_info("y", dtype, shapes[1])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", how.get("opset", 20))], ir_version=8)
    helper.set_model_props(model, {"labels": "[]"})
    onnx.save(model, path)
    return path


def save_uneven(path: Path) -> Path:
    """Four Gemms. The first one's result has one feature a thousand times the others, which decide: 8 bits lose them.

    So the first two layers cost all decisions, alone as together, and the others none.
    """
    one, three = np.eye(4, dtype=np.float32), np.eye(3, dtype=np.float32)
    weights = {"a": one * np.array([2000, 1, 1, 1], np.float32), "b": one[:, 1:].copy(), "c": three, "d": three.copy()}
    names = ["x", "h", "i", "j", "y"]
    nodes = [helper.make_node("Gemm", [names[k], "abcd"[k]], [names[k + 1]], name=f"layer{k + 1}") for k in range(4)]
    return save(path, nodes, weights, (["batch", 4], ["batch", 3]))


def save_residual(path: Path, opset: int = 9) -> Path:
    """Two normalised convolutions, added to what they began with, as an old exporter writes them."""
    generator = np.random.default_rng(0)
    weights: dict[str, Array] = {}
    nodes: list[Any] = []
    source = "x"
    for k in (1, 2):
        weights[f"w{k}"] = generator.standard_normal((3, 3, 3, 3)).astype(np.float32)
        for name, array in (("scale", generator.random(3) + 0.5), ("shift", generator.random(3)), ("mean", np.ones(3))):
            weights[f"{name}{k}"] = array.astype(np.float32)
        weights[f"variance{k}"] = np.full(3, 4, np.float32)
        nodes += [
            helper.make_node("Conv", [source, f"w{k}"], [f"c{k}"], name=f"conv{k}", pads=[1, 1, 1, 1]),
            helper.make_node(
                "BatchNormalization", [f"c{k}", *(f"{n}{k}" for n in ("scale", "shift", "mean", "variance"))], [f"n{k}"]
            ),
        ]
        source = f"n{k}"
    nodes += [helper.make_node("Add", ["n2", "x"], ["s"], name="add"), helper.make_node("Relu", ["s"], ["y"])]
    return save(path, nodes, weights, ([2, 3, 6, 6], [2, 3, 6, 6]), opset=opset)
