"""The committed sample models: clean of what exporters write, runnable at any batch, as good as their README says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

MODELS = Path(__file__).parents[2] / "models"
FEED_FORWARD = ("digits_ffnn.onnx", "digits_ffnn_legacy.onnx", "digits_mlp_sklearn.onnx")
CONVOLUTIONAL = ("digits_cnn.onnx", "digits_cnn_legacy.onnx")
NAMES = FEED_FORWARD + CONVOLUTIONAL
BAR = dict.fromkeys(FEED_FORWARD, 0.96) | dict.fromkeys(CONVOLUTIONAL, 0.98)
PATH_LIKE = (b"/tmp", b"/root", b"/home", b"/usr", b".py", b"site-packages", b'File "')
LARGEST = 300_000

PROBABILITIES = ("probabilities", np.dtype(np.float32), ("batch", 10))
LABEL = ("label", np.dtype(np.int64), ("batch",))
LOGITS = ("logits", np.dtype(np.float32), ("batch", 10))
OUTPUTS = {
    "digits_ffnn.onnx": [PROBABILITIES, LABEL],
    "digits_ffnn_legacy.onnx": [PROBABILITIES, LABEL],
    "digits_mlp_sklearn.onnx": [LABEL, PROBABILITIES],
    "digits_cnn.onnx": [LOGITS],
    "digits_cnn_legacy.onnx": [LOGITS],
}
IMAGE = ("image", np.dtype(np.float32), ("batch", 1, 8, 8))
PIXELS = ("pixels", np.dtype(np.float32), ("batch", 64))
IMAGE_METADATA = {
    "image.layout": "NCHW",
    "image.scale": "0.00392156862745098",
    "image.mean": "0",
    "image.std": "1",
    "image.color": "L",
}

Arrays = dict[str, npt.NDArray[Any]]


@pytest.fixture(scope="module")
def test_split() -> Arrays:
    """The arrays of digits_test.npz."""
    with np.load(MODELS / "digits_test.npz", allow_pickle=False) as file:
        return dict(file)


def load(name: str) -> onnx.ModelProto:
    """The model file of that name in models/."""
    return onnx.load(MODELS / name)


def run(name: str, split: Arrays, rows: slice = slice(None)) -> Arrays:
    """What onnxruntime gives for these rows of the split, by output name."""
    session = onnxruntime.InferenceSession(MODELS / name, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {feed: split[feed][rows]}), strict=True))


def signature(value: onnx.ValueInfoProto) -> tuple[str, np.dtype[Any], tuple[int | str, ...]]:
    """Name, dtype and shape of an input or output; a symbolic dimension is its name."""
    tensor = value.type.tensor_type
    shape = tuple(dim.dim_param or dim.dim_value for dim in tensor.shape.dim)
    return value.name, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape


def messages(message: Any) -> Iterator[Any]:
    """A protobuf message and every message within it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for child in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield from messages(child)


def test_these_are_all_the_models() -> None:
    assert {path.name for path in MODELS.glob("*.onnx")} == set(NAMES)
    assert not list(MODELS.glob("*.data"))


@pytest.mark.parametrize("name", NAMES)
class TestFile:
    def test_is_valid_and_small(self, name: str) -> None:
        onnx.checker.check_model(MODELS / name, full_check=True)
        assert (MODELS / name).stat().st_size < LARGEST

    def test_signature(self, name: str) -> None:
        graph = load(name).graph
        assert [signature(value) for value in graph.input] == [PIXELS if "sklearn" in name else IMAGE]
        assert [signature(value) for value in graph.output] == OUTPUTS[name]
        assert graph.name == Path(name).stem

    def test_weights_are_inside(self, name: str) -> None:
        assert all(tensor.data_location != onnx.TensorProto.EXTERNAL for tensor in load(name).graph.initializer)

    def test_metadata_is_what_trnrt_reads(self, name: str) -> None:
        metadata = {entry.key: entry.value for entry in load(name).metadata_props}
        assert json.loads(metadata.pop("labels")) == [str(digit) for digit in range(10)]
        assert metadata == ({} if "sklearn" in name else IMAGE_METADATA)

    def test_nothing_else_carries_notes(self, name: str) -> None:
        model = load(name)
        noted = [
            part
            for part in messages(model)
            if getattr(part, "doc_string", "") or (part is not model and getattr(part, "metadata_props", []))
        ]
        assert noted == []

    def test_names_no_path(self, name: str) -> None:
        content = (MODELS / name).read_bytes()
        assert [text for text in PATH_LIKE if text in content] == []

    def test_batch_is_free(self, name: str, test_split: Arrays) -> None:
        whole = run(name, test_split)
        for size in (1, 3):
            part = run(name, test_split, slice(size))
            for output, value in part.items():
                assert value.shape == (size, *whole[output].shape[1:])
                np.testing.assert_allclose(value, whole[output][:size], rtol=1e-4, atol=1e-5)

    def test_accuracy(self, name: str, test_split: Arrays) -> None:
        outputs = run(name, test_split)
        decided = outputs["label"] if "label" in outputs else outputs["logits"].argmax(axis=1)
        right = int((decided == test_split["label"]).sum())
        assert right / len(decided) >= BAR[name]
        rows = [
            row for row in (MODELS / "README.md").read_text("utf-8").splitlines() if row.startswith(f"| `{name}` |")
        ]
        assert [row.endswith(f" {100 * right / len(decided):.2f} % ({right} of {len(decided)}) |") for row in rows] == [
            True
        ]


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_label_is_the_most_probable_class(name: str, test_split: Arrays) -> None:
    outputs = run(name, test_split)
    np.testing.assert_allclose(outputs["probabilities"].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(outputs["label"], outputs["probabilities"].argmax(axis=1))


@pytest.mark.parametrize("net", ["ffnn", "cnn"])
def test_both_exports_are_the_same_net(net: str, test_split: Arrays) -> None:
    old, new = run(f"digits_{net}_legacy.onnx", test_split), run(f"digits_{net}.onnx", test_split)
    for output in old:
        np.testing.assert_allclose(new[output], old[output], rtol=1e-4, atol=1e-5)


def test_split_arrays(test_split: Arrays) -> None:
    image, pixels, label = test_split["image"], test_split["pixels"], test_split["label"]
    count = len(label)
    assert set(test_split) == {"image", "pixels", "label"}
    assert (image.shape, pixels.shape, label.shape) == ((count, 1, 8, 8), (count, 64), (count,))
    assert [array.dtype.name for array in (image, pixels, label)] == ["float32", "float32", "int64"]
    assert (image.min(), image.max()) == (0, 1)
    np.testing.assert_array_equal(image * 16, np.round(image * 16))
    np.testing.assert_array_equal(image.reshape(count, 64), pixels)


def test_split_has_each_class_in_its_share(test_split: Arrays) -> None:
    counts = np.bincount(test_split["label"], minlength=10)
    assert len(counts) == 10
    assert counts.min() >= 40
    assert counts.max() <= 50
