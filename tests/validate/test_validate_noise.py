"""Tolerances follow what rounding does to each element: right models of any scale pass, and wrong ones fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from layered import NETS, Net
from mutating import CHANGES, Change, mistaken, weights_of, with_array
from numpy.typing import NDArray
from onnx import TensorProto
from perturbing import WRONG, rows_for, wronged

import trnrt
from trnrt.planner.parts.partition import DevicePart, Partition
from trnrt.planner.parts.partitioning import make_partition
from trnrt.validate import Noise, run_onnxruntime, validate
from trnrt.validate.noise import pool_noise, spread

Array = NDArray[Any]
SAMPLES = Path(__file__).parents[2] / "models"
DTYPES = ("float32", "bfloat16", "float16")


def batch_norm(net: Net, x: str, channels: int) -> str:
    """Statistics as they are before training: nothing keeps what flows in range."""
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return net.add("BatchNormalization", x, *(net.constant(array) for array in (ones, zeros, zeros, ones)))


def growing(blocks: int = 6) -> bytes:
    """A deep residual net before training: each block makes what flows larger."""
    net = Net("growing", [1, 3, 12, 12])
    x = net.add("Relu", batch_norm(net, net.conv("x", 3, 16), 16))
    for _ in range(blocks):
        y = x
        for _ in range(2):
            weight = net.weight(16, 16, 3, 3, scale=(4 / 144) ** 0.5)
            y = batch_norm(net, net.add("Conv", net.add("Relu", y), weight, pads=[1] * 4), 16)
        x = net.add("Add", y, x)
    x = net.add("Flatten", net.add("GlobalAveragePool", net.add("Relu", x)))
    return net.model(net.add("Gemm", x, net.weight(16, 300), net.weight(300, scale=0.1)))


def styled(blocks: int = 4) -> bytes:
    """A net that transfers styles: instance norms, nearest resizing, an image comes out."""
    net = Net("styled", [1, 3, 16, 16], seed=5)

    def norm(x: str) -> str:
        return net.add("InstanceNormalization", x, net.weight(16, around=1, scale=0.1), net.weight(16, scale=0.1))

    x = net.add("Relu", norm(net.conv("x", 3, 16, strides=[2, 2])))
    for _ in range(blocks):
        x = net.add("Add", norm(net.conv(net.add("Relu", norm(net.conv(x, 16, 16))), 16, 16)), x)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = net.add("Resize", x, "", scales, **how)
    return net.model(net.conv(x, 16, 3))


def detecting() -> bytes:
    """As of a detector: boxes of 640 and scores of 0.001 in one output."""
    net = Net("detecting", [1, 3, 16, 16], seed=6)
    x = net.add("Relu", net.conv("x", 3, 16))
    boxes = net.add("Mul", net.add("Sigmoid", net.conv(x, 16, 4)), net.constant(np.array(640, np.float32)))
    scores = net.add("Sigmoid", net.add("Sub", net.conv(x, 16, 6), net.constant(np.array(7, np.float32))))
    shape = net.constant(np.array([1, 10, 256], np.int64))
    return net.model(net.add("Reshape", net.add("Concat", boxes, scores, axis=1), shape))


def masked(out: float, whole_row: bool) -> bytes:
    """Attention whose mask is made of numbers that stand for infinity; they may mask all that a token could look at."""
    net = Net("masked", [1, 8, 16], seed=7)
    mask = np.zeros((8, 8), np.float32)
    mask[:, 5:] = out
    if whole_row:
        mask[2] = out
    q, k, v = (net.add("MatMul", "x", net.weight(16, 16, scale=0.3)) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1]))
    weights = net.add("Softmax", net.add("Add", scores, net.constant(mask)), axis=-1)
    return net.model(net.add("MatMul", net.add("MatMul", weights, v), net.weight(16, 16, scale=0.3)))


MASKED: dict[str, Callable[[], bytes]] = {
    "hidden by the lowest number": lambda: masked(float(np.finfo(np.float32).min), True),
    "masked by the lowest number": lambda: masked(float(np.finfo(np.float32).min), False),
    "masked by infinity": lambda: masked(-np.inf, False),
}
MODELS: dict[str, Callable[[], bytes]] = {
    "growing": growing,
    "shrinking": lambda: scaled(growing(4), 1e-12),
    "styled": styled,
    "detecting": detecting,
}


def scaled(model: bytes, by: float) -> bytes:
    """The same with its last weights, and biases, made smaller."""
    made = onnx.load_from_string(model)
    node, _ = weights_of(made)[-1]

    def scale(array: Array) -> None:
        array *= np.float32(by)

    for tensor in made.graph.initializer:
        if tensor.name in node.input:
            with_array(tensor, scale)
    content: bytes = made.SerializeToString()
    return content


def opened(model: bytes, dtype: str = "float32") -> trnrt.InferenceSession:
    return trnrt.InferenceSession(model, dtype=dtype, backend="simulator", cache=False)


LIMIT = ("hidden by the lowest number", "float16")


@pytest.mark.parametrize(
    ("name", "dtype"), [pair for pair in product((*MODELS, *MASKED, *NETS), DTYPES) if pair != LIMIT]
)
def test_a_right_model_passes(name: str, dtype: str) -> None:
    session = opened((MODELS | MASKED | NETS)[name](), dtype)
    for seed in range(2 if dtype == "float32" else 1):
        report = validate(session, rows_for(session, seed))
        assert report.passed and report.tolerances == "measured" and report.notes == ()
        assert all(output.error < 0.75 * output.tolerance for output in report.outputs)


def test_float16_has_no_number_that_hides_a_whole_row() -> None:
    """Beside its lowest, -65504, scores of a row still differ in float32: docs/design.md (Numbers)."""
    session = opened(MASKED[LIMIT[0]](), LIMIT[1])
    report = validate(session, rows_for(session))
    assert not report.passed and report.outputs[0].element[1] == 2


def test_one_tolerance_for_all_outputs_would_not_do() -> None:
    """The property of the networks that these nets stand for: right, and beyond 1e-5."""
    session = opened(growing(12))
    feeds = rows_for(session)
    assert not validate(session, feeds, rtol=1e-4, atol=1e-5).passed
    report = validate(session, feeds)
    assert report.passed
    (output,) = report.outputs
    assert output.max_abs < 2e-6 * np.abs(session.run(None, feeds)[0]).max()
    for name in ("growing", "styled"):
        session = opened(MODELS[name](), "bfloat16")
        assert not validate(session, rows_for(session), rtol=2e-2, atol=1e-2).passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_model_fails(name: str, change: Change, dtype: str) -> None:
    session = mistaken(MODELS[name](), change, dtype)
    report = validate(session, rows_for(session))
    assert not report.passed
    if dtype != "float32":
        assert any(output.split is not None and not output.split.float32_passed for output in report.outputs)


def test_a_small_channel_beside_large_ones() -> None:
    """1e-5 of the largest number is 6 times as large as all of a score."""
    session = opened(detecting())
    feeds = rows_for(session)
    (right,) = session.run(None, feeds)
    wrong = right.copy()
    wrong[0, 7] *= np.float32(1.0005)
    assert np.abs(wrong - right).max() < 1e-5
    (output,) = validate(mistaken_outputs(session, wrong), feeds).outputs
    assert not output.passed and output.element[1] == 7


@pytest.mark.parametrize("name", [*MODELS, *MASKED])
def test_one_wrong_element(name: str) -> None:
    session = opened((MODELS | MASKED)[name]())
    feeds = rows_for(session)
    (right,) = session.run(None, feeds)
    wrong = right.copy()
    element = tuple(np.argwhere(np.abs(right) > np.median(np.abs(right)))[3])
    wrong[element] *= np.float32(1.001)
    (output,) = validate(mistaken_outputs(session, wrong), feeds).outputs
    assert not output.passed and output.element == element
    assert output.noise is not None and output.error > output.tolerance > output.noise


def mistaken_outputs(session: trnrt.InferenceSession, *outputs: Array) -> trnrt.InferenceSession:
    """The session with other answers."""
    pytest.MonkeyPatch().setattr(session, "run", lambda names, feeds: list(outputs))
    return session


# -- 16 bits


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "step", "weight"), WRONG, ids=[weight for *_, weight in WRONG])
def test_a_plan_that_is_wrong_in_16_bits_only(
    name: str, step: str, weight: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any, **options: Any) -> Partition:
        partition = make_partition(*arguments, **options)
        if arguments[2].dtype == "float32":
            return partition
        (part,) = partition.parts
        assert isinstance(part, DevicePart)
        return replace(partition, parts=(replace(part, plan=wronged(part.plan, weight)),))

    monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", wrong)
    monkeypatch.setattr("trnrt.validate.layers.make_partition", wrong)
    content = NETS[name]() if name in NETS else SAMPLES / f"{name}.onnx"
    session = trnrt.InferenceSession(content, dtype=dtype, backend="simulator", cache=False)
    feeds = rows_for(session)
    if not isinstance(session.model.batch, int):
        feeds = {n: np.concatenate([a] * 8)[:8] for n, a in feeds.items()}
    report = validate(session, feeds)
    assert not report.passed
    assert all(output.split is None or output.split.float32_passed for output in report.outputs)
    assert report.steps is not None and report.steps.first_failure is not None
    assert report.steps.first_failure.step == step


# -- the dtype of what comes out


@pytest.mark.parametrize("declared", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_of_16_bits(declared: int, dtype: str) -> None:
    net = Net("short", [4, 64])
    x = net.add("Gemm", net.add("Relu", net.add("Gemm", "x", net.weight(64, 64))), net.weight(64, 30))
    model = net.model(net.add("Cast", x, to=declared))
    session = opened(model, dtype)
    for seed in range(4):
        report = validate(session, rows_for(session, seed))
        assert report.passed and report.tolerances == "measured"
    (right,) = session.run(None, feeds := rows_for(session))
    if dtype == "float32":
        (output,) = validate(
            mistaken_outputs(session, (right.astype(np.float32) * 1.1).astype(right.dtype)), feeds
        ).outputs
        assert not output.passed


# -- what is not shaken


def test_what_nobody_rounds_stays() -> None:
    """Whole numbers that choose, sizes, and scales that Resize takes."""
    net = Net("choosing", [3, 8])
    index = net.add("Cast", net.add("Abs", "x"), to=TensorProto.INT64)
    picked = net.add("Gather", net.weight(40, 5), index)
    sizes = net.constant(np.array([1, 1.5, 1], np.float32))
    session = opened(net.model(picked, net.add("Resize", net.add("Relu", picked), "", sizes, mode="nearest")))
    feeds = {"x": np.arange(24, dtype=np.float32).reshape(3, 8)}
    names = [info.name for info in session.get_outputs()]
    expected = dict(zip(names, run_onnxruntime(session, feeds), strict=True))
    found = [tolerance.noise for tolerance in Noise(session).measure(feeds, expected)[1].values()]
    assert [None if noise is None else noise.shape for noise in found] == [(3, 8, 5), (3, 12, 5)]
    assert found[0] is not None and not found[0].any()
    # What is rounded is less than a millionth; what would be chosen otherwise is as large as the numbers.
    assert found[1] is not None and 0 < found[1].max() < 1e-6


def test_outputs_of_another_length_each_time() -> None:
    """There is no noise of the places of what is not 0, where some come and go."""
    net = Net("finding", [1, 50])
    x = net.add("Sub", net.add("Exp", net.add("Log", "x")), "x")
    session = opened(net.model(net.add("Cast", net.add("NonZero", x), to=TensorProto.FLOAT), x))
    feeds = {"x": np.random.default_rng(0).random((1, 50), np.float32)}
    names = [info.name for info in session.get_outputs()]
    expected = dict(zip(names, run_onnxruntime(session, feeds), strict=True))
    found = Noise(session).tolerances(feeds, expected)
    assert found[names[0]].noise is None and found[names[0]].atol == 1e-5
    assert found[names[1]].noise is not None


def test_the_same_noise_each_time() -> None:
    session = opened(growing(2))
    feeds = rows_for(session)
    reference = {session.get_outputs()[0].name: session.run(None, feeds)[0]}
    first, second = (next(iter(Noise(session).measure(feeds, reference)[1].values())) for _ in range(2))
    np.testing.assert_array_equal(np.asarray(first.atol), np.asarray(second.atol))


def test_our_own_numbers_have_no_part_in_it() -> None:
    session = opened(growing(2))
    feeds = rows_for(session)
    (right,) = validate(session, feeds).outputs
    wrong = validate(mistaken_outputs(session, np.full((1, 300), 1e9, np.float32)), feeds)
    assert not wrong.passed and wrong.atol == validate(session, feeds).atol > 0
    assert right.passed


def test_a_model_that_onnxruntime_does_not_shake(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("not\nimplemented")

    monkeypatch.setattr("trnrt.validate.tolerances.open_model", refuse)
    session = opened(NETS["residual"]())
    report = validate(session, rows_for(session))
    assert report.passed and report.tolerances == "default" and (report.rtol, report.atol) == (1e-4, 1e-5)
    (told,) = report.notes
    assert "can't run the model with random roundings: not implemented" in told


def test_what_the_user_says_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.validate.outputs.Noise", None)
    session = opened(NETS["residual"]())
    feeds = rows_for(session)
    assert (report := validate(session, feeds, rtol=1e-3)).tolerances == "given" and report.atol == 1e-5
    assert (report := validate(session, feeds, atol=1e-3)).tolerances == "given" and report.rtol == 1e-4
    assert not validate(session, feeds, rtol=0, atol=0).passed


def test_what_is_no_number() -> None:
    net = Net("log", [2, 6])
    session = opened(net.model(net.add("Log", net.add("MatMul", "x", net.constant(np.eye(6, dtype=np.float32))))))
    feeds = {"x": np.array([[1, 2, 0, -1, 3, 4]] * 2, np.float32)}
    assert validate(session, feeds).passed
    (right,) = session.run(None, feeds)
    for place, value in [((0, 2), 5.0), ((1, 3), 5.0), ((0, 0), np.nan), ((0, 1), np.inf)]:
        wrong = right.copy()
        wrong[place] = value
        assert not validate(mistaken_outputs(session, wrong), feeds).passed


# -- pooling


def test_the_spread_of_normal_noise() -> None:
    random = np.random.default_rng(0)
    sizes = np.array([640, 1, 1e-3])[:, None]
    samples = [np.zeros((3, 5000)) + random.standard_normal((3, 5000)) * sizes for _ in range(4)]
    found = np.median(spread(samples), axis=1) / sizes[:, 0]
    assert (found > 0.9).all() and (found < 1.5).all()


def test_a_chance_zero_is_no_small_noise() -> None:
    """Of 4 samples all may be near their mean; that 20,000 are means something."""
    apart = np.ones((4, 20))
    apart[:, 7] = 0.05
    assert pool_noise(apart)[7] > 0.9
    apart = np.ones((4, 20, 5000))
    apart[:, 7] = 0.05
    assert pool_noise(apart)[7].max() < 0.1


def test_a_decision_that_fell_otherwise_allows_nothing_to_others() -> None:
    random = np.random.default_rng(0)
    samples = [random.standard_normal(8000) for _ in range(4)]
    samples[2][17] = 1e6
    found = spread(samples)
    assert found[17] > 1e5 and np.median(found) < 2
    assert np.array_equal(spread([np.array([1.0, np.nan])] * 4), [0, 0])


@pytest.mark.parametrize("opset", [21, 22, 24])
def test_a_newer_opset_than_the_random_operators(opset: int) -> None:
    """onnxruntime has no RandomUniformLike of opset 22, where scikit-learn's and new exporters' models are."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[n,3] x) => (float[n,2] y){{ y = MatMul(x,w) }}"""
    model = onnx.parser.parse_model(text)
    weight = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    session = trnrt.InferenceSession(model.SerializeToString())
    feeds = {"x": np.linspace(-3, 2, 12, dtype=np.float32).reshape(4, 3)}
    tolerances, _ = Noise(session).measure(feeds, {"y": feeds["x"] @ weight})
    assert 0 < np.max(tolerances["y"].atol) < 1e-4


def test_models_without_elements() -> None:
    assert pool_noise(np.zeros((4, 0, 3))).shape == (0, 3)
