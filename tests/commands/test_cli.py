"""The command line: what each verb prints, its exit codes, and that no error of a user's shows a traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commanding import save_model, trnrt
from onnx import helper
from PIL import Image

from trnrt import __version__, errors
from trnrt.commands import run as run_verb
from trnrt.commands.opening import feed
from trnrt.nki.machine.targets import target_names
from trnrt.nki.machine.timing import Range
from trnrt.running.results import RunResult

MODELS = Path(__file__).parents[2] / "models"
CNN = str(MODELS / "digits_cnn.onnx")
FFNN = str(MODELS / "digits_ffnn.onnx")
SKLEARN = str(MODELS / "digits_mlp_sklearn.onnx")
SPLIT = str(MODELS / "digits_test.npz")

VERBS = ("run", "validate", "inspect", "compile", "profile")


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Call trnrt as a command of its own."""
    line = [sys.executable, "-m", "trnrt", *arguments]
    return subprocess.run(line, text=True, capture_output=True, check=False, **options)


@pytest.fixture
def fixed(tmp_path: Path) -> str:
    """A model with a fixed batch of 2: y = relu(x)."""
    return save_model(tmp_path / "fixed.onnx", [helper.make_node("Relu", ["x"], ["y"])], [2, 5], [2, 5])


# ---- the program


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    times = []
    for _ in range(3):
        before = os.times()
        result = command("--help")
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert result.returncode == 0
    assert min(times) < 0.5  # of a CPU: others may be busy
    assert all(verb in result.stdout for verb in VERBS)
    heavy = ("numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "PIL", "ml_dtypes", "rich.table", "trnrt.session")
    check = f"import sys, trnrt.cli; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True) == "[]\n"


@pytest.mark.parametrize(("given", "kept"), [({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")])
def test_onnxruntime_reports_nothing_unasked(given: dict[str, str], kept: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"} | given
    code = "import trnrt, os, sys; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == [kept, "False"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(verb: str) -> None:
    outcome = trnrt(verb, "--help")
    assert outcome.code == 0
    for flag in ("--json", "--json-out", "--dtype", "--target"):
        assert flag in outcome.out
    assert f"[{'|'.join(target_names())}|FILE.toml]" in outcome.out


def test_version() -> None:
    outcome = trnrt("--version")
    assert (outcome.code, outcome.out) == (0, f"trnrt {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        (["--dtype", "int4"], ("float32", "bfloat16", "float16")),
        (["--backend", "gpu"], ("auto", "simulator", "neuron")),
        (["--target", "trn9"], target_names()),
        (["--layout", "HWC"], ("NCHW", "NHWC")),
        (["--color", "CMYK"], ("L", "RGB", "BGR")),
    ],
)
def test_a_choice_that_is_none_lists_the_choices(arguments: list[str], choices: tuple[str, ...]) -> None:
    outcome = trnrt("run", CNN, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert arguments[1] in outcome.err
    assert all(choice in outcome.err for choice in choices)


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["run"],
        ["run", CNN, "--frobnicate"],
        ["run", "none.onnx"],
        ["run", SPLIT],
        ["run", str(MODELS)],
        ["run", CNN, "--top", "0"],
        ["run", CNN, "--rows", "-1"],
        ["run", CNN, "--rows", "x"],
        ["run", CNN, "--rows", str(10**30)],
        ["run", CNN, "--seed", "-1"],
        ["run", CNN, "--logits"],
        ["run", CNN, "--scale", "nan"],
        ["run", CNN, "--draw", "x.png", "--min-score", "nan"],
        ["predict", CNN, "--input", SPLIT, "--output", "out", "--engine", "ray", "--replica-cpus", "nan"],
        ["run", CNN, "--mean", "1,x"],
        ["run", CNN, "--scale", "1"],
        ["run", CNN, "--input", "none.npz"],
        ["run", CNN, "--input", "middle=none.npy"],
        ["run", CNN, "--input", CNN],
        ["validate", CNN, "--rtol", "inf"],
        ["validate", CNN, "--atol", "-1"],
        ["validate", CNN, "--rows", "0"],
        ["validate", "none.onnx"],
        ["inspect", "none.onnx"],
        ["inspect", CNN, "--stage", "compiled"],
        ["compile", CNN],
        ["compile", CNN, "-o", "/dev/null/x"],
    ],
)
def test_a_wrong_request_is_an_error_and_prints_no_result(arguments: list[str]) -> None:
    outcome = trnrt(*arguments)
    assert outcome.code == 2
    assert outcome.out == "" or not arguments
    assert "rror" in outcome.err or not arguments
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prof"], "No such command 'prof'. Did you mean 'profile'?"),
        (["nki", "chek"], "No such command 'chek'. Did you mean 'check'?"),
        (["xyz"], "No such command 'xyz'."),
    ],
)
def test_a_verb_that_is_none_names_those_like_it(arguments: list[str], message: str) -> None:
    outcome = trnrt(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1] == f"Error: {message}"


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--rows", "x", "'x' is not a valid whole number."),
        ("--rows", "0", "0 is not in the range x>=1."),
        ("--min-score", "x", "'x' is not a valid number."),
        ("--min-score", "nan", "nan is not a number."),
    ],
)
def test_a_number_that_is_none_or_out_of_range(flag: str, value: str, message: str) -> None:
    outcome = trnrt("run", CNN, flag, value)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1] == f"Error: Invalid value for '{flag}': {message}"


def test_neuron_is_never_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = trnrt("run", CNN, "--backend", "neuron")
    assert (outcome.code, outcome.out) == (2, "")
    assert "neuron" in outcome.err


def test_an_error_has_a_message_and_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise errors.ModelFileError("it is\x1b broken", hint="mend it")

    monkeypatch.setattr(run_verb, "open_session", fail)
    outcome = trnrt("run", CNN)
    assert (outcome.code, outcome.err) == (2, "error: it is\\x1b broken\nhint: mend it\n")


BLOCKERS = [
    errors.Blocker("n1", "Erf", "why", "export it so"),
    errors.Blocker("n2", "Erf", "why", "export it so"),
    errors.Blocker("n3", "Det", "why", "leave it out"),
    errors.Blocker("n4", "Det", "why"),
]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "not enough memory"),
        (errors.KernelMemoryError("full"), 1, "full"),
        (errors.UnsupportedModelError("m", BLOCKERS), 1, "hint: export it so; leave it out; `trnrt inspect` shows"),
    ],
)
def test_exit_codes(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(run_verb, "open_session", fail)
    outcome = trnrt("run", CNN)
    assert outcome.code == code
    assert message in outcome.err


def test_a_reader_that_goes_away_is_no_error() -> None:
    line = [sys.executable, "-m", "trnrt", "inspect", CNN]
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(line, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_terminal_without_unicode_gets_escapes(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["zähler"])
    model = save_model(tmp_path / "m.onnx", [node], ["N", 2], ["N", 2], result="zähler")
    result = command("run", model, env=os.environ | {"PYTHONIOENCODING": "ascii:strict"})
    assert result.returncode == 0
    assert "z\\xe4hler" in result.stdout


# ---- run


def test_run_prints_outputs_top_and_the_last_line() -> None:
    outcome = trnrt("run", CNN, "--input", SPLIT, "--top", "3")
    lines = outcome.out.splitlines()
    assert outcome.code == 0
    assert lines[0].split() == ["output", "dtype", "shape", "values"]
    assert lines[1].startswith("logits  float32  [450, 10]")
    assert lines[3] == "best classes by output 'logits'"
    assert lines[4].split() == ["row", "class", "number", "label"]
    assert len(lines[5:-3]) == 30
    assert lines[-3] == "and 440 more rows; --json has all"
    last = (
        r"simulator, target trn2, float32: 450 rows in [\d,.]+ ms on this machine, compiling included; "
        r"predicted for the device: [\d,]+ us \([\d,]+ to [\d,]+\)"
    )
    assert re.fullmatch(last, lines[-1])
    assert "ignored: the model has no input 'pixels', 'label'" in outcome.err


def test_run_json_is_one_document_with_every_row() -> None:
    outcome = trnrt("run", CNN, "--input", SPLIT, "--top", "3", "--json", "--dtype", "float32", "--target", "trn1")
    document = outcome.document
    assert (document["backend"], document["target"], document["dtype"]) == ("simulator", "trn1", "float32")
    assert document["wall_ms"] > 0
    assert document["predicted_us"] > 0
    assert document["outputs"]["logits"]["shape"] == [450, 10]
    assert "data" not in document["outputs"]["logits"]
    assert len(document["top"]) == 450
    assert all(len(row) == 3 for row in document["top"])
    labels = np.load(SPLIT)["label"]
    assert np.mean([row[0]["class"] == label for row, label in zip(document["top"], labels, strict=True)]) > 0.98
    assert document["top"][0][0]["label"] == str(document["top"][0][0]["class"])


def test_run_full_has_the_data_of_large_outputs() -> None:
    document = trnrt("run", CNN, "--input", SPLIT, "--json", "--full").document
    assert np.shape(document["outputs"]["logits"]["data"]) == (450, 10)
    assert document["top"] is None


def test_run_without_input_draws_seeded_values_and_says_so() -> None:
    first = trnrt("run", CNN, "--json", "--rows", "3")
    assert "no --input: drew random values for 'image' float32 [3, 1, 8, 8]" in first.err
    assert "seed 0" in first.err
    values = [trnrt("run", CNN, "--json", "--rows", "3", "--seed", seed).document["outputs"] for seed in ("0", "1")]
    assert values[0] == first.document["outputs"]
    assert values[0] != values[1]


def test_run_of_one_row_by_default_without_top() -> None:
    outcome = trnrt("run", FFNN)
    assert "label          int64    [1]" in outcome.out
    assert "best classes" not in outcome.out
    assert ": 1 row in" in outcome.out


def test_run_logits_applies_softmax_only_when_asked() -> None:
    plain = trnrt("run", CNN, "--top", "10", "--json").document
    shares = trnrt("run", CNN, "--top", "10", "--logits", "--json").document
    assert (plain["top_softmax"], shares["top_softmax"]) == (False, True)
    assert sum(choice["number"] for choice in shares["top"][0]) == pytest.approx(1)
    assert [c["class"] for c in plain["top"][0]] == [c["class"] for c in shares["top"][0]]
    assert plain["outputs"] == shares["outputs"]
    assert "softmax applied" in trnrt("run", CNN, "--top", "1", "--logits").out


def test_run_top_of_a_model_without_classes(fixed: str, tmp_path: Path) -> None:
    assert trnrt("run", fixed, "--top", "1").code == 0
    flat = save_model(tmp_path / "flat.onnx", [helper.make_node("Relu", ["x"], ["y"])], ["N", 1], ["N", 1])
    outcome = trnrt("run", flat, "--top", "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert "one number per class" in outcome.err


def test_run_takes_pictures_by_the_models_metadata(tmp_path: Path) -> None:
    image = np.load(SPLIT)["image"][:2, 0]
    paths = []
    for index, pixels in enumerate((image * 255).round().astype(np.uint8)):
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(pixels).save(paths[-1])
    outcome = trnrt("run", CNN, "--input", paths[0], "--input", paths[1], "--top", "1", "--json")
    assert [row[0]["class"] for row in outcome.document["top"]] == np.load(SPLIT)["label"][:2].tolist()
    assert "2 images as 'image' float32 [2, 1, 8, 8]" in outcome.err
    assert "value = (pixel * 0.00392156863 - 0) / 1" in outcome.err
    assert outcome.document["notes"] == [line.removeprefix("note: ") for line in outcome.err.splitlines()]
    said = trnrt("run", CNN, "--input", paths[0], "--scale", "0.1", "--mean", "1", "--std", "2", "--color", "L")
    assert "value = (pixel * 0.1 - 1) / 2" in said.err


def test_run_slices_a_fixed_batch_and_says_so(fixed: str) -> None:
    outcome = trnrt("run", fixed, "--rows", "5", "--json")
    assert outcome.document["outputs"]["y"]["shape"] == [5, 5]
    assert "padded" in outcome.err
    assert any("padded" in note for note in outcome.document["notes"])
    assert trnrt("run", fixed, "--json").document["outputs"]["y"]["shape"] == [2, 5]


def test_run_with_nan(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.full((1, 1, 8, 8), np.nan, np.float32))
    outcome = trnrt("run", CNN, "--input", tmp_path / "a.npz", "--json", "--top", "1")
    assert outcome.code == 0
    assert outcome.document["outputs"]["logits"]["non_finite"] is True
    assert trnrt("run", CNN, "--input", tmp_path / "a.npz", "--top", "1").code == 0


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 1, 8, 8)), 'astype("float32")'),
        (np.zeros((1, 8, 8), np.float32), "rank"),
        (np.zeros((1, 3, 8, 8), np.float32), "image"),
    ],
)
def test_run_refuses_an_array_that_does_not_fit(tmp_path: Path, array: Any, message: str) -> None:
    np.savez(tmp_path / "a.npz", image=array)
    outcome = trnrt("run", CNN, "--input", tmp_path / "a.npz")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_run_writes_its_outputs(tmp_path: Path) -> None:
    outcome = trnrt("run", SKLEARN, "--input", SPLIT, "--output", tmp_path / "out.npz")
    assert outcome.code == 0
    with np.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {"label": (450,), "probabilities": (450, 10)}


def test_run_keeps_the_kernel_module(tmp_path: Path, fixed: str) -> None:
    outcome = trnrt("run", CNN, "--keep", tmp_path / "kept")
    assert outcome.code == 0
    assert {path.suffix for path in (tmp_path / "kept").iterdir()} == {".py", ".npz", ".json"}
    assert "kept" in outcome.err
    assert trnrt("run", fixed, "--rows", "5", "--keep", tmp_path / "kept").code == 0


@pytest.mark.parametrize("flags", [["--json-out", "gone/a.json"], ["--output", "gone/a.npz"]])
def test_run_prints_its_result_even_if_a_file_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("gone").mkdir()  # it is there when its place is checked, and no longer when the result is

    def lose_folder(*arguments: Any) -> Any:
        Path("gone").rmdir()
        return feed(*arguments)

    monkeypatch.setattr(run_verb, "feed", lose_folder)
    outcome = trnrt("run", CNN, *flags)
    assert outcome.code == 2
    assert "logits" in outcome.out
    assert "can't write" in outcome.err


def test_json_out_is_the_document(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    outcome = trnrt("run", CNN, "--json-out", path)
    assert outcome.out.startswith("output")
    assert json.loads(path.read_text())["schema_version"] == 1
    both = trnrt("run", CNN, "--json", "--json-out", path)
    assert both.out == path.read_text()


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_predicted_latency_is_shown_only_if_there_is_one(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr(RunResult, "predicted", Range(1100.4, 1234.56, 1300.0))
    assert trnrt(verb, CNN).out.splitlines()[-1].endswith("; predicted for the device: 1,235 us (1,100 to 1,300)")
    document = trnrt(verb, CNN, "--json").document
    assert [document[key] for key in ("predicted_us", "low_us", "high_us")] == [1234.56, 1100.4, 1300.0]
    doubt = "to 1,300) (trn3's model was never compared with a measurement)"
    assert trnrt(verb, CNN, "--target", "trn3").out.splitlines()[-1].endswith(doubt)
    monkeypatch.setattr(RunResult, "predicted", None)
    assert "predicted" not in trnrt(verb, CNN).out
    document = trnrt(verb, CNN, "--json").document
    assert [document[key] for key in ("predicted_us", "low_us", "high_us")] == [None] * 3


def test_random_inputs_that_do_not_fit_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = trnrt("run", CNN, "--rows", "100000000")
    assert outcome.code == 2
    assert "the limit is 4.0 GiB" in outcome.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_under_stdout_is_an_error_without_traceback() -> None:
    line = [sys.executable, "-m", "trnrt", "inspect", FFNN]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "error: can't write the result: no space left on device\n")
