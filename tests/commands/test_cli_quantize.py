"""``trnrt quantize``: what it writes, what it says of it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commanding import trnrt
from onnx import TensorProto, numpy_helper
from quantisable import save_residual, save_uneven

from trnrt import InferenceSession

MODELS = Path(__file__).parents[2] / "models"
CNN, FFNN, SPLIT = MODELS / "digits_cnn.onnx", MODELS / "digits_ffnn.onnx", MODELS / "digits_test.npz"
SAMPLES = ("digits_cnn", "digits_cnn_legacy", "digits_ffnn", "digits_ffnn_legacy", "digits_mlp_sklearn")


def quantize(model: Path, out: Path, *arguments: str | Path, code: int = 0) -> Any:
    """Call ``trnrt quantize`` without latencies: its document where that went well, else what it complained of."""
    outcome = trnrt("quantize", model, *arguments, "--output", out, "--no-latency", "--json")
    assert outcome.code == code, outcome.err
    return outcome.document if code == 0 else outcome.err


def ops(path: Path) -> list[str]:
    """The operators of a valid model."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return [node.op_type for node in model.graph.node]


def classes(path: Path, feeds: dict[str, Any]) -> Any:
    """The classes that onnxruntime finds, QDQ computed in float."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for output, info in zip(session.run(None, feeds), session.get_outputs(), strict=True):
        if info.type == "tensor(float)":
            return np.argmax(output, axis=1)
    raise AssertionError("no output of floats")


@pytest.fixture
def uneven(tmp_path: Path) -> tuple[Path, Path]:
    """The model whose first two layers lose all in 8 bits, and rows for it."""
    rows = np.random.default_rng(0).random((200, 4), np.float32)
    np.save(tmp_path / "rows.npy", rows)
    return save_uneven(tmp_path / "uneven.onnx"), tmp_path / "rows.npy"


# ---- what is made


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_models_lose_at_most_half_a_percent(tmp_path: Path, name: str, form: str) -> None:
    model, out = MODELS / f"{name}.onnx", tmp_path / "int8.onnx"
    how = ("--dynamic",) if form == "dynamic" else ("--format", form)
    document = quantize(model, out, *how, "--data", SPLIT)
    loss = document["loss"]
    assert (document["format"], document["rows"], loss["rows"]) == (form, 450, 450)
    assert loss["drop"] <= 0.5 and loss["changed_decisions"] <= 2
    with np.load(SPLIT) as file:
        key = onnx.load(model).graph.input[0].name
        feeds = {key: file["pixels" if name.endswith("sklearn") else "image"]}
    assert int((classes(out, feeds) != classes(model, feeds)).sum()) == loss["changed_decisions"]
    assert document["bytes"]["quantised"] == out.stat().st_size < document["bytes"]["float"]


@pytest.mark.parametrize("name", ["digits_cnn", "digits_ffnn", "digits_mlp_sklearn"])
def test_the_simulator_loses_as_little(tmp_path: Path, name: str) -> None:
    model, out = MODELS / f"{name}.onnx", tmp_path / "int8.onnx"
    quantize(model, out, "--data", SPLIT, "--no-layers")
    with np.load(SPLIT) as file:
        feeds = {onnx.load(model).graph.input[0].name: file["pixels" if name.endswith("sklearn") else "image"]}
    session = InferenceSession(str(out), cache=False)
    floats = next(info.name for info in session.get_outputs() if info.type == "tensor(float)")
    found = np.argmax(session.run([floats], feeds)[0], axis=1)
    assert int((found != classes(model, feeds)).sum()) <= 0.005 * len(found)


def test_weights_are_int8_by_channel_and_activations_uint8(tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    quantize(CNN, out, "--data", SPLIT)
    model = onnx.load(out)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    kinds = set()
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            assert constants[node.input[2]].data_type == TensorProto.UINT8
        if node.op_type == "DequantizeLinear" and node.input[0] in constants:
            kinds.add(constants[node.input[0]].data_type)
            assert not numpy_helper.to_array(constants[node.input[2]]).any()
            assert list(constants[node.input[1]].dims) == [constants[node.input[0]].dims[0]]
    assert kinds == {TensorProto.INT8, TensorProto.INT32}
    before = {entry.key: entry.value for entry in onnx.load(CNN).metadata_props}
    assert {entry.key: entry.value for entry in model.metadata_props} == before


def test_both_forms(tmp_path: Path) -> None:
    quantize(CNN, tmp_path / "a.onnx", "--data", SPLIT, "--no-layers")
    quantize(CNN, tmp_path / "b.onnx", "--data", SPLIT, "--no-layers", "--format", "qoperator")
    assert ops(tmp_path / "a.onnx").count("Conv") == 2 and "QuantizeLinear" in ops(tmp_path / "a.onnx")
    assert ops(tmp_path / "b.onnx").count("QLinearConv") == 2 and ops(tmp_path / "b.onnx").count("QuantizeLinear") == 1


def test_dynamic_needs_no_data(tmp_path: Path) -> None:
    document = quantize(FFNN, tmp_path / "a.onnx", "--dynamic")
    assert ops(tmp_path / "a.onnx").count("MatMulInteger") == 3
    assert (document["loss"], document["rows"], document["calibration"]) == (None, 0, None)
    quantize(FFNN, tmp_path / "b.onnx", "--dynamic", "--keep", "node_linear_1")
    assert ops(tmp_path / "b.onnx").count("MatMulInteger") == 2


def test_calibration_methods_differ(tmp_path: Path) -> None:
    files = [tmp_path / f"{method}.onnx" for method in ("minmax", "entropy", "percentile")]
    for path in files:
        quantize(CNN, path, "--data", SPLIT, "--ranges", path.stem, "--no-layers")
    assert len({path.read_bytes() for path in files}) == 3


def test_an_old_model_with_normalisation(tmp_path: Path) -> None:
    rows, out = np.random.default_rng(0).standard_normal((6, 3, 6, 6)).astype(np.float32), tmp_path / "int8.onnx"
    np.save(tmp_path / "x.npy", rows)
    document = quantize(save_residual(tmp_path / "old.onnx"), out, "--data", tmp_path / "x.npy")
    assert "BatchNormalization" not in ops(out)
    assert document["loss"]["snr_db"] > 30 and document["loss"]["drop"] is None
    assert [layer["cost"]["rows"] for layer in document["layers"]] == [6, 6, 6]


def test_parquet_with_labels_and_bad_rows(tmp_path: Path) -> None:
    with np.load(SPLIT) as file:
        images, labels = file["image"][:100].reshape(100, 64), file["label"][:100]
    values = [*images[:99].tolist(), [*images[99, :63].tolist(), None]]
    pq.write_table(pa.table({"image": values, "digit": labels}), tmp_path / "rows.parquet")
    outcome = trnrt(
        *("quantize", CNN, "--data", tmp_path / "rows.parquet", "--label", "digit", "--rows", "60", "--json"),
        *("--output", tmp_path / "int8.onnx", "--no-latency", "--no-layers"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.document["rows"] in (59, 60) and outcome.document["loss"]["accuracy"] == 1.0
    assert all(layer["cost"] is None for layer in outcome.document["layers"])


# ---- the report


def test_the_report(tmp_path: Path) -> None:
    outcome = trnrt("quantize", CNN, "--data", SPLIT, "-o", tmp_path / "int8.onnx", "--keep", "node_conv2d")
    assert outcome.code == 0 and outcome.err.startswith("note: ")
    lines = outcome.out.splitlines()
    assert lines[0].endswith("int8.onnx': qdq, 2 layers of 3 quantised, in float: 'node_conv2d'")
    assert lines[1].startswith("0 of 450 decisions changed, accuracy 100.00 %, the float model's 100.00 %, signal-to-")
    assert " ".join(lines[3].split()) == "layer, quantised alone operator SNR, dB decisions changed accuracy"
    names = [line.split()[0] for line in lines[4:6]]
    decibels = [float(line.split()[2]) for line in lines[4:6]]
    assert sorted(names) == ["node_conv2d_1", "node_linear"] and decibels == sorted(decibels)
    assert "measured with onnxruntime on the CPU, on 450 rows of calibration data; ranges by minmax" in lines
    assert any(line.startswith("predicted for the device: float model ") for line in lines)
    float_, half = (trnrt("profile", CNN, "--effort", "0", "--dtype", d, "--json") for d in ("float32", "bfloat16"))
    document = trnrt("quantize", CNN, "--data", SPLIT, "-o", tmp_path / "int8.onnx", "--no-layers", "--json").document
    assert document["predicted"]["float"]["us"] == float_.document["predicted_us"]["benchmark"]
    assert document["predicted"]["bfloat16"]["us"] == half.document["predicted_us"]["benchmark"]


def test_nothing_is_kept_where_nothing_is_lost(tmp_path: Path) -> None:
    document = quantize(CNN, tmp_path / "int8.onnx", "--data", SPLIT, "--max-drop", "0.5%", "--no-layers")
    assert all(layer["quantised"] for layer in document["layers"])
    assert document["loss"] == document["without_search"]


def test_the_search_keeps_the_layers_that_lose(tmp_path: Path, uneven: tuple[Path, Path]) -> None:
    model, rows = uneven
    lost = quantize(model, tmp_path / "a.onnx", "--data", rows)["loss"]["drop"]
    document = quantize(model, tmp_path / "b.onnx", "--data", rows, "--max-drop", "2")
    assert [layer["quantised"] for layer in document["layers"]] == [False, False, True, True]
    assert document["without_search"]["drop"] == lost > 20 > 2 >= document["loss"]["drop"]
    costs = [layer["cost"]["snr_db"] for layer in document["layers"]]
    assert max(costs[:2]) < 10 < 30 < min(costs[2:])
    by_hand = quantize(model, tmp_path / "c.onnx", "--data", rows, "--keep", "layer1", "--keep", "layer2")
    assert by_hand["loss"] == document["loss"]
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "c.onnx").read_bytes()


def test_a_loss_that_cannot_be_met(tmp_path: Path, uneven: tuple[Path, Path]) -> None:
    model, rows = uneven
    arguments = ("--data", rows, "--max-drop", "0", "--keep", "layer3", "--keep", "layer4")
    assert "keeping layers in float does not limit the loss to 0 %" in quantize(
        model, tmp_path / "out.onnx", *arguments, code=1
    )
    assert not (tmp_path / "out.onnx").exists()


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no calibration data"),
        (("--dynamic", "--max-drop", "1"), "--max-drop compares decisions on rows, and there are none"),
        (("--dynamic", "--label", "y"), "--label needs --data"),
        (("--dynamic", "--format", "qoperator"), "--format is for static quantisation"),
        (("--dynamic", "--ranges", "entropy"), "--ranges is for static quantisation"),
        (("--data", SPLIT, "--keep", "nothing"), "the model has no layer 'nothing' to keep in float"),
        (("--data", "missing.npz"), "missing.npz"),
        (("--data", SPLIT, "--label", "image"), "'image'"),
        (("--data", SPLIT, "--max-drop", "much"), "'much' is not a percentage"),
        (("--data", SPLIT, "--scale", "2"), "are for images, and no --data is one"),
        (("--data", "*.png"), "--data takes no patterns"),
        (("--data", SPLIT, "--label", "none"), "no array 'none' for --label"),
    ],
)
def test_bad_requests(tmp_path: Path, arguments: tuple[str | Path, ...], message: str) -> None:
    out = tmp_path / "out.onnx"
    error = quantize(CNN, out, *arguments, code=2)
    assert message in error and error.count("error:") == 1 and not out.exists()


def test_the_output_is_not_the_model(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(CNN.read_bytes())
    assert "is the float model itself" in quantize(model, model, "--data", SPLIT, code=2)
    assert model.read_bytes() == CNN.read_bytes()
    missing = quantize(CNN, tmp_path / "no" / "out.onnx", "--data", SPLIT, code=2)
    assert f"hint: make the directory first: mkdir -p {tmp_path / 'no'}" in missing


def test_a_quantised_model_is_not_quantised_again(tmp_path: Path) -> None:
    quantize(CNN, tmp_path / "a.onnx", "--data", SPLIT, "--no-layers")
    error = quantize(tmp_path / "a.onnx", tmp_path / "b.onnx", "--data", SPLIT, code=2)
    assert "a is quantised already" in error and "hint: quantise the float model" in error


def test_rows_that_are_not_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", image=np.full((4, 1, 8, 8), np.nan, np.float32))
    error = quantize(CNN, tmp_path / "out.onnx", "--data", tmp_path / "x.npz", code=2)
    assert "has values that are not finite" in error


def test_a_drop_needs_decisions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3, 6, 6), np.float32))
    model = save_residual(tmp_path / "m.onnx")
    error = quantize(model, tmp_path / "o.onnx", "--data", tmp_path / "x.npy", "--max-drop", "1", code=2)
    assert "--max-drop limits lost decisions, and the model makes none" in error


# ---- 8-bit floats


def weigh(*arguments: str | Path, code: int = 0) -> Any:
    """Call ``trnrt quantize`` for 8-bit floats of the feed-forward net: its document, or what it complained of."""
    given = ("quantize", FFNN, *arguments, "--json") if code == 0 else ("quantize", FFNN, *arguments)
    outcome = trnrt(*given)
    assert outcome.code == code, outcome.err
    return outcome.document if code == 0 else outcome.err


def test_float8_report() -> None:
    """Each layer alone, the whole, and the predicted gain; the accuracy is that of labelled rows."""
    found = weigh("--data", SPLIT, "--dtype", "float8_e4m3", "--narrow", "all", "--rows", "96")
    assert (found["format"], found["narrow"], found["rows"], found["products"]) == ("float8_e4m3", "all", 96, 3)
    assert [layer["name"] for layer in found["layers"]] == ["node_linear", "node_linear_1", "node_linear_2"]
    assert all(20 < layer["cost"]["snr_db"] < 70 for layer in found["layers"])
    assert 20 < found["loss"]["snr_db"] < 60 and found["loss"]["changed_decisions"] <= 1
    assert found["loss"]["accuracy"] > 0.95
    times = found["predicted"]
    assert set(times) == {"bfloat16", "float8_e4m3"}
    assert found["gain"] == times["bfloat16"]["us"] / times["float8_e4m3"]["us"]


def test_float8_text() -> None:
    outcome = trnrt("quantize", CNN, "--data", SPLIT, "--dtype", "float8_e5m2", "--rows", "32", "--no-latency")
    assert "digits_cnn: 0 layers of 3 in float8_e5m2, the others in bfloat16" in outcome.out
    assert "no layer is estimated to be faster in 8 bits; --narrow all takes all that can be" in outcome.out


@pytest.mark.parametrize(
    "flags", [("-o", "out.onnx"), ("--max-drop", "1%"), ("--keep", "x"), ("--dynamic",), ("--calibration", "x.npz")]
)
def test_flags_that_8_bit_floats_refuse(flags: tuple[str, ...]) -> None:
    said = weigh("--data", SPLIT, "--dtype", "float8_e4m3", *flags, code=2)
    assert "is not for --dtype float8_e4m3, which writes no model" in said
    assert "needs typical inputs" in weigh("--dtype", "float8_e4m3", code=2)


def test_int8_needs_a_file() -> None:
    assert "--output is missing" in weigh("--data", SPLIT, code=2)
