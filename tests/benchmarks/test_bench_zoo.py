"""The zoo: its list, what is kept, the accuracy's numbers, and the command with a sample model."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

from benchmarks.zoo.__main__ import app
from benchmarks.zoo.accuracy import RUNS, compare_outputs, rank_correlation, rank_elements
from benchmarks.zoo.keeping import Kept
from benchmarks.zoo.listing import Entry, choose_entries, digest_of, files_of, read_list
from benchmarks.zoo.results import Results, read_results
from benchmarks.zoo.table import accuracy_cells, difference_text, lines_of, report_names
from trnrt.cache.code import PLANS, code_version
from trnrt.errors import InputError, OptionError

ROOT = Path(__file__).parents[2]
ENTRY = {
    "file": "digits.onnx",
    "kind": "digits",
    "title": "Digits, 8 x 8",
    "exporter": "by hand",
    "parameters": 5000,
    "shapes": [],
    "largest": {},
}


def write_list(folder: Path, *entries: dict[str, Any]) -> Path:
    (folder / "zoo.json").write_text(json.dumps(entries), encoding="utf-8")
    return folder


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "models" / "digits_cnn.onnx", tmp_path / "digits.onnx")
    return write_list(tmp_path, ENTRY)


# ---- the list


def test_an_entry_has_the_fields_that_the_scripts_write() -> None:
    text = (ROOT / "models" / "exports" / "saving.py").read_text(encoding="utf-8")
    export, zoo = (text.partition(f"class {name}")[2].partition("\n\n\n")[0] for name in ("Export:", "ZooModel("))
    written = re.findall(r"^    (\w+): ", export + zoo, re.MULTILINE)
    assert [field.name for field in fields(Entry)] == written


def test_the_list_is_read_and_models_are_chosen_by_name(tmp_path: Path) -> None:
    other = ENTRY | {"file": "b.onnx", "shapes": ["x=3x4"], "largest": {"x": 7}}
    entries = read_list(write_list(tmp_path, ENTRY, other))
    assert [entry.name for entry in entries] == ["digits", "b"]
    assert entries[1].sizes == {"x": (3, 4)} and entries[1].largest == {"x": 7}
    assert choose_entries(entries, []) == entries
    assert choose_entries(entries, ["b.onnx"]) == choose_entries(entries, ["b"]) == entries[1:]
    with pytest.raises(OptionError, match="no model 'c'") as caught:
        choose_entries(entries, ["c"])
    assert "digits, b" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "7", "[7]", '[{"file": "a.onnx"}]'])
def test_what_is_no_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "zoo.json").write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="no list of models"):
        read_list(tmp_path)
    with pytest.raises(OptionError, match="can't read"):
        read_list(tmp_path / "nowhere")


def test_external_data_is_a_part_of_the_model(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, (300,), np.arange(300, dtype=np.float32).tobytes(), raw=True)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (300,)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "m.onnx")
    paths = files_of(tmp_path / "m.onnx")
    assert [path.name for path in paths] == ["m.onnx", "weights.bin"]
    before = digest_of(paths)
    paths[1].write_bytes(paths[1].read_bytes()[::-1])
    assert digest_of(paths) != before


# ---- what is kept


def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")
    assert kept.measurement({"a": 1}, lambda: {"us": 2.5}) == {"us": 2.5}
    assert kept.measurement({"a": 1}, lambda: pytest.fail("measured again")) == {"us": 2.5}
    assert kept.measurement({"a": 2}, lambda: {"us": 3.0}) == {"us": 3.0} and kept.made == 2
    (cut, _) = (tmp_path / "kept").iterdir()
    cut.write_text(cut.read_text(encoding="utf-8")[:-5], encoding="utf-8")
    for number in (1, 2):
        kept.measurement({"a": number}, lambda: {"us": 4.0})
    assert kept.made == 3


# ---- accuracy


def test_equal_elements_share_a_rank() -> None:
    assert rank_elements(np.array([3.0, 1.0, 3.0, 7.0])).tolist() == [1.5, 0, 1.5, 3]


def test_the_rank_correlation_is_that_of_the_order() -> None:
    values = np.random.default_rng(0).normal(size=200)
    assert rank_correlation(values, np.exp(values)) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    one, other = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 4, 3, 5])
    assert rank_correlation(one, other) == pytest.approx(1 - 6 * 4 / (5 * 24))  # 1 - 6 sum d^2 / n (n^2 - 1)


def test_equal_outputs_have_no_difference() -> None:
    scores = np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 0.0]], np.float32)
    found = compare_outputs([scores], [scores])
    assert (found.items, found.difference, found.top_1) == (2, 0.0, 2)
    assert found.rank == found.cosine == pytest.approx(1)
    assert found.between == pytest.approx(4 / 5)


def test_the_worst_output_and_item_count() -> None:
    scores = np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 0.0]])
    swapped = np.array([[1.0, 2.0, 3.0], [5.0, 1.0, 0.0]])
    boxes = np.arange(24.0).reshape(2, 3, 4)
    wrong = boxes.copy()
    wrong[1, 2, 3] = -23.0
    found = compare_outputs([swapped, wrong], [scores, boxes])
    assert found.top_1 == 1 and found.difference == 2.0
    assert found.rank == rank_correlation(wrong, boxes) < rank_correlation(swapped, scores) < 1
    assert found.cosine == pytest.approx(
        (wrong[1] * boxes[1]).sum() / np.linalg.norm(wrong[1]) / np.linalg.norm(boxes[1])
    )
    assert compare_outputs([wrong], [boxes]).top_1 is None
    labels = np.array([1, 2])
    assert compare_outputs([labels, wrong], [labels, boxes]).difference == 2.0


def test_what_is_not_finite_is_far_off() -> None:
    scores = np.array([[1.0, 3.0, 2.0], [5.0, 1.0, 0.0]])
    broken = scores.copy()
    broken[0, 1] = np.nan
    assert compare_outputs([broken], [scores]).difference > 1e29
    broken[0, 1] = -np.inf
    found = compare_outputs([broken], [scores])
    assert found.difference == pytest.approx(1e30 / 5) and found.cosine < 0 and found.top_1 == 1
    with pytest.raises(InputError, match="no finite numbers"):
        compare_outputs([scores], [broken])
    with pytest.raises(InputError, match="no finite numbers"):
        compare_outputs([np.array([1])], [np.array([1])])


def test_one_item_has_no_neighbour() -> None:
    assert compare_outputs([np.ones((1, 2))], [np.ones((1, 2))]).between is None


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (3.21e-7, "3.2e-07"), (0.0123, "0.012"), (1.5, "1.5")])
def test_differences_are_read_by_people(value: float, text: str) -> None:
    assert difference_text(value) == text


# ---- the command


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(result.exception, AssertionError | TypeError | KeyError), result.exception
    return result


def test_the_command_measures_and_keeps(zoo: Path, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    flags = ("--target", "trn2", "--target", "trn1", "--batch", 1, "--batch", 4, "--cache", tmp_path / "kept")
    arguments = (zoo, *flags, "--results", results, "--effort", 0)
    first = run(*arguments, "--json")
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    (model,) = document["models"]
    assert model["title"] == "Digits, 8 x 8" and model["size"] == (zoo / "digits.onnx").stat().st_size
    (row,) = read_results(results)
    assert {(one.target, one.batch) for one in row.predictions} == {(t, b) for t in ("trn1", "trn2") for b in (1, 4)}
    for one in row.predictions:
        assert one.predicted.least_us <= one.predicted.us <= one.predicted.most_us
        assert one.dtype == "bfloat16" and one.instructions > 10 and 0 < one.sbuf_peak_bytes < 212992
        assert sum(part.us for part in one.held) <= one.predicted.us * 1.0001 and one.held[0].us > 0
    exact, short = row.accuracy["float32"], row.accuracy["bfloat16"]
    assert exact.top_1 == short.top_1 == exact.items == 4 and exact.difference < 1e-5 < short.difference < 0.05
    assert exact.between is not None and exact.between > 10 * short.difference  # the inputs matter to the outputs
    assert exact.rank > 0.99999 and short.rank > 0.99
    assert row.tried["trn1"] == row.tried["trn2"] == (1, 4)
    assert {one.version for one in row.predictions} == {code_version(PLANS)}
    assert exact.version == short.version == code_version(RUNS)
    kept = results.read_text(encoding="utf-8")
    again = run(*arguments)
    assert "note: 0 measurements" in again.stderr and results.read_text(encoding="utf-8") == kept
    assert again.stdout.count("digits") == 2 and "trn2" in again.stdout


def test_each_number_keeps_the_version_that_measured_it(zoo: Path, tmp_path: Path) -> None:
    results = tmp_path / "r.json"
    quick = ("--batch", 1, "--effort", 0, "--accuracy", 1, "--results", results, "--cache", tmp_path / "kept")
    run(zoo, "--target", "trn1", "--target", "trn2", *quick)
    document = json.loads(results.read_text(encoding="utf-8"))
    (model,) = document["models"]
    for one in (*model["predictions"], *model["accuracy"].values()):
        one["version"] = "older"
    results.write_text(json.dumps(document), encoding="utf-8")
    run(zoo, "--target", "trn2", "--only", "predictions", *quick)
    (row,) = read_results(results)
    assert {one.target: one.version for one in row.predictions} == {"trn1": "older", "trn2": code_version(PLANS)}
    assert {one.version for one in row.accuracy.values()} == {"older"}


def test_predictions_are_those_of_the_profile(zoo: Path, tmp_path: Path) -> None:
    from trnrt.running.profiler import profile_plan
    from trnrt.session import InferenceSession

    flags = ("--only", "predictions", "--target", "trn2", "--batch", 2, "--effort", 0)
    run(zoo, *flags, "--results", tmp_path / "r.json", "--cache", tmp_path / "kept")
    ((one,),) = (row.predictions for row in read_results(tmp_path / "r.json"))
    session = InferenceSession(zoo / "digits.onnx", target="trn2", dtype="bfloat16", backend="simulator")
    profile = profile_plan(session.plan(2))
    assert one.predicted == profile.benchmark and one.instructions == profile.counts[1]
    assert one.sbuf_peak_bytes == profile.sbuf_peak_bytes and one.kernels == 1


def test_another_file_of_the_same_name_has_none_of_the_old_numbers(zoo: Path, tmp_path: Path) -> None:
    results, cache = tmp_path / "r.json", tmp_path / "kept"
    quick = ("--target", "trn2", "--batch", 1, "--effort", 0, "--results", results, "--cache", cache)
    run(zoo, *quick)
    (before,) = read_results(results)
    shutil.copy(ROOT / "models" / "digits_ffnn.onnx", zoo / "digits.onnx")
    run(zoo, *quick, "--only", "predictions")
    (after,) = read_results(results)
    assert after.digest != before.digest and not after.accuracy and after.predictions[0] != before.predictions[0]


def test_other_sizes_have_none_of_the_old_numbers(zoo: Path, tmp_path: Path) -> None:
    results = Results(tmp_path / "r.json")
    run(zoo, "--target", "trn2", "--batch", 1, "--effort", 0, "--results", results.path, "--cache", tmp_path / "kept")
    (row,) = read_results(results.path)
    kept = Results(results.path).row
    assert kept(replace(row.entry, title="new"), row.size, row.digest).predictions == row.predictions
    assert not kept(replace(row.entry, shapes=("image=1x9x9",)), row.size, row.digest).has_numbers
    assert not kept(replace(row.entry, largest={"image": 7}), row.size, row.digest).has_numbers


def test_a_model_that_can_not_be_planned_is_refused_with_its_reasons(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,4] x) => (float[N,4] y) { y = Hardmax(x) }'
    )
    onnx.save(model, tmp_path / "hard.onnx")
    write_list(tmp_path, ENTRY | {"file": "hard.onnx"})
    found = run(tmp_path, "--target", "trn2", "--results", tmp_path / "r.json", "--cache", tmp_path / "kept")
    assert found.exit_code == 0
    (row,) = read_results(tmp_path / "r.json")
    assert row.refused["trn2"][0].startswith("Hardmax: ") and not row.predictions and not row.accuracy
    assert "digits" not in found.stdout and "hard on trn2: Hardmax: " in found.stdout


def test_integers_are_drawn_up_to_the_largest(tmp_path: Path) -> None:
    from benchmarks.zoo.accuracy import draw_inputs
    from benchmarks.zoo.predicting import Sessions

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (int64[N,400] i) => (float[N,400] y) <float[50] t = {'
        + ", ".join("0" * 50)
        + "}> { y = Gather(t, i) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    (entry,) = read_list(write_list(tmp_path, ENTRY | {"file": "m.onnx", "largest": {"i": 49}}))
    drawn = draw_inputs(Sessions(tmp_path / "m.onnx", entry).session("trn2", "float32"), entry, 2)["i"]
    assert drawn.shape == (2, 400) and drawn.min() == 0 and drawn.max() == 49


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("/nowhere",), "can't read"),
        (("--target", "trn9"), "trn9"),
        (("--prices", "/nowhere/p.toml"), "can't read the prices"),
        (("--html", "/nowhere/zoo.html"), "can't write"),
        (("--json-out", "/nowhere/zoo.json"), "can't write"),
        (("--accuracy", "0"), "--accuracy"),
    ],
)
def test_wrong_requests_are_refused(arguments: tuple[str, ...], told: str) -> None:
    found = run(*arguments)
    assert found.exit_code == 2 and told in found.output


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_list(tmp_path, ENTRY)
    found = run(tmp_path, "--results", tmp_path / "r.json", "--cache", tmp_path / "kept")
    assert found.exit_code == 2 and "digits.onnx" in found.stderr


def test_a_file_of_another_kind_is_named(zoo: Path, tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"models": [{"file": "a.onnx"}]}'):
        (tmp_path / "r.json").write_text(text, encoding="utf-8")
        found = run("--results", tmp_path / "r.json")
        assert found.exit_code == 2 and "r.json holds no results" in found.stderr, text
    (zoo / "digits.onnx").write_bytes(b"garbage")
    found = run(zoo, "--results", tmp_path / "new.json", "--cache", tmp_path / "kept")
    assert found.exit_code == 2 and "digits.onnx: not an ONNX model" in found.stderr


def test_profile_reports_are_written_once_and_linked(zoo: Path, tmp_path: Path) -> None:
    results, reports, page = tmp_path / "r.json", tmp_path / "reports", tmp_path / "zoo.html"
    flags = ("--results", results, "--profiles", reports, "--html", page)
    quick = ("--only", "predictions", "--target", "trn2", "--batch", 1, "--effort", 0, "--cache", tmp_path / "kept")
    assert run(zoo, *quick, *flags).exit_code == 0
    (line,) = lines_of(read_results(results))
    (name,) = report_names(line)
    (report,) = reports.iterdir()
    assert report.name == str(name) and "Digits, 8 x 8" in report.read_text(encoding="utf-8")
    assert f'<a href="reports/{name}">' in page.read_text(encoding="utf-8")
    report.write_text("kept", encoding="utf-8")
    assert run(zoo, *quick, *flags).exit_code == 0 and report.read_text(encoding="utf-8") == "kept"
    changed = results.read_text(encoding="utf-8").replace(line.best.version, "older")
    results.write_text(changed, encoding="utf-8")
    found = run(zoo, *quick[2:], "--only", "accuracy", "--accuracy", 1, *flags)
    assert "digits: no profile report" in found.stderr and list(reports.iterdir()) == [report]
    other = replace(line, best=replace(line.best, version="another"))
    assert report_names(other) != [name]  # a report of other code isn't taken for this one


def test_what_was_not_measured_says_so(zoo: Path, tmp_path: Path) -> None:
    quick = ("--target", "trn2", "--batch", 1, "--effort", 0, "--cache", tmp_path / "kept")
    run(zoo, *quick, "--only", "predictions", "--results", tmp_path / "r.json")
    (row,) = read_results(tmp_path / "r.json")
    assert [cell.text for cell in accuracy_cells(row, "float32")] == ["not measured", "", "", ""]
