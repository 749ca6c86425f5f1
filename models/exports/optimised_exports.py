"""Optimise files that the other scripts made, as onnxruntime saves them at each of its levels.

`python models/exports/optimised_exports.py --out DIR`, with trnrt's own Python, after the other scripts.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import onnx
import onnxruntime
from saving import LISTS, Export, Make, run_exports

LEVELS = {
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
SOURCES = (
    "bert_torchscript",
    "distilbert_dynamo",
    "keras2_cnn",
    "keras2_transformer",
    "paddle_lcnet",
    "unet_3d_torchscript",
)
QUANTISED = ("keras2_cnn", "paddle_lcnet")


def optimise(source: str, level: str, path: Path) -> None:
    """The file as the optimizer leaves it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = LEVELS[level]
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(path.with_name(source), options, providers=["CPUExecutionProvider"])


def quantise(source: str, path: Path) -> None:
    """The file in int8, with ranges from random images, then optimised at the level all."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    (given,) = onnx.load(path.with_name(source)).graph.input
    shape = [dim.dim_value or 4 for dim in given.type.tensor_type.shape.dim]
    random = np.random.default_rng(0)
    rows = [{given.name: random.random(shape, np.float32)} for _ in range(2)]

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        """The rows, one after the other."""

        def __init__(self) -> None:
            self.left = iter(rows)

        def get_next(self) -> object:
            """The next row; None after the last one."""
            return next(self.left, None)

    middle = path.with_suffix(".qdq")
    quantize_static(path.with_name(source), middle, Reader(), per_channel=True)
    optimise(middle.name, "all", path)
    middle.unlink()


def exports(titles: dict[str, str]) -> list[tuple[Export, Make]]:
    """All files; ``titles``: what each source is."""
    by = f"onnxruntime {onnxruntime.__version__}"
    made: list[tuple[Export, Make]] = []
    for source in SOURCES:
        for level in LEVELS:
            row = Export(f"{source}_{level}.onnx", "optimised", titles[f"{source}.onnx"], f"{by}, {level}; {source}")
            made.append((row, partial(optimise, f"{source}.onnx", level)))
    for source in QUANTISED:
        row = Export(f"{source}_int8.onnx", "optimised", titles[f"{source}.onnx"], f"{by}, int8, then all; {source}")
        made.append((row, partial(quantise, f"{source}.onnx")))
    return made


def main() -> None:
    """Read the list of exported files, then optimise those that the command line names."""
    import sys

    folder = Path(sys.argv[sys.argv.index("--out") + 1])
    titles = {row["file"]: row["title"] for row in json.loads((folder / LISTS[Export]).read_text())}
    run_exports(__doc__, exports(titles))


if __name__ == "__main__":
    main()
