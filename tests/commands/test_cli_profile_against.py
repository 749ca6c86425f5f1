"""``trnrt profile --against``: a model beside another one, beside a report, and beside a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from commanding import Outcome, trnrt
from planning import modelled

from trnrt.errors import OptionError
from trnrt.report.page.reading import run_of_page

ROOT = Path(__file__).parents[2]
CNN = ROOT / "models" / "digits_cnn.onnx"
FFNN = ROOT / "models" / "digits_ffnn.onnx"


def profile_model(*arguments: str | Path, model: Path = CNN) -> Outcome:
    return trnrt("profile", str(model), *arguments)


def data_of(page: Path) -> Any:
    return json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The CNN in float32, as all kinds of files."""
    folder = tmp_path_factory.mktemp("old")
    report, document = folder / "old.html", folder / "old.json"
    assert profile_model("--html", report, "--json-out", document).code == 0
    return {"model": CNN, "report": report, "document": document}


@pytest.mark.parametrize("kind", ["model", "report", "document"])
def test_against_another_run(old: dict[str, Path], tmp_path: Path, kind: str) -> None:
    page = tmp_path / "new.html"
    before = json.loads(old["document"].read_text())
    outcome = profile_model("--no-fuse", "node_relu_1", "--against", old[kind], "--html", page, "--json")
    assert outcome.code == 0
    (found,) = outcome.document["against"]
    assert (found["name"], found["against"], found["file"]) == ("digits_cnn", "digits_cnn", str(old[kind]))
    assert found["settings"] == found["lines"] == []
    assert found["before_us"] == pytest.approx(before["predicted_us"]["benchmark"])
    ends = [before[key]["benchmark"] for key in ("low_us", "high_us")]
    assert found["before_range_us"] == pytest.approx(ends)
    assert found["after_us"] == outcome.document["predicted_us"]["benchmark"]
    (split,) = [step for step in found["steps"] if len(step["after"]) > 1]
    assert split["before"] == ["node_conv2d_1"] and set(split["after"]) >= {"node_conv2d_1", "node_relu_1"}
    after = {step["name"]: step["time_us"] for step in outcome.document["steps"]}
    assert split["after_us"] == pytest.approx(sum(after[name] for name in split["after"]))
    drawn = data_of(page)["against"]
    assert len(drawn["cores"]) == (0 if kind == "document" else 1)
    assert (drawn["graph"] is None) == (kind == "document")
    assert ("has no timeline to draw" in page.read_text()) == (kind == "document")
    if drawn["cores"]:
        numbers = {step["name"]: number for number, step in enumerate(data_of(page)["steps"])}
        assert numbers["node_conv2d"] in drawn["cores"][0]["instructions"]["step"]


def test_other_options_are_compared_and_said(old: dict[str, Path]) -> None:
    outcome = profile_model("--dtype", "bfloat16", "--batch", "8", "--target", "trn1", "--against", old["report"])
    assert outcome.code == 0
    said = "Not the same: target trn2 before, trn1 now; dtype float32 before, bfloat16 now; batch 1 before, 8 now."
    assert said in " ".join(outcome.out.split()) and "benchmark, per row" in outcome.out
    assert f"digits_cnn against {old['report']}" in outcome.out


def test_another_model_takes_the_same_options() -> None:
    outcome = profile_model("--dtype", "bfloat16", "--batch", "4", "--against", FFNN, "--json")
    (found,) = outcome.document["against"]
    alone = profile_model("--dtype", "bfloat16", "--batch", "4", "--json", model=FFNN).document
    assert (found["against"], found["settings"]) == ("digits_ffnn", [])
    assert found["before_us"] == alone["predicted_us"]["benchmark"]


def test_a_baseline_may_be_given_as_well(old: dict[str, Path]) -> None:
    both = profile_model("--against", old["document"], "--baseline", old["document"])
    assert both.code == 0 and "PASS digits_cnn" in both.out
    assert f"digits_cnn against {old['document']}" in both.out
    assert "No step's part of the critical path changed." in both.out
    assert profile_model("--json").document["against"] is None


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("none.onnx", None, "there is no file"),
        ("none.json", None, "there is no file"),
        ("notes.onnx", "hello", "not an ONNX model"),
        ("two.json", '{"schema_version": 2, "model": "m"}', "has schema_version 2"),
        ("calls.json", '{"schema_version": 1, "calls": []}', "it is one of `trnrt nki profile`"),
        ("bad.json", "{", "can't read the document"),
        ("bad.html", "<html></html>", "can't read the report"),
        (
            "short.json",
            '{"schema_version": 1, "model": "m", "predicted_us": {"benchmark": 1, "profiler": 2}, "steps": []}',
            "has no engines and steps",
        ),
    ],
)
def test_files_that_are_no_run_of_a_model_are_refused(
    tmp_path: Path, name: str, content: str | None, told: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    outcome = profile_model("--against", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert told in " ".join(outcome.err.split())


def test_a_report_of_the_other_verb_is_refused(old: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="it is no report of `trnrt nki profile`"):
        run_of_page(old["report"])
    changed = tmp_path / "graph.html"
    head, _, rest = old["report"].read_text().partition('id="data">')
    data, _, tail = rest.partition("</script>")
    changed.write_text(f'{head}id="data">{json.dumps(json.loads(data) | {"graph": None})}</script>{tail}')
    assert "it is no report of `trnrt profile`" in profile_model("--against", changed).err


@pytest.mark.parametrize(
    ("key", "value"), [("layer", 10**9), ("step", 99), ("name", 5), ("nodes", [["a", 1]]), ("order", -1)]
)
def test_a_damaged_graph_is_refused(old: dict[str, Path], tmp_path: Path, key: str, value: Any) -> None:
    head, _, rest = old["report"].read_text().partition('id="data">')
    data, _, tail = rest.partition("</script>")
    document = json.loads(data)
    next(box for box in document["graph"]["boxes"] if box["kind"] == "step")[key] = value
    path = tmp_path / "bad.html"
    path.write_text(f'{head}id="data">{json.dumps(document)}</script>{tail}')
    outcome = profile_model("--against", path)
    assert outcome.code == 2 and "can't read the report" in outcome.err


def test_a_model_in_parts_beside_another_run(tmp_path: Path) -> None:
    """A document has all parts; a report has one, which is no run to compare a model in several with."""
    model = tmp_path / "middle.onnx"
    onnx.save(modelled("(float[N,4] x) => (float[N,4] y) { a = Relu(x)  b = Hardmax(a)  y = Sigmoid(b) }"), model)
    parts = ("--fallback", "onnxruntime")
    document, report = tmp_path / "old.json", tmp_path / "old.html"
    assert profile_model(*parts, "--json-out", document, "--html", report, model=model).code == 0
    outcome = profile_model(*parts, "--against", document, "--json", model=model)
    assert outcome.code == 0
    (found,) = outcome.document["against"]
    assert found["before_us"] == found["after_us"] == outcome.document["predicted_us"]["benchmark"]
    refused = profile_model(*parts, "--against", tmp_path / "old-1.html", model=model)
    assert refused.code == 2
    assert "shows one kernel, and this model has 2" in refused.err and "--json-out" in refused.err
