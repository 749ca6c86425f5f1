"""Batch prediction on the command line: rows in, parts out, and what is refused."""

from __future__ import annotations

import json
import pickle
import shlex
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from commanding import trnrt
from onnx import TensorProto, helper
from predicting import FFNN, MODELS, digests, linear, parts, quarantine, save_model

from trnrt import InferenceSession
from trnrt.errors import DeviceError, InputError, OptionError
from trnrt.predict import parquet as parquet_room
from trnrt.predict.job import BYTES_PER_BATCH, BYTES_PER_PART, ROWS_PER_PART, Opened, Request, open_job, prepare
from trnrt.predict.output import MANIFEST, PROGRESS, MostBad, parse_most_bad
from trnrt.predict.part import QUARANTINE, make_part, part_file
from trnrt.predict.source import Asked
from trnrt.running.buckets import DEFAULT_BUCKETS

SKLEARN = Path(__file__).parents[1] / "data" / "sklearn"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """700 rows for the digits' models."""
    path = tmp_path / "images.npy"
    np.save(path, np.random.default_rng(0).random((700, 1, 8, 8), dtype=np.float32))
    return path


def predict(model: Path, *arguments: str | Path, out: Path, code: int = 0) -> Any:
    """Call ``trnrt predict``: its document where that went well, else what it complained of."""
    outcome = trnrt("predict", model, *arguments, "--output", out, "--json")
    assert outcome.code == code, outcome.err
    return outcome.document if code == 0 else outcome.err


# ---- answers


def test_answers_are_those_of_a_session_in_order_bit_for_bit(tmp_path: Path, images: Path) -> None:
    document = predict(FFNN, "--input", images, "--rows-per-part", "300", out=tmp_path / "out")
    assert (document["rows"], document["predicted"], document["parts"], document["bad"]) == (700, 700, 3, 0)
    session = InferenceSession(FFNN, buckets=[128])
    probabilities, label = session.run(None, {"image": np.load(images)})
    table = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert table.column_names == ["id", "probabilities", "label"]
    assert table["id"].to_pylist() == list(range(700))
    assert np.array_equal(np.array(table["probabilities"].to_pylist(), np.float32), probabilities)
    assert np.array_equal(table["label"], label)


def test_where_the_parts_are_cut_changes_no_answer(tmp_path: Path, images: Path) -> None:
    for size in ("100", "256", "999"):
        predict(FFNN, "--input", images, "--rows-per-part", size, out=tmp_path / size)
    assert parts(tmp_path / "100") == parts(tmp_path / "256") == parts(tmp_path / "999")


def test_a_bad_row_changes_no_other(tmp_path: Path) -> None:
    """Neither by what it holds nor by being left out, and whatever its place in a batch."""
    x = np.random.default_rng(1).random((300, 64)).tolist()
    whole = pa.table({"image": pa.array(x, pa.list_(pa.float32()))})
    for row in (0, 127, 128, 299):
        x[row] = x[row][:5]
    pq.write_table(whole, tmp_path / "whole.parquet")
    pq.write_table(pa.table({"image": pa.array(x, pa.list_(pa.float32()))}), tmp_path / "broken.parquet")
    for name in ("whole", "broken"):
        predict(FFNN, "--input", tmp_path / f"{name}.parquet", out=tmp_path / name)
    bad = quarantine(tmp_path / "broken")
    assert [row["row"] for row in bad] == [0, 127, 128, 299]
    assert bad[0] == {"row": 0, "id": 0, "input": "image", "reason": "5 values, not 64"}
    assert parts(tmp_path / "broken") == [
        row for row in parts(tmp_path / "whole") if row["id"] not in (0, 127, 128, 299)
    ]


def test_npz_parts_hold_the_same(tmp_path: Path, images: Path) -> None:
    predict(FFNN, "--input", images, "--format", "npz", "--top", "2", out=tmp_path / "npz")
    predict(FFNN, "--input", images, "--top", "2", out=tmp_path / "parquet")
    with np.load(tmp_path / "npz" / "part-00000.npz") as arrays:
        found = {name: arrays[name].tolist() for name in arrays}
    rows = parts(tmp_path / "parquet")
    assert found == {name: [row[name] for row in rows] for name in rows[0]}


def test_the_best_classes_are_those_of_run(tmp_path: Path, images: Path) -> None:
    cnn = MODELS / "digits_cnn.onnx"
    predict(cnn, "--input", images, "--top", "3", "--logits", "--limit", "5", out=tmp_path / "out")
    np.save(tmp_path / "five.npy", np.load(images)[:5])
    shown = trnrt("run", cnn, "--input", tmp_path / "five.npy", "--top", "3", "--logits", "--json").document["top"]
    for row, choices in zip(parts(tmp_path / "out"), shown, strict=True):
        assert row["top_class"] == [choice["class"] for choice in choices]
        assert row["top_number"] == pytest.approx([choice["number"] for choice in choices], rel=1e-5)
        assert row["top_label"] == [choice["label"] for choice in choices]


@pytest.mark.parametrize("name", ["maxabs_mlp_two_texts_zipmap", "maxabs_mlp_two_texts"])
def test_texts_and_zipmaps_are_columns(tmp_path: Path, name: str) -> None:
    model = SKLEARN / f"{name}.onnx"
    session = InferenceSession(model)
    (wanted,) = session.get_inputs()
    x = np.random.default_rng(2).random((20, int(wanted.shape[1] or 0)), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    document = predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out")
    order = "has a number for each of these labels, in this order: no, yes"
    assert any(order in told for told in document["notes"]) == name.endswith("zipmap")
    rows = parts(tmp_path / "out")
    for output, expected in zip(session.get_outputs(), session.run(None, {wanted.name: x}), strict=True):
        column = [row[output.name] for row in rows]
        # A list of dicts (ZipMap) has a dict a row.
        plain = [list(row.values()) if isinstance(row, dict) else np.asarray(row).tolist() for row in expected]
        assert column == plain


def test_an_output_may_be_called_id(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["id"])
    model = save_model(
        tmp_path / "m.onnx", [relu], [("x", TensorProto.FLOAT, ["N", 1])], [("id", TensorProto.FLOAT, ["N", 1])]
    )
    np.save(tmp_path / "x.npy", np.array([[3], [-4]], np.float32))
    predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out")
    assert parts(tmp_path / "out") == [{"id": 0, "output_id": 3.0}, {"id": 1, "output_id": 0.0}]


def test_outputs_whose_columns_would_have_one_name_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["id"]), helper.make_node("Neg", ["x"], ["output_id"])]
    values: list[Any] = [(name, TensorProto.FLOAT, ["N", 1]) for name in ("x", "id", "output_id")]
    model = save_model(tmp_path / "m.onnx", nodes, values[:1], values[1:])
    np.save(tmp_path / "x.npy", np.ones((2, 1), np.float32))
    complaint = predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out", code=2)
    assert "outputs 'id' and 'output_id' would both be the column 'output_id'" in complaint
    assert not list((tmp_path / "out").glob("part-*"))


def test_sixteen_bits_are_written_as_float32(tmp_path: Path) -> None:
    model = linear(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16)
    np.save(tmp_path / "x.npy", np.array([[0.1, 2, -3]]))
    predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out")
    assert parts(tmp_path / "out") == [{"id": 0, "y": [float(np.float16(0.1)), 2.0, 0.0]}]


def test_nan_and_infinity_are_values(tmp_path: Path) -> None:
    model = linear(tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array([[np.inf, 1, 2], [1, 2, 3]], np.float32))
    assert predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out")["bad"] == 0
    assert parts(tmp_path / "out")[0]["y"] == [np.inf, 1, 2]


def test_models_whose_batch_is_fixed_run_in_slices_of_it(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    value: Any = (TensorProto.FLOAT, [4, 3])
    model = save_model(tmp_path / "m.onnx", [relu], [("x", *value)], [("y", *value)])
    x = np.random.default_rng(3).standard_normal((10, 3), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    assert predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out")["batch"] == 4
    assert [row["y"] for row in parts(tmp_path / "out")] == np.maximum(x, 0).tolist()
    assert "fixed at 4" in predict(model, "--input", tmp_path / "x.npy", "--batch", "8", out=tmp_path / "o", code=2)


def test_rows_that_depend_on_each_other_are_run_alone_or_refused(tmp_path: Path) -> None:
    softmax = helper.make_node("Softmax", ["x"], ["y"], axis=0)
    value: Any = (TensorProto.FLOAT, ["N", 3])
    model = save_model(tmp_path / "m.onnx", [softmax], [("x", *value)], [("y", *value)])
    np.save(tmp_path / "x.npy", np.random.default_rng(3).random((10, 3), dtype=np.float32))
    complaint = predict(model, "--input", tmp_path / "x.npy", out=tmp_path / "out", code=2)
    assert "not independent: Softmax" in complaint and "--batch 1 runs each row alone" in complaint
    predict(model, "--input", tmp_path / "x.npy", "--batch", "1", out=tmp_path / "out")
    assert [row["y"] for row in parts(tmp_path / "out")] == [[1.0, 1.0, 1.0]] * 10


# ---- what the session can't do


def failing(path: Path) -> Path:
    """A model that reads texts as numbers, on the CPU: it fails for a text that is none."""
    cast = helper.make_node("Cast", ["x"], ["n"], to=TensorProto.FLOAT)
    relu = helper.make_node("Relu", ["n"], ["y"])
    texts: Any = ("x", TensorProto.STRING, ["N", 1])
    return save_model(path, [cast, relu], [texts], [("y", TensorProto.FLOAT, ["N", 1])])


def test_a_row_at_which_the_session_fails_is_found_and_set_aside(tmp_path: Path) -> None:
    texts = np.array([[str(number)] for number in range(300)])
    texts[[3, 4, 200], 0] = "no"
    np.save(tmp_path / "x.npy", texts)
    options = ("--fallback", "onnxruntime", "--max-bad", "3")
    predict(failing(tmp_path / "m.onnx"), "--input", tmp_path / "x.npy", *options, out=tmp_path / "out")
    rows = parts(tmp_path / "out")
    assert [row["id"] for row in rows] == [n for n in range(300) if n not in (3, 4, 200)]
    assert all(row["y"] == row["id"] for row in rows)
    bad = quarantine(tmp_path / "out")
    assert [row["row"] for row in bad] == [3, 4, 200]
    assert bad[0]["input"] is None and bad[0]["reason"].startswith(
        "the model fails for this row: onnxruntime can't run"
    )


def opened_rows(tmp_path: Path, rows: int = 8) -> Opened:
    """A job of a few rows in two parts, open."""
    np.save(tmp_path / "x.npy", np.arange(rows * 3, dtype=np.float32).reshape(rows, 3))
    request = Request(
        str(linear(tmp_path / "m.onnx")),
        str(tmp_path / "out"),
        Asked((str(tmp_path / "x.npy"),)),
        rows_per_part=rows // 2,
    )
    (tmp_path / "out").mkdir(exist_ok=True)
    return prepare(request)


@pytest.mark.parametrize("error", [DeviceError("it hung", usable=False), InputError("no row ever runs")])
def test_a_session_that_runs_nothing_is_no_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    opened = opened_rows(tmp_path)
    monkeypatch.setattr(opened.session, "run", fail)
    with pytest.raises(type(error), match=str(error)):
        make_part(opened, 0, tmp_path / "out")
    opened.close()
    error.with_traceback(None)  # it outlives the test, and its frames would with it
    assert list((tmp_path / "out").iterdir()) == []


def test_a_part_without_a_good_row_has_the_columns_of_the_others(tmp_path: Path) -> None:
    x = [[1.0, 2.0, 3.0]] * 4 + [None] * 4
    pq.write_table(pa.table({"x": pa.array(x, pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    options = ("--rows-per-part", "4", "--max-bad", "4")
    predict(linear(tmp_path / "m.onnx"), "--input", tmp_path / "x.parquet", *options, out=tmp_path / "out")
    first, second = (pq.read_table(tmp_path / "out" / f"part-0000{k}.parquet") for k in range(2))
    assert (len(first), len(second)) == (4, 0)
    assert first.schema == second.schema


# ---- too many bad rows


def test_too_many_bad_rows_stop_the_run_and_a_higher_limit_goes_on(tmp_path: Path) -> None:
    x = [[1.0, 2.0, 3.0]] * 12
    for row in (5, 6, 7):
        x[row] = [1.0]
    pq.write_table(pa.table({"x": pa.array(x, pa.list_(pa.float32()))}), tmp_path / "x.parquet")
    model, out = linear(tmp_path / "m.onnx"), tmp_path / "out"
    options: tuple[str | Path, ...] = ("--input", tmp_path / "x.parquet", "--rows-per-part", "4")
    complaint = predict(model, *options, out=out, code=1)
    assert "3 of 8 rows so far are bad, and --max-bad 10% allows 1: row 5: 1 value, not 3" in complaint
    document = trnrt("predict", model, *options, "--output", out, "--json").document
    assert (document["state"], document["bad"], document["parts_kept"]) == ("too many bad rows", 3, 2)
    assert "part-00002.parquet" not in {path.name for path in out.iterdir()}
    assert "3 of 8 rows" in predict(model, *options, "--max-bad", "2", out=out, code=1)
    document = predict(model, *options, "--max-bad", "25%", out=out)
    assert (document["parts_kept"], document["bad"], document["rows_run"]) == (2, 3, 4)
    assert len(document["first_bad"]) == 3


def test_a_report_that_can_not_be_written_is_told_before_the_work(tmp_path: Path, images: Path) -> None:
    report = tmp_path / "missing" / "r.json"
    complaint = predict(FFNN, "--input", images, "--json-out", report, out=tmp_path / "out", code=2)
    assert "r.json" in complaint
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["many", "-1", "101%", "1.5", "nan", ""])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, images: Path, text: str) -> None:
    assert "--max-bad" in predict(FFNN, "--input", images, "--max-bad", text, out=tmp_path / "out", code=2)


@pytest.mark.parametrize(
    ("text", "rows", "limit"),
    [
        ("0", 50, 0),
        ("20", 50, 20),
        ("7%", 100, 7),
        ("0.07", 100, 7),
        ("10%", 11, 1),
        ("10%", 1, 0),
        ("0%", 9, 0),
        ("100 %", 9, 9),
    ],
)
def test_a_limit_is_a_number_or_a_share_rounded_down(text: str, rows: int, limit: int) -> None:
    assert parse_most_bad(text).limit(rows) == limit


# ---- other processes


def test_a_job_goes_to_another_process_and_makes_the_same_part(tmp_path: Path) -> None:
    opened = opened_rows(tmp_path)
    mine = make_part(opened, 1, tmp_path / "out")
    opened.close()
    before = digests(tmp_path / "out")
    (tmp_path / "out" / "part-00001.parquet").unlink()
    script = (
        "import pickle, sys; from pathlib import Path; from trnrt.predict.job import open_job;"
        "from trnrt.predict.part import make_part;"
        "done = make_part(open_job(pickle.load(sys.stdin.buffer)), 1, Path(sys.argv[1]));"
        "sys.stdout.buffer.write(pickle.dumps(done))"
    )
    made = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "out"],
        input=pickle.dumps(opened.job),
        capture_output=True,
        check=True,
    )
    assert pickle.loads(made.stdout) == mine
    assert digests(tmp_path / "out") == before


def test_a_job_is_not_opened_where_the_input_is_another(tmp_path: Path) -> None:
    job = opened_rows(tmp_path).job
    opened_rows(tmp_path, rows=10)
    with pytest.raises(InputError, match=r"the job has changed: input x .*rows 8 -> 10"):
        open_job(job)


# ---- what is told


def test_the_terminal_is_told_what_was_done(tmp_path: Path, images: Path) -> None:
    outcome = trnrt("predict", FFNN, "--input", images, "--output", tmp_path / "out", "--json-out", tmp_path / "r.json")
    assert outcome.code == 0
    assert "simulator, target trn2, float32, batches of 128: 700 rows predicted; 1 part in" in outcome.out
    document = json.loads((tmp_path / "r.json").read_text("utf-8"))
    assert document["schema_version"] == 1
    assert (document["rows_run"], document["parts_kept"], document["format"]) == (700, 0, "parquet")


def test_without_pyarrow_the_error_says_what_to_install(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    complaint = predict(FFNN, "--input", images, out=tmp_path / "out", code=2)
    assert "Parquet needs pyarrow" in complaint and "pip install 'trnrt[parquet]', or --format npz" in complaint
    assert predict(FFNN, "--input", images, "--format", "npz", out=tmp_path / "out")["predicted"] == 700
    assert not parquet_room.parquet_files(tmp_path / "out")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--logits",), "add --top K"),
        (("--id", "key"), "--id names a column"),
        (("--columns", "a"), "--columns is for Parquet"),
        (("--scale", "2"), "are for images, and no --input is one"),
        (("--top", "1", "--shape", "1x9x9"), "dimension 2 is 8"),
        (("--shape", "other=1x8x8"), "no input of the model"),
        (("--input", "image=images.npy"), "given twice"),
    ],
)
def test_settings_for_something_else_are_refused(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in predict(FFNN, "--input", images, *arguments, out=tmp_path / "out", code=2)


def test_output_within_the_input_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0, 3.0]])}), tmp_path / "x.parquet")
    model = linear(tmp_path / "m.onnx")
    for out in (tmp_path / "out", tmp_path):
        assert "is in the folder of the input" in predict(model, "--input", tmp_path, out=out, code=2)


@pytest.mark.parametrize("name", ["it's x.csv", "x.TSV", "x.jsonl", "x.feather", "x.orc"])
def test_other_tables_are_refused_with_the_command_that_converts_them(tmp_path: Path, name: str) -> None:
    table, path = pa.table({"a": [1], "b": [2], "c": [3]}), tmp_path / name
    texts = {".csv": "a,b,c\n1,2,3\n", ".tsv": "a\tb\tc\n1\t2\t3\n", ".jsonl": '{"a": 1, "b": 2, "c": 3}\n'}
    if path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".orc":
        pyarrow.orc.write_table(table, path)
    else:
        path.write_text(texts[path.suffix.lower()], "utf-8")
    model = linear(tmp_path / "m.onnx")
    complaint = predict(model, "--input", path, out=tmp_path / "out", code=2)
    (hint,) = [line.removeprefix("hint: ") for line in complaint.splitlines() if line.startswith("hint: ")]
    command, _, program = shlex.split(hint)
    assert command == "python3" and "the only format that tables are read from" in complaint
    exec(program, {})
    predict(model, "--input", path.with_suffix(".parquet"), out=tmp_path / "out")
    assert parts(tmp_path / "out") == [{"id": 0, "y": [1.0, 2.0, 3.0]}]


def test_patterns_and_addresses_are_refused(tmp_path: Path, images: Path) -> None:
    complaint = predict(FFNN, "--input", tmp_path / "*.parquet", out=tmp_path / "out", code=2)
    assert "--input takes no patterns" in complaint and "name the folder" in complaint
    for address in ("s3://bucket/x.parquet", "image=https://host/x.npy"):
        assert "//" in (complaint := predict(FFNN, "--input", address, out=tmp_path / "out", code=2))
        assert "is an address; trnrt reads and writes local files only" in complaint
    outcome = trnrt("predict", FFNN, "--input", images, "--output", "s3://bucket/out")
    assert outcome.code == 2 and "'s3://bucket/out' is an address" in outcome.err


def test_parts_are_in_order_by_name_however_many_there_are(tmp_path: Path) -> None:
    job = opened_rows(tmp_path).job
    for count in (1, 100_000, 100_001):
        many = replace(job, rows=count, rows_per_part=1)
        names = [part_file(many, number).name for number in {0, count // 2, count - 1}]
        assert len({len(name) for name in names}) == 1
    assert part_file(job, 1).name == "part-00001.parquet"


@pytest.mark.parametrize("output", [["N", 2, 128, 128], ["N", "C", "H2", "W2"], ["N", None, None, None]])
def test_a_part_holds_what_its_outputs_allow_whatever_the_model_declares(tmp_path: Path, output: list[Any]) -> None:
    depth = helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=2)
    source: Any = ("x", TensorProto.FLOAT, ["N", 8, "H", "W"] if "C" in output else ["N", 8, None, None])
    model = save_model(tmp_path / "m.onnx", [depth], [source], [("y", TensorProto.FLOAT, output)])
    np.save(tmp_path / "x.npy", np.zeros((16, 8, 64, 64), np.float32))
    opened = prepare(Request(str(model), "", Asked((str(tmp_path / "x.npy"),))))
    assert opened.job.rows_per_part == BYTES_PER_PART // (2 * 128 * 128 * 4)
    opened.close()


@pytest.mark.parametrize("labels", [{"classlabels_int64s": range(4096)}, {"classlabels_strings": ["a"] * 4096}])
def test_a_list_of_dicts_counts_with_all_its_labels(tmp_path: Path, labels: dict[str, Any]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("ZipMap", ["y"], ["p"], domain="ai.onnx.ml", **labels),
    ]
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4096])
    key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    dicts = helper.make_value_info("p", helper.make_sequence_type_proto(helper.make_map_type_proto(key, value)))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "m", [source], [dicts])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.zeros((16, 4096), np.float32))
    opened = prepare(Request(str(tmp_path / "m.onnx"), "", Asked((str(tmp_path / "x.npy"),))))
    assert opened.job.rows_per_part == BYTES_PER_PART // (4096 * 4)
    opened.close()


def test_a_part_is_one_batch_where_nobody_knows_how_large_its_outputs_are(tmp_path: Path) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    values: list[Any] = [("x", TensorProto.FLOAT, ["N", 3]), ("y", TensorProto.INT64, ["M", "K"])]
    model = save_model(tmp_path / "m.onnx", nodes, values[:1], values[1:])
    np.save(tmp_path / "x.npy", np.ones((8, 3), np.float32))
    request = Request(str(model), "", Asked((str(tmp_path / "x.npy"),)), fallback="onnxruntime", batch=1)
    opened = prepare(request)
    assert opened.job.rows_per_part == 1
    opened.close()


def test_outputs_that_have_no_row_for_each_row_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["w"], ["z"])]
    outputs: Any = [("y", TensorProto.FLOAT, ["N", 3]), ("z", TensorProto.FLOAT, [5])]
    source: Any = ("x", TensorProto.FLOAT, ["N", 3])
    model = save_model(tmp_path / "m.onnx", nodes, [source], outputs, {"w": np.ones(5, np.float32)})
    np.save(tmp_path / "x.npy", np.ones((8, 3), np.float32))
    request = Request(str(model), str(tmp_path / "out"), Asked((str(tmp_path / "x.npy"),)))
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError, match="output 'z' does not hold one row for each"):
        prepare(request)
    opened = prepare(replace(request, batch=1))
    with pytest.raises(OptionError, match=r"output 'z' has the shape \(5,\) for 1 row"):
        make_part(opened, 0, tmp_path / "out")
    opened.close()


# ---- the page


def test_the_page_says_what_the_code_does(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (MODELS.parent / "docs" / "predict.md").read_text("utf-8")
    page = " ".join(source.split())
    numbers = (
        f"A part has {ROWS_PER_PART:,} rows",
        f"would exceed {BYTES_PER_PART >> 20} MiB",
        f"{DEFAULT_BUCKETS[-1]} rows exceed {BYTES_PER_BATCH >> 20} MiB of inputs",
        f"(default: {MostBad()} of all rows",
    )
    names = [f"`{name}" for name in (MANIFEST, PROGRESS, QUARANTINE)]
    assert [text for text in (*numbers, *names) if text not in page] == []
    table = pa.table({"key": [f"k{row}" for row in range(700)], "image": np.load(images).reshape(700, 64).tolist()})
    pq.write_table(table, tmp_path / "data.parquet")
    (tmp_path / "models").symlink_to(MODELS)
    monkeypatch.chdir(tmp_path)
    program = source.partition("## In Python\n")[2].partition("-->\n\n")[2].partition("\n\n`opened.job`")[0]
    exec(textwrap.dedent(program), {})  # on fewer rows
    assert [row["id"] for row in parts(tmp_path / "out")] == table["key"].to_pylist()
    assert json.loads((tmp_path / "out" / MANIFEST).read_text("utf-8"))["state"] == "finished"
