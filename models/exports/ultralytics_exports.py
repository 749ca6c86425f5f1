"""Export detectors by ultralytics' own exporter: end-to-end heads, tasks, and an end with NonMaxSuppression.

Needs ultralytics and onnx, in an environment of their own: ultralytics is AGPL-3.0, and nothing of it is in this
repository; only its exporter is called. `python models/exports/ultralytics_exports.py --out DIR`. Weights are random,
but lively: BatchNormalization takes its statistics from random images, and class scores differ.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from saving import Export, Make, run_exports

os.environ.setdefault("YOLO_OFFLINE", "1")
os.environ.setdefault("YOLO_AUTOINSTALL", "0")
# Class scores as a trained head gives them: few are large.
SCORE_MEAN, SCORE_SPREAD, SCORE_WEIGHT = -3.0, 0.7, 0.4
# The sides of boxes are this far from their anchor, in its strides: else half of the boxes have a negative size.
SIDE_MEAN, SIDE_SPREAD = 4.0, 0.5
# BatchNormalization's shifts. Around 0, random layers enlarge differences, and with them roundings, block by block:
# bfloat16 moved YOLO26n's masks by 35 % of their spread; shifted by 1, 7 %; by 2, 5 % (onnxruntime alone, 320 x 320).
SHIFT_MEAN, SHIFT_SPREAD = 1.0, 0.2
# Attention's queries and keys: with weights of the usual size, random ones give scores of hundreds.
QUERY_WEIGHT = 0.3

NETWORKS = {
    "yolo26n": ("YOLO26n, end to end: TopK and GatherElements", 320, False),
    "yolov10n": ("YOLOv10n, end to end", 320, False),
    "yolo26n-pose": ("YOLO26n with key points", 320, False),
    "yolo26n-obb": ("YOLO26n with turned boxes", 320, False),
    "yolo26n-seg": ("YOLO26n with masks", 320, False),
    "yolo26n-cls": ("YOLO26n as a classifier", 224, False),
    "yolo11n": ("YOLO11n, boxes and scores of all anchors", 320, False),
    "yolov8n": ("YOLOv8n with NonMaxSuppression", 320, True),
}


def enliven(network: Any, size: int) -> None:
    """Draw all weights, and take the statistics from random images of the size that the network runs on.

    Statistics of smaller images don't fit: in large ones, deep layers differ less from place to place, and each later
    BatchNormalization enlarges the error. With those of 224 pixels, YOLO26l's features at 640 were 100 times too large.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.5)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
            module.reset_running_stats()
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.normal_(module.bias, SHIFT_MEAN, SHIFT_SPREAD)
            if name.endswith("qkv.bn"):
                module.weight.data.mul_(QUERY_WEIGHT)
    network.train()
    with torch.no_grad():
        for _ in range(2):
            network(torch.rand(2, 3, size, size))
    network.eval()
    for name, weight, mean, spread in (
        ("cv3", SCORE_WEIGHT, SCORE_MEAN, SCORE_SPREAD),
        ("cv2", 1.0, SIDE_MEAN, SIDE_SPREAD),
    ):
        for head in (*getattr(network.model[-1], name, ()), *getattr(network.model[-1], f"one2one_{name}", ())):
            head[-1].weight.data.mul_(weight)
            nn.init.normal_(head[-1].bias, mean, spread)


def export(name: str, size: int, suppresses: bool, path: Path) -> None:
    """Make one network, and have ultralytics write it."""
    from ultralytics import YOLO

    yolo = YOLO(f"{name}.yaml")
    enliven(yolo.model, size)
    made = yolo.export(format="onnx", imgsz=size, nms=suppresses, device="cpu", simplify=False, verbose=False)
    shutil.move(made, path)


def exports() -> Iterator[tuple[Export, Make]]:
    """Every file with what makes it."""
    exporter = f"ultralytics {version('ultralytics')}, PyTorch {version('torch').partition('+')[0]}"
    for name, (what, size, suppresses) in NETWORKS.items():
        title = f"{what}, {size} x {size}"
        yield Export(f"{name}.onnx", "Ultralytics", title, exporter), partial(export, name, size, suppresses)


if __name__ == "__main__":
    run_exports(__doc__, exports())
