"""The rows of .npy and .npz files and of folders: read in pieces, in any order, and made to fit or set aside."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predicting import linear

from trnrt.errors import InputError
from trnrt.importer import TensorInfo
from trnrt.inputs.drawing import as_numpy
from trnrt.predict.job import Request, prepare
from trnrt.predict.opening import open_source
from trnrt.predict.rows import Wanted, check_kind, fit
from trnrt.predict.source import Asked, Source

Array = np.ndarray[Any, Any]
HERE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)


def want(dtype: str = "float32", *shape: int | None, name: str = "x") -> Wanted:
    """An input of the model, with rows of this shape."""
    return Wanted(TensorInfo(name, dtype, ("N", *shape)), shape, as_numpy(dtype))


def opened(*files: str | Path, wanted: list[Wanted], **asked: Any) -> Source:
    """These files as rows for these inputs."""
    return open_source(Asked(tuple(map(str, files)), **asked), wanted, {})


# ---- values


def fitted(values: Any, dtype: str) -> tuple[list[Any], dict[int, str]]:
    """One value a row, in a dtype."""
    array = np.asarray(values)
    made, bad = fit(array, want(dtype))
    return [value for row, value in enumerate(made.tolist()) if row not in bad], bad


@pytest.mark.parametrize(
    ("values", "dtype", "good", "bad"),
    [
        ([1.5, -0.0, np.nan, np.inf], "float32", [1.5, -0.0, np.nan, np.inf], []),
        (np.array([1e300, 1.0, np.inf]), "float32", [1.0, np.inf], [0]),
        (np.array([70000.0, 65504.0]), "float16", [65504.0], [0]),
        (np.array([1e39, 3e38]), "bfloat16", [float(ml_dtypes.bfloat16(3e38))], [0]),
        (np.array([1, 2, 2**40]), "float32", [1.0, 2.0, float(2**40)], []),
        ([3.0, 3.5, np.nan, np.inf, -(2.0**63), 2.0**63], "int64", [3, -(2**63)], [1, 2, 3, 5]),
        (np.array([0, 255, 256, -1]), "uint8", [0, 255], [2, 3]),
        (np.array([0, 2**64 - 1], np.uint64), "int64", [0], [1]),
        (np.array([-1, 5]), "uint64", [5], [0]),
        ([0.0, 255.0, 255.5, 256.0], "uint8", [0, 255], [2, 3]),
        ([True, False], "float32", [1.0, 0.0], []),
        ([True, False], "int32", [1, 0], []),
        ([0, 1, 2], "bool", [False, True], [2]),
        ([0.0, 1.0, np.nan], "bool", [False, True], [2]),
        (["1.5", " -2 ", "x", "1_0", "nan", ""], "float32", [1.5, -2.0, np.nan], [2, 3, 5]),
        (["9007199254740993", "1.0", "1.5", "99999999999999999999"], "int64", [9007199254740993, 1], [2, 3]),
        ([b"7", b"\xff"], "int64", [7], [1]),
        (["1e400", "inf", "-1e400", "9" * 400], "float32", [np.inf], [0, 2, 3]),
        (["1e400", "-Infinity", "1e300"], "float64", [-np.inf, 1e300], [0]),
        (
            ["18446744073709551615", "10000000000000000001", "18446744073709551616", "-1"],
            "uint64",
            [18446744073709551615, 10000000000000000001],
            [2, 3],
        ),
        (
            [
                f"-{2**63 + 1}",
                "9007199254740993.0",
                "9007199254740993.5",
                "1e3",
                "1e999999999",
                "inf",
                "1e-" + "9" * 20,
            ],
            "int64",
            [9007199254740993, 1000],
            [0, 2, 4, 5, 6],
        ),
        (["0", "1.0", "2", "True"], "bool", [False, True], [2, 3]),
        (["a", "b"], "str", ["a", "b"], []),
        ([b"a", b"\xff"], "str", ["a", "\ufffd"], []),
    ],
)
def test_what_fits_a_dtype(values: Any, dtype: str, good: list[Any], bad: list[int]) -> None:
    made, reasons = fitted(values, dtype)
    np.testing.assert_array_equal(made, good)
    assert list(reasons) == bad


@HERE
@given(
    st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=8),
    st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"]),
    st.sampled_from(["int64", "uint64", "int16"]),
)
def test_integers_that_fit_stay_what_they_are(numbers: list[int], dtype: str, source: str) -> None:
    held = [n for n in numbers if np.iinfo(source).min <= n <= np.iinfo(source).max]
    made, bad = fit(np.array(held, source), want(dtype))
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    for row, number in enumerate(held):
        assert (row in bad) == (not low <= number <= high)
        assert row in bad or int(made[row]) == number


@HERE
@given(st.lists(st.floats(width=64), min_size=1, max_size=8), st.sampled_from(["int8", "uint8", "int64", "uint64"]))
def test_floats_fit_integers_where_they_are_whole_and_in_range(numbers: list[float], dtype: str) -> None:
    made, bad = fit(np.array(numbers), want(dtype))
    for row, number in enumerate(numbers):
        whole = np.isfinite(number) and number == int(number)
        fits = whole and np.iinfo(dtype).min <= int(number) <= np.iinfo(dtype).max
        assert (row in bad) == (not fits)
        assert row in bad or int(made[row]) == int(number)


def test_texts_of_one_row_that_are_whole_and_broken_numbers_stay_exact() -> None:
    made, bad = fit(np.array([["9007199254740993", "1.0"]]), want("int64", 2))
    assert (made.tolist(), bad) == ([[9007199254740993, 1]], {})
    made, bad = fit(np.array([["18446744073709551615", "1.0"], ["-1", "18446744073709551615"]]), want("uint64", 2))
    assert (made[0].tolist(), bad) == ([18446744073709551615, 1], {1: "'-1' does not fit uint64"})


def test_a_reason_names_the_value_and_its_place() -> None:
    values = np.zeros((2, 2, 3))
    values[1, 1, 2] = 1e300
    assert fit(values, want("float32", 2, 3))[1] == {1: "1e+300 at [1, 2] does not fit float32"}
    assert fit(np.array([["1", "no"]]), want("float32", 2))[1] == {0: "'no' is no number"}


@pytest.mark.parametrize(("kind", "dtype", "told"), [("c", "float32", "complex numbers"), ("f", "str", "numbers")])
def test_kinds_of_which_no_value_fits_are_refused(kind: str, dtype: str, told: str) -> None:
    with pytest.raises(InputError, match=f"the file holds {told}"):
        check_kind(kind, want(dtype), "the file")


# ---- arrays


def saved(path: Path, array: Array, form: str) -> Path:
    """An array as a file of this form."""
    if form == "npy":
        np.save(path.with_suffix(".npy"), array)
        return path.with_suffix(".npy")
    save: Any = np.savez if form == "npz" else np.savez_compressed
    save(path.with_suffix(".npz"), x=array, first=np.zeros(3))
    return path.with_suffix(".npz")


@pytest.mark.parametrize("form", ["npy", "npz", "deflated"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<i2", "?"])
def test_pieces_of_an_array_are_what_numpy_reads(tmp_path: Path, form: str, dtype: str) -> None:
    array = (np.random.default_rng(0).random((50, 2, 3)) * 9).astype(dtype)
    source = opened(saved(tmp_path / "x", array, form), wanted=[want("float32", 2, 3)])
    assert (source.rows, source.shapes) == (50, {"x": (2, 3)})
    for start, stop in ((0, 7), (7, 20), (30, 31), (3, 50), (49, 50), (0, 50)):
        rows = source.read(start, stop)
        assert rows.ids.tolist() == rows.numbers.tolist() == list(range(start, stop))
        np.testing.assert_array_equal(rows.feeds["x"], array[start:stop].astype("f4"))
        assert rows.feeds["x"].dtype == np.float32 and rows.bad == ()
    source.close()


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_arrays_in_fortrans_order_are_read_by_rows(tmp_path: Path, form: str) -> None:
    array = np.asfortranarray(np.random.default_rng(0).random((20, 3, 4), dtype=np.float32))
    source = opened(saved(tmp_path / "x", array, form), wanted=[want("float32", 3, 4)])
    np.testing.assert_array_equal(source.read(5, 17).feeds["x"], array[5:17])
    source.close()


def test_a_compressed_array_in_fortrans_order_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", np.asfortranarray(np.ones((20, 3))), "deflated")
    with pytest.raises(InputError, match="compressed and in Fortran order"):
        opened(path, wanted=[want("float32", 3)])


def test_several_inputs_come_from_one_archive_or_from_a_file_each(tmp_path: Path) -> None:
    a, b = np.arange(12.0).reshape(4, 3), np.arange(4)
    np.savez(tmp_path / "both.npz", a=a, b=b, key=np.array(["p", "q", "r", "s"]))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    wanted = [want("float32", 3, name="a"), want("int64", name="b")]
    one = opened(tmp_path / "both.npz", wanted=wanted, id="key")
    two = opened(f"a={tmp_path / 'a.npy'}", f"b={tmp_path / 'b.npy'}", wanted=wanted)
    for source in (one, two):
        rows = source.read(1, 3)
        assert (rows.feeds["a"].tolist(), rows.feeds["b"].tolist()) == ([[3, 4, 5], [6, 7, 8]], [1, 2])
        source.close()
    assert one.read(1, 3).ids.tolist() == ["q", "r"]
    one.close()
    assert one.identity != two.identity


def two_archives(tmp_path: Path, a_ids: Array | None, b_ids: Array | None) -> tuple[Path, Path]:
    """Three rows in two files, with or without ids."""
    for name, ids in (("a", a_ids), ("b", b_ids)):
        arrays: dict[str, Any] = {name: np.arange(3.0)} | ({} if ids is None else {"key": ids})
        np.savez(tmp_path / f"{name}.npz", **arrays)
    return tmp_path / "a.npz", tmp_path / "b.npz"


@pytest.mark.parametrize("with_ids", [(True, False), (False, True), (True, True)])
def test_ids_are_from_the_archive_that_has_them(tmp_path: Path, with_ids: tuple[bool, bool]) -> None:
    keys = np.array(["p", "q", "r"])
    files = two_archives(tmp_path, *(keys if has else None for has in with_ids))
    source = opened(*files, wanted=[want(name="a"), want(name="b")], id="key")
    assert source.read(1, 3).ids.tolist() == ["q", "r"]
    source.close()


@pytest.mark.parametrize("other", [np.array([1, 3, 2]), np.array(["1", "2", "3"])])
def test_rows_with_different_ids_are_not_put_together(tmp_path: Path, other: Array) -> None:
    files = two_archives(tmp_path, np.array([1, 2, 3]), other)
    source = opened(*files, wanted=[want(name="a"), want(name="b")], id="key")
    with pytest.raises(InputError, match=r"row [01] has the id '?[12]'? in one file and '?[13]'? in another"):
        source.read(0, 3)
    source.close()


def test_an_id_that_no_archive_has_is_refused(tmp_path: Path) -> None:
    files = two_archives(tmp_path, None, None)
    with pytest.raises(InputError, match=r"no array 'key' for --id; .*a\.npz' has 'a'; .*b\.npz' has 'b'"):
        opened(*files, wanted=[want(name="a"), want(name="b")], id="key")


def test_bad_rows_of_any_input_are_left_out_of_all(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.array([1.0, 1e300, 3.0, 1e300]), b=np.array([1, 2, 300, 300]))
    source = opened(tmp_path / "x.npz", wanted=[want(name="a"), want("uint8", name="b")])
    rows = source.read(0, 4)
    assert {name: values.tolist() for name, values in rows.feeds.items()} == {"a": [1.0], "b": [1]}
    assert [(bad.row, bad.input) for bad in rows.bad] == [(1, "a"), (2, "b"), (3, "a")]
    assert rows.bad[1].reason == "300 does not fit uint8"
    source.close()


@pytest.mark.parametrize(
    ("arrays", "wanted", "told"),
    [
        ({"z": np.ones((4, 3))}, [want("float32", 3)], "no input has this name"),
        ({"x": np.ones((4, 2))}, [want("float32", 3)], r"float64 \[4, 2\], does not fit input 'x'"),
        ({"x": np.ones(3)}, [want("float32", 3)], "does not fit"),
        ({"x": np.ones((4, 0))}, [want("float32", None)], "does not fit"),
        ({"x": np.ones(())}, [want("float32")], "does not fit"),
        ({"x": np.ones((4, 3), complex)}, [want("float32", 3)], "holds complex numbers"),
        ({"x": np.ones(3), "y": np.ones(4)}, [want(), want(name="y")], "different numbers of rows"),
        ({"x": np.ones(3)}, [want(), want(name="y")], "no rows for input 'y'"),
    ],
)
def test_arrays_that_can_not_fit_are_refused_at_once(
    tmp_path: Path, arrays: dict[str, Array], wanted: list[Wanted], told: str
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=told):
        opened(tmp_path / "x.npz", wanted=wanted)


def test_pickles_and_text_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(InputError, match="only pickle can read"):
        opened(tmp_path / "x.npy", wanted=[want()])
    (tmp_path / "x.txt").write_text("1,2\n", "utf-8")
    with pytest.raises(InputError, match=r"none of .npz, .npy"):
        opened(tmp_path / "x.txt", wanted=[want()])


@pytest.mark.parametrize("form", ["npy", "npz", "deflated"])
def test_a_file_that_breaks_in_the_middle_is_no_bad_row(tmp_path: Path, form: str) -> None:
    path = saved(tmp_path / "x", np.random.default_rng(0).random((50_000, 3)), form)
    content = bytearray(path.read_bytes())
    if form == "deflated":  # damaged: its directory, at the end, is whole
        content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    source = opened(path, wanted=[want("float64", 3)])
    path.write_bytes(content if form == "deflated" else content[: len(content) // 2])
    source.read(0, 10)
    with pytest.raises(InputError, match="can't read"):
        source.read(10, 50_000)
    source.close()


@pytest.mark.parametrize("form", ["npz", "deflated"])
def test_an_array_whose_checksum_is_another_is_refused(tmp_path: Path, form: str) -> None:
    """One bit of a stored array is enough; of a stream the CRC-32 itself, as most bits break the stream."""
    path = saved(tmp_path / "x", np.ones((5000, 3), np.float32), form)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        crc = archive.getinfo("x.npy").CRC.to_bytes(4, "little")
    at = content.index(np.ones(9, np.float32).tobytes()) + 30_003 if form == "npz" else content.rindex(crc)
    content[at] ^= 0x40
    path.write_bytes(content)
    request = Request(str(linear(tmp_path / "m.onnx")), "", Asked((str(path),)))
    with pytest.raises(InputError, match=r"can't read '.*x\.npz': .*CRC-32"):
        prepare(request).source.read(0, 5000)
    job = prepare(replace(request, asked=Asked((str(saved(tmp_path / "y", np.ones((50, 3)), form)),))))
    job.close()


def test_a_truncated_file_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", np.ones((50, 3)), "npy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="it ends before its rows do"):
        opened(path, wanted=[want("float64", 3)])


@pytest.mark.parametrize("at", [0, 26, 28])
def test_an_archive_whose_members_are_elsewhere_is_refused(tmp_path: Path, at: int) -> None:
    """The header of a member says where its bytes begin: it must not lead outside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = io.BytesIO()
        np.save(member, np.ones((4, 3), np.float32))
        archive.writestr("x.npy", member.getvalue())
    content = bytearray(buffer.getvalue())
    content[at : at + 2] = b"\xff\xff"
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError):
        opened(tmp_path / "x.npz", wanted=[want("float32", 3)]).read(0, 4)


# ---- memory


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    """A file of 1 GiB (a sparse one) is read whole in a process that grows by less than an eighth of it."""
    linear(tmp_path / "m.onnx", width=1 << 16)
    with (tmp_path / "x.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (4096, 1 << 16)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + (1 << 30))
    script = (
        "import re, sys; from trnrt.predict.job import Request, prepare; from trnrt.predict.source import Asked\n"
        "opened = prepare(Request(sys.argv[1], '', Asked((sys.argv[2],))))\n"
        # The kernel's own peak of this process: getrusage's begins with that of the one that started it.
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])\n"
        "before, block = peak(), opened.block\n"
        "for start in range(0, 4096, block): opened.source.read(start, min(start + block, 4096))\n"
        "print(before, peak() - before)"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "m.onnx"), str(tmp_path / "x.npy")]
    start, grown = map(int, subprocess.check_output(arguments, text=True).split())
    assert grown < 128 << 10, f"{start} KiB grew by {grown} KiB"
