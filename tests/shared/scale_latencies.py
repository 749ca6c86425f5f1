"""``python tests/shared/scale_latencies.py [MODEL ...]``: the latencies that docs/scale.md's networks rest on.

Writes ``tests/data/scale.json``; of the models named, else of all. The networks' plans take half an hour to make.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from benchmarks.models.networks import NETWORKS
from trnrt.commands.capacity import row_bytes, row_sent
from trnrt.session import InferenceSession

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "scale.json"
MODELS = {"digits_cnn": "float32", "resnet18": "bfloat16", "resnet50": "bfloat16"}
TARGETS = ("trn1", "trn2")
SIZES = (1, 2, 4, 8, 16, 32)


def predicted(model: Path, target: str, dtype: str) -> dict[str, Any]:
    """What the timing model says of a model, by size of a batch."""
    session = InferenceSession(model, target=target, dtype=dtype, backend="simulator", effort=1)
    row_in, row_out = row_bytes(session.partition(1, cached=True), 1)
    times = {str(size): round(session.latency(size).us, 3) for size in SIZES}
    sizes = {"row_sent": row_sent(session, 1), "row_in": row_in, "row_out": row_out}
    return {"model": model.stem, "target": target, "dtype": dtype, **sizes, "predicted_us": times}


def main(names: list[str]) -> None:
    """Predict, and write those of the models that are named anew."""
    networks = {network.name: network for network in NETWORKS}
    kept = {(one["model"], one["target"]): one for one in json.loads(FILE.read_text(encoding="utf-8"))}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or list(MODELS):
            path = ROOT / "models" / f"{name}.onnx"
            if name in networks:
                path = Path(folder) / f"{name}.onnx"
                onnx.save(networks[name].build(), path)
            for target in TARGETS:
                kept[name, target] = predicted(path, target, MODELS[name])
    FILE.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
