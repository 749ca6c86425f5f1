"""Export a YOLO detector, segmenter or classifier by ultralytics' own exporter.

    python export_yolo.py yolo26n.pt -o yolo26n.onnx [--imgsz 640] [--nms]

Run it in an environment of its own, as in README.md: ultralytics is AGPL-3.0, and trnrt doesn't depend on it. WEIGHTS
is a .pt file, or a .yaml for random weights. The exporter writes the task, the names of the classes and the size into
the file's metadata, which trnrt reads.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def main() -> None:
    """Export one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("-o", "--output", type=Path, default=None)
    parser.add_argument("--imgsz", type=int, default=640)
    parser.add_argument("--nms", action="store_true", help="put NonMaxSuppression into the file")
    arguments = parser.parse_args()
    output = arguments.output or Path(arguments.weights).with_suffix(".onnx")
    export(arguments.weights, output, arguments.imgsz, arguments.nms)
    print(f"wrote {output}")


def export(weights: str, output: Path, size: int, suppresses: bool = False) -> None:
    """Write the model for one image of ``size`` x ``size`` pixels."""
    from ultralytics import YOLO

    written = YOLO(weights).export(format="onnx", imgsz=size, nms=suppresses, device="cpu", simplify=False)
    if Path(written).resolve() != output.resolve():
        shutil.move(written, output)


if __name__ == "__main__":
    main()
