"""A session waits for no library that it doesn't need."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import trnrt

ROOT = Path(__file__).parents[2]
FOREIGN = (
    "PIL",
    "click",
    "fastapi",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "rich",
    "sympy",
    "typer",
    "uvicorn",
)
STANDARD = ("concurrent.futures", "email", "importlib.metadata", "subprocess", "zipfile")
OWN = ("trnrt.kernels", "trnrt.nki.machine.timing", "trnrt.nki.sim", "trnrt.operators", "trnrt.validate")


def modules_after(code: str) -> set[str]:
    """The modules that a process has imported at the end of ``code``."""
    code += "; import sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_session_imports_nothing_that_a_model_needs() -> None:
    loaded = modules_after("from trnrt import InferenceSession")
    assert "trnrt.session" in loaded
    assert loaded.isdisjoint((*FOREIGN, *STANDARD, *OWN))


def test_the_version_is_the_distribution_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == trnrt.__version__


def test_a_cached_answer_needs_no_graph(tmp_path: Path) -> None:
    """Nor the timing model, nor any kernel but the model's own."""
    code = (
        f"import os; os.environ['TRNRT_CACHE'] = {str(tmp_path)!r}; import numpy as np; "
        "from trnrt import InferenceSession; "
        "session = InferenceSession('models/digits_cnn.onnx'); "
        "print(session.run(None, {'image': np.ones((1, 1, 8, 8), np.float32)})[0].tolist())"
    )
    first, second = (modules_after(code) for _ in range(2))
    assert "onnx_ir" in first
    assert second.isdisjoint(
        (*FOREIGN, *STANDARD, "trnrt.operators", "trnrt.planner.making", "trnrt.nki.machine.timing")
    )
