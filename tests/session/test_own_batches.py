"""Files that give each input a batch symbol of its own, as exporters write them that name no axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import parser

from trnrt.errors import InputError
from trnrt.importer import import_model
from trnrt.session import InferenceSession


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNRT_CACHE", str(tmp_path / "cache"))


def parsed(text: str) -> bytes:
    return bytes(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}').SerializeToString())


MASKED = parsed("g (float[s0,s1] x, float[s2,s1] m) => (float[s0,s1] y) { e = Exp(x)  y = Mul(e, m) }")
SCORES = parsed("g (float[n,d] q, float[m,d] k) => (float[n,m] y) { t = Transpose(k)  y = MatMul(q, t) }")
ATTEND = parsed(
    "g (float[n,4] q, float[m,4] k) => (float[n,4] y)"
    "{ t = Transpose(k)  s = MatMul(q, t)  p = Softmax(s)  y = MatMul(p, k) }"
)


def expected(model: bytes, feeds: dict[str, NDArray[Any]]) -> NDArray[Any]:
    made: NDArray[Any] = onnxruntime.InferenceSession(model).run(None, feeds)[0]
    return made


def drawn(**shapes: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def check(session: InferenceSession, model: bytes, feeds: dict[str, NDArray[Any]]) -> tuple[str, ...]:
    np.testing.assert_allclose(session.run(None, feeds)[0], expected(model, feeds), rtol=2e-5, atol=1e-6)
    return session.last_run.notes


def test_batches_of_their_own_are_one_batch() -> None:
    session = InferenceSession(MASKED, shapes={"x": (6,)})
    assert [info.shape for info in session.model.inputs] == [("s0", "s1"), ("s0", "s1")]
    assert session.shapes_for(3) == {"x": (3, 6), "m": (3, 6)}  # s1 is the same in both
    assert check(session, MASKED, drawn(x=(5, 6), m=(5, 6))) == ("5 rows ran in 1 slice of 8, padded with 3 rows",)
    bound = session.model.bind({"x": (2, 6), "m": (2, 6)})
    assert "the inputs' batches 's0', 's2' are taken for one" in " ".join(bound.notes)


def test_inputs_with_other_rows_run_as_the_file_declares_them() -> None:
    session = InferenceSession(MASKED)
    assert check(session, MASKED, drawn(x=(5, 6), m=(1, 6))) == ()
    assert session.last_run.programs
    assert check(session, MASKED, drawn(x=(2, 6), m=(2, 6))) == ()
    with pytest.raises(InputError, match="'s1' is already"):
        session.run(None, drawn(x=(2, 6), m=(1, 5)))


def test_rows_that_meet_each_other_are_never_padded() -> None:
    session = InferenceSession(ATTEND)
    notes = check(session, ATTEND, drawn(q=(5, 4), k=(5, 4)))
    assert "compiled for 5 rows: the rows are not independent" in notes[0]
    assert check(session, ATTEND, drawn(q=(5, 4), k=(3, 4))) == ()


@pytest.mark.parametrize(
    "model",
    [
        SCORES,
        parsed("g (float[n] x, float[m] i) => (float[n] y) { s = ReduceSum(i)  y = Add(x, s) }"),
        parsed("g (float[n,2] x, float[3,2] i) => (float[n,2] y) { s = ReduceSum(i)  y = Add(x, s) }"),
        parsed("g (float[n,2] x, float[m,2] i) => (float[n,2] y, float[m,2] z) { y = Exp(x)  z = Exp(i) }"),
    ],
)
def test_sizes_that_count_other_things_stay_apart(model: bytes) -> None:
    imported = import_model(model)
    assert imported.batch is None and imported.apart is None
