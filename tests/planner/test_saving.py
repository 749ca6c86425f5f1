"""Saved plans: what comes from the cache answers as what was just made, bit for bit, with every type of output."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import trnrt
from trnrt.cache.plans import DEFAULT_LIMIT, LIMIT_VARIABLE, size_limit
from trnrt.errors import OptionError
from trnrt.planner import PlanOptions
from trnrt.planner.parts.partition import Partition
from trnrt.planner.parts.partitioning import make_partition
from trnrt.planner.saving.partitions import NotSaved, decode, encode

MODELS = Path(__file__).parents[2] / "models"
CNN = MODELS / "digits_cnn.onnx"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def never(*_: object, **__: object) -> Partition:
    raise AssertionError("the plan was made again")


def answers(model: Any, **options: Any) -> list[Any]:
    session = trnrt.InferenceSession(model, **options)
    return session.run(None, session.random_inputs(3))


def half(text: str, constants: dict[str, np.ndarray[Any, Any]]) -> bytes:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\ng {text}')
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


FLOAT16 = half(
    "(float16[N,4] x) => (float16[N,3] y, int64[N] i, bool[N,3] b) { y = MatMul(x, w) "
    "i = ArgMax<axis=1, keepdims=0>(y) z = Sub(y, y) b = Greater(y, z) }",
    {"w": np.random.default_rng(0).standard_normal((4, 3)).astype(np.float16)},
)
CPU_BETWEEN = half(
    "(float[N,4] x) => (float[N,4] y) { r = Relu(x) h = Hardmax(r) y = Tanh(h) }",
    {},
)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        *((path, {}) for path in sorted(MODELS.glob("*.onnx"))),
        (CNN, {"dtype": "bfloat16"}),
        (CNN, {"dtype": "float16", "target": "trn1"}),
        (FLOAT16, {}),
        (CPU_BETWEEN, {"fallback": "onnxruntime"}),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else None,
)
def test_a_saved_plan_answers_alike(model: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = answers(model, **options)
    monkeypatch.setattr("trnrt.planner.parts.partitioning.make_partition", never)
    second = answers(model, **options)
    for mine, theirs in zip(first, second, strict=True):
        if isinstance(mine, list):
            assert mine == theirs
            continue
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(mine, theirs)


def test_a_saved_plan_is_the_plan() -> None:
    session = trnrt.InferenceSession(CNN)
    partition = session.partition(2)
    encoded, arrays = encode(partition)
    again = decode(json.loads(json.dumps(encoded)), arrays)
    assert again.nodes == partition.nodes and again.notes == partition.notes
    for mine, theirs in zip(partition.plans, again.plans, strict=True):
        assert (mine.source, mine.steps, mine.outputs, mine.results) == (
            theirs.source,
            theirs.steps,
            theirs.outputs,
            theirs.results,
        )
        for name, array in mine.weights.items():
            np.testing.assert_array_equal(array, theirs.weights[name])


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"class": "Popen", "fields": {}},
        {"function": "system", "args": {"tuple": ["true"]}, "settings": {"dict": []}},
        {"tuple": []},
        {"class": "Partition", "fields": {"name": "x"}},
        {"array": 3},
    ],
    ids=str,
)
def test_nothing_else_is_made_of_saved_data(damaged: dict[str, Any]) -> None:
    with pytest.raises(NotSaved, match="damaged"):
        decode(damaged, [])


def test_a_miss_says_what_changed() -> None:
    answers(CNN)
    session = trnrt.InferenceSession(CNN, target="trn1")
    session.run(None, session.random_inputs(4))
    assert session.last_run.cache_notes == ("target trn2 -> trn1",)
    session = trnrt.InferenceSession(CNN, target="trn1")
    session.run(None, session.random_inputs(8))
    assert session.last_run.cache_notes == ("batch 4 -> 8",)
    session.run(None, session.random_inputs(8))
    assert not session.last_run.cache_notes


def test_without_a_cache_nothing_is_kept(tmp_path: Path) -> None:
    session = trnrt.InferenceSession(CNN, cache=False)
    session.run(None, session.random_inputs(1))
    assert not (tmp_path / "cache" / "plans").exists()


def test_a_full_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the kernel module nor the plan can be written: the answer is the same, and a note says why."""
    expected = answers(CNN)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr("tempfile.mkstemp", full)
    session = trnrt.InferenceSession(CNN)
    for mine, theirs in zip(session.run(None, session.random_inputs(3)), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert "No space left on device" in " ".join(session.last_run.cache_notes)


def test_a_changed_model_is_another(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load(CNN)
    onnx.save(model, path)
    first = answers(path)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    onnx.save(model, path)
    session = trnrt.InferenceSession(path)
    second = session.run(None, session.random_inputs(3))
    assert session.last_run.cache_notes == ("the model changed",)
    assert not np.array_equal(first[0], second[0])


def test_changed_external_data_is_another_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx.load(CNN)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    first = trnrt.InferenceSession(path).model.digest
    data = bytearray((tmp_path / "weights.bin").read_bytes())
    data[0] ^= 1
    (tmp_path / "weights.bin").write_bytes(bytes(data))
    assert trnrt.InferenceSession(path).model.digest != first


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 2**30), ("500 MB", 5 * 10**8), ("0", 0), ("1.5kib", 1536), ("", 8 * 2**30)]
)
def test_limits(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    assert size_limit() == size
    assert DEFAULT_LIMIT == "8GiB"


@pytest.mark.parametrize("text", ["much", "-1", "1 GiBi", "GiB"])
def test_what_is_no_limit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(OptionError, match=LIMIT_VARIABLE):
        trnrt.InferenceSession(CNN)


def test_partitions_are_made_of_known_types() -> None:
    session = trnrt.InferenceSession(CNN)
    partition = make_partition(session.model, session.shapes_for(1), PlanOptions("trn2", "float32"))
    encode(partition)
    with pytest.raises(NotSaved, match="object"):
        encode(partition.__class__(**(partition.__dict__ | {"notes": (object(),)})))
