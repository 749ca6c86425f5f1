"""The golden input: drawn or from a file, and a model that answers it otherwise than onnxruntime is not ready."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines import CANCELLING, RELU, loaded, model_of, run, save

from trnrt.cache.places import golden_file
from trnrt.errors import BackendError, InputError, ModelFileError
from trnrt.session import InferenceSession
from trnrt.validate import Noise, open_onnxruntime
from trnrt.validate.golden import MEASURED_ROWS, golden_feeds, make_golden

SHAPED = "(float[N,4] x, int64[2] s) => (float[N,4] y) { y = Reshape(x, s) }"


def test_random_inputs_where_nobody_says(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    feeds = golden_feeds(InferenceSession(str(path)), path, 3)
    assert feeds["x"].shape == (3, 4) and feeds["x"].dtype == np.float32


def test_the_file_beside_the_model_repeated_to_the_rows_of_a_bucket(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(golden_file(path), x=rows)
    feeds = golden_feeds(InferenceSession(str(path)), path, 3)
    assert np.array_equal(feeds["x"], rows[[0, 1, 0]])
    run(loaded(path))


def test_where_no_random_value_will_do_the_file_is_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path, "shaped", SHAPED)
    with pytest.raises(InputError) as caught:
        golden_feeds(InferenceSession(str(path)), path, 1)
    assert caught.value.hint is not None and "shaped.golden.npz" in caught.value.hint


def test_a_file_that_is_none_is_told(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    golden_file(path).write_bytes(b"nonsense")
    with pytest.raises(ModelFileError, match=r"relu\.golden\.npz"):
        golden_feeds(InferenceSession(str(path)), path, 1)
    model = model_of(path)
    assert "golden" in str(run(model.load())) and model.state == "failed"


def test_an_output_beyond_the_tolerance_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, "relu", RELU)
    session = InferenceSession(str(path))
    reference = open_onnxruntime(session)
    golden = make_golden(session, reference, golden_feeds(session, path, 2))
    right = {"y": session.run(None, golden.feeds)[0]}
    golden.check(right)
    for wrong in (right["y"] + 1e-3, right["y"] * np.nan, right["y"][:1]):
        with pytest.raises(BackendError, match="output 'y' of the golden input"):
            golden.check({"y": wrong})


@pytest.mark.parametrize("rows", [2, MEASURED_ROWS + 1])
def test_the_tolerance_is_what_rounding_does(tmp_path: Path, rows: int) -> None:
    path = save(tmp_path, "cancelling", CANCELLING)
    session = InferenceSession(str(path))
    feeds = {"x": np.full((rows, 4), 0.3, np.float32)}
    golden = make_golden(session, open_onnxruntime(session), feeds)
    expected = golden.expected["y"]
    golden.check({"y": expected + np.float32(1e-3)})
    with pytest.raises(BackendError, match="is 1 away from onnxruntime's, where 0"):
        golden.check({"y": expected + np.float32(1)})


def test_many_rows_are_not_measured_without_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "tolerances", None)
    path = save(tmp_path, "relu", RELU)
    session = InferenceSession(str(path))
    golden = make_golden(session, open_onnxruntime(session), golden_feeds(session, path, MEASURED_ROWS + 1))
    golden.check(dict(golden.expected))


def test_each_bucket_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, "relu", RELU)
    true_run = InferenceSession.run

    def wrong_at_four(self: InferenceSession, names: object, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        outputs = true_run(self, None, feeds)
        return [output + (len(output) == 4) for output in outputs]

    monkeypatch.setattr(InferenceSession, "run", wrong_at_four)
    model = model_of(path)
    reason = run(model.load())
    assert reason is not None and "away from onnxruntime's" in reason
    assert model.state == "failed" and model.reason == reason
