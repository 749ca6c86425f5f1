"""Layers that PyTorch writes as several operators, or as control flow: real exports against onnxruntime.

models/torch_layers.py makes the files, and says what they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import trnrt

FILES = Path(__file__).parents[1] / "data" / "torch_layers"
EXPORTERS = ("dynamo", "torchscript")
Feeds = dict[str, NDArray[Any]]


def compare(name: str, *feeds: Feeds, **options: Any) -> trnrt.InferenceSession:
    """A session whose answers are onnxruntime's, NaN and infinity among them."""
    path = str(FILES / f"{name}.onnx")
    reference = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = trnrt.InferenceSession(path, cache=False, **options)
    for one in feeds:
        for mine, theirs in zip(session.run(None, one), reference.run(None, one), strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.size
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    return session


def operators(session: trnrt.InferenceSession, feeds: Feeds) -> list[str]:
    bound = session.model.bind({name: array.shape for name, array in feeds.items()})
    return [node.op_type for node in bound.model.graph]


def draw(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 20, shape)


def test_every_file_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 200_000


# -- EmbeddingBag ----------------------------------------------------------------------------------------


# In order, with an empty bag, with one that is empty at the end, out of order, beyond the rows, negative.
OFFSETS = ([0, 3, 5, 7], [0, 3, 3, 7], [0, 3, 9, 9], [0, 5, 3, 7], [2, 4, 12, 12], [0, -3, 7, 9])


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_by_offsets_from_an_input(mode: str, exporter: str) -> None:
    feeds = [{"x": draw(9, seed=k), "o": np.array(offsets)} for k, offsets in enumerate(OFFSETS)]
    if (mode, exporter) == ("max", "torchscript"):
        feeds = feeds[:1]  # the maximum of no rows is -inf, of which the linear layer makes NaN
    session = compare(f"bags_{mode}_{exporter}", *feeds)
    assert not {"Loop", "If", "Slice"} & set(operators(session, feeds[0])) - {"Slice"}


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_by_constant_offsets(mode: str, exporter: str) -> None:
    session = compare(f"bags_{mode}_constant_{exporter}", {"x": draw(9)})
    found = operators(session, {"x": draw(9)})
    assert found.count("MatMul") == (mode != "max") and len(found) <= 8


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_for_each_row_is_one_reduction_of_any_batch(mode: str, exporter: str) -> None:
    session = compare(f"bags_{mode}_rows_{exporter}", {"x": draw(6, 5)}, {"x": draw(1, 5)})
    session.run(None, {"x": draw(6, 5)})
    assert session.last_run.notes == ("6 rows ran in 1 slice of 8, padded with 2 rows",)
    reduces = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax"}[mode]
    assert operators(session, {"x": draw(6, 5)}).count(reduces) == 1


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_weighed_bags_and_a_last_offset(exporter: str) -> None:
    weights = np.random.default_rng(0).random(9).astype(np.float32)
    compare(f"bags_weighed_{exporter}", {"x": draw(9), "o": np.array([0, 3, 3, 7]), "w": weights})
    compare(f"bags_last_offset_{exporter}", {"x": draw(9), "o": np.array([0, 3, 3, 9])})


def test_no_index_beyond_the_table_is_looked_up() -> None:
    session = trnrt.InferenceSession(str(FILES / "bags_sum_torchscript.onnx"), cache=False)
    with pytest.raises(trnrt.errors.InputError, match="20"):
        session.run(None, {"x": np.full(9, 20), "o": np.array([0, 3, 3, 7])})
    assert onnx.load(FILES / "bags_sum_torchscript.onnx").graph.node
