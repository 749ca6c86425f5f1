"""Open batches: random small graphs that cut, pad, repeat, move and mix rows, and batches of 0 rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from commanding import trnrt as command
from hypothesis import given, settings
from onnx import parser
from open_batches import is_valid, open_batch_models, random_rows, reference

import trnrt
from trnrt.errors import InputError, TrnrtError, UnsupportedModelError

MODELS = Path(__file__).parents[2] / "models"
FFNN = MODELS / "digits_ffnn.onnx"
ROWS = (0, 1, 2, 3, 7, 8)


def answer(model: bytes, x: Any) -> Any:
    """onnxruntime's answer; None where it refuses the model for these rows, or onnx does."""
    try:
        return reference(model, x)[0] if is_valid(model, len(x)) or not len(x) else None
    except Exception:  # of many kinds, all of which mean that there is nothing to compare with
        return None


@settings(max_examples=100)
@given(open_batch_models())
def test_answers_are_onnxruntimes_for_any_number_of_rows(case: tuple[bytes, tuple[int, ...]]) -> None:
    """With buckets that are the number of rows now and then, and with one that most numbers are padded to."""
    model, sizes = case
    sessions = [trnrt.InferenceSession(model, buckets=buckets, cache=False) for buckets in (None, [8])]
    for rows in ROWS:
        x = random_rows(rows, sizes)
        expected = answer(model, x)
        for session in sessions if expected is not None else ():
            check(session, x, expected)


def check(session: trnrt.InferenceSession, x: Any, expected: Any) -> None:
    """The same answer; refused may be only what is empty, and of no rows what is not."""
    try:
        (found,) = session.run(None, {"x": x})
    except UnsupportedModelError as refused:
        assert [blocker.reason for blocker in refused.blockers] == ["its output has no elements"]
    except InputError as refused:
        assert not len(x) and expected.size, refused
    else:
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# -- 0 rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits_cnn", "digits_ffnn"])
def test_no_rows_give_no_rows(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    x = {"image": np.zeros((0, 1, 8, 8), np.float32)}
    session = trnrt.InferenceSession(path)
    expected = onnxruntime.InferenceSession(path).run(None, x)
    for found, wanted in zip(session.run(None, x), expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert session.last_run.notes == ("the batch has 0 rows: nothing was run",)
    assert session.last_run.predicted_us is None
    assert len(session.run(None, {"image": np.zeros((1, 1, 8, 8), np.float32)})[0]) == 1


def parsed(graph: str) -> bytes:
    return bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {graph}').SerializeToString())


def test_what_no_rows_would_have_to_give_is_told() -> None:
    session = trnrt.InferenceSession(parsed("(float[N,4] x) => (float[1,4] y) { y = ReduceMean<axes=[0]>(x) }"))
    told = r"0 rows, and output 'y' has the shape \[1, 4\]: .* reduces the batch's dimension"
    with pytest.raises(InputError, match=told):
        session.run(None, {"x": np.zeros((0, 4), np.float32)})


@pytest.mark.parametrize("batch", ["8", "N"])
def test_no_rows_of_what_does_not_fit_are_refused(batch: str) -> None:
    session = trnrt.InferenceSession(parsed(f"(float[{batch},4] x) => (float[{batch},4] y) {{ y = Relu(x) }}"))
    assert session.run(None, {"x": np.zeros((0, 4), np.float32)})[0].shape == (0, 4)
    for shape in ((0, 3), (0,), (2, 0)):
        with pytest.raises(TrnrtError, match=r"the model wants|is 0"):
            session.run(None, {"x": np.zeros(shape, np.float32)})


@pytest.fixture
def no_rows(tmp_path: Path) -> dict[str, Path]:
    """Files without rows, by what they are."""
    empty = np.zeros((0, 1, 8, 8), np.float32)
    np.save(tmp_path / "x.npy", empty)
    np.savez(tmp_path / "x.npz", image=empty)
    np.savez_compressed(tmp_path / "deflated.npz", image=empty, label=np.zeros(0, np.int64))
    pq.write_table(pa.table({"image": pa.array([], pa.list_(pa.float32(), 64))}), tmp_path / "x.parquet")
    return {path.name: path for path in tmp_path.iterdir()}


def test_run_of_a_file_without_rows(no_rows: dict[str, Path], tmp_path: Path) -> None:
    outcome = command("run", FFNN, "--input", no_rows["x.npy"], "--top", "3", "--json", "--output", tmp_path / "y.npz")
    assert outcome.code == 0
    assert [output["shape"] for output in outcome.document["outputs"].values()] == [[0, 10], [0]]
    assert outcome.document["top"] == [] and outcome.document["predicted_us"] is None
    assert {name: array.shape for name, array in np.load(tmp_path / "y.npz").items()} == {
        "probabilities": (0, 10),
        "label": (0,),
    }
    assert "0 rows in" in command("run", FFNN, "--input", no_rows["x.npy"]).out


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "deflated.npz", "x.parquet"])
def test_predict_of_a_file_without_rows(name: str, no_rows: dict[str, Path], tmp_path: Path) -> None:
    """One part, so that who reads the folder as a table finds the columns; the same command again finds it done."""
    out = tmp_path / "out"
    for kept in (0, 1):
        outcome = command("predict", FFNN, "--input", no_rows[name], "--top", "2", "--output", out, "--json")
        assert outcome.code == 0, outcome.err
        document = outcome.document
        assert (document["rows"], document["parts"], document["parts_kept"]) == (0, 1, kept)
    table = pyarrow.dataset.dataset(out).to_table()
    assert table.num_rows == 0
    assert table.column_names == ["id", "probabilities", "label", "top_class", "top_number", "top_label"]


@pytest.mark.parametrize("flags", [["--input", "x.npy"], ["--layers", "--input", "x.npy"], ["--data", "deflated.npz"]])
def test_validate_compares_no_nothing(flags: list[str], no_rows: dict[str, Path]) -> None:
    outcome = command("validate", FFNN, *[no_rows.get(flag, flag) for flag in flags])
    assert outcome.code == 2
    assert "the batch has 0 rows: there is nothing to compare" in outcome.err
