"""Export the detectors of the zoo by ultralytics' own exporter, for pictures of 640 x 640.

Needs ultralytics and onnx, in an environment of their own: ultralytics is AGPL-3.0, and nothing of it is in this
repository; only its exporter is called. `python models/exports/zoo_detectors.py --out DIR`. Weights are random, but
lively, as in ultralytics_exports.py. The files leave the batch and the sizes open (`dynamic=True`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from pinning import check_versions
from saving import Make, ZooModel, run_exports
from ultralytics_exports import enliven

VERSIONS = {"ultralytics": "8.4.190", "torch": "2.14.1", "onnx": "1.23.2"}
SIZE = 640

NETWORKS = {
    "yolov8n": ("YOLOv8n", 3_151_904),
    "yolov8s": ("YOLOv8s", 11_156_544),
    "yolo11n": ("YOLO11n", 2_616_248),
    "yolo26n": ("YOLO26n, end to end", 2_408_932),
    "yolo26s": ("YOLO26s, end to end", 9_496_140),
    "yolo26l": ("YOLO26l, end to end", 24_807_420),
}
"""Name -> what it is, and its parameters once BatchNormalization is folded into the convolutions."""


def export(name: str, parameters: int, path: Path) -> None:
    """Make one network, and have ultralytics write it. ``nms=False`` chooses the end-to-end head, where there is one.

    Raises ValueError if the network has another number of parameters.
    """
    from ultralytics import YOLO

    yolo = YOLO(f"{name}.yaml")
    enliven(yolo.model, SIZE)
    if (found := count_fused(yolo.model)) != parameters:
        raise ValueError(f"{name} has {found:,} parameters, not {parameters:,}: correct the table of this script")
    options = {"imgsz": SIZE, "dynamic": True, "nms": False, "simplify": False}
    shutil.move(yolo.export(format="onnx", device="cpu", verbose=False, **options), path)


def count_fused(network: Any) -> int:
    """The parameters that are left once BatchNormalization is folded into the convolutions before it."""
    fused = deepcopy(network).eval().fuse(verbose=False)
    return sum(parameter.numel() for parameter in fused.parameters())


def exports() -> Iterator[tuple[ZooModel, Make]]:
    """Every file with what makes it."""
    exporter = f"ultralytics {VERSIONS['ultralytics']}, PyTorch {VERSIONS['torch']}"
    for name, (network, parameters) in NETWORKS.items():
        row = ZooModel(
            f"{name}.onnx", "detectors", f"{network}, {SIZE} x {SIZE}", exporter, parameters, (f"3x{SIZE}x{SIZE}",)
        )
        yield row, partial(export, name, parameters)


if __name__ == "__main__":
    check_versions(VERSIONS)
    run_exports(__doc__, exports())
