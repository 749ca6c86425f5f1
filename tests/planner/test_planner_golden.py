"""The plans and kernel modules of the sample models, as text: a change of either shows as a difference to read.

``UPDATE_GOLDEN=1 pytest tests/planner/test_planner_golden.py`` writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trnrt.importer import import_model
from trnrt.planner import Plan, explain

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def summary(plan: Plan) -> str:
    """All of a plan but the numbers in its weights."""
    lines = [f"{plan.name}: {plan.dtype} on {plan.target}, {plan.batch} rows, entry {plan.entry}", ""]
    lines += [f"input   {t.name} {t.shape} {t.dtype}" for t in plan.inputs]
    lines += [f"weight  {name} {array.shape} {array.dtype.name}" for name, array in plan.weights.items()]
    lines += [f"result  {t.name} {t.shape} {t.dtype}" for t in plan.results]
    lines += [f"host    {node.name} {node.op} {', '.join(node.inputs)} -> {node.output}" for node in plan.host]
    lines += [f"output  {o.name} = {o.source} {o.shape} {o.dtype}" for o in plan.outputs]
    lines += ["", *(f"step    {s.name} {s.kernel} lines {s.lines[0]}-{s.lines[1]}, covers {', '.join(s.nodes)};"
                    f" {s.output} {s.shape} in {s.layout}: {s.reason}" for s in plan.steps)]  # fmt: skip
    lines += ["", *(f"node    {n.name} {n.op} {n.place} {n.step} {n.kernel}: {n.reason}" for n in plan.nodes)]
    lines += ["", *(f"note    {note}" for note in plan.notes), "", plan.source]
    return "\n".join(lines)


@pytest.mark.parametrize("model", ["digits_ffnn", "digits_cnn", "digits_mlp_sklearn"])
def test_plan(model: str) -> None:
    plan = explain(import_model(ROOT / "models" / f"{model}.onnx"), target="trn2", dtype="float32", batch=8)
    path = GOLDEN / f"plan_{model}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(summary(plan), encoding="utf-8")
    assert path.is_file(), f"there is no {path}; UPDATE_GOLDEN=1 writes it"
    assert summary(plan) == path.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 writes the file anew; read the diff"
