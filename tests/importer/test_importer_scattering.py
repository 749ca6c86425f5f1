"""Scatters at constant indices become moves, with onnxruntime's answers; others are left. Empty parts are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from rewritten import checked, ops

from trnrt import InferenceSession
from trnrt.importer import import_model

Array = npt.NDArray[Any]
SCATTERS = {"Scatter", "ScatterElements", "ScatterND"}


def scattered(
    operator: str, shape: tuple[int, ...], indices: Array, updates: tuple[int, ...], opset: int = 18, **attributes: Any
) -> onnx.ModelProto:
    dims = ["N" if k == 0 and operator == "batch" else str(size) for k, size in enumerate(shape)]
    texts = [f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in attributes.items()]
    call = f"{operator}<{', '.join(texts)}>" if texts else operator
    sizes = ",".join(map(str, updates))
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{",".join(dims)}] x, float[{sizes}] u) => (float[{",".join(dims)}] y)
        {{ a = Neg(x) b = Neg(u) y = {call}(a, i, b) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(indices.astype(np.int64), "i"))
    return proto


def check_scatter(operator: str, shape: tuple[int, ...], indices: Array, updates: tuple[int, ...], **more: Any) -> None:
    view = checked(scattered(operator, shape, indices, updates, **more))
    assert not SCATTERS & set(ops(view))


@pytest.mark.parametrize(
    ("indices", "updates", "most"),
    [
        ([[[k, j] for j in (2, 3, 4)] for k in range(3)], (3, 3, 4), ["Concat", "Neg", "Neg", "Slice", "Slice"]),
        ([[0], [1], [2]], (3, 6, 4), ["Neg"]),
        ([[1]], (1, 6, 4), ["Concat", "Neg", "Neg", "Slice", "Slice"]),
    ],
)
def test_a_stretch_is_put_between_what_stays(indices: Any, updates: tuple[int, ...], most: list[str]) -> None:
    view = checked(scattered("ScatterND", (3, 6, 4), np.array(indices), updates))
    assert sorted(ops(view)) == most


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_scatter_nd(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    depth = data.draw(st.integers(1, len(shape)))
    count = int(np.prod(shape[:depth]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    rows = rng.permutation(count)[: data.draw(st.integers(1, count))]
    if data.draw(st.booleans()):
        rows = np.sort(rows)
    indices = np.stack(np.unravel_index(rows, shape[:depth]), 1)
    indices = np.where(rng.random(indices.shape) < 0.3, indices - np.array(shape[:depth]), indices)
    reduction = data.draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    check_scatter("ScatterND", shape, indices, (len(rows), *shape[depth:]), reduction=reduction)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_scatter_elements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    sizes = tuple(data.draw(st.integers(1, size)) for size in shape)
    order = np.argsort(rng.random((*sizes, shape[axis])), -1)
    indices = np.take_along_axis(order, np.expand_dims(np.indices(sizes)[axis], -1), -1)[..., 0]
    if data.draw(st.booleans()):  # the same for all rows
        indices = np.indices(sizes)[axis]
    reduction = data.draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    lines = np.stack([*np.indices(sizes)], -1)
    lines[..., axis] = indices
    if reduction == "none" and len(np.unique(lines.reshape(-1, len(shape)), axis=0)) < indices.size:
        reduction = "max"
    check_scatter("ScatterElements", shape, indices, sizes, axis=axis, reduction=reduction)


def test_updates_of_one_place_are_combined() -> None:
    check_scatter("ScatterND", (4, 3), np.array([[1], [3], [1], [1]]), (4, 3), reduction="add")
    check_scatter("ScatterElements", (4, 3), np.array([[0, 0, 2], [0, 1, 2]]), (2, 3), reduction="mul")


@pytest.mark.parametrize(
    ("indices", "attributes"),
    [([[0], [0]], {}), ([[0], [7]], {}), ([[0]] * 9, {"reduction": "add"})],
)
def test_what_is_left(indices: Any, attributes: dict[str, str]) -> None:
    """Of two updates of one place either may stay; indices out of bounds; many updates of one place."""
    proto = scattered("ScatterND", (4, 3), np.array(indices), (len(indices), 3), 18, **attributes)
    view = import_model(proto.SerializeToString()).bind({"x": (4, 3), "u": (len(indices), 3)})
    assert "ScatterND" in ops(view)


def test_more_rows_than_there_are_is_left() -> None:
    """A batch that is cut in parts may have fewer rows than a file's own: such a file is refused, if at all."""
    proto = scattered("ScatterElements", (2, 3), np.zeros((4, 1), np.int64), (4, 1), 18, axis=1)
    view = import_model(proto.SerializeToString()).bind({"x": (2, 3), "u": (4, 1)})
    assert "ScatterElements" in ops(view)


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
def test_it_runs(operator: str) -> None:
    indices = np.array([[[0, 3], [0, 1]], [[1, 3], [1, 1]]]) if operator == "ScatterND" else np.full((2, 2, 3), 4)
    updates = (2, 2, 3)
    attributes = {} if operator == "ScatterND" else {"axis": 1, "reduction": "add"}
    if operator == "ScatterElements":
        indices[:, 1] = 2
    proto = scattered(operator, (2, 5, 3), indices, updates, 18, **attributes)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((2, 5, 3), np.float32), "u": rng.standard_normal(updates, np.float32)}
    got: Any = InferenceSession(proto.SerializeToString(), cache=False).run(None, feeds)[0]
    wanted = -feeds["x"]
    if operator == "ScatterND":
        wanted[:, [3, 1]] = -feeds["u"]
    else:
        wanted[:, [4, 2]] -= feeds["u"]
    np.testing.assert_array_equal(got, wanted)


def test_empty_parts_are_dropped() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[N,6] x) => (float[N,6] y)
        { t = Neg(x) a, b = Split<axis=1>(t, sizes) c = Abs(a) y = Concat<axis=1>(c, b) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([6, 0]), "sizes"))
    assert ops(checked(proto)) == ["Neg", "Abs"]


def test_what_has_no_elements_is_a_constant() -> None:
    """Columns that a detector's export slices off, of which there are none, and a look-up in them."""
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[N,6] x) => (float[N,6] y, float[N,2] z)
        { t = Neg(x) a = Slice(t, six, six, one) b = Gather<axis=1>(a, none) c = Abs(b) d = Exp(t)
          y = Concat<axis=1>(d, c) z = Slice(t, zero, two, one) }"""
    proto = onnx.parser.parse_model(text)
    for name, numbers in {"six": [6], "one": [1], "zero": [0], "two": [2], "none": []}.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
    assert ops(checked(proto)) == ["Neg", "Exp", "Slice"]


def test_a_split_without_a_name_for_a_part_stays() -> None:
    """The part has elements, though nothing names it: the others aren't all of the source."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,5] x) => (float[1,2] y)
        { a, b, c = Split<axis=1>(x, sizes) y = Exp(a) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2, 3, 0]), "sizes"))
    proto.graph.node[0].output[1] = ""
    view = import_model(proto.SerializeToString()).bind({"x": (1, 5)})
    assert [node.op_type for node in view.model.graph] == ["Split", "Exp"]
