"""Tiny detectors and segmenters for tests: what they find follows from a picture's colours. And pictures for them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageDraw

SIDE = 64
ULTRALYTICS = {
    "task": "detect",
    "names": "{0: 'red thing', 1: 'green thing'}",
    "imgsz": f"[{SIDE}, {SIDE}]",
    "stride": "32",
}
COLOURS = {"labels": '["red", "green", "blue"]', "image.scale": str(1 / 255)}
# Each box: its corners in the input, and the colour whose mean is its score.
BOXES = (((8, 16, 40, 48), 0), ((32, 20, 60, 44), 1))


def _save(
    path: Path, nodes: list[onnx.NodeProto], out: list[int | str], constants: dict[str, object], said: dict[str, str]
) -> Path:
    graph = helper.make_graph(
        nodes,
        "vision",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, said)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def save_detector(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """Rows of x1, y1, x2, y2, score, class for each of ``BOXES``; a score is the mean of a colour of the input."""
    weights, biases = np.zeros((3, 12), np.float32), np.zeros(12, np.float32)
    for place, (corners, colour) in enumerate(BOXES):
        weights[colour, 6 * place + 4] = 1
        biases[6 * place : 6 * place + 6] = [*corners, 0, colour]
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weights", "biases"], ["numbers"]),
        helper.make_node("Reshape", ["numbers", "shape"], ["output0"]),
    ]
    constants = {"weights": weights, "biases": biases, "shape": np.array([-1, 2, 6], np.int64)}
    return _save(path, nodes, ["batch", 2, 6], constants, ULTRALYTICS if metadata is None else metadata)


def save_segmenter(path: Path, metadata: dict[str, str] | None = None) -> Path:
    """A score of red, green and blue for each 4 x 4 pixels: each colour, times two, less the others."""
    weights = np.kron((3 * np.eye(3, dtype=np.float32) - 1)[:, :, None, None], np.ones((1, 1, 4, 4), np.float32) / 16)
    nodes = [helper.make_node("Conv", ["images", "weights"], ["output0"], strides=[4, 4])]
    out: list[int | str] = ["batch", 3, SIDE // 4, SIDE // 4]
    return _save(path, nodes, out, {"weights": weights}, COLOURS if metadata is None else metadata)


def thirds(width: int = 96, height: int = 60) -> Image.Image:
    """A picture that is red, green and blue from left to right."""
    photo = Image.new("RGB", (width, height), "red")
    brush = ImageDraw.Draw(photo)
    brush.rectangle((width // 3, 0, 2 * width // 3 - 1, height), fill="lime")
    brush.rectangle((2 * width // 3, 0, width, height), fill="blue")
    return photo


def png(photo: Image.Image) -> bytes:
    """The picture as a file."""
    written = io.BytesIO()
    photo.save(written, "PNG")
    return written.getvalue()
