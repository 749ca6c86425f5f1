"""Look-ups by indices that are wrapped before: as Keras 3 writes them on TensorFlow and by tf2onnx."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import trnrt
from trnrt.errors import InputError, UnsupportedModelError

ROWS = 7
TABLE = np.random.default_rng(0).normal(size=(ROWS, 5)).astype(np.float32)
WHERE = "shifted = Add(ids, rows)  low = Less(ids, zero)  at = Where(low, shifted, ids)"
WIDER = """wide = Cast<to=7>(ids)  shifted = Add(wide, rows_long)  low = Less(wide, zero_long)
    at = Where(low, shifted, wide)"""
SUM = """shifted = Add(ids, rows)  wide = Cast<to=1>(ids)  low = Less(wide, zero_float)  high = Not(low)
    a = Cast<to=6>(high)  b = Mul(ids, a)  c = Cast<to=6>(low)  d = Mul(c, shifted)  at = Add(d, b)"""


def modelled(body: str, rows: int = ROWS) -> bytes:
    """A look-up in the table by ids that ``body`` makes of the input."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (int32[N,4] ids) => (float[N,4,5] y)
        {{ {body}  found = Gather(table, at)  y = Relu(found) }}"""
    proto = onnx.parser.parse_model(text)
    numbers = {"rows": np.int32(rows), "zero": np.int32(0), "zero_float": np.float32(0), "table": TABLE}
    numbers |= {"rows_long": np.int64(rows), "zero_long": np.int64(0)}
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in numbers.items())
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("body", [WHERE, WIDER, SUM])
def test_wrapped_indices(body: str) -> None:
    model = modelled(body)
    session = trnrt.InferenceSession(model, backend="simulator", cache=False)
    ids = np.array([[0, 6, -1, -7], [3, -4, 2, 5]], np.int32)
    (expected,) = onnxruntime.InferenceSession(model).run(None, {"ids": ids})
    (found,) = session.run(None, {"ids": ids})
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(found)) > 5
    assert any("counts from the end itself" in note for note in session.partition(2).notes)


@pytest.mark.parametrize("beyond", [ROWS, -ROWS - 1])
def test_ids_out_of_bounds_are_refused(beyond: int) -> None:
    session = trnrt.InferenceSession(modelled(WHERE), backend="simulator", cache=False)
    with pytest.raises(InputError, match=rf"{beyond}"):
        session.run(None, {"ids": np.array([[0, 1, 2, beyond]], np.int32)})


@pytest.mark.parametrize(
    "body",
    [
        WHERE.replace("Less(ids, zero)", "Less(zero, ids)"),
        WHERE.replace("Where(low, shifted, ids)", "Where(low, ids, shifted)"),
        SUM.replace("Not(low)", "Identity(low)"),
    ],
)
def test_other_choices_stay(body: str) -> None:
    with pytest.raises(UnsupportedModelError, match="out of bounds"):
        trnrt.InferenceSession(modelled(body), backend="simulator", cache=False).partition(1)


def test_another_number_of_rows_stays() -> None:
    """Ids -1 are row 5 then, not the last one."""
    with pytest.raises(UnsupportedModelError, match="out of bounds"):
        trnrt.InferenceSession(modelled(WHERE, ROWS - 1), backend="simulator", cache=False).partition(1)
