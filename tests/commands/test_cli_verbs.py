"""The verbs beside ``run``: what validate, inspect and compile print, write, and exit with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commanding import Outcome, save_model, trnrt
from onnx import helper

MODELS = Path(__file__).parents[2] / "models"
CNN = str(MODELS / "digits_cnn.onnx")
FFNN = str(MODELS / "digits_ffnn.onnx")
SKLEARN = str(MODELS / "digits_mlp_sklearn.onnx")
SPLIT = str(MODELS / "digits_test.npz")


@pytest.fixture
def fixed(tmp_path: Path) -> str:
    """A model with a fixed batch of 2: y = relu(x)."""
    return save_model(tmp_path / "fixed.onnx", [helper.make_node("Relu", ["x"], ["y"])], [2, 5], [2, 5])


@pytest.fixture
def unsupported(tmp_path: Path) -> str:
    """A model with two nodes that trnrt has no kernels for, and names that a terminal would obey."""
    nodes = [
        helper.make_node("Hardmax", ["x"], ["a"], name="first\n\x1b[31m[bold]"),
        helper.make_node("Det", ["a"], ["b"], name="second"),
        helper.make_node("Relu", ["b"], ["y"], name="third"),
    ]
    return save_model(tmp_path / "unsupported.onnx", nodes, ["N", 4, 4], ["N"])


# ---- validate


def test_validate_passes_on_a_sample_model() -> None:
    outcome = trnrt("validate", FFNN)
    assert outcome.code == 0
    headline, tail = outcome.out.splitlines()[0].split("largest error ")
    assert headline == "PASS digits_ffnn: 0 of 64 decisions changed, "
    assert float(tail.split(",")[0]) < 1e-5 and tail.endswith(", all outputs within the tolerance")
    assert "0.0001" in outcome.out


def test_validate_fails_with_exit_code_1() -> None:
    outcome = trnrt("validate", CNN, "--rtol", "0", "--atol", "0")
    assert outcome.code == 1
    headline = outcome.out.splitlines()[0]
    assert headline.startswith("FAIL digits_cnn: 0 of 64 decisions changed, largest error ")
    assert headline.endswith(", 1 of 1 output beyond the tolerance")
    assert "FAIL" in outcome.out.splitlines()[3]


def test_validate_json(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outcome = trnrt("validate", SKLEARN, "--input", SPLIT, "--rows", "20", "--json", "--json-out", path)
    document = outcome.document
    assert outcome.code == 0
    assert (document["passed"], document["samples"], document["changed_decisions"]) == (True, 20, 0)
    assert [output["name"] for output in document["outputs"]] == ["label", "probabilities"]
    assert {"name", "max_abs", "max_rel", "required_rtol"} <= document["outputs"][0].keys()
    assert path.read_text() == outcome.out


def test_validate_takes_all_rows_of_its_input() -> None:
    assert trnrt("validate", CNN, "--input", SPLIT, "--json").document["samples"] == 450


def test_validate_a_fixed_batch(fixed: str) -> None:
    assert trnrt("validate", fixed, "--json").document["samples"] == 2
    sliced = trnrt("validate", fixed, "--rows", "5", "--json")
    assert (sliced.code, sliced.document["samples"]) == (0, 5)


# ---- inspect and compile


def test_inspect_shows_every_node_and_step() -> None:
    outcome = trnrt("inspect", CNN)
    assert outcome.code == 0
    assert outcome.out.startswith("digits_cnn: float32 on trn2, planned for 1 row; ")
    assert "MaxPool" in outcome.out
    assert "sbuf" in outcome.out


def test_inspect_json() -> None:
    outcome = trnrt("inspect", CNN, "--json", "--batch", "7", "--dtype", "bfloat16")
    document = outcome.document
    assert (document["supported"], document["blockers"], document["batch"]) == (True, [], 7)
    assert document["nodes"][0].keys() == {"name", "op", "step", "kernel", "place", "reason"}
    steps = {step["name"] for step in document["steps"]}
    assert {node["step"] for node in document["nodes"]} <= steps | {None}


def test_inspect_of_an_unsupported_model_lists_every_blocker(unsupported: str) -> None:
    outcome = trnrt("inspect", unsupported, "--json")
    document = outcome.document
    assert outcome.code == 1
    assert document["supported"] is False
    assert [blocker["op"] for blocker in document["blockers"]] == ["Hardmax", "Det"]
    assert document["blockers"][0].keys() == {"node", "op", "reason", "hint"}
    assert [node["op"] for node in document["nodes"]] == ["Hardmax", "Det", "Relu"]
    text = trnrt("inspect", unsupported)
    assert text.code == 1
    assert "\x1b" not in text.out + text.err
    assert "first\\x0a\\x1b[31m[bold]" in text.out


@pytest.mark.parametrize("verb", ["run", "validate", "compile"])
def test_an_unsupported_model_is_refused(unsupported: str, verb: str, tmp_path: Path) -> None:
    outcome = trnrt(verb, unsupported, *(["-o", str(tmp_path / "out")] if verb == "compile" else []))
    assert (outcome.code, outcome.out) == (1, "")
    assert "Hardmax" in outcome.err
    assert "Det" in outcome.err
    assert "\x1b" not in outcome.err


@pytest.mark.parametrize("stage", ["imported", "rewritten"])
def test_inspect_of_an_earlier_stage(stage: str, unsupported: str) -> None:
    outcome = trnrt("inspect", CNN, "--stage", stage)
    assert outcome.code == 0
    assert "Conv" in outcome.out
    document = trnrt("inspect", CNN, "--stage", stage, "--json").document
    assert document["stage"] == stage
    assert document["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert "\n".join(document["listing"]) == outcome.out.rstrip("\n")
    assert trnrt("inspect", unsupported, "--stage", stage).code == 0


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        ("run", ["--rows", "3"]),
        ("validate", ["--rows", "3"]),
        ("inspect", ["--batch", "3"]),
        ("compile", ["--batch", "3", "-o", "out"]),
    ],
)
def test_rows_of_a_model_without_a_batch_are_refused(tmp_path: Path, verb: str, arguments: list[str]) -> None:
    model = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], [4], [4])
    outcome = trnrt(verb, model, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{arguments[0]} gives a number of rows, and the model has no batch" in outcome.err


def test_a_model_without_a_batch(tmp_path: Path) -> None:
    model = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], [4], [4])
    assert ": 1 run in" in trnrt("run", model).out
    assert "m: 1 run, largest error 0, all outputs" in trnrt("validate", model).out
    assert trnrt("inspect", model, "--json").document["batch"] is None


def test_a_fixed_batch_is_planned_as_it_is(fixed: str) -> None:
    assert trnrt("inspect", fixed, "--json").document["batch"] == 2
    outcome = trnrt("inspect", fixed, "--batch", "3")
    assert outcome.code == 2
    assert "fixed at 2" in outcome.err


def test_compile_writes_the_kernel_module(tmp_path: Path) -> None:
    outcome = trnrt("compile", FFNN, "-o", tmp_path / "a" / "b", "--batch", "4", "--no-bundle")
    files = list((tmp_path / "a" / "b").iterdir())
    assert outcome.code == 0
    assert len(files) == 3
    assert outcome.out.startswith("digits_ffnn: float32 on trn2, for 4 rows\n")
    assert all(str(file) in outcome.out for file in files)
    document = trnrt("compile", FFNN, "-o", tmp_path / "c", "--json", "--json-out", tmp_path / "c.json").document
    assert all(Path(file).is_file() for file in document["files"])
    assert document == json.loads((tmp_path / "c.json").read_text())


def test_hostile_output_names_stay_text(tmp_path: Path) -> None:
    name = "[bold]\x1b[31m\n../x"
    node = helper.make_node("Relu", ["x"], [name])
    model = save_model(tmp_path / "m.onnx", [node], ["N", 2], ["N", 2], result=name)
    verbs: list[Callable[[], Outcome]] = [
        lambda: trnrt("run", model, "--top", "1", "--output", tmp_path / "o.npz"),
        lambda: trnrt("validate", model),
        lambda: trnrt("inspect", model),
    ]
    for verb in verbs:
        outcome = verb()
        assert outcome.code == 0
        assert "\x1b" not in outcome.out + outcome.err
        assert "[bold]\\x1b[31m\\x0a../x" in outcome.out
    assert name in trnrt("run", model, "--json").document["outputs"]
    with np.load(tmp_path / "o.npz") as arrays:
        assert list(arrays) == [name]
