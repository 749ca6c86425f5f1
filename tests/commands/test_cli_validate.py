"""``trnrt validate`` with labels, step by step, and in 16 bits: what is printed, written, and exited with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import Outcome, trnrt
from layered import NETS, Net
from onnx import numpy_helper

MODELS = Path(__file__).parents[2] / "models"
CNN, SKLEARN, SPLIT = MODELS / "digits_cnn.onnx", MODELS / "digits_mlp_sklearn.onnx", MODELS / "digits_test.npz"


def headline(outcome: Outcome) -> str:
    """The first line of the report."""
    return outcome.out.splitlines()[0]


def saved(path: Path, model: bytes) -> Path:
    """A model as a file."""
    path.write_bytes(model)
    return path


def test_accuracy_of_both() -> None:
    outcome = trnrt("validate", SKLEARN, "--data", SPLIT)
    assert outcome.code == 0
    assert headline(outcome).startswith(
        "PASS digits_mlp_sklearn: 0 of 450 decisions changed, accuracy 97.33 %, onnxruntime's 97.33 %, largest error "
    )
    document = trnrt("validate", SKLEARN, "--data", SPLIT, "--rows", "100", "--json").document
    assert document["samples"] == 100 and document["accuracy"]["rows"] == 100
    assert document["accuracy"]["ours"] == document["accuracy"]["reference"]
    assert document["accuracy"]["output"] == "label"
    assert trnrt("validate", SKLEARN, "--json").document["accuracy"] is None


def test_the_accuracy_of_the_float_model(tmp_path: Path) -> None:
    """A model of weights without a sense, beside one that is right."""
    wrong = onnx.load(CNN)
    for tensor in wrong.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    path = saved(tmp_path / "wrong.onnx", wrong.SerializeToString())
    outcome = trnrt("validate", path, "--data", SPLIT, "--rows", "50", "--float", CNN)
    assert outcome.code == 0 and ", the float model's 100.00 %, " in headline(outcome)
    document = trnrt("validate", path, "--data", SPLIT, "--rows", "50", "--float", CNN, "--json").document
    assert document["accuracy"]["float_model"] == 1 > document["accuracy"]["ours"]
    assert trnrt("validate", SKLEARN, "--data", SPLIT, "--json").document["accuracy"]["float_model"] is None


def test_the_error_of_16_bits_is_split() -> None:
    outcome = trnrt("validate", CNN, "--dtype", "bfloat16")
    assert outcome.code == 0
    header, line = (line.split() for line in outcome.out.splitlines()[5:7])
    assert header[:3] == ["output", "max", "abs"] and line[0] == "logits" and line[-1] == "rounding"
    document = trnrt("validate", CNN, "--dtype", "bfloat16", "--json").document
    split = document["outputs"][0]["split"]
    assert split["float32_passed"] and split["float32_max_abs"] < 1e-4 < split["rounding_max_abs"]
    assert "float32 path" not in trnrt("validate", CNN).out


def test_the_tolerance_is_explained() -> None:
    outcome = trnrt("validate", CNN)
    assert "what rounding does to each element, by onnxruntime with random roundings, + 0.0001 *" in outcome.out
    document = trnrt("validate", CNN, "--json").document
    (output,) = document["outputs"]
    assert document["tolerances"] == "measured" and len(output["element"]) == 2
    assert 0 < output["error"] < output["tolerance"] <= document["atol"] + 1e-4 * 100 and output["noise"] > 0
    assert "allowed: |difference| <= 1e-05 + 0.001 * |onnxruntime's|" in trnrt("validate", CNN, "--rtol", "1e-3").out
    document = trnrt("validate", CNN, "--atol", "1e-3", "--json").document
    assert document["tolerances"] == "given" and (document["rtol"], document["atol"]) == (1e-4, 1e-3)
    assert document["outputs"][0]["noise"] is None
    assert "the errors are rounding to float16" in trnrt("validate", CNN, "--dtype", "float16").out


def test_steps_tell_where_outputs_of_16_bits_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.validate.outputs.SUSPICIOUS", 0.0)
    outcome = trnrt("validate", CNN, "--dtype", "bfloat16")
    assert outcome.code == 0 and "3 steps compared one by one: all within what rounding explains" in outcome.out
    document = trnrt("validate", CNN, "--dtype", "bfloat16", "--json").document
    assert document["passed"] and document["layers"]["rows"] == 4 and "steps" not in document


def test_layers_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = trnrt("validate", CNN, "--layers")
    assert outcome.code == 0
    assert "3 steps compared one by one: all within what rounding explains" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    table = outcome.out.split("explains\n")[1]
    assert [line.split()[-1] for line in table.splitlines() if line.endswith("pass")] == ["pass"] * 3
    assert "isolated" in table and "cumulative" in table and "conv2d," in table


def test_layers_as_json(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outcome = trnrt("validate", CNN, "--layers", "--json", "--json-out", path)
    document = outcome.document
    assert json.loads(path.read_text()) == document and document["samples"] == 4
    layers = document["layers"]
    assert (layers["passed"], layers["rows"], layers["first_failure"], layers["bundle"]) == (True, 4, None, [])
    step = layers["steps"][1]
    assert {"step", "kernel", "nodes", "value", "shape", "length", "isolated", "cumulative", "passed"} == step.keys()
    assert step["length"] == 145 and step["shape"] == [4, 32, 2, 2]
    for mode in ("isolated", "cumulative"):
        assert {"max_abs", "error", "tolerance", "ratio", "element", "passed"} == step[mode].keys()
        assert step[mode]["error"] <= step[mode]["tolerance"]
    assert trnrt("validate", CNN, "--json").document["layers"] is None


def test_a_failure_is_named_and_bundled(tmp_path: Path) -> None:
    """float16 can't hold what the first layer makes."""
    net = Net("large", [2, 8])
    x = net.add("Relu", net.add("Gemm", "x", net.weight(8, 8, around=1), net.weight(8)))
    model = saved(tmp_path / "m.onnx", net.model(net.add("Softmax", net.add("Gemm", x, net.weight(8, 4)), axis=-1)))
    np.savez(tmp_path / "x.npz", x=np.full((2, 8), 3e4, np.float32))
    directory = tmp_path / "bundle"
    flags = ("--input", tmp_path / "x.npz", "--layers", "--bundle", directory)
    outcome = trnrt("validate", model, "--dtype", "float16", *flags)
    assert outcome.code == 1
    assert headline(outcome).startswith("FAIL m: ") and headline(outcome).endswith("step 'gemm_0' is wrong")
    assert "1 of 3 steps beyond what rounding explains, the first one: 'gemm_0', 'relu_1'" in outcome.out
    assert f"bundle: pytest {directory / 'test_step.py'}" in outcome.out
    assert sorted(path.name for path in directory.iterdir()) == ["data.npz", "step.onnx", "test_step.py"]
    document = trnrt("validate", model, "--dtype", "float16", *flags, "--json").document
    assert document["layers"]["first_failure"] == "gemm_0" and not document["passed"]
    assert document["layers"]["first_failure_nodes"] == ["gemm_0", "relu_1"]
    assert document["layers"]["steps"][0]["isolated"]["max_abs"] is None  # infinity has no number in JSON


def test_a_bundle_of_a_step_that_passes(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", NETS["residual"]())
    outcome = trnrt("validate", model, "--layers", "--bundle", tmp_path / "b", "--bundle-step", "relu_8")
    assert outcome.code == 0 and (tmp_path / "b" / "test_step.py").exists()
    outcome = trnrt("validate", model, "--layers", "--bundle", tmp_path / "c")
    assert outcome.code == 0 and "no step leaves its tolerance: no bundle is written" in outcome.err


WRONG = [
    (["--data", SPLIT, "--input", SPLIT], "--data and --input both give the inputs"),
    (["--data", SPLIT, "--scale", "255"], "--data holds arrays"),
    (["--data", "missing.npz"], "no such file or directory"),
    (["--float", CNN], "--float compares accuracies, which need labels"),
    (["--data", SPLIT, "--float", "missing.onnx"], "missing.onnx"),
    (["--data", SPLIT, "--float", SKLEARN], "has other inputs than the quantised one"),
    (["--bundle", "b"], "--bundle needs --layers"),
    (["--layers", "--bundle-step", "conv"], "add --bundle DIR"),
    (["--layers", "--bundle", "/proc/none", "--bundle-step", "node_relu"], "can't write into '/proc/none'"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_wrong_requests(flags: list[str | Path], message: str) -> None:
    outcome = trnrt("validate", CNN, *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_bundle_of_an_unknown_step(tmp_path: Path) -> None:
    outcome = trnrt("validate", CNN, "--layers", "--bundle", tmp_path, "--bundle-step", "conv\x1b9")
    assert outcome.code == 2 and "no step or node is called 'conv\\x1b9'" in outcome.err
    assert "steps: node_conv2d, node_conv2d_1, node_linear" in outcome.err


def test_names_reach_the_terminal_escaped(tmp_path: Path) -> None:
    net = Net("hostile", [2, 4])
    x = net.add("Gemm", "x", net.weight(4, 5), net.weight(5))
    net.nodes[0].name = "[bold]\x1b[31m\nx"
    outcome = trnrt("validate", saved(tmp_path / "m.onnx", net.model(x)), "--layers")
    assert outcome.code == 0 and "\x1b" not in outcome.out + outcome.err
    assert "[bold]\\x1b[31m\\x0ax" in outcome.out
