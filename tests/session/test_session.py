"""The session: onnxruntime's interface, batches, and what it says to bad input."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fake_neuron.installing_fake import be_instance
from numpy.typing import NDArray
from onnx import parser

import trnrt
from trnrt.errors import BackendError, InputError, OptionError
from trnrt.nki.machine.execute import Executor

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn.onnx"
FFNN = MODELS / "digits_ffnn.onnx"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a cache of its own."""
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def parsed(text: str) -> bytes:
    """A model from ONNX's textual form."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


# y = relu(x @ w + b) with small constants; the batch is what the test says.
def small(batch: str) -> bytes:
    """A Gemm and a Relu over (batch, 3)."""
    return parsed(
        f"g (float[{batch},3] x) => (float[{batch},2] y)"
        "<float[3,2] w = {1,-1,2,0,-1,1}, float[2] b = {0.5,-0.25}> { h = Gemm(x, w, b)  y = Relu(h) }"
    )


def reference(model: bytes, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """What onnxruntime answers."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = session.run(None, feeds)
    return outputs


def test_answers_as_onnxruntime_does_with_one_import_changed() -> None:
    feeds = {"image": np.load(MODELS / "digits_test.npz")["image"][:5]}
    answers = []
    for runtime in (onnxruntime, trnrt):
        session = runtime.InferenceSession(str(FFNN))
        assert [i.name for i in session.get_inputs()] == ["image"]
        assert [(o.name, o.type) for o in session.get_outputs()] == [
            ("probabilities", "tensor(float)"),
            ("label", "tensor(int64)"),
        ]
        assert list(session.get_inputs()[0].shape) == ["batch", 1, 8, 8]
        answers.append(session.run(["label", "probabilities"], feeds))
    (label, probabilities), (ours_label, ours_probabilities) = answers
    assert ours_label.dtype == label.dtype and ours_probabilities.dtype == probabilities.dtype
    np.testing.assert_array_equal(ours_label, label)
    np.testing.assert_allclose(ours_probabilities, probabilities, rtol=1e-4, atol=1e-6)


def test_onnxruntimes_own_keyword_and_lists_of_numbers() -> None:
    session = trnrt.InferenceSession(small("N"))
    (expected,) = session.run(None, {"x": np.array([[1, 2, 3]], np.float32)})
    (answer,) = session.run(output_names=None, input_feed={"x": [[1, 2, 3]]})  # type: ignore[dict-item]
    np.testing.assert_array_equal(answer, expected)
    with pytest.raises(InputError, match="input 'x' is no array of float32"):
        session.run(None, {"x": [[1, 2], [3]]})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="missing input: 'x'"):
        session.run(None)
    with pytest.raises(InputError, match="is a string, not a list") as caught:
        session.run("y", {"x": np.zeros((1, 3), np.float32)})
    assert caught.value.hint == "pass ['y']"


def test_a_row_without_its_batch_is_told_the_way_out() -> None:
    with pytest.raises(InputError, match="of rank 1") as caught:
        trnrt.InferenceSession(small("N")).run(None, {"x": np.zeros(3, np.float32)})
    assert caught.value.hint == "one row needs its batch dimension, too: array[None]"


@pytest.mark.parametrize("bare", ["shape", "type"])
def test_outputs_that_state_no_shape_get_the_inferred_one(bare: str) -> None:
    model = onnx.load_from_string(small("N"))
    if bare == "shape":
        model.graph.output[0].type.tensor_type.ClearField("shape")
    else:
        model.graph.output[0].ClearField("type")
    data = model.SerializeToString()
    session = trnrt.InferenceSession(data)
    assert session.get_outputs()[0].shape == ["N", 2] and session.get_outputs()[0].type == "tensor(float)"
    x = np.ones((3, 3), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(data, {"x": x})[0], rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 130])
def test_symbolic_batch_of_any_size(rows: int) -> None:
    session = trnrt.InferenceSession(small("N"))
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(small("N"), {"x": x})[0], rtol=1e-5)
    assert list(session.last_run.notes) == {
        7: ["7 rows ran in 1 slice of 8, padded with 1 row"],
        33: ["33 rows ran in 1 slice of 64, padded with 31 rows"],
        130: ["130 rows ran in 2 slices (1 of 128, 1 of 2)"],
    }.get(rows, [])


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("path", [CNN, FFNN], ids=lambda path: path.stem)
def test_neighbours_change_no_bit_in_a_bucket(path: Path, dtype: str, target: str) -> None:
    """The same rows alone, among others, in another order, and beside NaN and infinity."""
    images = np.load(MODELS / "digits_test.npz")["image"][:8]
    session = trnrt.InferenceSession(path, dtype=dtype, target=target, buckets=[8])
    whole = session.run(None, {"image": images})
    for rows in ([3], [7, 3, 0], [1, 2, 3, 4, 5]):
        for mine, all_rows in zip(session.run(None, {"image": images[rows]}), whole, strict=True):
            np.testing.assert_array_equal(mine, all_rows[rows])
    strange = images.copy()
    strange[0], strange[1] = np.nan, np.inf
    for mine, all_rows in zip(session.run(None, {"image": strange}), whole, strict=True):
        np.testing.assert_array_equal(mine[2:], all_rows[2:])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2), ("float16", 2e-3)])
def test_buckets_agree(dtype: str, tolerance: float) -> None:
    images = np.load(MODELS / "digits_test.npz")["image"][:5]
    answers = [
        trnrt.InferenceSession(CNN, dtype=dtype, buckets=b).run(None, {"image": images}) for b in ([1], [2], [8])
    ]
    for other in answers[1:]:
        for mine, theirs in zip(answers[0], other, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def test_rows_that_are_not_independent_are_not_padded() -> None:
    centred = "{ m = ReduceMean<axes=[0]>(x)  y = Sub(x, m) }"
    model = parsed(f"g (float[N,3] x) => (float[N,3] y) {centred}")
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    session = trnrt.InferenceSession(model)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(model, {"x": x})[0], atol=1e-6)
    assert "compiled for 5 rows: the rows are not independent, ReduceMean" in session.last_run.notes[0]
    fixed = trnrt.InferenceSession(parsed(f"g (float[4,3] x) => (float[4,3] y) {centred}"))
    with pytest.raises(InputError, match="5 rows for a batch fixed at 4, whose rows are not independent"):
        fixed.run(None, {"x": x})


def test_buckets_that_are_none() -> None:
    for buckets in ([], [0, 1]):
        with pytest.raises(OptionError, match="bucket"):
            trnrt.InferenceSession(small("N"), buckets=buckets)


@pytest.mark.parametrize(("rows", "slices", "padding"), [(4, 0, 0), (8, 2, 0), (10, 3, 2), (1, 1, 3)])
def test_fixed_batch_runs_in_slices_and_says_so(rows: int, slices: int, padding: int) -> None:
    session = trnrt.InferenceSession(small("4"))
    x = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    y = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(y, reference(small("N"), {"x": x})[0], rtol=1e-5)
    said = " ".join(session.last_run.notes)
    assert (f"in {slices} slice" in said) == bool(slices)
    assert (f"padded with {padding} row" in said) == bool(padding)


def test_model_without_batch() -> None:
    model = parsed("g (float[3] x) => (float[2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }")
    session = trnrt.InferenceSession(model)
    x = np.array([1, -2, 0.5], np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], reference(model, {"x": x})[0], rtol=1e-6)
    with pytest.raises(InputError, match=r"'x'.*\[4\].*\[3\]"):
        session.run(None, {"x": np.zeros(4, np.float32)})


def test_compiles_a_shape_once_and_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from trnrt.backends.simulator import SimulatorBackend

    loaded: list[int | None] = []
    load = SimulatorBackend.load

    def counted(self: SimulatorBackend, plan: Any, path: Path, source: bytes) -> Any:
        loaded.append(plan.batch)
        return load(self, plan, path, source)

    monkeypatch.setattr(SimulatorBackend, "load", counted)
    session = trnrt.InferenceSession(small("N"))
    for rows in (2, 5, 2, 7, 2):
        session.run(None, {"x": np.ones((rows, 3), np.float32)})
    assert loaded == [2, 8]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_target_and_dtype(target: str, dtype: str) -> None:
    session = trnrt.InferenceSession(CNN, target=target, dtype=dtype)
    x = np.load(MODELS / "digits_test.npz")["image"][:16]
    expected = reference(CNN.read_bytes(), {"image": x})[0]
    y = session.run(None, {"image": x})[0]
    assert y.dtype == np.float32
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(y.argmax(1), expected.argmax(1))


def test_nan_and_infinity_as_onnxruntime() -> None:
    x = np.load(MODELS / "digits_test.npz")["image"][:4].copy()
    x[1, 0, 3, 3] = np.nan
    x[2, 0, 5, 1] = np.inf
    expected = reference(FFNN.read_bytes(), {"image": x})
    for target in ("trn1", "trn2"):
        probabilities, label = trnrt.InferenceSession(FFNN, target=target).run(None, {"image": x})
        np.testing.assert_allclose(probabilities, expected[0], rtol=1e-4, atol=1e-6, equal_nan=True)
        np.testing.assert_array_equal(label, expected[1])
    assert np.isnan(expected[0][1]).all() and not np.isnan(expected[0][0]).any()


BAD_FEEDS: list[tuple[dict[str, NDArray[Any]], str]] = [
    ({}, r"missing input: 'x', float32 \[N, 3\]"),
    ({"z": np.zeros((1, 3), np.float32)}, "no input 'z'"),
    ({"x": np.zeros((1, 3))}, "float64.*wants float32"),
    ({"x": np.zeros((1, 3), np.int64)}, "int64.*wants float32"),
    ({"x": np.zeros((1, 4), np.float32)}, r"\[1, 4\].*\[N, 3\]"),
    ({"x": np.zeros(3, np.float32)}, "rank 1"),
    ({"x": np.zeros((2, 0), np.float32)}, "dimension 1 is 0"),
]


@pytest.mark.parametrize(("feeds", "message"), BAD_FEEDS)
def test_bad_feeds_name_the_input_and_the_way_out(feeds: dict[str, NDArray[Any]], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        trnrt.InferenceSession(small("N")).run(None, feeds)
    assert caught.value.exit_code == 2


def test_unknown_output_dtype_target_and_backend() -> None:
    session = trnrt.InferenceSession(small("N"))
    with pytest.raises(InputError, match="no output 'nope'"):
        session.run(["nope"], {"x": np.zeros((1, 3), np.float32)})
    with pytest.raises(OptionError, match="float64"):
        trnrt.InferenceSession(small("N"), dtype="float64")
    with pytest.raises(OptionError, match="trn9"):
        trnrt.InferenceSession(small("N"), target="trn9")
    with pytest.raises(OptionError, match="gpu"):
        trnrt.InferenceSession(small("N"), backend="gpu")
    with pytest.raises(BackendError, match="neuron"):
        trnrt.InferenceSession(small("N"), backend="neuron")


def test_threads_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    session = trnrt.InferenceSession(small("N"), buckets=[1])
    rows = [np.full((1, 3), number, np.float32) for number in range(1, 5)]
    want = [session.run(None, {"x": row})[0] for row in rows]
    restore = Executor.restore

    def wait(executor: Executor) -> None:
        time.sleep(0.02)  # the inputs are loaded: another thread would overwrite them now
        restore(executor)

    monkeypatch.setattr(Executor, "restore", wait)
    with ThreadPoolExecutor(len(rows)) as pool:
        found = list(pool.map(lambda row: session.run(None, {"x": row})[0], rows))
    np.testing.assert_array_equal(found, want)


def test_random_inputs_are_seeded() -> None:
    session = trnrt.InferenceSession(CNN)
    first, again, other = (session.random_inputs(3, seed)["image"] for seed in (1, 1, 2))
    assert first.shape == (3, 1, 8, 8) and first.dtype == np.float32
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_save_writes_a_module_that_runs_by_itself(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(CNN)
    module, weights, summary = session.save(tmp_path / "kept", batch=2)
    text = module.read_text()
    assert "def digits_cnn(image" in text and summary.stat().st_size > 100
    namespace: dict[str, Any] = {}
    exec(compile(text, str(module), "exec"), namespace)
    image = session.random_inputs(2)["image"]
    arrays = np.load(weights, allow_pickle=False)
    (logits,) = namespace["digits_cnn"](image, *(arrays[name] for name in arrays.files))
    np.testing.assert_array_equal(logits, session.run(None, {"image": image})[0])


def test_device_decides_the_default_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    be_instance(monkeypatch, tmp_path, "trn1.32xlarge", 0)
    assert trnrt.InferenceSession(small("N")).target == "trn2"  # no device here
    be_instance(monkeypatch, tmp_path, "trn1.32xlarge", 1)
    session = trnrt.InferenceSession(small("N"))
    assert session.target == "trn1" and session.backend == "simulator"
    assert session.backend_reason.startswith("/dev/neuron0 is here, but supported: trn1.32xlarge: AWS does not state")


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_second_run_is_like_the_first(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only leaves out what is known of such inputs: outputs, notes and the description of the run are the same."""
    session = trnrt.InferenceSession(small("n"), buckets=(1, 4, 16))
    feeds = session.random_inputs(rows)
    (first,), told = session.run(None, feeds), session.last_run
    if rows <= 16:  # in one slice
        monkeypatch.setattr("trnrt.session.check_feeds", None)
    (second,), again = session.run(["y"], feeds), session.last_run
    assert second.tobytes() == first.tobytes() and second is not first
    assert (again.notes, again.programs, again.predicted) == (told.notes, told.programs, told.predicted)


def test_inputs_unlike_those_before_are_checked() -> None:
    session = trnrt.InferenceSession(small("n"))
    x = session.random_inputs(2)["x"]
    session.run(None, {"x": x})
    for feeds, text in (
        ({"x": x.astype(np.float64)}, "float64"),
        ({"x": x[:, :2]}, "shape"),
        ({"x": x[0]}, "rank"),
        ({"z": x}, "no input"),
        ({}, "missing"),
    ):
        with pytest.raises(InputError, match=text):
            session.run(None, feeds)
    with pytest.raises(InputError, match="no output"):
        session.run(["z"], {"x": x})
    assert session.run(None, {"x": x.tolist()})[0].tolist() == session.run(None, {"x": x})[0].tolist()


def test_a_closed_session_compiles_again() -> None:
    session = trnrt.InferenceSession(small("n"))
    feeds = session.random_inputs(2)
    before = [session.run(None, feeds) for _ in range(2)][1]
    session.close()
    assert not session._programs.loaded
    np.testing.assert_array_equal(session.run(None, feeds)[0], before[0])
    assert session._programs.loaded


def test_routes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnrt.running.routes.MOST_ROUTES", 2)
    session = trnrt.InferenceSession(small("n"), buckets=(8,))
    for rows in range(1, 6):
        feeds = session.random_inputs(rows)
        np.testing.assert_array_equal(session.run(None, feeds)[0], session.run(None, feeds)[0])
    assert len(session._routes._known) == 2


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[n,4] x) => (float[n,4] y) { y = Identity(x) }",
        "g (float[n,4] x) => (float[n,2,2] y) <int64[3] s = {0,2,2}> { y = Reshape(x, s) }",
        "g (float[n,4] x) => (float[n,4] y, float[2] c) <float[2] w = {1,2}> { y = Relu(x) c = Identity(w) }",
        "g (float[n,4] x) => (float[n,4] y, int64[2] s) { y = Relu(x) s = Shape(x) }",
        "g (float[n,4] x) => (float[n,4] y, float[n,4] z) { y = Relu(x) z = Identity(y) }",
    ],
    ids=["input", "view", "constant", "shape", "twice"],
)
@pytest.mark.parametrize("rows", [2, 3])
def test_an_output_is_the_callers_alone(graph: str, rows: int) -> None:
    """Writing to it changes no input, no other output, and no later answer."""
    session = trnrt.InferenceSession(parsed(graph), buckets=(2, 4))
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4) - 3
    given, expected = x.copy(), reference(parsed(graph), {"x": x})
    for _ in range(3):
        outputs = session.run(None, {"x": x})
        for place, output in enumerate(outputs):
            np.testing.assert_array_equal(output, expected[place])
            output[...] = 99
    np.testing.assert_array_equal(x, given)
