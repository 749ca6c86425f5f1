"""``trnrt profile``: the table, the JSON, the files, the comparison with a baseline, and every refusal."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commanding import Outcome, trnrt
from profiles import STEPS, made_profile

from trnrt import __version__
from trnrt.errors import KernelError
from trnrt.nki.machine.targets import target_names
from trnrt.nki.profiling import Profile
from trnrt.report import files
from trnrt.running import profiler

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
CNN = str(ROOT / "models" / "digits_cnn.onnx")
FFNN = str(ROOT / "models" / "digits_ffnn.onnx")

Predict = Callable[..., None]


@pytest.fixture
def predict(monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Makes the prediction of any plan what the test says."""

    def say(**changes: Any) -> None:
        def made(plan: Any) -> Profile:
            asked = {"target": plan.target, "dtype": plan.dtype, "batch": plan.batch}
            return made_profile(**(asked | changes))

        monkeypatch.setattr(profiler, "profile_plan", made)

    return say


def profiled(*arguments: str | Path) -> Outcome:
    return trnrt("profile", CNN, "--batch", "8", "--dtype", "bfloat16", *arguments)


# ---- the table


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_is_the_golden_one(predict: Predict, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """``UPDATE_GOLDEN=1`` writes the files anew: look at them."""
    predict()
    monkeypatch.setenv("COLUMNS", str(columns))
    outcome = profiled()
    assert (outcome.code, outcome.err) == (0, "")
    path = GOLDEN / f"profile_{columns}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(outcome.out, encoding="utf-8")
    assert outcome.out == path.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 writes the file anew; read the diff"
    assert max(map(len, outcome.out.splitlines())) <= columns


def test_of_many_steps_the_longest_are_shown_in_their_order(predict: Predict) -> None:
    steps = [STEPS[0].__class__(f"s{k}", ("n",), 0, 1, k / 10, k / 4950, "vector", 0, 0, 1) for k in range(100)]
    predict(steps=tuple(steps))
    lines = profiled().out.splitlines()
    names = [line.split()[0] for line in lines if line[:1] == "s" and line[1].isdigit()]
    assert names == [f"s{k}" for k in range(80, 100)]
    assert "and 80 shorter steps: 316.00 us, 63.8%; --json has all" in lines
    assert len(profiled("--json").document["steps"]) == 100


def test_a_kernel_without_products_or_steps_has_a_page_too(predict: Predict) -> None:
    predict(steps=(), flops=0, hbm_bytes=0, hbm_read_bytes=0, hbm_write_bytes=0, mfu=0.0, mbu=0.0)
    outcome = profiled()
    assert outcome.code == 0
    assert "roofline: no matrix products; HBM traffic 0 of 368 GB/s (0.0%)" in outcome.out
    assert "ONNX nodes" not in outcome.out


def test_what_a_terminal_would_obey_is_escaped(predict: Predict) -> None:
    hostile = STEPS[0].__class__("a\n\x1b[31m[bold]", ("\x1b]0;x\x07",), 0, 1, 1, 1, "vector", 0, 0, 1)
    predict(steps=(hostile,))
    out = profiled().out
    assert "\x1b" not in out and "\x07" not in out
    assert "a\\x0a\\x1b[31m[bold]" in out


def test_notes_say_how_far_it_is_to_be_trusted(predict: Predict) -> None:
    predict(compared=False, notes=("the model assumed something",))
    outcome = profiled("--target", "trn3")
    assert outcome.err == (
        "note: trn3's model was never compared with a measurement\nnote: the model assumed something\n"
    )
    assert "never compared" not in outcome.out


def test_a_real_model_has_a_row_for_each_step_and_the_same_twice() -> None:
    outcome = profiled()
    assert outcome.code == 0
    assert outcome.out.startswith("digits_cnn: bfloat16 on trn2, 8 rows\n")
    for name in ("node_conv2d_1", "node_relu_1, node_max_pool2d_1", "node_linear", "fixed cost", "dma_transfer_count"):
        assert name in outcome.out
    for part in ("launch", "DMA starts", "instruction latency", "floor: ", " times that"):
        assert part in outcome.out
    assert profiled().out == outcome.out


@pytest.mark.parametrize("target", target_names())
def test_every_target_can_be_asked_for(target: str) -> None:
    outcome = trnrt("profile", FFNN, "--target", target)
    assert outcome.code == 0
    assert ("never compared" in outcome.err) == (target == "trn3")


# ---- JSON

KEYS = {
    "schema_version",
    "target",
    "dtype",
    "batch",
    "predicted_us",
    "mfu",
    "mbu",
    "hbm_bytes",
    "dma_transfer_count",
    "instructions",
    "engines",
    "steps",
    "breakdown",
    "sbuf_peak_bytes",
    "psum_peak_bytes",
}


def test_json_has_the_keys_of_its_contract(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    outcome = profiled("--json", "--json-out", path)
    document = outcome.document
    assert path.read_text() == outcome.out
    assert document.keys() >= KEYS
    assert (document["schema_version"], document["trnrt_version"]) == (1, __version__)
    assert [document[key] for key in ("model", "target", "dtype", "batch")] == ["digits_cnn", "trn2", "bfloat16", 8]
    assert document["predicted_us"].keys() == {"benchmark", "profiler"}
    assert 0 < document["predicted_us"]["benchmark"] < document["predicted_us"]["profiler"]
    assert {"tensor", "vector", "scalar", "gpsimd", "dma"} <= document["engines"].keys()
    assert all(use.keys() == {"busy_us", "share"} for use in document["engines"].values())
    step = document["steps"][0]
    assert step.keys() >= {"name", "nodes", "start_us", "end_us", "bound", "time_us", "share", "mfu", "hbm_bytes"}
    assert step["nodes"] == ["node_conv2d", "node_relu", "node_max_pool2d"]
    breakdown, benchmark = document["breakdown"], document["predicted_us"]["benchmark"]
    assert all(part.keys() == {"part", "fixed", "time_us", "floor_us"} for part in breakdown["parts"])
    assert sum(part["time_us"] for part in breakdown["parts"]) == pytest.approx(benchmark, rel=1e-12)
    assert breakdown["ratio"] == pytest.approx(benchmark / breakdown["floor_us"], rel=1e-12)
    assert document["comparison"] is None


def test_json_names_of_the_profiler_have_its_meaning(predict: Predict) -> None:
    predict()
    summary = profiled("--json").document["summary"]
    assert summary["total_time"] == pytest.approx(50e-6)
    # 786.432 MFLOP in 50 us, of 2 operations x 128 x 128 elements x 2.4 GHz.
    assert summary["mfu_estimated_percent"] == pytest.approx(20.0)
    # 1,250,183 bytes in 50 us, of 750 GB/s.
    assert summary["mbu_estimated_percent"] == pytest.approx(100 * 1_250_183 / 50e-6 / 750e9)
    assert summary["mm_arithmetic_intensity"] == pytest.approx(786_432_000 / 1_250_183)
    assert summary["vector_engine_active_time_percent"] == pytest.approx(40.0)
    assert summary["dma_active_time_percent"] == pytest.approx(48.0)
    assert (summary["hbm_read_bytes"], summary["hbm_write_bytes"]) == (1_250_023, 160)
    assert summary["dma_transfer_count"] == 14


# ---- files


def test_all_files_are_written(tmp_path: Path) -> None:
    html, trace = tmp_path / "report.html", tmp_path / "trace.json"
    outcome = profiled("--html", html, "--trace", trace)
    assert (outcome.code, outcome.err) == (0, "")
    assert "digits_cnn" in html.read_text()
    assert json.loads(trace.read_text())["traceEvents"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "trace.json"]


@pytest.mark.parametrize("flag", ["--html", "--trace", "--json-out"])
@pytest.mark.parametrize("name", ["missing/file", "folder", "file/below", "x" * 300])
def test_a_path_that_can_not_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(profiler, "profile_plan", lambda plan: pytest.fail("it was profiled"))
    outcome = profiled(flag, tmp_path / name)
    assert (outcome.code, outcome.out) == (2, "")
    assert "error: can't write" in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_without_permission_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, predict: Predict
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "_probe", denied)  # root may write anywhere
    outcome = profiled("--html", tmp_path / "r.html")
    assert (outcome.code, outcome.out) == (2, "")
    assert "permission denied" in outcome.err


@pytest.mark.parametrize("flag", ["--html", "--trace", "--json-out"])
def test_a_report_that_can_not_be_written_afterwards_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    folder, temporary = tmp_path / "folder", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    predicted = profiler.profile_plan

    def lose(plan: Any) -> Profile:
        folder.rmdir()
        return predicted(plan)

    monkeypatch.setattr(profiler, "profile_plan", lose)
    outcome = profiled(flag, folder / "report", "--json")
    assert outcome.code == 2
    assert outcome.document["model"] == "digits_cnn"
    (kept,) = temporary.glob("*/report")
    assert f"error: can't write '{folder / 'report'}'" in outcome.err
    assert f"it is in '{kept}' instead" in outcome.err
    assert kept.stat().st_size > 100


def test_where_nothing_can_be_written_both_reasons_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    told = files.write_or_keep(tmp_path / "missing" / "report", "text")
    assert told is not None and "the temporary directory can't be written either" in told


@pytest.mark.parametrize("flags", [("--html", "--trace"), ("--html", "--json-out"), ("--trace", "--json-out")])
def test_two_reports_in_one_file_are_refused(tmp_path: Path, flags: tuple[str, str]) -> None:
    (tmp_path / "b").mkdir()
    outcome = profiled(flags[0], tmp_path / "a", flags[1], tmp_path / "b" / ".." / "a")
    assert outcome.code == 2
    assert f"{flags[0]} and {flags[1]} name the same file" in outcome.err


def test_a_device_takes_a_report() -> None:
    assert profiled("--html", "/dev/null", "--trace", "/dev/null").code == 0


# ---- the baseline


@pytest.fixture
def baseline(tmp_path: Path, predict: Predict) -> Path:
    """A baseline of 40 us."""
    predict()
    path = tmp_path / "old.json"
    assert profiled("--json-out", path).code == 0
    return path


def slower(step: int, by: float) -> dict[str, Any]:
    """The changes that make a step of the profile, and the whole, slower by so many microseconds."""
    changed = made_profile().steps[step]
    steps = list(STEPS)
    steps[step] = changed.__class__(changed.name, changed.nodes, 0, 1, changed.time_us + by, 0.1, "vector", 0, 0, 1)
    return {"steps": tuple(steps), "benchmark_us": 40.0 + by, "profiler_us": 50.0 + by}


@pytest.mark.parametrize(
    ("by", "flags", "code"),
    [
        (0.0, [], 0),
        (0.8, [], 0),
        (0.81, [], 1),
        (-20.0, [], 0),
        (0.1, ["--max-regress", "0"], 1),
        (0.0, ["--max-regress", "0%"], 0),
        (3.9, ["--max-regress", "10%"], 0),
        (4.1, ["--max-regress", "10"], 1),
        (0.1, ["--max-regress", "0.3 %"], 0),
        (0.1, ["--max-regress", "0.2%"], 1),
    ],
)
def test_slower_than_accepted_exits_with_1(
    baseline: Path, predict: Predict, by: float, flags: list[str], code: int
) -> None:
    predict(**slower(1, by))
    outcome = profiled("--baseline", baseline, *flags)
    assert outcome.code == code
    assert ("FAIL" if code else "PASS") in outcome.out
    document = profiled("--baseline", baseline, *flags, "--json").document
    assert document["comparison"]["regressed"] == bool(code)


def test_before_and_after_are_printed_with_the_steps_that_changed_most(baseline: Path, predict: Predict) -> None:
    predict(**slower(1, 4.0))
    lines = profiled("--baseline", baseline).out.splitlines()
    start = lines.index(f"FAIL digits_cnn against {baseline}: +10.0%, accepted +2%")
    assert [line.split() for line in lines[start + 2 :]] == [
        ["before", "us", "after", "us", "change"],
        ["benchmark", "40.00", "44.00", "+4.00", "us", "(+10.0%)"],
        ["profiler", "50.00", "54.00", "+4.00", "us", "(+8.0%)"],
        ["conv2", "16.00", "20.00", "+4.00", "us", "(+25.0%)"],
    ]


def test_steps_that_came_and_went(baseline: Path, predict: Predict) -> None:
    new = STEPS[0].__class__("new", (), 0, 1, 5.0, 0.1, "vector", 0, 0, 1)
    predict(steps=(*STEPS[:2], new))
    outcome = profiled("--baseline", baseline)
    assert [line.split() for line in outcome.out.splitlines()[-2:]] == [
        ["new", "-", "5.00", "new"],
        ["fc", "4.00", "-", "gone"],
    ]
    changes = profiled("--baseline", baseline, "--json").document["comparison"]["changes"][0]
    assert changes["steps"] == [
        {"name": "new", "before_us": None, "after_us": 5.0},
        {"name": "fc", "before_us": 4.0, "after_us": None},
    ]


def test_the_baseline_may_be_the_file_that_is_written(baseline: Path, predict: Predict) -> None:
    predict(**slower(0, 10.0))
    assert profiled("--baseline", baseline, "--json-out", baseline).code == 1
    assert json.loads(baseline.read_text())["predicted_us"]["benchmark"] == 50.0
    assert profiled("--baseline", baseline, "--json-out", baseline).code == 0


def test_a_baseline_of_another_version_is_compared_with_a_note(baseline: Path) -> None:
    baseline.write_text(json.dumps(json.loads(baseline.read_text()) | {"trnrt_version": "0.0.1"}))
    outcome = profiled("--baseline", baseline)
    assert outcome.code == 0
    assert f"note: the baseline is from trnrt 0.0.1, this is {__version__}" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--target", "trn1"], ["target 'trn2'", "target 'trn1'"]),
        (["--dtype", "float16"], ["dtype 'bfloat16'", "dtype 'float16'"]),
        (["--batch", "9"], ["batch '8'", "batch '9'"]),
        (["--batch", "9", "--target", "trn3"], ["target 'trn2', batch '8'", "target 'trn3', batch '9'"]),
    ],
)
def test_a_baseline_of_something_else_is_refused(
    baseline: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: list[str]
) -> None:
    monkeypatch.setattr(profiler, "profile_plan", lambda plan: pytest.fail("it was profiled"))
    outcome = profiled("--baseline", baseline, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert all(text in outcome.err for text in told)
    assert "hint: profile the same again, or write a new baseline" in outcome.err


def test_a_baseline_of_another_model_is_refused(baseline: Path) -> None:
    outcome = trnrt("profile", FFNN, "--batch", "8", "--dtype", "bfloat16", "--baseline", baseline)
    assert (outcome.code, outcome.out) == (2, "")
    assert "a baseline for model 'digits_cnn'; this is model 'digits_ffnn'" in outcome.err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema_version": 2}, "has schema_version 2; this trnrt reads 1"),
        ({"schema_version": None}, "no report of `trnrt profile`"),
        ({"predicted_us": None}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": 1.0}}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": "1", "profiler": 2}}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": True, "profiler": 2}}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": 0, "profiler": 2}}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": float("nan"), "profiler": 2}}, "predicted_us is not {benchmark, profiler}"),
        ({"predicted_us": {"benchmark": float("inf"), "profiler": 2}}, "predicted_us is not {benchmark, profiler}"),
        ({"steps": None}, "steps is not a list"),
        ({"steps": [1]}, "steps is not a list"),
        ({"steps": [{"name": "a"}]}, "steps is not a list"),
    ],
)
def test_a_baseline_that_is_no_report_is_refused(baseline: Path, changes: dict[str, Any], told: str) -> None:
    baseline.write_text(json.dumps(json.loads(baseline.read_text()) | changes))
    outcome = profiled("--baseline", baseline)
    assert (outcome.code, outcome.out) == (2, "")
    assert told in outcome.err and "hint:" in outcome.err


@pytest.mark.parametrize("content", ["", "{", "[]", "1", "null", '"x"', "[" * 100_000, "\xff", '{"schema_version": 1}'])
def test_a_baseline_that_is_no_document_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(content, encoding="latin-1")
    outcome = profiled("--baseline", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert "old.json" in outcome.err and "hint: --json-out FILE" in outcome.err


def test_a_report_of_another_verb_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schema_version": 1, "calls": []}))
    assert "it is one of `trnrt nki profile`" in profiled("--baseline", path).err
    assert trnrt("run", CNN, "--json-out", path).code == 0
    outcome = profiled("--baseline", path)
    assert outcome.code == 2 and "is no report of `trnrt profile`" in outcome.err


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_a_baseline_that_can_not_be_read_is_refused(tmp_path: Path, name: str) -> None:
    outcome = profiled("--baseline", tmp_path / name)
    assert (outcome.code, outcome.out) == (2, "") and "can't read the baseline" in outcome.err


@pytest.mark.parametrize("flag", ["--html", "--trace"])
def test_a_view_must_not_overwrite_the_baseline(baseline: Path, flag: str) -> None:
    before = baseline.read_text()
    outcome = profiled("--baseline", baseline, flag, baseline)
    assert outcome.code == 2 and f"--baseline and {flag} name the same file" in outcome.err
    assert baseline.read_text() == before


@pytest.mark.parametrize("text", ["", "%", "x", "2x", "-1", "-1%", "nan", "inf", "1e3", "2%%", "1,5%", "0x2", "٢%"])
def test_a_percentage_that_is_none_is_refused(baseline: Path, text: str) -> None:
    outcome = profiled("--baseline", baseline, f"--max-regress={text}")
    assert (outcome.code, outcome.out) == (2, "") and "is not a percentage" in outcome.err


def test_max_regress_needs_a_baseline() -> None:
    outcome = profiled("--max-regress", "2%")
    assert outcome.code == 2 and "hint: add --baseline FILE" in outcome.err


# ---- what can't be profiled


@pytest.mark.parametrize(
    "arguments", [["none.onnx"], [CNN, "--target", "trn9"], [CNN, "--batch", "0"], [CNN, "--dtype", "int8"]]
)
def test_a_wrong_request(arguments: list[str]) -> None:
    outcome = trnrt("profile", *arguments)
    assert (outcome.code, outcome.out) == (2, "")


def test_a_kernel_that_deadlocks_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*_: Any, **__: Any) -> Profile:
        raise KernelError("the program never ends: nothing signals what instruction 3 waits for")

    monkeypatch.setattr(profiler, "profile_programs", stuck)
    outcome = profiled()
    assert (outcome.code, outcome.out) == (1, "") and "never ends" in outcome.err
