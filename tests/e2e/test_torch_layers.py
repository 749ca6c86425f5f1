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
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
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
        feeds = feeds[:1]  # the others have empty bags: their maximum is -inf, and the linear layer behind gives NaN
    session = compare(f"bags_{mode}_{exporter}", *feeds)
    assert not {"Loop", "If"} & set(operators(session, feeds[0]))


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


# -- grid_sample, and unpooling --------------------------------------------------------------------------


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize(
    ("kind", "image", "grid"),
    [
        ("bicubic_border", (3, 6, 5), (4, 7, 2)),
        ("bicubic_reflection", (3, 6, 5), (4, 7, 2)),
        ("volumes_bilinear_reflection", (3, 4, 6, 5), (4, 7, 3, 3)),
        ("volumes_nearest_zeros", (3, 4, 6, 5), (4, 7, 3, 3)),
    ],
)
def test_grid_sample(kind: str, image: tuple[int, ...], grid: tuple[int, ...], exporter: str) -> None:
    generator = np.random.default_rng(1)
    feeds: Feeds = {"x": generator.standard_normal((3, *image)).astype(np.float32)}
    feeds["grid"] = generator.uniform(-2, 2, (3, *grid)).astype(np.float32)
    session = compare(f"sampler_{kind}_{exporter}", feeds)
    assert session.last_run.notes == ("3 rows ran in 1 slice of 4, padded with 1 row",)


@pytest.mark.parametrize(("name", "size"), [("segmenter", (16, 12)), ("segmenter_sized", (18, 15))])
def test_segnet_puts_its_maxima_back(name: str, size: tuple[int, int]) -> None:
    feeds: Feeds = {"x": np.random.default_rng(1).standard_normal((3, 3, *size)).astype(np.float32)}
    session = compare(f"{name}_dynamo", feeds)
    assert session.last_run.notes == ("3 rows ran in 1 slice of 4, padded with 1 row",)
    assert "ScatterND" not in operators(session, feeds)
