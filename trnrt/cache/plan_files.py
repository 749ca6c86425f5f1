"""A plan as files: the kernel module, its weights, and a summary."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from trnrt.cache import write_whole
from trnrt.inputs.npz import pack_npz
from trnrt.planner import Plan
from trnrt.planner.naming import identifier


def save_plan(plan: Plan, directory: Path) -> list[Path]:
    """Write one plan: see ``InferenceSession.save``."""
    stem = identifier(plan.name)
    module, weights, summary = (directory / f"{stem}{end}" for end in (".py", "_weights.npz", "_plan.json"))
    # npz has no bfloat16: such weights are stored as the float32 numbers that they are.
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
