"""--sample NAME: a model inside the package instead of MODEL, with its own rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commanding import trnrt

from trnrt.samples import SAMPLES

ROOT = Path(__file__).parents[2]
CNN = ROOT / "models" / "digits_cnn.onnx"
NAMES = "digits (a CNN for 8x8 digits), digits-ffnn (a feed-forward net for 8x8 digits)"


def test_samples_are_the_models_that_the_documentation_shows() -> None:
    assert SAMPLES["digits"].model.read_bytes() == CNN.read_bytes()
    assert SAMPLES["digits-ffnn"].model.read_bytes() == (ROOT / "models" / "digits_ffnn.onnx").read_bytes()
    assert SAMPLES["digits"].data.read_bytes() == (ROOT / "models" / "digits_test.npz").read_bytes()


@pytest.mark.quick
def test_validate_with_the_samples_own_labels() -> None:
    outcome = trnrt("validate", "--sample", "digits", "--data", "--rows", "20")
    assert outcome.code == 0
    assert "accuracy 100.00 %, onnxruntime's 100.00 %" in outcome.out.splitlines()[0]
    assert "note: --data: the sample's own 450 rows, with labels" in outcome.err
    assert "pixels" not in outcome.err


def test_data_without_a_value_before_another_flag() -> None:
    document = trnrt("validate", "--data", "--sample", "digits-ffnn", "--rows", "7", "--json").document
    assert (document["samples"], document["accuracy"]["ours"]) == (7, 1.0)


def test_run_takes_the_samples_own_rows(tmp_path: Path) -> None:
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    outcome = trnrt("run", "--sample", "digits", "--rows", "5", "-o", one)
    assert outcome.code == 0
    assert "note: no --input: took 5 rows of the sample's own" in outcome.err
    rows = tmp_path / "rows.npz"
    np.savez(rows, image=np.load(SAMPLES["digits"].data)["image"][:5])
    assert trnrt("run", CNN, "--input", rows, "-o", other).code == 0
    assert np.array_equal(np.load(one)["logits"], np.load(other)["logits"])


def test_verbs_that_run_nothing_take_a_sample() -> None:
    assert trnrt("inspect", "--sample", "digits", "--no-tiles").out.startswith("digits_cnn: float32 on trn2")
    assert trnrt("profile", "--sample", "digits-ffnn", "--json").document["model"] == "digits_ffnn"


def test_predict_takes_the_samples_own_rows(tmp_path: Path) -> None:
    arguments = ("--format", "npz", "--limit", "4", "-o", tmp_path / "out", "--json")
    assert trnrt("predict", "--sample", "digits", *arguments).document["rows"] == 4


def test_quantize_calibrates_with_the_samples_own_rows(tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    arguments = ("-o", out, "--rows", "40", "--no-layers", "--no-latency")
    outcome = trnrt("quantize", "--sample", "digits-ffnn", "--data", *arguments)
    assert outcome.code == 0 and "accuracy" in outcome.out
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(out).graph.node)


def test_cut_takes_names_after_a_sample(tmp_path: Path) -> None:
    names = [node.output[0] for node in onnx.load(CNN).graph.node][:2]
    outcome = trnrt("cut", "--sample", "digits", "-o", tmp_path / "cut.onnx", "--outputs", *names)
    assert outcome.code == 0
    assert [output.name for output in onnx.load(tmp_path / "cut.onnx").graph.output] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--sample", "digit"], f"error: there is no sample 'digit'\nhint: samples are {NAMES}\n"),
        (
            ["run", "x.onnx", "--sample", "digits"],
            "error: 'x.onnx' and --sample digits both name a model\nhint: leave one of them out\n",
        ),
        (
            ["inspect"],
            "error: no model: MODEL is missing\n"
            "hint: name an .onnx file or a bundle, or try --sample NAME: digits, digits-ffnn\n",
        ),
        (
            ["validate", str(CNN), "--data"],
            "error: --data has no file\nhint: give --data FILE.npz; only a --sample has rows of its own\n",
        ),
        (
            ["predict", str(CNN), "-o", "out"],
            "error: --input is missing: the rows to predict\nhint: give -i PATH; a --sample has its own rows\n",
        ),
    ],
)
def test_mistakes_are_refused(arguments: list[str], message: str) -> None:
    outcome = trnrt(*arguments)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", message)
