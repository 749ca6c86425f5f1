"""Plan one network with a tree's importer and planner, and save everything needed to time its kernels again.

``make_kernels`` runs this in its own process, where ``trnrt`` is another checkout's: use only features of that
checkout.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
from trnrt.planner.partition import DevicePart, Partition  # type: ignore[import-not-found]
from trnrt.profiler import profile_plan  # type: ignore[import-not-found]

# These modules are where the commit has them.
from trnrt.errors import UnsupportedModelError
from trnrt.planner.plan import Plan
from trnrt.session import InferenceSession

DTYPE, BATCH, EFFORT = "bfloat16", 1, 1
"""The networks of the tables of models; the effort is the command line's."""


def plan_network(model: onnx.ModelProto, target: str) -> tuple[Partition, list[str]]:
    """The parts for the device and for the CPU, and why the whole isn't one part for the device, if so."""
    content = model.SerializeToString()
    options: dict[str, Any] = {"target": target, "dtype": DTYPE, "backend": "simulator", "cache": False}
    try:
        return InferenceSession(content, effort=EFFORT, **options).partition(BATCH), []
    except UnsupportedModelError as error:
        session = InferenceSession(content, effort=EFFORT, fallback="onnxruntime", **options)
        return session.partition(BATCH), str(error).splitlines()


def describe_part(plan: Plan, module: str) -> dict[str, Any]:
    """A plan's kernel module as JSON: all that is needed to trace and time it. ``module``: its name."""
    found = profile_plan(plan)
    return {
        "module": module,
        "entry": plan.entry,
        "inputs": [[list(tensor.shape), tensor.dtype] for tensor in plan.inputs],
        "weights": [[list(weight.shape), str(weight.dtype)] for weight in plan.weights.values()],
        "results": [[list(tensor.shape), tensor.dtype] for tensor in plan.results],
        "options": {},
        "steps": [[step.name, list(step.nodes), list(step.lines)] for step in plan.steps],
        "weights_ahead": bool(plan.parts),
        "old_us": {"benchmark": found.benchmark_us, "profiler": found.profiler_us},
    }


def main() -> None:
    """NETWORK TARGET FOLDER: write a module for each part, and at last ``NETWORK_TARGET.json``."""
    from benchmarks.baseline.networks import BY_NAME

    name, target, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    partition, refused = plan_network(BY_NAME[name].build(), target)
    parts: list[dict[str, Any]] = []
    for part in partition.parts:
        if isinstance(part, DevicePart):
            module = f"{name}_{target}" + (f"_{len(parts)}" if len(partition.parts) > 1 else "")
            (folder / f"{module}.py").write_text(part.plan.source, encoding="utf-8")
            parts.append(describe_part(part.plan, f"modules.{module}"))
    document = {
        "kind": "network",
        "name": name,
        "target": target,
        "dtype": DTYPE,
        "batch": BATCH,
        "refused": refused,
        "on_cpu": [f"{one.name} ({one.op}): {one.reason}" for part in partition.cpu_parts for one in part.nodes],
        "crossings_us": float(partition.crossings_us),
        "parts": parts,
    }
    (folder / f"{name}_{target}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
