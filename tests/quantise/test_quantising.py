"""Comparisons of runs, rows of calibration data, and models as onnxruntime's quantiser takes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantisable import save, save_residual

from trnrt.errors import InputError, ModelFileError, QuantiseError
from trnrt.importer import import_model
from trnrt.predict.source import Asked
from trnrt.quantise.calibrating import find_ranges
from trnrt.quantise.comparing import Difference, compare_runs, compare_tensors, signal_to_noise
from trnrt.quantise.data import read_data
from trnrt.quantise.making import quantise
from trnrt.quantise.preparing import prepare

MODELS = Path(__file__).parents[2] / "models"
SKLEARN = Path(__file__).parents[1] / "data" / "sklearn"
CNN, SPLIT = MODELS / "digits_cnn.onnx", MODELS / "digits_test.npz"


# ---- two runs


def test_signal_to_noise() -> None:
    signal = np.array([3.0, -4.0], np.float32)
    assert signal_to_noise(signal, signal) == math.inf
    assert signal_to_noise(signal, signal * np.float32(1.1)) == pytest.approx(20, abs=1e-4)
    assert signal_to_noise(signal, -signal) == pytest.approx(-20 * math.log10(2))
    assert signal_to_noise(np.zeros(2), signal) == -math.inf
    assert signal_to_noise(signal, np.array([3.0, np.nan])) == -math.inf


def test_tensors_are_compared_by_name() -> None:
    reference = {"a": np.ones(3), "b": np.ones(2), "label": np.arange(3), "c": np.ones(3)}
    assert compare_tensors(reference, {"a": np.ones(3), "b": np.ones(3), "label": np.arange(3)}) == {"a": math.inf}


def test_runs_are_compared_by_decisions_and_labels() -> None:
    reference, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
    other = reference[[0, 1, 3, 3]]
    found = compare_runs({"y": reference}, {"y": other}, labels)
    assert (found.rows, found.changed, found.accuracy, found.reference_accuracy) == (4, 1, 0.5, 0.75)
    assert found.snr_db == pytest.approx(10 * math.log10(2)) and found.drop == pytest.approx(25)
    assert compare_runs({"y": reference}, {"y": other}).drop == pytest.approx(25)
    assert Difference(4, 30.0, None).drop is None
    worst = compare_runs({"y": reference, "z": reference}, {"y": other, "z": reference})
    assert worst.snr_db == found.snr_db


# ---- calibration data


def test_rows_are_spread_over_the_data() -> None:
    model = import_model(CNN)
    data = read_data(model, Asked((str(SPLIT),)), {}, 100)
    assert (data.rows, data.available, data.labels is not None) == (100, 450, True)
    with np.load(SPLIT) as file:
        images, labels = file["image"], file["label"]
    rows = [k for k in range(450) if any((images[k] == row).all() for b in data.batches for row in b.feeds["image"])]
    assert len(rows) >= 100 and max(np.diff(rows)) > 50 and rows[-1] > 300
    whole = read_data(model, Asked((str(SPLIT),)), {}, 1000)
    assert whole.rows == 450 and np.array_equal(np.concatenate([b.feeds["image"] for b in whole.batches]), images)
    assert whole.labels is not None and np.array_equal(whole.labels, labels)
    few = whole.take(64)
    assert 64 <= few.rows < 128 and few.labels is not None and len(few.labels) == few.rows
    assert np.array_equal(few.batches[-1].feeds["image"], whole.batches[len(whole.batches) * 2 // 3].feeds["image"])


def test_a_fixed_batch_is_filled(tmp_path: Path) -> None:
    model = import_model(save_residual(tmp_path / "m.onnx"))
    np.save(tmp_path / "x.npy", np.ones((5, 3, 6, 6), np.float32))
    data = read_data(model, Asked((str(tmp_path / "x.npy"),)), {}, 512)
    assert [(len(b.feeds["x"]), b.rows) for b in data.batches] == [(2, 1), (2, 2), (2, 2)]
    assert data.labels is None


@pytest.mark.parametrize(("shape", "message"), [((0, 1, 8, 8), "no rows"), ((3, 1, 8, 9), "does not fit")])
def test_data_that_does_not_fit(tmp_path: Path, shape: tuple[int, ...], message: str) -> None:
    np.savez(tmp_path / "x.npz", image=np.zeros(shape, np.float32))
    with pytest.raises(InputError, match=message):
        read_data(import_model(CNN), Asked((str(tmp_path / "x.npz"),)), {}, 512)


def test_labels_that_are_no_labels_are_ignored_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, image=np.zeros((3, 1, 8, 8), np.float32), y=np.full(3, 0.5, np.float32))
    data = read_data(import_model(CNN), Asked((str(path),)), {}, 512)
    assert data.labels is None and any("'y' is not used as labels" in note for note in data.notes)
    with pytest.raises(InputError, match="'y'"):
        read_data(import_model(CNN), Asked((str(path),), id="y"), {}, 512)


# ---- the model as the quantiser takes it


def test_an_old_model_is_folded_and_raised(tmp_path: Path) -> None:
    prepared = prepare(import_model(save_residual(tmp_path / "m.onnx")), "qdq")
    proto = onnx.load_model_from_string(prepared.content)
    assert [(opset.domain, opset.version >= 13) for opset in proto.opset_import] == [("", True)]
    assert [node.op_type for node in proto.graph.node] == ["Conv", "Conv", "Add", "Relu"]
    assert [entry.key for entry in proto.metadata_props] == ["labels"]
    assert [(layer.name, len(layer.nodes)) for layer in prepared.layers] == [("conv1", 1), ("conv2", 1), ("add", 2)]


def test_a_product_keeps_its_name_when_its_bias_goes_into_it() -> None:
    prepared = prepare(import_model(MODELS / "digits_mlp_sklearn.onnx"), "qdq")
    assert [layer.nodes for layer in prepared.layers] == [("MatMul", "Relu"), ("MatMul1", "Relu1"), ("MatMul2",)]


def test_layers_behind_an_operator_that_onnx_infers_nothing_for() -> None:
    prepared = prepare(import_model(SKLEARN / "standard_mlp.onnx"), "qdq")
    assert [layer.op for layer in prepared.layers] == ["MatMul", "Add", "MatMul", "Add"]


@pytest.mark.parametrize(("mode", "kind"), [("linear", TensorProto.FLOAT), ("nearest", TensorProto.UINT8)])
def test_a_resize_that_interpolates_stays_in_float(tmp_path: Path, mode: str, kind: int) -> None:
    """onnxruntime's Resize of integers truncates; one that only copies stays on integers."""
    form = "qoperator"
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Resize", ["c", "", "s"], ["r"], name="resize", mode=mode),
        helper.make_node("Conv", ["r", "w"], ["y"], name="last"),
    ]
    weights = {"w": np.ones((1, 1, 1, 1), np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    model = import_model(save(tmp_path / "m.onnx", nodes, weights, ([1, 1, 4, 4], [1, 1, 8, 8])))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((1, 1, 4, 4), np.float32))
    prepared = prepare(model, form)
    data = read_data(model, Asked((str(tmp_path / "x.npy"),)), {}, 512)
    made = quantise(prepared, form, find_ranges(prepared, data, "minmax", lambda rows: None))
    inferred = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(made))
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    (resize,) = (node for node in inferred.graph.node if node.op_type == "Resize")
    assert types[resize.input[0]] == kind


def test_models_with_nothing_to_quantise(tmp_path: Path) -> None:
    shapes: tuple[list[int], list[int]] = ([1, 4], [1, 4])
    half = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = {"w": np.eye(4, dtype=np.float16)}
    path = save(tmp_path / "half.onnx", [half], weights, shapes, dtype=TensorProto.FLOAT16)
    with pytest.raises(QuantiseError, match="half has weights of 16 bits, in node"):
        prepare(import_model(path), "qdq")
    path = save(tmp_path / "add.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], {}, shapes)
    with pytest.raises(QuantiseError, match="add has nothing to quantise: no Conv, ConvTranspose, Gemm, MatMul"):
        prepare(import_model(path), "qdq")
    with pytest.raises(QuantiseError, match="nothing to quantise: no Gemm, MatMul"):
        prepare(import_model(save_residual(tmp_path / "m.onnx")), "dynamic")


def test_a_quantised_model_is_refused(tmp_path: Path) -> None:
    scale = helper.make_node("QuantizeLinear", ["x", "s"], ["q"], name="first")
    back = helper.make_node("DequantizeLinear", ["q", "s"], ["y"])
    path = save(tmp_path / "m.onnx", [scale, back], {"s": np.array(0.1, np.float32)}, ([1, 4], [1, 4]))
    with pytest.raises(ModelFileError, match="m is quantised already: node 'first' is a QuantizeLinear"):
        prepare(import_model(path), "qdq")
