"""Integers that come from shapes: computed as onnxruntime computes them, and in one pass over the graph."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from trnrt.importer import import_model
from trnrt.importer.folding.constants import Folder
from trnrt.importer.folding.counting import MOST_COUNTS, compute_counts

# Of the constants a = [7, -7, 5, 12], b = [2, 2, 3, 5], i = [2, 0], flags = [1, 0, 0, 1], and x of shape [2, 3, 4].
NODES = [
    "Shape(x)",
    "Shape<start=1, end=-1>(x)",
    "Shape<start=-2>(x)",
    "Size(x)",
    "Add(a, b)",
    "Sub(a, b)",
    "Mul(a, b)",
    "Div(a, b)",
    "Mod(a, b)",
    "Mod<fmod=1>(a, b)",
    "Max(a, b)",
    "Min(a, b)",
    "Neg(a)",
    "Abs(a)",
    "Equal(a, b)",
    "Less(a, b)",
    "Greater(a, b)",
    "Where(flags, a, b)",
    "Gather(a, i)",
    "Gather<axis=0>(b, i)",
    "Concat<axis=0>(a, i, b)",
    "Unsqueeze(a, i)",
    "Reshape(a, b2)",
    "Slice(a, one, three)",
    "Cast<to=6>(a)",
    "Cast<to=9>(a)",
    "Identity(a)",
]
VALUES = {
    "a": np.array([7, -7, 5, 12]),
    "b": np.array([2, 2, 3, 5]),
    "i": np.array([2, 0]),
    "b2": np.array([2, 2]),
    "one": np.array([1]),
    "three": np.array([3]),
    "flags": np.array([True, False, False, True]),
}


def model_of(node: str, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A model of one node and the constants that it reads."""
    read = [name for name in values if name in node.partition("(")[2].strip(")").split(", ")]
    graph = parser.parse_graph(f"counts (float[2,3,4] x) => (y) {{ y = {node} }}")
    graph.initializer.extend(onnx.numpy_helper.from_array(values[name], name) for name in read)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def counts_of(node: str, values: dict[str, np.ndarray]) -> np.ndarray | None:
    model = ir.from_proto(model_of(node, values))
    return compute_counts(next(iter(model.graph)))


@pytest.mark.parametrize("node", NODES)
def test_counts_are_those_of_onnxruntime(node: str) -> None:
    proto = model_of(node, VALUES)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((2, 3, 4), np.float32)} if session.get_inputs() else {}
    (expected,) = session.run(None, feeds)
    found = counts_of(node, VALUES)
    assert found is not None
    assert found.dtype == expected.dtype and found.shape == expected.shape
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("node", ["Relu(x)", "Add(a, x)", "Add(a, i)", "Reshape(a, i)", "Cast<to=1>(a)"])
def test_other_nodes_and_wrong_values_are_left_alone(node: str) -> None:
    assert counts_of(node, VALUES) is None


def test_large_arrays_are_left_alone() -> None:
    many = np.arange(MOST_COUNTS, dtype=np.int64)
    assert counts_of("Neg(a)", {"a": many}) is not None
    assert counts_of("Neg(a)", {"a": np.append(many, 1)}) is None
    assert counts_of("Concat<axis=0>(a, b)", {"a": many, "b": many}) is None


def test_a_chain_of_slices_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each Slice is hidden from the folder until its input is known, which takes the shape of the Slice before."""
    links = 12
    chain = "\n".join(
        f"s{k} = Shape(t{k})  n{k} = Gather(s{k}, last)  e{k} = Sub(n{k}, one)  c{k} = Slice(t{k}, one, e{k}, axis)"
        f"  d{k} = Shape(c{k})  t{k + 1} = Reshape(c{k}, d{k})"
        for k in range(links)
    )
    graph = parser.parse_graph(f"chain (float[N,64] t0) => (float[N,M] y) {{ {chain}  y = Relu(t{links}) }}")
    for name, value in {"one": [1], "last": [1], "axis": [1]}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    rounds, make_round = [], Folder._round

    def count_rounds(self: Folder) -> bool:
        rounds.append(self)
        return make_round(self)

    monkeypatch.setattr(Folder, "_round", count_rounds)
    view = import_model(proto.SerializeToString()).bind({"t0": (3, 64)}, {})
    assert list(view.model.graph.outputs[0].shape or ()) == [3, 64 - 2 * links]
    assert len([one for one in rounds if one is rounds[0]]) <= 4
