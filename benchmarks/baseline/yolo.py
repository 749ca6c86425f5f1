"""YOLOv8n at 640, as ultralytics' exporter writes it: BatchNormalization folded, batch 1, boxes decoded."""

from __future__ import annotations

import numpy as np
import onnx

from benchmarks.baseline.building import Builder

SIDE, CLASSES = 640, 80
BINS = 16
"""The values of each distribution whose mean is a box side's distance."""
STRIDES = (8, 16, 32)


def yolov8n(batch: int | str = 1) -> onnx.ModelProto:
    """(batch, 3, 640, 640) to (batch, 84, 8400): centre, size, and scores of 80 classes."""
    b = Builder("yolov8n", SIDE, batch)
    source = _conv(b, "image", (3, 16), 3, 2)
    source = _cross_stage(b, _conv(b, source, (16, 32), 3, 2), (32, 32), 1, add=True)
    fine = _cross_stage(b, _conv(b, source, (32, 64), 3, 2), (64, 64), 2, add=True)
    middle = _cross_stage(b, _conv(b, fine, (64, 128), 3, 2), (128, 128), 2, add=True)
    coarse = _cross_stage(b, _conv(b, middle, (128, 256), 3, 2), (256, 256), 1, add=True)
    coarse = _pyramid(b, coarse, 256)
    middle = _cross_stage(b, b.concat(_double_size(b, coarse), middle), (384, 128), 1)
    fine = _cross_stage(b, b.concat(_double_size(b, middle), fine), (192, 64), 1)
    middle = _cross_stage(b, b.concat(_conv(b, fine, (64, 64), 3, 2), middle), (192, 128), 1)
    coarse = _cross_stage(b, b.concat(_conv(b, middle, (128, 128), 3, 2), coarse), (384, 256), 1)
    return _detect(b, {fine: 64, middle: 128, coarse: 256})


def _conv(b: Builder, source: str, shape: tuple[int, int], size: int, stride: int = 1) -> str:
    return b.silu(b.conv(source, shape, size, stride))


def _cross_stage(b: Builder, source: str, shape: tuple[int, int], count: int, *, add: bool = False) -> str:
    """C2f: half of the channels go through ``count`` bottlenecks in sequence; all intermediate results are
    concatenated."""
    channels, outputs = shape
    half = outputs // 2
    sizes = b.constant([half, half])
    parts = b.nodes("Split", 2, _conv(b, source, (channels, outputs), 1), sizes, axis=1)
    for _ in range(count):
        inner = _conv(b, _conv(b, parts[-1], (half, half), 3), (half, half), 3)
        parts.append(b.node("Add", parts[-1], inner) if add else inner)
    return _conv(b, b.concat(*parts), ((2 + count) * half, outputs), 1)


def _pyramid(b: Builder, source: str, channels: int) -> str:
    """SPPF: the largest of windows of 5, 9 and 13 pixels, by three poolings in sequence."""
    parts = [_conv(b, source, (channels, channels // 2), 1)]
    for _ in range(3):
        parts.append(b.pool(parts[-1], 5, 1, pad=2))
    return _conv(b, b.concat(*parts), (2 * channels, channels), 1)


def _double_size(b: Builder, source: str) -> str:
    """Each pixel four times."""
    ways = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return b.node("Resize", source, "", b.constant(np.array([1.0, 1.0, 2.0, 2.0])), **ways)


def _detect(b: Builder, sources: dict[str, int]) -> onnx.ModelProto:
    """Boxes and scores of every pixel of the three levels; ``sources``: their channels."""
    inner, scored = max(16, min(sources.values()) // 4, 4 * BINS), max(min(sources.values()), CLASSES)
    levels, cells = [], sum((SIDE // stride) ** 2 for stride in STRIDES)
    for source, channels in sources.items():
        box = _conv(b, _conv(b, source, (channels, inner), 3), (inner, inner), 3)
        score = _conv(b, _conv(b, source, (channels, scored), 3), (scored, scored), 3)
        level = b.concat(b.conv(box, (inner, 4 * BINS), 1), b.conv(score, (scored, CLASSES), 1))
        levels.append(b.node("Reshape", level, b.constant([0, 4 * BINS + CLASSES, -1])))
    joined = b.concat(*levels, axis=2)
    boxes, scores = b.nodes("Split", 2, joined, b.constant([4 * BINS, CLASSES]), axis=1)
    last = b.concat(_decode(b, boxes, cells), b.node("Sigmoid", scores))
    return b.ending(last, 4 + CLASSES, cells)


def _decode(b: Builder, boxes: str, cells: int) -> str:
    """Distributions of distances to centres and sizes in pixels of the image, (1, 4, cells)."""
    spread = b.transpose(b.node("Reshape", boxes, b.constant([0, 4, BINS, cells])), 0, 2, 1, 3)
    bins = b.parameter(1, BINS, 1, 1)  # 0, 1, 2 ... in a trained model
    mean = b.node("Conv", b.node("Softmax", spread, axis=1), bins, kernel_shape=[1, 1])
    distances = b.node("Reshape", mean, b.constant([0, 4, cells]))
    before, after = b.nodes("Split", 2, distances, b.constant([2, 2]), axis=1)
    anchors, strides = _grid()
    first = b.node("Sub", b.constant(anchors), before)
    last = b.node("Add", b.constant(anchors), after)
    centre = b.node("Div", b.node("Add", first, last), b.constant(2.0))
    return b.node("Mul", b.concat(centre, b.node("Sub", last, first)), b.constant(strides))


def _grid() -> tuple[np.ndarray, np.ndarray]:
    """The centres of all cells in cells, (1, 2, N), and each cell's size in pixels, (1, N)."""
    centres, strides = [], []
    for stride in STRIDES:
        count = SIDE // stride
        line = np.arange(count) + 0.5
        centres.append(np.stack([np.tile(line, count), np.repeat(line, count)]))
        strides.append(np.full(count**2, float(stride)))
    return np.concatenate(centres, axis=1)[None], np.concatenate(strides)[None]
