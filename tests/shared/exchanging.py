"""Scripts for onnxruntime, run with it and with trnrt: only the import is exchanged."""

from __future__ import annotations

import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import parser

from trnrt.errors import InterfaceWarning


def write_model(folder: Path) -> Path:
    """A Gemm and a Relu over (N, 3), with metadata as Ultralytics and scikit-learn's exporters write it."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17], producer_name: "made", domain: "org.test", model_version: 7, '
        'doc_string: "about", metadata_props: ["names": "{0: \'cat\', 1: \'dog\'}", "stride": "32"]>\n'
        "net (float[N,3] x) => (float[N,2] y, float[N,2] h)"
        "<float[3,2] w = {1,-1,2,0,-1,1}, float[2] b = {0.5,-0.25}> { h = Gemm(x, w, b)  y = Relu(h) }"
    )
    model.graph.doc_string = "about the graph"
    onnx.checker.check_model(model)
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


START = """
from pathlib import Path

import numpy as np
import onnxruntime as ort

session = ort.InferenceSession("net.onnx", providers=["CPUExecutionProvider"])
x = np.array([[1, 2, 3], [-1, 0, 2]], np.float32)
"""


def run_script(text: str, module: str) -> Any:
    """The ``result`` of a script that imports ``module`` where it says onnxruntime."""
    script = (START + textwrap.dedent(text)).replace("import onnxruntime as ort", f"import {module} as ort")
    assert "import onnxruntime" not in script or module == "onnxruntime"
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterfaceWarning)
        exec(compile(script, "script", "exec"), names)
    return names["result"]


def assert_same(ours: Any, theirs: Any) -> None:
    """Both are the same, with floats within the tolerance of float32 sums."""
    if isinstance(theirs, np.ndarray):
        assert isinstance(ours, np.ndarray) and ours.dtype == theirs.dtype
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(ours, theirs)
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs)
        for mine, its in zip(ours, theirs, strict=True):
            assert_same(mine, its)
    else:
        assert ours == theirs
