"""Input files: matched by name, told by their content, and never trusted."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trnrt.errors import InputError
from trnrt.importer import TensorInfo
from trnrt.inputs import matching as inputs_module
from trnrt.inputs.drawing import check_array
from trnrt.inputs.images import ImageOptions
from trnrt.inputs.matching import Inputs, read_inputs

IMAGE = TensorInfo("image", "float32", ("batch", 1, 8, 8))
LEFT = TensorInfo("left", "float32", ("N", 2))
RIGHT = TensorInfo("right", "int64", ("N",))
SPLIT = Path(__file__).parents[2] / "models" / "digits_test.npz"

Array = np.ndarray[Any, Any]


def read(*arguments: str | Path, wanted: tuple[TensorInfo, ...] = (LEFT, RIGHT)) -> Inputs:
    """What these arguments of --input give."""
    texts = [str(argument) for argument in arguments]
    return read_inputs(texts, wanted, metadata={}, images=ImageOptions(scale=1.0))


def npy(array: Any, **options: Any) -> bytes:
    """The content of an .npy file."""
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    """The start of an .npy file with this header."""
    encoded = text.encode()
    length = struct.pack("<H" if version == (1, 0) else "<I", len(encoded))
    return b"\x93NUMPY" + bytes(version) + length + encoded


def save(path: Path, content: bytes) -> Path:
    """``path``, which holds ``content`` now."""
    path.write_bytes(content)
    return path


# ---- matching


def test_arrays_of_an_npz_are_matched_by_name() -> None:
    inputs = read(SPLIT, wanted=(IMAGE,))
    assert list(inputs.feeds) == ["image"]
    assert inputs.feeds["image"].shape == (450, 1, 8, 8)
    assert inputs.notes == ["ignored: the model has no input 'pixels', 'label'"]


def test_named_files_and_files_mixed(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", left=np.ones((3, 2), np.float32))
    np.save(tmp_path / "b.npy", np.arange(3))
    inputs = read(tmp_path / "a.npz", f"right={tmp_path / 'b.npy'}")
    assert inputs.feeds["right"].tolist() == [0, 1, 2]
    assert inputs.notes == []


def test_an_npy_needs_no_name_for_one_input(tmp_path: Path) -> None:
    path = save(tmp_path / "b.npy", npy(np.arange(3)))
    assert read(path, wanted=(RIGHT,)).feeds["right"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="names none") as caught:
        read(path)
    assert "'left' float32 [N, 2], 'right' int64 [N]" in (caught.value.hint or "")


def test_a_name_may_hold_what_separates_it(tmp_path: Path) -> None:
    path = save(tmp_path / "x=y.npy", npy(np.arange(3)))
    odd = TensorInfo("a=b", "int64", ("N",))
    assert list(read(f"a=b={path}", wanted=(odd,)).feeds) == ["a=b"]
    assert list(read(path, wanted=(odd,)).feeds) == ["a=b"]
    both = (TensorInfo("a", "int64", ("N",)), odd)
    assert set(read(f"a=b={path}", f"a={path}", wanted=both).feeds) == {"a", "a=b"}


def test_a_name_that_is_no_input_lists_the_inputs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input 'middle'") as caught:
        read(f"middle={tmp_path / 'x.npy'}")
    assert "'left' float32 [N, 2]" in (caught.value.hint or "")


def test_a_missing_input_tells_what_was_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", left=np.ones(2), arr_0=np.ones(2))
    with pytest.raises(InputError) as caught:
        read(tmp_path / "a.npz")
    assert str(caught.value) == "no array for input 'right' int64 [N]; the files also hold 'arr_0'"
    assert "right=FILE.npy" in (caught.value.hint or "")


def test_an_input_comes_from_one_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", left=np.ones(2), right=np.ones(2))
    path = save(tmp_path / "b.npy", npy(np.arange(3)))
    for second in (tmp_path / "a.npz", f"left={path}"):
        with pytest.raises(InputError, match="'left' is given twice"):
            read(tmp_path / "a.npz", second)


def test_an_npz_takes_no_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", left=np.ones(2))
    with pytest.raises(InputError, match="names its arrays itself"):
        read(f"left={tmp_path / 'a.npz'}")


def test_pictures_of_one_input_are_a_batch(tmp_path: Path) -> None:
    for index in range(2):
        Image.new("L", (8, 8), index).save(tmp_path / f"{index}.png")
    inputs = read(tmp_path / "0.png", f"image={tmp_path / '1.png'}", wanted=(IMAGE,))
    assert inputs.feeds["image"][:, 0, 0, 0].tolist() == [0, 1]
    assert len(inputs.notes) == 1
    with pytest.raises(InputError, match="given twice"):
        read(tmp_path / "0.png", SPLIT, wanted=(IMAGE,))
    with pytest.raises(InputError, match="given twice"):
        read(SPLIT, tmp_path / "0.png", wanted=(IMAGE,))


def test_the_kind_is_told_by_the_content(tmp_path: Path) -> None:
    path = save(tmp_path / "wrong.png", npy(np.arange(3)))
    assert list(read(path, wanted=(RIGHT,)).feeds) == ["right"]


# ---- arrays


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(7),
        np.zeros((0, 3)),
        np.array([True]),
        np.array(["a", "ä"]),
        np.array([1.5], np.float16),
        np.array([np.nan, np.inf]),
    ],
)
def test_arrays_are_passed_on_as_they_are(tmp_path: Path, array: Array) -> None:
    np.savez(tmp_path / "a.npz", right=array)
    for path in (save(tmp_path / "a.npy", npy(array)), tmp_path / "a.npz"):
        got = read(path, wanted=(RIGHT,)).feeds["right"]
        assert got.dtype == array.dtype
        np.testing.assert_array_equal(got, array)


def test_byte_order_becomes_the_machine_s(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", npy(np.arange(3, dtype=">f4")))
    got = read(path, wanted=(RIGHT,)).feeds["right"]
    assert got.dtype.isnative
    assert got.tolist() == [0, 1, 2]


# ---- files that are not as they should be

OBJECTS = np.array([{}, "x"], object)
BOMB = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000)}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "none of .npz"),
        (b"text", "none of .npz"),
        (pickle.dumps([1]), "pickle"),
        (npy(OBJECTS, allow_pickle=True), "Python objects"),
        (npy(np.zeros(2, [("a", "<f4")])), "no tensor"),
        (npy(np.array(["2020"], "M8[D]")), "no tensor"),
        (npy(np.zeros(3, "V2")), "no tensor"),
        (npy(np.zeros(9))[:-1], "not fully written"),
        (npy(np.zeros(9))[:40], "can't read"),
        (b"\x93NUMPY", "can't read"),
        (b"\x93NUMPY\x09\x00" + bytes(200), "version 9.0"),
        (header("{}"), "can't read"),
        (header("((((" * 2000), "can't read"),
        (header("[" * 9000, (2, 0)), "can't read"),
        (header("'unfinished"), "can't read"),
        (header(BOMB), "truncated: it says 3.6 TiB"),
        (header(BOMB.replace("(1000000, 1000000)", "(-1, 5)")), "can't read"),
        (header(BOMB.replace("(1000000, 1000000)", f"(0, {10**30})")), "can't read"),
        (header(BOMB.replace("<f4", "<U0")), "no tensor"),
        (b"PK\x03\x04", "can't read"),
        (b"PK\x05\x06" + bytes(18), "no array for input"),
        (b"\x89PNG\r\n\x1a\n", "can't read the image|no PNG"),
    ],
)
def test_a_bad_file_is_an_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = save(tmp_path / "file.npy", content)
    with pytest.raises(InputError, match=message):
        read(path, wanted=(TensorInfo("right", "float32", (1, 1, 8, 8)),))


@pytest.mark.parametrize(
    "content", [npy(OBJECTS, allow_pickle=True), b"", b"text", npy(np.zeros(9))[:-1], header(BOMB)]
)
def test_a_bad_member_is_an_error(tmp_path: Path, content: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("right.npy", content)
    with pytest.raises(InputError, match=r"a\.npz"):
        read(tmp_path / "a.npz", wanted=(RIGHT,))


def test_a_bad_member_that_is_not_needed_is_left_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("right.npy", npy(np.arange(3)))
        archive.writestr("label.npy", npy(OBJECTS, allow_pickle=True))
    assert list(read(tmp_path / "a.npz", wanted=(RIGHT,)).feeds) == ["right"]


def test_damage_anywhere_is_an_error_or_an_array(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", right=np.arange(300))
    path, whole = tmp_path / "a.npz", (tmp_path / "a.npz").read_bytes()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        content[generator.integers(4, len(whole))] ^= 1 << int(generator.integers(8))
        path.write_bytes(content[: generator.integers(4, len(whole) + 1)] if generator.random() < 0.3 else content)
        try:
            read(path, wanted=(RIGHT,))
        except InputError:
            refused += 1
    assert refused > 100


def test_a_zip_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", left=np.zeros(1000), right=np.zeros(1000))
    assert len(read(tmp_path / "a.npz").feeds) == 2
    monkeypatch.setattr(inputs_module, "LARGEST_INPUT", 15_999)
    with pytest.raises(InputError, match=r"the inputs need 15\.6 KiB"):
        read(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["none.npy", ".", "x" * 300, "a\0b"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="can't read"):
        read(tmp_path / name, wanted=(RIGHT,))


def test_a_device_is_no_file() -> None:
    with pytest.raises(InputError, match="no regular file"):
        read("right=/dev/zero", wanted=(RIGHT,))


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("\x1b[31m\n.npy", npy(np.zeros(1)))
    with pytest.raises(InputError, match=r"hold '\\x1b\[31m\\x0a'") as caught:
        read(tmp_path / "a.npz", wanted=(TensorInfo("\x1b\n", "float32", ("N",)),))
    assert "\x1b" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (np.array(["red", "blue"]), "the model takes numbers (int64): encode texts as its training data was"),
        (np.array([1, "blue"], object), "the model takes numbers (int64): encode texts as its training data was"),
        (np.array([1, 2], object), 'convert it: array.astype("int64")'),
        (np.zeros(2), 'convert it: array.astype("int64")'),
    ],
)
def test_the_way_from_another_dtype_fits_what_is_in_the_array(array: Array, hint: str) -> None:
    with pytest.raises(InputError, match="the model wants int64") as caught:
        check_array(array, RIGHT, "N")
    assert caught.value.hint == hint
