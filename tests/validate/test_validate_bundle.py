"""Bundles: a step as a model, its data and a test, which pytest runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layered import NETS, Net
from perturbing import shifted

import trnrt
from trnrt.validate import BundleRequest, LayersReport, validate_layers

FILES = ["step.onnx", "data.npz", "test_step.py"]


def written(directory: Path, name: str, step: str, dtype: str = "float32") -> LayersReport:
    """The report of a net's comparison, which wrote a step's bundle into ``directory``."""
    session = trnrt.InferenceSession(NETS[name](), dtype=dtype, cache=False)
    return validate_layers(session, session.random_inputs(), bundle=BundleRequest(directory, step))


def run(directory: Path) -> subprocess.CompletedProcess[str]:
    """pytest on the written file, as a user calls it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_step.py"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)


def changed(directory: Path, **arrays: Any) -> None:
    """Write data.npz anew with other arrays."""
    with np.load(directory / "data.npz") as data:
        kept = dict(data)
    np.savez(directory / "data.npz", **(kept | arrays))


def test_the_test_passes_and_fails_as_trnrt_is_right_or_wrong(tmp_path: Path) -> None:
    report = written(tmp_path / "a" / "bundle", "residual", "conv_4")
    directory = tmp_path / "a" / "bundle"
    assert report.passed and [path.name for path in report.bundle] == FILES
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)
    right = run(directory)
    assert right.returncode == 0 and "1 passed" in right.stdout, right.stdout + right.stderr
    with np.load(directory / "data.npz") as data:
        expected = data["expected"].copy()
    expected[1, 2, 3, 4] += 0.5
    changed(directory, expected=expected)
    wrong = run(directory)
    assert wrong.returncode == 1 and "1 of 4608 elements leave the tolerance; [1, 2, 3, 4] is" in wrong.stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits(tmp_path: Path, dtype: str) -> None:
    written(tmp_path, "mixing", "layernormalization_0", dtype)
    assert run(tmp_path).returncode == 0
    assert f'dtype="{dtype}"' in (tmp_path / "test_step.py").read_text()


def test_it_holds_the_step_and_nothing_else(tmp_path: Path) -> None:
    net = Net("secret", [2, 4])
    x = net.add("Relu", net.add("Gemm", "x", net.weight(4, 5), net.weight(5)))
    y = net.add("Softmax", net.add("Gemm", x, net.weight(5, 3), net.weight(3)), axis=-1)
    model = onnx.load_from_string(net.model(y))
    model.doc_string = model.graph.doc_string = "for nobody else"
    model.graph.metadata_props.add(key="path", value="/home/user/for nobody else")
    for node in model.graph.node:
        node.doc_string = "for nobody else"
        node.metadata_props.add(key="trace", value="for nobody else")
    session = trnrt.InferenceSession(model.SerializeToString(), cache=False)
    validate_layers(session, session.random_inputs(), bundle=BundleRequest(tmp_path, "gemm_2"))
    stored = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(stored)
    assert [node.name for node in stored.graph.node] == ["gemm_2"]
    assert {tensor.name for tensor in stored.graph.initializer} == {"w2", "w3"}
    assert b"nobody" not in (tmp_path / "step.onnx").read_bytes()
    with np.load(tmp_path / "data.npz") as data:
        assert {name: data[name].shape for name in data} == {
            "input_0": (2, 5),
            "expected": (2, 3),
            "tolerance": (2, 3),
        }


def test_of_the_first_step_that_fails(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(NETS["residual"](), cache=False)
    plan = session.plan_for(2)
    for weight in ("conv_7_w", "gemm_14_b"):
        plan = shifted(plan, weight, 1.0)
    report = validate_layers(session, session.random_inputs(), plan=plan, bundle=BundleRequest(tmp_path))
    assert [layer.step for layer in report.layers if not layer.passed] == ["conv_7", "gemm_14"]
    assert [node.name for node in onnx.load(tmp_path / "step.onnx").graph.node] == ["conv_7", "relu_8"]


def test_a_node_names_its_step(tmp_path: Path) -> None:
    written(tmp_path, "residual", "relu_8")
    assert [node.name for node in onnx.load(tmp_path / "step.onnx").graph.node] == ["conv_7", "relu_8"]


def test_where_nothing_fails_nothing_is_written(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(NETS["residual"](), cache=False)
    report = validate_layers(session, session.random_inputs(), bundle=BundleRequest(tmp_path / "b"))
    assert report.bundle == () and not (tmp_path / "b").exists()
    assert "no step leaves its tolerance: no bundle is written" in report.notes[0]


def test_names_stay_data(tmp_path: Path) -> None:
    """A node's name reaches the written test through escaping only."""
    net = Net("hostile", [2, 4])
    x = net.add("Gemm", "x", net.weight(4, 5), net.weight(5))
    net.nodes[0].name = '"""\nraise SystemExit(7)\n# {HERE} \\'
    session = trnrt.InferenceSession(net.model(x), cache=False)
    validate_layers(session, session.random_inputs(), bundle=BundleRequest(tmp_path, net.nodes[0].name))
    assert run(tmp_path).returncode == 0
