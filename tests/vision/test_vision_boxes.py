"""Boxes: from each form of outputs, back in the photo's pixels, and suppressed as onnxruntime does."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from trnrt.errors import InputError
from trnrt.inputs.fitting import FITS, fit_picture, place_picture
from trnrt.vision.boxes import find_boxes, keep_best, undo_placement
from trnrt.vision.finding import MOST, Limits
from trnrt.vision.recognising import Recognised

WHOLE = place_picture((100, 80), (100, 80), "stretch")
LABELS = ["cat", "dog", "owl"]
ROWS = Recognised("boxes", "rows", {"main": "y"}, "")


Array = NDArray[Any]


def f32(values: object) -> Array:
    """Numbers as float32."""
    return np.asarray(values, np.float32)


def suppressed(corners: Array, scores: Array, overlap: float) -> list[int]:
    """What onnxruntime's NonMaxSuppression keeps, best first."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,n,4] b, float[1,1,n] s, int64[1] most, float[1] overlap) => (int64[k,3] y)
        { y = NonMaxSuppression(b, s, most, overlap) }"""
    session = onnxruntime.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    feeds = {"b": corners[None], "s": scores[None, None], "most": np.array([MOST]), "overlap": f32([overlap])}
    return [int(place) for place in session.run(None, feeds)[0][:, 2]]


@given(seed=st.integers(0, 999), count=st.integers(0, 60), overlap=st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]))
def test_suppression_is_onnxruntimes(seed: int, count: int, overlap: float) -> None:
    drawn = np.random.default_rng(seed)
    low = drawn.uniform(0, 60, (count, 2))
    corners = np.concatenate([low, low + drawn.uniform(1, 60, (count, 2))], axis=1).astype(np.float32)
    scores = np.sort(drawn.permutation(count).astype(np.float32) + 1)[::-1]
    kept = keep_best(corners, np.zeros(count, int), overlap).tolist()
    assert kept == (suppressed(corners, scores, overlap) if count else [])


def test_boxes_of_two_classes_leave_each_other_alone() -> None:
    corners = f32([[0, 0, 10, 10]] * 4)
    assert keep_best(corners, np.array([0, 1, 0, 1]), 0.5).tolist() == [0, 1]


@given(
    size=st.tuples(st.integers(40, 200), st.integers(40, 200)),
    wanted=st.tuples(st.integers(64, 128), st.integers(64, 128)),
    fit=st.sampled_from(FITS),
)
def test_a_thing_is_found_where_it_is_in_the_photo(size: tuple[int, int], wanted: tuple[int, int], fit: str) -> None:
    """A white square in the middle: its edges in the input, undone, are its edges in the photo."""
    box = (size[0] // 2 - 10, size[1] // 2 - 10, size[0] // 2 + 10, size[1] // 2 + 10)
    photo = Image.new("L", size)
    ImageDraw.Draw(photo).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=255)
    place = place_picture(size, wanted, fit)
    rows, columns = np.nonzero(np.asarray(fit_picture(photo, place, {})) > 127)
    corners = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]])
    pixel = max(1 / scale for scale in place.scale)
    np.testing.assert_allclose(undo_placement(corners, place)[0], box, atol=0.75 * pixel + 0.5)


def test_boxes_are_clipped_to_the_photo() -> None:
    place = place_picture((100, 50), (64, 64), "letterbox")
    assert undo_placement(f32([[-9, 0, 99, 64]]), place).tolist() == [[0, 0, 100, 50]]


def test_rows() -> None:
    bad = [[0, 0, np.nan, 9, 0.9, 0], [9, 9, 5, 12, 0.9, 0], [120, 0, 130, 9, 0.9, 0], [0, 0, 9, 9, np.inf, 0]]
    rows = f32([[1, 2, 30, 40, 0.5, 1], [5, 6, 7, 8, 0.9, 2], [0, 0, 9, 9, 0.1, 0], *bad])
    found = find_boxes({"y": np.stack([np.zeros_like(rows), rows])}, 1, ROWS, WHOLE, LABELS, Limits())
    assert [(box.label, round(box.score, 3), box.corners) for box in found.boxes] == [
        ("owl", 0.9, (5, 6, 7, 8)),
        ("dog", 0.5, (1, 2, 30, 40)),
    ]
    assert found.mask is None
    only = find_boxes({"y": rows[None]}, 0, ROWS, WHOLE, [], Limits(score=0.6))
    assert [(box.label, box.index) for box in only.boxes] == [(None, 2)]


def test_anchors() -> None:
    """Centre and size; the best class counts, and a box that overlaps a better one of its class goes."""
    columns = np.zeros((7, 4), np.float32)
    columns[:, 0] = [20, 20, 10, 10, 0.1, 0.8, 0.2]
    columns[:, 1] = [21, 20, 10, 10, 0.1, 0.7, 0.2]  # shares 90 of 110 with the first
    columns[:, 2] = [21, 20, 10, 10, 0.6, 0.5, 0.2]
    columns[:, 3] = [60, 60, 20, 30, 0.0, 0.1, 0.3]
    found = Recognised("boxes", "anchors", {"main": "y"}, "", classes=3)
    boxes = find_boxes({"y": columns[None]}, 0, found, WHOLE, LABELS, Limits()).boxes
    assert [(box.label, box.corners) for box in boxes] == [
        ("dog", (15, 15, 25, 25)),
        ("cat", (16, 15, 26, 25)),
        ("owl", (50, 45, 70, 75)),
    ]
    more = find_boxes({"y": columns[None]}, 0, found, WHOLE, LABELS, Limits(overlap=0.9)).boxes
    assert len(more) == 4


def test_tensors_with_masks() -> None:
    outputs = {
        "b": f32([[10, 10, 50, 50], [0, 0, 20, 20], [30, 30, 90, 70]]),
        "s": f32([0.3, 0.1, 0.8]),
        "l": np.array([1, 0, 2]),
        "m": np.zeros((3, 1, 80, 100), np.float32),
    }
    outputs["m"][0, 0, :40, :40] = 0.9
    outputs["m"][2, 0, 35:, 35:] = 0.9
    found = Recognised("boxes", "tensors", {"boxes": "b", "scores": "s", "labels": "l", "masks": "m"}, "")
    finding = find_boxes(outputs, 0, found, WHOLE, LABELS, Limits())
    assert [box.label for box in finding.boxes] == ["owl", "dog"]
    wanted = np.zeros((80, 100), np.uint8)
    wanted[10:40, 10:40] = 2
    wanted[35:70, 35:90] = 1  # the better box covers the other
    assert finding.mask is not None and np.array_equal(finding.mask, wanted)


def test_tensors_of_different_lengths_are_refused() -> None:
    outputs = {"b": f32(np.ones((2, 4))), "s": f32([0.5, 0.5, 0.5]), "l": np.array([1, 2, 3])}
    found = Recognised("boxes", "tensors", {"boxes": "b", "scores": "s", "labels": "l"}, "")
    with pytest.raises(InputError, match="a row for each box, and these have different numbers: 'b' 2, 's' 3, 'l' 3"):
        find_boxes(outputs, 0, found, WHOLE, LABELS, Limits())


def test_prototypes() -> None:
    """A mask is the sum of prototypes where that is positive, inside of its box."""
    prototypes = np.full((2, 20, 25), -1, np.float32)
    prototypes[0, :, :12] = 1
    prototypes[1, :10] = 1
    rows = f32([[8, 8, 92, 72, 0.9, 0, 1, 0], [0, 0, 100, 80, 0.5, 1, 0, 1]])
    found = Recognised("boxes", "rows", {"main": "y", "prototypes": "p"}, "")
    mask = find_boxes({"y": rows[None], "p": prototypes[None]}, 0, found, WHOLE, LABELS, Limits()).mask
    assert mask is not None and mask.shape == (80, 100)
    assert (mask[10:70, 10:46] == 1).all() and (mask[2:38, 50:] == 2).all() and (mask[42:, 50:] == 0).all()


@pytest.mark.parametrize("form", ["rows", "anchors"])
def test_no_boxes_and_too_many(form: str) -> None:
    found = Recognised("boxes", form, {"main": "y"}, "", classes=2)
    shape = (1, 400, 6) if form == "rows" else (1, 6, 400)
    assert find_boxes({"y": np.zeros(shape, np.float32)}, 0, found, WHOLE, [], Limits()).boxes == ()
    many = np.ones(shape, np.float32)
    if form == "rows":
        many[0, :, 2:4] = 9
    else:
        many[0, :2] = 1 + 2 * np.array(np.unravel_index(np.arange(400), (20, 20)))
    assert len(find_boxes({"y": many}, 0, found, WHOLE, [], Limits()).boxes) == MOST
