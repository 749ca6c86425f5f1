"""Operators on constants that onnxscript's folder leaves: they are gone, and answers stay onnxruntime's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rewritten import checked, ops

from trnrt.importer import import_model

RANDOM = np.random.default_rng(0)


def standardised(mode: int, outputs: int, opset: int = 15, used: str = "") -> onnx.ModelProto:
    """A convolution with weights that are normalised, as NFNets are exported; ``used`` is an output of the model."""
    shapes = {"k": (1, 6, 18), "scale": (6,), "bias": (6,), "mean": (6,), "variance": (6,)}
    constants = [numpy_helper.from_array(RANDOM.uniform(0.5, 2, s).astype(np.float32), n) for n, s in shapes.items()]
    constants.append(numpy_helper.from_array(np.array([6, 2, 3, 3]), "to"))
    attributes = {"training_mode": mode} if opset >= 14 else {}
    nodes = [
        helper.make_node("BatchNormalization", list(shapes), ["n", "m", "v"][:outputs], epsilon=1e-3, **attributes),
        helper.make_node("Reshape", ["n", "to"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 2, 5, 5])
    made = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 6, 3, 3])]
    made += [helper.make_tensor_value_info(used, onnx.TensorProto.FLOAT, [6])] if used else []
    graph = helper.make_graph(nodes, "g", [x], made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize(("mode", "outputs", "opset"), [(0, 1, 9), (0, 1, 15), (1, 3, 15), (1, 3, 20)])
def test_normalised_weights_are_computed(mode: int, outputs: int, opset: int) -> None:
    assert ops(checked(standardised(mode, outputs, opset))) == ["Conv"]


def test_statistics_that_the_model_gives_stay() -> None:
    view = import_model(standardised(1, 3, used="m").SerializeToString()).bind({"x": (1, 2, 5, 5)})
    assert "BatchNormalization" in ops(view)


def scattered(indices: list[list[int]], updates: tuple[int, ...], **attributes: str) -> onnx.ModelProto:
    """Elements of a constant are replaced, as in the masks of torchvision's Swin Transformers."""
    arrays = {
        "data": RANDOM.standard_normal((3, 4), np.float32),
        "i": np.array(indices),
        "u": RANDOM.standard_normal(updates, np.float32),
    }
    nodes = [
        helper.make_node("ScatterND", list(arrays), ["s"], **attributes),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 3, 4]) for n in "xy"]
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("indices", "updates"),
    [([[0, 1], [2, 3]], (2,)), ([[-1, -4], [1, 2], [0, 0]], (3,)), ([[2], [0]], (2, 4)), ([[1]], (1, 4))],
)
def test_replaced_elements_are_computed(indices: list[list[int]], updates: tuple[int, ...]) -> None:
    assert ops(checked(scattered(indices, updates))) == ["Add"]


def test_elements_that_are_added_to_are_computed() -> None:
    assert ops(checked(scattered([[0, 1], [2, 3]], (2,), reduction="add"))) == ["Add"]


@pytest.mark.parametrize(
    ("indices", "updates"),
    [([[0, 1], [0, 1]], (2,)), ([[0, 9]], (1,))],
)
def test_replacing_that_is_left_alone(indices: list[list[int]], updates: tuple[int, ...]) -> None:
    view = import_model(scattered(indices, updates).SerializeToString()).bind({"x": (1, 3, 4)})
    assert "ScatterND" in ops(view)


def resized(mode: str, to: int = 5, **attributes: int) -> onnx.ModelProto:
    """Position embeddings for 3 x 4 patches, resized to ``to`` x 6, as a ViT of another size of picture."""
    nodes = [
        helper.make_node("Resize", ["p", "", "", "sizes"], ["r"], mode=mode, **attributes),
        helper.make_node("Add", ["x", "r"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 8, to, 6]) for name in "xy"]
    positions = numpy_helper.from_array(RANDOM.standard_normal((1, 8, 3, 4), np.float32), "p")
    sizes = numpy_helper.from_array(np.array([1, 8, to, 6]), "sizes")
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [positions, sizes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize("mode", ["cubic", "linear", "nearest"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_positions_of_another_size_are_computed(mode: str, antialias: int) -> None:
    assert ops(checked(resized(mode, antialias=antialias if mode != "nearest" else 0))) == ["Add"]


def test_a_resized_constant_that_is_too_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.importer.folding.constants.LARGEST_CONSTANT", 10_000)
    assert ops(checked(resized("cubic", to=60))) == ["Resize", "Add"]
