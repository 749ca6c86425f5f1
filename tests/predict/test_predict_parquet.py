"""Rows of Parquet files: every way in which a column can hold an input, and what is set aside or refused."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from predicting import lists

from trnrt.errors import InputError, OptionError
from trnrt.importer import TensorInfo
from trnrt.inputs.drawing import as_numpy
from trnrt.inputs.images import ImageOptions
from trnrt.predict.opening import open_source
from trnrt.predict.rows import Wanted
from trnrt.predict.source import Asked, Source

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).random((20, 2, 3), dtype=np.float32)
LISTS = pa.list_(pa.float32())


def want(dtype: str = "float32", *shape: int | None, name: str = "x") -> Wanted:
    """An input of the model, with rows of this shape."""
    return Wanted(TensorInfo(name, dtype, ("N", *shape)), shape, as_numpy(dtype))


def opened(table: pa.Table, tmp_path: Path, *wanted: Wanted, rows: int | None = None, **asked: Any) -> Source:
    """A table, written in row groups of so many rows, as rows for these inputs."""
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows)
    return open_source(Asked((str(tmp_path / "t.parquet"),), **asked), list(wanted), {})


def fixed(array: Array) -> pa.Array:
    """Rows as lists of fixed size."""
    values = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


# ---- tensors


@pytest.mark.parametrize(
    "column",
    [
        lists(X),
        lists(X.reshape(20, 6)),
        lists(X).cast(pa.large_list(pa.large_list(pa.float32()))),
        fixed(X),
        fixed(X.reshape(20, 6)),
        pa.FixedShapeTensorArray.from_numpy_ndarray(X),
        lists(X).cast(pa.list_(pa.list_(pa.float64()))),
    ],
    ids=["nested", "flat", "large", "fixed", "fixed flat", "tensor", "double"],
)
def test_a_column_holds_a_tensor(tmp_path: Path, column: pa.Array) -> None:
    source = opened(pa.table({"x": column}), tmp_path, want("float32", 2, 3), rows=7)
    for start, stop in ((0, 20), (3, 11), (11, 12), (19, 20), (0, 1)):
        rows = source.read(start, stop)
        np.testing.assert_array_equal(rows.feeds["x"], X[start:stop])
        assert rows.feeds["x"].dtype == np.float32
    source.close()


def test_going_forward_in_a_row_group_does_not_begin_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second part of a file of one row group, as one of two processes makes them."""
    x = np.arange(6000, dtype=np.float32).reshape(2000, 3)
    source = opened(pa.table({"x": lists(x)}), tmp_path, want("float32", 3))
    opens = []
    real = pq.ParquetFile

    def counted(*given: Any, **options: Any) -> Any:
        opens.append(given)
        return real(*given, **options)

    monkeypatch.setattr(pq, "ParquetFile", counted)
    for start in range(0, 2000, 200):
        np.testing.assert_array_equal(source.read(start, start + 100).feeds["x"], x[start : start + 100])
    assert len(opens) == 1
    assert source.read(50, 51).feeds["x"].tolist() == [x[50].tolist()]
    assert len(opens) == 2
    source.close()


@pytest.mark.parametrize(
    ("values", "type_", "dtype", "expected"),
    [
        ([1.5, 2.5], pa.float64(), "float32", [1.5, 2.5]),
        ([1, 2], pa.int32(), "int64", [1, 2]),
        ([True, False], pa.bool_(), "float32", [1.0, 0.0]),
        (["1.5", "2"], pa.string(), "float32", [1.5, 2.0]),
        (["a", "b"], pa.large_string(), "str", ["a", "b"]),
        (["a", "b"], pa.dictionary(pa.int32(), pa.string()), "str", ["a", "b"]),
        ([Decimal("1.5"), Decimal("2.5")], pa.decimal128(5, 2), "float32", [1.5, 2.5]),
        ([[1.5], [2.5]], LISTS, "float32", [1.5, 2.5]),
    ],
)
def test_a_column_holds_one_value_a_row(
    tmp_path: Path, values: list[Any], type_: pa.DataType, dtype: str, expected: list[Any]
) -> None:
    for shape in ((), (1,)):
        source = opened(pa.table({"x": pa.array(values, type_)}), tmp_path, want(dtype, *shape))
        assert source.read(0, 2).feeds["x"].reshape(-1).tolist() == expected
        assert source.shapes == {"x": shape}
        source.close()


def test_nulls_and_other_lengths_are_bad_rows(tmp_path: Path) -> None:
    rows: list[Any] = [[[1, 2, 3], [4, 5, 6]] for _ in range(7)]
    rows[1] = None
    rows[2] = [[1, 2, 3]]
    rows[3] = [[1, 2, 3], None]
    rows[4] = [[1, 2, 3], [4, 5]]
    rows[5] = [[1, 2, 3], [4, None, 6]]
    column = pa.array(rows, pa.list_(LISTS))
    found = opened(pa.table({"x": column}), tmp_path, want("float32", 2, 3), rows=3).read(0, 7)
    assert found.ids.tolist() == [0, 6]
    assert found.feeds["x"].tolist() == [rows[0], rows[6]]
    assert {bad.row: bad.reason for bad in found.bad} == {
        1: "null",
        2: "1 value, not 2",
        3: "null",
        4: "2 values in level 2 of its lists, not 3",
        5: "value 5 of 6 is null",
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(
    st.lists(
        st.none() | st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=4), min_size=1, max_size=30
    ),
    st.integers(1, 9),
    st.data(),
)
def test_any_lists_are_rows_or_have_a_reason(tmp_path: Path, rows: list[Any], group: int, data: st.DataObject) -> None:
    source = opened(pa.table({"x": pa.array(rows, LISTS)}), tmp_path, want("float32", 3), rows=group)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    good = [k for k in range(start, stop) if rows[k] is not None and len(rows[k]) == 3 and None not in rows[k]]
    found = source.read(start, stop)
    assert found.ids.tolist() == found.numbers.tolist() == good
    assert [bad.row for bad in found.bad] == [k for k in range(start, stop) if k not in good]
    assert found.feeds["x"].tolist() == [rows[k] for k in good]
    source.close()


@pytest.mark.parametrize(
    ("column", "wanted", "told"),
    [
        (pa.array([[1.0]], LISTS), want("str", 1), "holds numbers, and input 'x'"),
        (pa.array([1.0]), want("float32", 3), "has one value in each row, and input 'x'"),
        (fixed(np.ones((2, 4))), want("float32", 3), "takes lists of 3 values"),
        (fixed(np.ones((2, 3, 2))), want("float32", 2, 3), "lists 2 deep of the lengths"),
        (lists(np.ones((2, 2, 3))), want("float32", 6), "has 2 levels of lists"),
        (lists(np.ones((2, 6))), want("float32", 2, None), "gives the size of a row"),
        (pa.array([{"a": 1}]), want("float32", 1), "which is no tensor"),
        (pa.array([None]), want("float32", 1), "which is no tensor"),
        (pa.array([0], pa.timestamp("s")), want("float32", 1), "which is no tensor"),
        (pa.array([b"x"]), want("float32", 3), "takes no image"),
    ],
)
def test_types_that_can_not_fit_are_refused_at_once(
    tmp_path: Path, column: pa.Array, wanted: Wanted, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        opened(pa.table({"x": column}), tmp_path, wanted)


def test_what_the_model_leaves_open_a_fixed_size_says(tmp_path: Path) -> None:
    source = opened(pa.table({"x": fixed(X)}), tmp_path, want("float32", 2, None))
    assert source.shapes == {"x": (2, 3)}


# ---- which column


FEATURES = pa.table({"name": ["p", "q"], "age": [1.0, 2.0], "income": [10, None], "label": [0, 1]})


def test_number_columns_are_the_features_in_the_order_of_the_file(tmp_path: Path) -> None:
    source = opened(FEATURES, tmp_path, want("float32", 2), id="name")
    rows = source.read(0, 2)
    assert (rows.ids.tolist(), rows.feeds["x"].tolist()) == (["p"], [[1.0, 10.0]])
    assert [(bad.id, bad.reason) for bad in rows.bad] == [("q", "column 'income': null")]
    assert source.notes == ["'x' is from 2 columns: 'age', 'income'"]


def test_columns_are_the_features_in_the_order_that_is_said(tmp_path: Path) -> None:
    source = opened(FEATURES, tmp_path, want("float32", 3), columns=("label, income,age",))
    assert source.read(0, 1).feeds["x"].tolist() == [[0.0, 10.0, 1.0]]


def test_the_labels_are_no_feature_unless_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not clear; it has 'name' string, 'age' double") as caught:
        opened(FEATURES, tmp_path, want("float32", 3))
    assert caught.value.hint is not None and "--columns x=COLUMN" in caught.value.hint


def test_an_input_a_column_and_several_inputs(tmp_path: Path) -> None:
    wanted = (want("float32", 1, name="age"), want("float32", name="pay"))
    source = opened(FEATURES, tmp_path, *wanted, columns=("pay=income",))
    rows = source.read(0, 1)
    assert {name: values.tolist() for name, values in rows.feeds.items()} == {"age": [[1.0]], "pay": [10.0]}
    with pytest.raises(InputError, match="are input 'pay'"):
        opened(FEATURES, tmp_path, *wanted)
    with pytest.raises(OptionError, match="doesn't name its input"):
        opened(FEATURES, tmp_path, *wanted, columns=("income",))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (("nothing",), "has no column 'nothing'"),
        (("age",), "has one value in each row"),
        (("age,income,label",), "3 columns of one value each don't fit"),
        (("name,age",), None),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path: Path, columns: tuple[str, ...], told: str | None) -> None:
    if told is None:  # a text may spell a number; these do not
        rows = opened(FEATURES, tmp_path, want("float32", 2), columns=columns).read(0, 2)
        assert [bad.reason for bad in rows.bad] == [
            "column 'name': 'p' is no number",
            "column 'name': 'q' is no number",
        ]
        return
    with pytest.raises(InputError, match=told):
        opened(FEATURES, tmp_path, want("float32", 2), columns=columns)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["x", "x"])
    with pytest.raises(InputError, match="has two columns 'x'"):
        opened(table, tmp_path, want("float32", 1))


# ---- ids


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        (pa.array([5, 3, None, 2**60]), "int64"),
        (pa.array([5, 3, None, 2**64 - 1], pa.uint64()), "uint64"),
        (pa.array(["a", "", None, "ä"]), "object"),
        (pa.array(["a", "b", None, "b"]).dictionary_encode(), "object"),
    ],
)
def test_ids_stay_what_they_are_and_a_null_is_a_bad_row(tmp_path: Path, ids: pa.Array, dtype: str) -> None:
    rows = opened(pa.table({"key": ids, "x": [1.0] * 4}), tmp_path, want(), id="key").read(0, 4)
    assert rows.ids.dtype == dtype
    assert rows.ids.tolist() == [value for value in ids.to_pylist() if value is not None]
    assert [(bad.row, bad.id, bad.reason) for bad in rows.bad] == [(2, None, "its id is null")]


@pytest.mark.parametrize("ids", [pa.array([1.5]), pa.array([b"x"]), pa.array([[1]]), pa.array([0], pa.date32())])
def test_ids_are_integers_or_texts(tmp_path: Path, ids: pa.Array) -> None:
    with pytest.raises(InputError, match="ids are integers or texts"):
        opened(pa.table({"key": ids, "x": [1.0]}), tmp_path, want(), id="key")
    with pytest.raises(InputError, match="has no column 'other' for --id"):
        opened(pa.table({"key": ids, "x": [1.0]}), tmp_path, want(), id="other")


# ---- pictures


def encoded(colour: tuple[int, int, int]) -> bytes:
    """A picture's file."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["bytes", "struct"])
def test_a_column_holds_pictures(tmp_path: Path, form: str) -> None:
    files: list[Any] = [encoded((10, 20, 30)), b"no picture", None, encoded((1, 2, 3))]
    column = pa.array(files, pa.binary())
    if form == "struct":
        column = pa.array([None if file is None else {"bytes": file, "path": "p.png"} for file in files])
    wanted = want("float32", 3, 4, 4, name="image")
    source = opened(pa.table({"image": column}), tmp_path, wanted, images=ImageOptions(scale=1.0, layout="NCHW"))
    rows = source.read(0, 4)
    assert rows.feeds["image"][:, :, 0, 0].tolist() == [[10, 20, 30], [1, 2, 3]]
    assert [(bad.row, bad.reason) for bad in rows.bad] == [(1, "the picture is no PNG or JPEG image"), (2, "null")]
    assert source.notes[0].startswith("column 'image' as 'image' float32 [3, 4, 4]: colour RGB, layout NCHW")


# ---- files


def test_files_follow_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "table"
    for k, name in enumerate(("b.parquet", "a.parquet", "c/d.parquet", "_x/e.parquet", ".f.parquet")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": [float(k)] * (k + 1), "n": [k] * (k + 1)}), folder / name, row_group_size=1)
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"n": pa.array([], pa.int64()), "x": pa.array([], pa.float64())}), empty)
    source = open_source(Asked((str(empty), str(folder), str(folder / "b.parquet"))), [want()], {})
    whole = [1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 0.0]
    assert source.rows == len(whole)
    for start in range(len(whole)):
        for stop in range(start + 1, len(whole) + 1):
            assert source.read(start, stop).feeds["x"].tolist() == whole[start:stop]
    source.close()


def test_files_whose_columns_differ_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet' is int64, and double in the first file"):
        open_source(Asked((str(tmp_path),)), [want()], {})
    with pytest.raises(InputError, match=r"'a\.parquet' has no column 'k' for --id; it has 'x' double"):
        open_source(Asked((str(tmp_path),), id="k"), [want()], {})
    pq.write_table(pa.table({"y": [1]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet' has no column 'x'"):
        open_source(Asked((str(tmp_path),)), [want()], {})


def test_parquet_is_alone_and_has_no_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "a.parquet")
    np.save(tmp_path / "x.npy", np.ones(1))
    with pytest.raises(InputError, match="can't be combined"):
        open_source(Asked((str(tmp_path / "a.parquet"), str(tmp_path / "x.npy"))), [want()], {})
    with pytest.raises(InputError, match="has all inputs in its columns") as caught:
        open_source(Asked((f"x={tmp_path / 'a.parquet'}",)), [want()], {})
    assert caught.value.hint == "say --columns x=COLUMN for the column of an input"


def test_rows_that_are_small_in_the_file_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    """A dictionary of one value takes no bytes a row in the file: 64 MiB of values are read from a few KiB."""
    x = fixed(np.zeros((1024, 1 << 14), np.float32))
    source = opened(pa.table({"x": x}), tmp_path, want("float32", 1 << 14))
    del x
    assert (tmp_path / "t.parquet").stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    assert source.read(0, 1).feeds["x"].shape == (1, 1 << 14)
    assert pa.total_allocated_bytes() - before < 32 << 20
    source.close()


def test_pictures_in_a_dictionary_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    picture = encoded((1, 2, 3)) + bytes(1 << 16)
    source = opened(
        pa.table({"image": pa.array([picture] * 1024)}),
        tmp_path,
        want("float32", 3, 4, 4, name="image"),
        images=ImageOptions(scale=1.0, layout="NCHW"),
    )
    assert (tmp_path / "t.parquet").stat().st_size < 1 << 20
    before = pa.total_allocated_bytes()
    assert source.read(0, 1).bad == ()
    assert pa.total_allocated_bytes() - before < 4 << 20
    source.close()


def invalid() -> pa.Array:
    """A text that is no UTF-8, between two that are."""
    return pa.array([b"1", b"\xff", b"2"]).view(pa.string())


def test_texts_that_are_no_utf8_are_a_broken_file(tmp_path: Path) -> None:
    for table, asked in (({"x": invalid()}, None), ({"x": [1.0, 2.0, 3.0], "key": invalid()}, "key")):
        source = opened(pa.table(table), tmp_path, want(), id=asked)
        with pytest.raises(InputError, match=r"can't read '.*t\.parquet'.*utf-8"):
            source.read(0, 3)
        source.close()


def test_the_file_that_breaks_is_named_and_not_the_one_before(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": lists(X)}), tmp_path / f"{name}.parquet", use_dictionary=False)
    content = bytearray((tmp_path / "b.parquet").read_bytes())
    source = open_source(Asked((str(tmp_path),)), [want("float32", 2, 3)], {})
    content[4:100] = bytes(96)
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"can't read '[^']*b\.parquet'"):
        source.read(0, 40)
    source.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150)
@given(st.data())
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, data: st.DataObject) -> None:
    """Wherever it is damaged: refused, or read as some rows; never a crash, never rows that are not there."""
    pq.write_table(pa.table({"x": lists(X)}), tmp_path / "t.parquet", row_group_size=9)
    content = bytearray((tmp_path / "t.parquet").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "damaged.parquet").write_bytes(content)
    try:
        source = open_source(Asked((str(tmp_path / "damaged.parquet"),)), [want("float32", 2, 3)], {})
        rows = source.read(0, min(source.rows, 64))
        assert len(rows.ids) + len(rows.bad) == min(source.rows, 64)
        source.close()
    except InputError as error:
        assert "damaged.parquet" in str(error) or "x" in str(error)
