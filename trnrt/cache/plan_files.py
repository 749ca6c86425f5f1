"""A plan as files: the kernel module, its weights, and a summary."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.cache import write_whole
from trnrt.planner import Plan
from trnrt.planner.naming import identifier
from trnrt.planner.parts.partition import CpuPart, Partition


def save_partition(partition: Partition, directory: Path) -> list[Path]:
    """Write every part of a model; see ``InferenceSession.save``."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for part in partition.parts:
        if isinstance(part, CpuPart):
            written.append(directory / f"{identifier(part.name)}.onnx")
            write_whole(written[-1], part.model, mode=0o644)
        else:
            written += _save_plan(part.plan, directory)
    return written


def _save_plan(plan: Plan, directory: Path) -> list[Path]:
    from trnrt.inputs.npz import pack_npz  # zipfile, which only a saved plan needs

    stem = identifier(plan.name)
    module, weights, summary = (directory / f"{stem}{end}" for end in (".py", "_weights.npz", "_plan.json"))
    # .npz has no bfloat16: such weights are stored as equal float32 numbers.
    arrays = {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in plan.weights.items()}
    packed = io.BytesIO()
    pack_npz(packed, arrays)
    contents = (
        plan.source.encode("utf-8"),
        packed.getvalue(),
        json.dumps(plan_summary(plan), indent=1).encode("utf-8"),
    )
    for path, content in zip((module, weights, summary), contents, strict=True):
        write_whole(path, content, mode=0o644)
    return [module, weights, summary]


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The plan without its arrays, as JSON."""
    return {
        "schema_version": 1,
        "model": plan.name,
        "target": plan.target,
        "dtype": plan.dtype,
        "entry": plan.entry,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.inputs],
        "results": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.results],
        "weights": [{"name": n, "shape": list(a.shape), "dtype": a.dtype.name} for n, a in plan.weights.items()],
        "before": [{"name": n.name, "op": n.op, "inputs": list(n.inputs), "output": n.output} for n in plan.before],
        "host": [{"name": n.name, "op": n.op, "inputs": list(n.inputs), "output": n.output} for n in plan.host],
    }
