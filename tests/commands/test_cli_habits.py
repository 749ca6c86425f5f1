"""Habits of a command line: help without a verb, short names, completion, early refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import ShellComplete
from commanding import trnrt

from trnrt import __version__
from trnrt.cli import app

MODELS = Path(__file__).parents[2] / "models"
CNN = str(MODELS / "digits_cnn.onnx")
SPLIT = str(MODELS / "digits_test.npz")


def test_without_a_verb_help_is_shown() -> None:
    outcome = trnrt()
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == trnrt("--help").out
    headings = [line for line in outcome.out.splitlines() if line and line[0] != " "][1:]
    assert headings == ["Run a model:", "Production:", "Kernels:", "This machine:", "Options:"]
    assert "bench" not in outcome.out
    nki = trnrt("nki")
    assert (nki.code, nki.out) == (0, trnrt("nki", "--help").out)


def test_version_in_short() -> None:
    assert trnrt("-V").out == f"trnrt {__version__}\n"


@pytest.mark.parametrize(
    ("given", "dtype"),
    [("bf16", "bfloat16"), ("FP16", "float16"), ("fp32", "float32"), ("half", "float16"), ("BFloat16", "bfloat16")],
)
def test_dtypes_have_short_names_in_any_case(given: str, dtype: str) -> None:
    outcome = trnrt("inspect", CNN, "--no-tiles", "--target", "Trn1", "--dtype", given)
    assert outcome.out.startswith(f"digits_cnn: {dtype} on trn1, ")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("run", CNN, "--batch", "4"), "--rows N gives the number of rows, and --buckets N the rows that the device"),
        (("validate", CNN, "--samples", "4"), "write --rows"),
        (("quantize", CNN, "--samples=4"), "write --rows"),
    ],
)
def test_a_renamed_flag_is_refused_with_the_new_one(arguments: tuple[str, ...], hint: str) -> None:
    outcome = trnrt(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"has no {arguments[2].split('=')[0]} any more\nhint: {hint}" in outcome.err


def test_run_takes_the_first_rows_of_its_input(tmp_path: Path) -> None:
    assert trnrt("run", CNN, "--input", SPLIT, "--rows", "3", "-o", tmp_path / "out.npz").code == 0
    assert len(np.load(tmp_path / "out.npz")["logits"]) == 3


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        ("run", "-o"),
        ("run", "--draw"),
        ("run", "--json-out"),
        ("run", "--keep"),
        ("validate", "--json-out"),
        ("inspect", "--save-plan"),
        ("compile", "-o"),
        ("profile", "--html"),
        ("predict", "-o"),
        ("quantize", "-o"),
    ],
)
def test_the_place_of_an_output_is_checked_before_the_model_is_read(verb: str, flag: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    is_directory = flag == "--keep" or verb in ("compile", "predict")
    rows = ("--input", "x.npz") if verb in ("run", "predict") else ()
    for place in (tmp_path / "file" / "out", tmp_path / "file" if is_directory else tmp_path):
        outcome = trnrt(verb, "none.onnx", *rows, flag, place)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.startswith("error: can't write ") and str(place) in outcome.err


def test_completion_of_verbs_flags_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    script = trnrt("completion", "bash")
    assert script.code == 0 and "_TRNRT_COMPLETE=bash_complete" in script.out
    monkeypatch.setenv("SHELL", "/bin/fish")
    assert trnrt("completion").out == trnrt("completion", "fish").out
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    refused = trnrt("completion")
    assert (refused.code, refused.err.splitlines()[-1]) == (2, "hint: name bash, zsh or fish")


@pytest.mark.parametrize(
    ("words", "typed", "found"),
    [
        ([], "va", ["validate"]),
        (["nki"], "pro", ["profile"]),
        (["run"], "--sam", ["--sample"]),
        (["run", "--sample"], "digits", ["digits", "digits-ffnn"]),
        (["run", "--target"], "T", ["trn1", "trn2", "trn3"]),
        (["run", "--dtype"], "bf", ["bfloat16"]),
        (["serve", "--target"], "trn3", ["trn3"]),
    ],
)
def test_completion_finds(words: list[str], typed: str, found: list[str]) -> None:
    made = ShellComplete(app, {}, "trnrt", "_TRNRT_COMPLETE")
    assert [item.value for item in made.get_completions(words, typed)] == found


def test_doctor_folds_the_device_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.commands.host.is_laptop", lambda machine: True)
    outcome = trnrt("doctor")
    assert outcome.code == 0
    rows = [line.split()[1] for line in outcome.out.splitlines()[3:] if line.startswith("ok ")]
    assert rows == ["simulator", "versions", "cache", "extras"]
    assert outcome.out.endswith("\n\nno Neuron device: the simulator is used; --device shows the checks\n")
    assert "agrees with onnxruntime" in outcome.out
    assert "aws-neuronx-dkms" in trnrt("doctor", "--device").out
    document = trnrt("doctor", "--json").document
    assert [finding["name"] for finding in document["host"]] == rows
    assert "driver" in [finding["name"] for finding in document["findings"]]


def test_doctor_says_when_the_simulator_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("trnrt.commands.host.is_laptop", lambda machine: True)
    monkeypatch.setattr("trnrt.session.InferenceSession", fail)
    outcome = trnrt("doctor")
    assert outcome.code == 1
    assert "\nwrong  simulator " in outcome.out
    assert "the sample model fails: no such instruction" in " ".join(outcome.out.split())
