"""Reports: text that is safe for a terminal, strictly valid JSON, the rule of --top, files whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper

from trnrt.errors import Blocker, OptionError
from trnrt.importer import TensorInfo, import_model
from trnrt.planner.plan import NodeReport
from trnrt.report.console import complain, note, render
from trnrt.report.documents import SMALL, as_text, run_document, unsupported_document, validate_document
from trnrt.report.files import write_arrays, write_text, write_whole
from trnrt.report.progress import working
from trnrt.report.tables import ROWS_SHOWN, blockers_table, comparison_table, nodes_table, outputs_table, top_table
from trnrt.report.top import Top, best_classes, choose_output, labels_of, looked_up_labels, rank_classes
from trnrt.running.results import RunResult
from trnrt.text import (
    aligned_number,
    count_text,
    error_text,
    escape_text,
    list_text,
    name_text,
    quote,
    shape_text,
    size_text,
)
from trnrt.validate import OutputComparison, ValidationReport

HOSTILE = "a\n\x1b[31m[bold]\u202e\r"


class Session:
    """As much of a session as the documents read."""

    name, backend, target, dtype = "net", "simulator", "trn2", "float32"
    last_run = RunResult()


def document(outputs: dict[str, np.ndarray[Any, Any]], top: Top | None = None, full: bool = False) -> dict[str, Any]:
    """The document of a run, as a reader of the JSON gets it."""
    made = run_document(Session(), outputs, top, wall_ms=1.5, full=full, notes=["a note"])  # type: ignore[arg-type]
    loaded: dict[str, Any] = json.loads(as_text(made), parse_constant=refuse)
    return loaded


def refuse(constant: str) -> None:
    """What a strict JSON reader does with NaN and Infinity."""
    raise ValueError(constant)


# ---- text


@pytest.mark.parametrize("show", [escape_text, name_text, quote])
def test_a_name_has_one_line_and_nothing_a_terminal_obeys(show: Any) -> None:
    text = show(HOSTILE)
    assert text.isprintable()
    assert "\\x0a" in text
    assert "\\x1b" in text
    assert "\\u202e" in text


def test_a_long_name_is_cut() -> None:
    assert len(name_text("x" * 500)) == 120
    assert escape_text("x" * 500) == "x" * 500


def test_texts_of_shapes_numbers_and_sizes() -> None:
    assert shape_text(["batch", 1, None]) == "[batch, 1, ?]"
    assert (count_text(1, "row"), count_text(1200, "row")) == ("1 row", "1,200 rows")
    assert (error_text(0), error_text(5.84e-5), error_text(float("inf"))) == ("0", "5.8e-05", "inf")
    assert (size_text(12), size_text(4 * 2**30), size_text(2**45)) == ("12 bytes", "4.0 GiB", "32.0 TiB")
    assert list_text([str(i) for i in range(10)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
    assert (aligned_number(0.25), aligned_number(-3e-9), aligned_number(0)) == ("0.250000", "-3.000e-09", "0.000000")


# ---- console


def test_notes_and_errors_go_to_stderr_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    note(HOSTILE)
    complain(f"first\nsecond {HOSTILE[3:]}", "do this")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("note: a\\x0a")
    assert "\x1b" not in err
    assert "error: first\nsecond" in err
    assert err.endswith("hint: do this\n")


def test_no_spinner_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with working("compiling"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_spinner_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with working(f"compiling {HOSTILE}"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "compiling a\\x0a\\x1b[31m[bold]" in err
    assert "\x1b[31m" not in err


def test_tables_are_wide_where_nobody_can_widen_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    report = NodeReport("n", "Conv", "s", "conv2d", "core", "a reason of many words " * 6)
    assert len(render([nodes_table([report])]).splitlines()) == 2


# ---- JSON


def test_run_document_has_the_keys_of_its_contract() -> None:
    loaded = document({"y": np.zeros((2, 3), np.float32)})
    assert list(loaded)[:12] == [
        "schema_version",
        "model",
        "backend",
        "target",
        "dtype",
        "wall_ms",
        "predicted_us",
        "low_us",
        "high_us",
        "parts",
        "outputs",
        "top",
    ]
    assert loaded["schema_version"] == 1
    assert (loaded["predicted_us"], loaded["low_us"], loaded["high_us"]) == (None, None, None)
    assert loaded["top"] is None
    assert loaded["outputs"] == {"y": {"shape": [2, 3], "dtype": "float32", "data": [[0.0] * 3] * 2}}


def test_data_is_there_when_small_or_asked_for() -> None:
    large = {"y": np.zeros(SMALL + 1, np.int64)}
    assert "data" not in document(large)["outputs"]["y"]
    assert len(document(large, full=True)["outputs"]["y"]["data"]) == SMALL + 1
    assert "data" in document({"y": np.zeros(SMALL)})["outputs"]["y"]


def test_numbers_that_are_not_finite_are_null() -> None:
    output = document({"y": np.array([np.nan, np.inf, 1.0], np.float32)})["outputs"]["y"]
    assert output["data"] == [None, None, 1.0]
    assert output["non_finite"] is True


@pytest.mark.parametrize(
    ("array", "dtype", "data"),
    [
        (np.array(["a", "ä"], object), "str", ["a", "ä"]),
        (np.array(["a"]), "str", ["a"]),
        (np.array([True]), "bool", [True]),
        (np.array([2**63], np.uint64), "uint64", [2**63]),
        (np.array([1.5], ml_dtypes.bfloat16), "bfloat16", [1.5]),
        (np.float32(2.0).reshape(()), "float32", 2.0),
        (np.zeros((0, 10), np.float32), "float32", []),
    ],
)
def test_every_dtype_has_a_json_form(array: Any, dtype: str, data: Any) -> None:
    output = document({"y": array})["outputs"]["y"]
    assert (output["dtype"], output["data"]) == (dtype, data)


def test_bfloat16_may_be_not_finite() -> None:
    output = document({"y": np.array([np.inf], ml_dtypes.bfloat16)})["outputs"]["y"]
    assert (output["data"], output["non_finite"]) == ([None], True)


def test_top_is_a_list_of_rows_of_class_number_label() -> None:
    top = best_classes("y", np.array([[0.1, 0.9], [np.nan, 2.0]]), 2, labels=["no", "yes"], softmax=False)
    loaded = document({"y": np.zeros((2, 2))}, top)
    assert loaded["top"][0][0] == {"class": 1, "number": 0.9, "label": "yes"}
    assert loaded["top"][1][1] == {"class": 0, "number": None, "label": "no"}
    assert (loaded["top_output"], loaded["top_softmax"]) == ("y", False)


def test_validate_document_is_valid_json_whatever_the_errors_are() -> None:
    report = ValidationReport(False, 3, None, (OutputComparison("y", np.inf, np.inf, np.inf, False, "str"),), 1e-4, 0.0)
    made = validate_document(Session(), report, [])  # type: ignore[arg-type]
    loaded = json.loads(as_text(made), parse_constant=refuse)
    assert loaded["outputs"][0] == {
        "name": "y",
        "max_abs": None,
        "max_rel": None,
        "required_rtol": None,
        "passed": False,
        "dtype": "str",
        "split": None,
        "error": 0.0,
        "tolerance": 0.0,
        "element": [],
        "noise": None,
    }
    assert loaded["tolerances"] == "given" and "steps" not in loaded
    assert (loaded["passed"], loaded["samples"], loaded["changed_decisions"]) == (False, 3, None)


def test_unsupported_document_has_nodes_and_blockers() -> None:
    nodes = [NodeReport("n", "Erf", None, None, "none", "why")]
    loaded = json.loads(as_text(unsupported_document("m", nodes, [Blocker("n", "Erf", "why", "way out")])))
    assert loaded["supported"] is False
    assert loaded["blockers"] == [{"node": "n", "op": "Erf", "reason": "why", "hint": "way out"}]
    assert loaded["nodes"][0].keys() == {"name", "op", "step", "kernel", "place", "reason"}


# ---- tables


def test_tables_show_hostile_names_as_text() -> None:
    blockers = [Blocker(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]
    nodes = [NodeReport(HOSTILE, HOSTILE, HOSTILE, None, "core", HOSTILE)]
    tables = [blockers_table(blockers), nodes_table(nodes), outputs_table({HOSTILE: np.array([HOSTILE])})]
    text = render(tables)
    assert "\x1b" not in text
    assert text.count("[bold]") == 10
    assert len(text.splitlines()) == 6


def test_outputs_table_shows_how_each_output_starts() -> None:
    text = render([outputs_table({"y": np.arange(6, dtype=np.float32), "z": np.array([7])})])
    assert "0 1 2 3 4 ..." in text
    assert text.splitlines()[2].split() == ["z", "int64", "[1]", "7"]


def test_top_table_shows_the_first_rows() -> None:
    output = np.tile(np.arange(3.0), (ROWS_SHOWN + 5, 1))
    lines = render([top_table(best_classes("y", output, 2, labels=[], softmax=False))]).splitlines()
    assert len(lines) == 1 + 2 * ROWS_SHOWN
    assert lines[0].split() == ["row", "class", "number"]
    assert lines[1].split() == ["0", "2", "2.000000"]
    assert lines[2].split() == ["1", "1.000000"]


def test_comparison_table_has_a_verdict_a_line() -> None:
    outputs = (
        OutputComparison("a", 0.0, 0.0, 0.0, True, "int64"),
        OutputComparison("b", 0.5, 2.0, 1.0, False, "float32"),
    )
    lines = render([comparison_table(ValidationReport(False, 2, 1, outputs, 1e-4, 1e-5))]).splitlines()
    assert lines[1].split() == ["a", "int64", "0", "0", "0", "0", "0", "pass"]
    assert lines[2].split() == ["b", "float32", "5.0e-01", "2.0e+00", "1.0e+00", "0", "0", "FAIL"]


# ---- --top

PROBABILITIES = TensorInfo("output_probability", "float32", ("N", 10))
LOGITS = TensorInfo("logits", "float32", ("N", 10))
FEATURES = TensorInfo("features", "float32", ("N", 64))
LABEL = TensorInfo("label", "int64", ("N",))
MAP = TensorInfo("map", "float32", ("N", 10, 8, 8))
ONE = TensorInfo("score", "float32", ("N", 1))
POOLED = TensorInfo("pooled", "float32", ("N", 1000, 1, 1))
TEN_LABELS = {"labels": json.dumps([str(i) for i in range(10)])}


@pytest.mark.parametrize(
    ("outputs", "metadata", "logits", "expected"),
    [
        ([LABEL, PROBABILITIES], {}, False, "output_probability"),
        ([LOGITS, PROBABILITIES], {}, False, "output_probability"),
        ([PROBABILITIES, LOGITS], {}, True, "logits"),
        ([FEATURES, LOGITS], {}, False, "features"),
        ([FEATURES, LOGITS], TEN_LABELS, False, "logits"),
        ([FEATURES, LOGITS], {}, True, "logits"),
        ([MAP, ONE, POOLED], {}, False, "pooled"),
        ([FEATURES], TEN_LABELS, False, "features"),
        ([TensorInfo("y", "bfloat16", ("N", None))], {}, False, "y"),
    ],
)
def test_which_output_top_applies_to(
    outputs: list[TensorInfo], metadata: dict[str, str], logits: bool, expected: str
) -> None:
    assert choose_output(outputs, metadata, logits) == expected


def test_no_output_for_top_is_an_error_that_lists_them() -> None:
    with pytest.raises(OptionError, match=r"'label' int64 \[N\], 'map' float32") as caught:
        choose_output([LABEL, MAP, ONE], {}, logits=False)
    assert caught.value.hint


@pytest.mark.parametrize("labels", ["", "no json", "{}", "3", "[" * 100_000])
def test_labels_that_can_not_be_read_are_none(labels: str) -> None:
    assert labels_of({"labels": labels}) == []


def test_labels_are_used_if_there_is_one_a_class() -> None:
    output = np.array([[0.0, 1.0]])
    assert best_classes("y", output, 1, labels=["a", "b"], softmax=False).rows[0][0].label == "b"
    assert best_classes("y", output, 1, labels=["a", "b", "c"], softmax=False).rows[0][0].label is None
    assert labels_of({"labels": '["a", 1]'}) == ["a", "1"]
    ultralytics = {"task": "classify", "names": "{0: 'a', 1: 'b'}", "imgsz": "[8, 8]", "stride": "1"}
    assert labels_of(ultralytics) == ["a", "b"]
    assert labels_of({**ultralytics, "labels": '["c"]'}) == ["c"]


def test_ranking_of_ties_and_of_what_is_no_number() -> None:
    top = best_classes("y", np.array([[1.0, np.nan, 2.0, 2.0, -np.inf]]), 9, labels=[], softmax=False)
    assert [choice.index for choice in top.rows[0]] == [2, 3, 0, 4, 1]


SHAPES = st.tuples(st.integers(0, 4), st.integers(0, 6))


@given(
    arrays(np.float64, SHAPES, elements=st.sampled_from([np.nan, np.inf, 0, 1, 2])),
    st.integers(1, 7),
)
def test_the_best_are_those_of_a_stable_sort(output: Any, count: int) -> None:
    classes, numbers = rank_classes(output, count, softmax=False)
    expected = np.argsort(-output, axis=1, kind="stable")[:, :count]
    np.testing.assert_array_equal(classes, expected)
    np.testing.assert_array_equal(numbers, np.take_along_axis(output, expected, axis=1))


def test_softmax_only_when_asked() -> None:
    output = np.array([[1000.0, 1000.0], [0.0, np.log(3)]], np.float32)
    shares = best_classes("y", output, 2, labels=[], softmax=True)
    assert [choice.number for choice in shares.rows[0]] == [0.5, 0.5]
    assert shares.rows[1][0].number == pytest.approx(0.75)
    assert best_classes("y", output, 1, labels=[], softmax=False).rows[0][0].number == 1000.0


@pytest.mark.parametrize("shape", [(0, 10), (2, 3, 1, 1), (2, 0)])
@pytest.mark.parametrize("softmax", [False, True])
def test_top_of_unusual_shapes(shape: tuple[int, ...], softmax: bool) -> None:
    assert len(best_classes("y", np.zeros(shape), 2, labels=[], softmax=softmax).rows) == shape[0]


# ---- files


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_text(path, "one")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    """The umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def fail(file: IO[bytes]) -> None:
        file.write(b"new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    write_text(link, "text")
    assert link.is_symlink()
    assert target.read_text() == "text"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_text(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["", "missing/report.json", "file/report.json", "x" * 300, "a\0b"])
def test_a_file_that_can_not_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="can't write"):
        write_text(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_arrays_are_written_by_name_and_without_pickle(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "file": np.arange(3),
        "a/b": np.array([[1.5]], np.float32),
        "label": np.array(["x", "long"], object),
        "half": np.array([1.5, -2], ml_dtypes.bfloat16),
        "scalar": np.array(7),
    }
    notes = write_arrays(tmp_path / "out.npz", arrays)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as loaded:
        assert set(loaded) == set(arrays)
        for name, array in arrays.items():
            assert np.array_equal(loaded[name], array.astype(loaded[name].dtype)), name
        assert loaded["label"].dtype.kind == "U"
        assert loaded["half"].dtype == np.float32
    assert len(notes) == 1
    assert "'half' is bfloat16" in notes[0]


@pytest.mark.parametrize(
    ("kind", "classes", "expected"),
    [(TensorProto.STRING, [b"m\xc3\xa4l", b"ben"], ["mäl", "ben"]), (TensorProto.INT64, [-5, 2], ["-5", "2"])],
)
@pytest.mark.parametrize("tables", [0, 1, 2])
def test_labels_are_those_of_the_one_table_that_the_model_looks_them_up_in(
    kind: int, classes: list[Any], expected: list[str], tables: int
) -> None:
    names = [f"label{k}" for k in range(tables)]
    table = helper.make_tensor("classes", kind, [2], classes)
    nodes = [helper.make_node("ArgMax", ["x"], ["best"], axis=1)]
    nodes += [helper.make_node("ArrayFeatureExtractor", ["classes", "best"], [n], domain="ai.onnx.ml") for n in names]
    outputs = [helper.make_tensor_value_info(name, kind, [1, "N"]) for name in names]
    outputs.append(helper.make_tensor_value_info("best", TensorProto.INT64, ["N", 1]))
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2])
    graph = helper.make_graph(nodes, "g", [source], outputs, [table])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = import_model(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    assert looked_up_labels(model) == (expected if tables == 1 else [])
