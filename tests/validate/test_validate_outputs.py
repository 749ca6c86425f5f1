"""What ``validate`` says beside the verdict: which part of an error is rounding, and the accuracy of both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layered import NETS, Net
from numpy.typing import NDArray
from perturbing import shifted

import trnrt
from trnrt.errors import InputError
from trnrt.inputs.matching import read_labelled
from trnrt.planner.parts.partition import DevicePart, Partition
from trnrt.planner.parts.partitioning import make_partition
from trnrt.validate import accuracy, split, validate

Array = NDArray[Any]
MODELS = Path(__file__).parents[2] / "models"


def digits(name: str, dtype: str = "float32") -> tuple[trnrt.InferenceSession, dict[str, Array], Array]:
    """A sample model, and the test split with its labels."""
    session = trnrt.InferenceSession(MODELS / f"{name}.onnx", dtype=dtype, cache=False)
    inputs, labels = read_labelled(MODELS / "digits_test.npz", session.model.inputs)
    return session, inputs.feeds, labels


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_error_of_16_bits_is_rounding(dtype: str) -> None:
    session = trnrt.InferenceSession(NETS["residual"](), dtype=dtype, cache=False)
    feeds = session.random_inputs()
    (output,) = validate(session, feeds).outputs
    assert output.split is not None and output.split.float32_passed
    (float32,) = validate(session.with_options(replace(session.options, dtype="float32")), feeds).outputs
    assert float32.split is None and output.split.float32_max_abs == float32.max_abs
    assert output.split.rounding_max_abs > 20 * output.split.float32_max_abs
    assert abs(output.max_abs - output.split.rounding_max_abs) <= float32.max_abs
    assert session.dtype == dtype and session.last_run.plan is not None and session.last_run.plan.dtype == dtype


def test_an_error_that_float32_has_too_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is wrong in every dtype."""

    def wrong(*arguments: Any, **options: Any) -> Partition:
        partition = make_partition(*arguments, **options)
        (part,) = partition.parts
        assert isinstance(part, DevicePart)
        return replace(partition, parts=(replace(part, plan=shifted(part.plan, "gemm_14_b", 0.25)),))

    monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", wrong)
    session = trnrt.InferenceSession(NETS["residual"](), dtype="bfloat16", cache=False)
    (output,) = validate(session, session.random_inputs()).outputs
    assert output.split is not None and not output.split.float32_passed
    assert output.split.float32_max_abs == pytest.approx(0.25, abs=0.01)
    assert output.split.rounding_max_abs < 0.05


def test_integers_have_no_split() -> None:
    session, feeds, _ = digits("digits_mlp_sklearn", "bfloat16")
    labels, probabilities = validate(session, feeds).outputs
    assert labels.split is None and probabilities.split is not None
    assert split(np.array([1]), np.array([1]), np.array([1])) is None


@pytest.mark.parametrize(("name", "output"), [("digits_cnn", "logits"), ("digits_mlp_sklearn", "label")])
def test_accuracy_of_the_samples(name: str, output: str) -> None:
    session, feeds, labels = digits(name)
    found = validate(session, feeds, labels=labels).accuracy
    assert found is not None and (found.output, found.rows) == (output, 450)
    decided = session.run([output], feeds)[0]
    decided = decided.argmax(axis=1) if decided.ndim == 2 else decided
    assert found.ours == np.mean(decided == labels) > 0.95
    assert found.reference == found.ours
    assert validate(session, feeds).accuracy is None


def test_accuracy_counts_each_side() -> None:
    ours = {"y": np.array([[0, 1], [1, 0], [0, 1], [1, 0]], np.float32)}
    theirs = {"y": np.array([[0, 1], [1, 0], [1, 0], [1, 0]], np.float32)}
    found = accuracy(ours, theirs, np.array([1, 0, 0, 1]))
    assert (found.ours, found.reference, found.rows) == (0.5, 0.75, 4)


def test_labels_that_do_not_fit() -> None:
    outputs = {"y": np.array([[0, 1], [1, 0]], np.float32), "z": np.array(["a", "b"], object)}
    assert accuracy(outputs, outputs, np.array(["a", "c"])).output == "z"
    with pytest.raises(InputError, match="3 labels for 2 rows"):
        accuracy(outputs, outputs, np.array([0, 1, 1]))
    with pytest.raises(InputError, match="labels are texts, and no output"):
        accuracy({"y": outputs["y"]}, {"y": outputs["y"]}, np.array(["a", "b"]))


# -- files with labels


def stored(path: Path, **arrays: Any) -> Path:
    """An .npz."""
    np.savez(path / "data.npz", allow_pickle=False, **arrays)
    return path / "data.npz"


X, Y = np.zeros((3, 4), np.float32), np.array([0, 1, 2])


@pytest.mark.parametrize("label", ["label", "labels", "y", "Y", "target", "targets"])
@pytest.mark.parametrize("name", ["x", "X", "images", "data"])
def test_arrays_by_name_or_by_custom(tmp_path: Path, name: str, label: str) -> None:
    net = Net("named", [3, 4])
    wanted = trnrt.InferenceSession(net.model(net.add("Relu", "x"))).model.inputs
    inputs, labels = read_labelled(stored(tmp_path, **{name: X, label: Y}), wanted)
    np.testing.assert_array_equal(inputs.feeds["x"], X)
    np.testing.assert_array_equal(labels, Y)


def test_labels_of_several_forms(tmp_path: Path) -> None:
    net = Net("named", [3, 4])
    wanted = trnrt.InferenceSession(net.model(net.add("Relu", "x"))).model.inputs
    forms = [
        Y[:, None],
        Y.astype(np.float64),
        Y.astype(np.uint8),
        np.array(["a", "b", "c"]),
        np.array([b"a", b"b", b"c"]),
    ]
    read = [read_labelled(stored(tmp_path, x=X, y=form), wanted)[1] for form in forms]
    assert [labels.tolist() for labels in read] == [[0, 1, 2]] * 3 + [["a", "b", "c"]] * 2


BAD = [
    ({"x": X}, "holds 'x': it is not clear which are the labels"),
    ({"x": X, "y": Y, "label": Y}, "holds 'y', 'label': it is not clear which are the labels"),
    ({"a": X, "y": Y}, "no array for input 'x'"),
    ({"data": X, "image": X, "y": Y}, "no array for input 'x'"),
    ({"x": X, "y": Y[:2]}, "holds 2 labels for 3 rows of 'x'"),
    ({"x": X, "y": Y + 0.5}, "float64 with fractions; classes are whole numbers"),
    ({"x": X, "y": np.eye(3)}, "expected one number or text per row"),
    ({"x": X, "y": np.array([1, None])}, "Python objects"),
]


@pytest.mark.parametrize(("arrays", "message"), BAD)
def test_files_that_do_not_do(tmp_path: Path, arrays: dict[str, Array], message: str) -> None:
    net = Net("named", [3, 4])
    wanted = trnrt.InferenceSession(net.model(net.add("Relu", "x"))).model.inputs
    np.savez(tmp_path / "data.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        read_labelled(tmp_path / "data.npz", wanted)


def test_only_an_npz_holds_both(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(InputError, match=r"is no \.npz"):
        read_labelled(tmp_path / "x.npy", [])
