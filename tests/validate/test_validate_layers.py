"""``validate_layers``: no false alarms, wrong weights located to their node, memory that does not grow with depth."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layered import NETS, Net
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from perturbing import WRONG, rows_for, wronged

import trnrt
from trnrt.errors import BackendError, OptionError
from trnrt.validate import BundleRequest, LayersReport, validate_layers
from trnrt.validate.alone import PlanReader

Array = NDArray[Any]
MODELS = Path(__file__).parents[2] / "models"
SAMPLES = ("digits_cnn", "digits_ffnn", "digits_mlp_sklearn", "digits_cnn_legacy")
DTYPES = ("float32", "bfloat16", "float16")
PIPELINES = sorted((Path(__file__).parents[1] / "data" / "sklearn").glob("*.onnx"))


def opened(name: str, dtype: str = "float32", target: str = "trn2") -> trnrt.InferenceSession:
    """A session for a sample model or one of ``NETS``; its plans are not kept on disk."""
    model = NETS[name]() if name in NETS else MODELS / f"{name}.onnx"
    return trnrt.InferenceSession(model, dtype=dtype, target=target, backend="simulator", cache=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SAMPLES, *NETS])
def test_a_right_plan_has_no_false_alarm(name: str, dtype: str) -> None:
    session = opened(name, dtype)
    for seed in range(3):
        report = validate_layers(session, rows_for(session, seed))
        assert report.passed and report.first_failure is None
        assert all(layer.isolated is not None for layer in report.layers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.stem)
def test_pipelines_have_none_either(path: Path, dtype: str) -> None:
    session = trnrt.InferenceSession(path, dtype=dtype, cache=False)
    (name,) = (info.name for info in session.get_inputs())
    x = np.random.default_rng(1).standard_normal((64, 6)).astype(np.float32)
    x[0] = 0
    report = validate_layers(session, {name: x})
    assert [layer for layer in report.layers if not layer.passed] == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NETS)
def test_models_that_are_float16_themselves(name: str, dtype: str) -> None:
    """Then onnxruntime rounds, too."""
    model = onnx.load_from_string(NETS[name]())
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float16), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    session = trnrt.InferenceSession(model.SerializeToString(), dtype=dtype, cache=False)
    assert validate_layers(session, rows_for(session)).passed


@pytest.mark.parametrize("target", ["trn1", "trn3"])
def test_other_targets(target: str) -> None:
    session = opened("residual", target=target)
    assert validate_layers(session, rows_for(session)).passed


def test_it_compares_what_the_steps_make() -> None:
    session = opened("digits_cnn")
    report = validate_layers(session, session.random_inputs(4))
    assert [layer.step for layer in report.layers] == ["node_conv2d", "node_conv2d_1", "node_linear"]
    assert [layer.value for layer in report.layers] == ["max_pool2d", "max_pool2d_1", "logits"]
    assert [layer.length for layer in report.layers] == [10, 145, 129]
    assert report.layers[0].nodes == ("node_conv2d", "node_relu", "node_max_pool2d")
    assert report.layers[0].shape == (4, 16, 4, 4) and report.rows == 4


@pytest.mark.parametrize(("name", "step", "weight"), WRONG, ids=[weight for *_, weight in WRONG])
def test_a_wrong_weight_is_located(name: str, step: str, weight: str) -> None:
    session = opened(name)
    feeds = {n: np.concatenate([a] * 8)[:8] for n, a in rows_for(session).items()}
    feeds = rows_for(session) if isinstance(session.model.batch, int) else feeds
    plan = session.plan(8)
    report = validate_layers(session, feeds, plan=wronged(plan, weight))
    assert not report.passed
    assert [layer.step for layer in report.layers if not layer.passed] == [step]
    first = report.first_failure
    assert first is not None and first.step == step and step in first.nodes
    assert first.isolated is not None and not first.isolated.passed
    assert first.isolated.ratio > 1 and first.isolated.error > first.isolated.tolerance
    assert validate_layers(session, feeds, plan=plan).passed


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_wrong_weight_is_located_in_16_bits(dtype: str) -> None:
    session = opened("residual", dtype)
    plan = wronged(session.plan(2), "conv_7_w", seed=1)
    report = validate_layers(session, rows_for(session), plan=plan)
    assert [layer.step for layer in report.layers if not layer.passed] == ["conv_7"]


def test_an_error_that_came_from_before_blames_nobody_else() -> None:
    """The cumulative errors after a wrong step are large, and explained by their inputs."""
    session = opened("residual")
    plan = wronged(session.plan(2), "conv_0_w")
    layers = validate_layers(session, rows_for(session), plan=plan).layers
    right = validate_layers(session, rows_for(session)).layers
    assert [layer.passed for layer in layers] == [False, *[True] * (len(layers) - 1)]
    assert all(bad.cumulative.max_abs > 100 * good.cumulative.max_abs for bad, good in zip(layers, right, strict=True))
    assert [layer.isolated for layer in layers[1:]] == [layer.isolated for layer in right[1:]]


def test_a_wrong_line_of_the_module_is_located() -> None:
    """Not only weights: the kernel module's own call is what runs."""
    session = opened("mixing")
    plan = session.plan(6)
    assert "1e-05" in plan.source
    report = validate_layers(session, rows_for(session), plan=replace(plan, source=plan.source.replace("1e-05", "0.3")))
    assert report.first_failure is not None and report.first_failure.step == "layernormalization_0"


def test_what_is_no_number_is_compared() -> None:
    session = opened("pointwise")
    feeds = rows_for(session)
    feeds["x"][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    assert validate_layers(session, feeds).passed


def test_float16_that_overflows_fails_where_it_does() -> None:
    net = Net("large", [2, 8])
    x = net.add("Relu", net.add("Gemm", "x", net.weight(8, 8, around=1), net.weight(8)))
    x = net.add("Gemm", x, net.weight(8, 4), net.weight(4))
    session = trnrt.InferenceSession(net.model(x), dtype="float16", cache=False)
    report = validate_layers(session, {"x": np.full((2, 8), 3e4, np.float32)})
    assert report.first_failure is not None and report.first_failure.step == "gemm_0"
    assert report.first_failure.cumulative.max_abs == np.inf


def test_tensors_that_are_no_values_of_the_graph() -> None:
    net = Net("logarithm", [2, 3, 30])
    made = net.add("ReduceLogSumExp", "x", net.constant(np.array([2], np.int64)))
    session = trnrt.InferenceSession(net.model(made), cache=False)
    report = validate_layers(session, rows_for(session))
    loose = [layer for layer in report.layers if layer.isolated is None]
    assert report.passed and len(loose) >= 2 and report.layers[-1].isolated is not None
    assert all(layer.value == "" and layer.passed and layer.cumulative.max_abs == 0 for layer in loose)


def test_a_value_in_another_order_is_compared() -> None:
    net = Net("columns", [2, 6, 4])
    x = net.add("Softmax", "x", axis=1)
    session = trnrt.InferenceSession(net.model(net.add("Mul", x, net.weight(2, 6, 4))), cache=False)
    report = validate_layers(session, rows_for(session))
    assert report.passed
    softmax = next(layer for layer in report.layers if layer.kernel == "softmax")
    assert softmax.isolated is not None and softmax.value == "softmax_0_out" and softmax.shape == (2, 6, 4)


def test_indices_are_right_or_in_doubt() -> None:
    session = opened("digits_ffnn", "bfloat16")
    report = validate_layers(session, session.random_inputs(50))
    assert report.layers[-1].kernel == "argmax" and report.passed


def test_parts_on_the_cpu() -> None:
    net = Net("parts", [3, 4, 4])
    x = net.add("Relu", net.add("MatMul", "x", net.weight(4, 4)))
    x = net.add("Mul", x, net.add("Hardmax", x))
    model = net.model(net.add("Relu", net.add("MatMul", x, net.weight(4, 4))))
    session = trnrt.InferenceSession(model, fallback="onnxruntime", cache=False)
    report = validate_layers(session, rows_for(session))
    assert session.partition(3).cpu_parts and report.passed
    assert {"matmul_0", "matmul_4"} <= {layer.step for layer in report.layers}


def test_rows_beyond_a_batch() -> None:
    session = opened("residual")
    feeds = {"x": np.concatenate([rows_for(session)["x"]] * 2)[:3]}
    report = validate_layers(session, feeds)
    assert report.rows == 2 and report.notes == ("layers are compared on one batch of 2, of the 3 rows",)
    session = opened("digits_cnn")
    report = validate_layers(session, session.random_inputs(5))
    assert report.rows == 8 and report.notes == (
        "layers are compared on one batch of 8, with the last of 5 rows repeated",
    )


def test_progress() -> None:
    told: list[tuple[int, int, str]] = []
    session = opened("digits_cnn")
    validate_layers(session, session.random_inputs(1), progress=lambda *step: told.append(step))
    assert told == [(0, 3, "node_conv2d"), (1, 3, "node_conv2d_1"), (2, 3, "node_linear")]


def test_a_step_alone_is_its_lines_of_the_plan() -> None:
    plan = opened("digits_cnn").plan(4)
    alone = PlanReader(plan).plan_step(plan.steps[1])
    assert list(alone.weights) == ["weights_first"]
    assert [tensor.shape for tensor in alone.inputs] == [(4, 16, 4, 4)]
    call = plan.source.splitlines()[plan.steps[1].lines[0] - 1 : plan.steps[1].lines[1]]
    assert "\n".join(call) in alone.source
    assert "_load_channels(max_pool2d, _fed0)" in alone.source
    assert "_store_channels(_result, max_pool2d_1)" in alone.source


def test_a_bundle_of_no_step() -> None:
    session = opened("digits_cnn")
    with pytest.raises(OptionError, match="no step or node is called 'conv9'"):
        validate_layers(session, session.random_inputs(1), bundle=BundleRequest(Path("unused"), "conv9"))


@pytest.fixture
def traced() -> Iterator[None]:
    """Count what Python allocates, numpy's arrays among it."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def chain(length: int) -> tuple[trnrt.InferenceSession, dict[str, Array]]:
    """Softmax after Softmax, 1 MiB each."""
    net = Net("chain", [1024, 256])
    x = "x"
    for _ in range(length):
        x = net.add("Softmax", x, axis=-1)
    session = trnrt.InferenceSession(net.model(x), cache=False)
    return session, {"x": np.random.default_rng(0).standard_normal((1024, 256)).astype(np.float32)}


def peak_of(length: int) -> tuple[float, LayersReport]:
    """The most bytes that were held, in tensors of the chain."""
    session, feeds = chain(length)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    report = validate_layers(session, feeds)
    return (tracemalloc.get_traced_memory()[1] - before) / feeds["x"].nbytes, report


def test_memory_does_not_grow_with_depth(traced: None) -> None:
    short, _ = peak_of(6)
    long, report = peak_of(36)
    assert report.passed and len(report.layers) == 36
    assert long < 1.1 * short
    assert long < 36 / 1.5


def test_an_operator_that_onnxruntime_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    session = opened("mixing")

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("not implemented")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    with pytest.raises(BackendError, match="onnxruntime can't run LayerNormalization 'layernormalization_0' alone"):
        validate_layers(session, rows_for(session))
