"""Rows that are pictures: of folders and of single files, decoded by several threads."""

from __future__ import annotations

import io
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from predicting import averages

from trnrt.errors import InputError, OptionError
from trnrt.importer import TensorInfo
from trnrt.inputs import decoding, images
from trnrt.inputs.images import ImageOptions
from trnrt.predict.opening import open_source
from trnrt.predict.rows import Wanted
from trnrt.predict.source import Asked, Source
from trnrt.session import InferenceSession

Array = np.ndarray[Any, Any]


def opened(*files: str | Path, wanted: list[Wanted], **asked: Any) -> Source:
    """These files as rows for these inputs."""
    return open_source(Asked(tuple(map(str, files)), **asked), wanted, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures in a folder and below, one of them broken, and what is none."""
    root = tmp_path / "pictures"
    for name in ("b.png", "a.jpg", "c/z.PNG", "c/a.png", ".hidden/x.png", "c.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        colour = (len(name) * 10, 20, 30)
        Image.new("RGB", (6, 4), colour).save(root / name)
    (root / "bad.png").write_bytes((root / "b.png").read_bytes()[:50])
    (root / "notes.txt").write_text("none", "utf-8")
    (root / "gone.png").symlink_to(root / "nowhere.png")
    (root / "round").symlink_to(root)
    return root


def vector() -> Wanted:
    """An input that takes three numbers a row."""
    return Wanted(TensorInfo("x", "float32", ("N", 3)), (3,), np.dtype("float32"))


def picture(size: int = 4) -> Wanted:
    """An input that takes RGB pictures."""
    return Wanted(TensorInfo("image", "float32", ("N", 3, "H", "W")), (3, size, size), np.dtype("float32"))


def test_a_folder_gives_its_pictures_in_the_order_of_their_names(folder: Path) -> None:
    source = opened(folder, wanted=[picture()], images=ImageOptions(scale=1.0))
    names = ["a.jpg", "b.png", "bad.png", "c.png", "c/a.png", "c/z.PNG", "gone.png"]
    assert source.rows == len(names)
    rows = source.read(0, source.rows)
    assert rows.ids.tolist() == ["a.jpg", "b.png", "c.png", "c/a.png", "c/z.PNG"]
    assert [(bad.row, bad.id) for bad in rows.bad] == [(2, "bad.png"), (6, "gone.png")]
    assert "can't read the image 'bad.png'" in rows.bad[0].reason and str(folder) not in rows.bad[0].reason
    assert rows.feeds["image"].shape == (5, 3, 4, 4)
    assert rows.feeds["image"][4, :, 0, 0].tolist() == [70, 20, 30]
    np.testing.assert_array_equal(source.read(3, 5).feeds["image"], rows.feeds["image"][2:4])
    assert source.notes[1] == "ignored, as their names don't end in .png, .jpg or .jpeg: 1 file"


def test_single_pictures_are_rows_in_the_order_given(folder: Path) -> None:
    source = opened(folder / "b.png", folder / "a.jpg", wanted=[picture()], images=ImageOptions(scale=1.0))
    assert source.read(0, 2).ids.tolist() == ["b.png", "a.jpg"]


def test_names_that_are_no_text_are_ids_all_the_same(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    (tmp_path / "pictures").mkdir()
    path = os.path.join(os.fsencode(tmp_path / "pictures"), b"\xff\n.png")  # noqa: PTH118
    Path(os.fsdecode(path)).write_bytes(buffer.getvalue())
    rows = opened(tmp_path / "pictures", wanted=[picture()], images=ImageOptions(scale=1.0)).read(0, 1)
    assert rows.ids.tolist() == ["\\xff\n.png"] and rows.bad == ()


def test_pictures_of_no_fixed_size_need_one(folder: Path) -> None:
    wanted = Wanted(TensorInfo("image", "float32", ("N", 3, "H", "W")), (3, None, None), np.dtype("float32"))
    with pytest.raises(InputError, match="has no fixed size") as caught:
        opened(folder, wanted=[wanted], images=ImageOptions(scale=1.0))
    assert caught.value.hint is not None and "--shape image=3x224x224" in caught.value.hint


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no pictures"):
        opened(tmp_path, wanted=[picture()], images=ImageOptions(scale=1.0))
    with pytest.raises(InputError, match="takes no pictures"):
        opened(tmp_path, wanted=[vector()])


def test_a_folder_that_can_not_be_listed_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture must not be missing in silence."""

    def walk(root: bytes, **options: Any) -> Any:
        options["onerror"](PermissionError(13, "permission denied", root))
        yield root, [], []

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(InputError, match="permission denied"):
        opened(folder, wanted=[picture()], images=ImageOptions(scale=1.0))


@pytest.mark.parametrize("keys", [np.arange(10, 17), np.array([*"abcdefg"])])
def test_ids_of_an_array_are_those_of_the_pictures_beside_it(tmp_path: Path, folder: Path, keys: Array) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((7, 3)), key=keys)
    wanted = [picture(), vector()]
    files = (f"image={folder}", tmp_path / "x.npz")
    source = opened(*files, wanted=wanted, images=ImageOptions(scale=1.0), id="key")
    rows = source.read(0, 7)
    assert rows.ids.tolist() == keys[[0, 1, 3, 4, 5]].tolist()
    assert [bad.id for bad in rows.bad] == keys[[2, 6]].tolist()
    source.close()


def test_ids_of_pictures_are_their_paths(folder: Path) -> None:
    with pytest.raises(OptionError, match="--id names a column"):
        opened(folder, wanted=[picture()], images=ImageOptions(scale=1.0), id="name")


def test_pictures_are_predicted_as_run_does(tmp_path: Path, folder: Path) -> None:
    model = averages(tmp_path / "m.onnx")
    source = opened(folder, wanted=[picture()], images=ImageOptions(scale=1 / 255))
    rows = source.read(0, source.rows)
    (means,) = InferenceSession(model).run(None, dict(rows.feeds))
    assert means[1] == pytest.approx(np.array([50, 20, 30]) / 255)


def together(monkeypatch: pytest.MonkeyPatch, wait: threading.Barrier | None) -> list[bool]:
    """Have four cores, and each picture wait while it is decoded; returns whether each had the lock of large ones."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    upright, alone = decoding.turn_upright, []

    def decode(*arguments: Any) -> Any:
        alone.append(decoding._DECODING_LARGE.locked())
        if wait is not None:
            wait.wait()
        return upright(*arguments)

    monkeypatch.setattr(images, "turn_upright", decode)
    return alone


@pytest.mark.parametrize("large", [False, True])
def test_several_threads_decode_and_large_pictures_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Two pictures wait for each other, so one thread would wait for ever; of large ones none waits for another."""
    for row in range(41):
        Image.new("RGB", (6, 6), (row, 0, 0)).save(tmp_path / f"{row:02d}.png")
        if row % 8 == 3:
            (tmp_path / f"{row:02d}.png").write_bytes(b"none")
    if large:
        monkeypatch.setattr(decoding, "LARGE", 36)
    alone = together(monkeypatch, None if large else threading.Barrier(2, timeout=120))
    rows = opened(tmp_path, wanted=[picture()], images=ImageOptions(scale=1.0)).read(0, 41)
    good = [row for row in range(41) if row % 8 != 3]
    assert len(alone) == len(good) == 36  # an even number
    assert all(alone) if large else not any(alone)
    assert rows.numbers.tolist() == good
    assert rows.feeds["image"][:, 0, 0, 0].tolist() == good
    assert [(bad.row, bad.reason) for bad in rows.bad] == [
        (row, f"'{row:02d}.png' is no PNG or JPEG image") for row in range(3, 41, 8)
    ]


def test_what_pillow_warns_of_is_told_to_nobody_and_the_filters_stay(tmp_path: Path) -> None:
    """EXIF data that breaks off: Pillow warns, and reads the picture."""
    exif = Image.Exif()
    exif[0x010E] = "text" * 20
    content = exif.tobytes()[:40]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.new("RGB", (6, 6)).save(tmp_path / "a.jpg", exif=content)
    with pytest.warns(UserWarning), Image.open(tmp_path / "a.jpg") as file:
        file.getexif()
    before = list(warnings.filters)
    rows = opened(tmp_path, wanted=[picture()], images=ImageOptions(scale=1.0)).read(0, 1)
    assert rows.bad == () and warnings.filters == before
