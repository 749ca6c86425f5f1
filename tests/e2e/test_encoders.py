"""Transformer encoders as users export them, tiny, with random weights: each is compared with onnxruntime.

The graphs are those of models/exports/tiny_encoders.py, which says what they are.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from randomizing import random_feeds, randomized

import trnrt
from trnrt.validate import run_onnxruntime, validate

GRAPHS = Path(__file__).parents[1] / "data" / "encoders"
NAMES = sorted(path.stem for path in GRAPHS.iterdir())
TOKENS = 16
VOCABULARY = 40


@cache
def load(name: str) -> onnx.ModelProto:
    """The graph of that name, with weights."""
    return randomized(onnx.load(GRAPHS / f"{name}.onnx"))


def draw(model: onnx.ModelProto, batch: int, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """Inputs: pictures or sound, or texts of different lengths, padded to ``TOKENS``."""
    names = [value.name for value in model.graph.input]
    if names[0] != "input_ids":
        return dict(random_feeds(model, batch, seed))
    generator = np.random.default_rng(seed)
    lengths = generator.integers(3, TOKENS + 1, (batch, 1))
    ids = generator.integers(0, VOCABULARY, (batch, TOKENS))
    mask = (np.arange(TOKENS) < lengths).astype(np.int64)
    types = (np.arange(TOKENS) >= lengths // 2).astype(np.int64)
    return dict(zip(names, (ids, mask, types), strict=False))


def open_session(name: str, dtype: str = "float32") -> trnrt.InferenceSession:
    return trnrt.InferenceSession(load(name).SerializeToString(), dtype=dtype, backend="simulator", cache=False)


def test_graphs_are_small() -> None:
    assert len(NAMES) == 13
    assert sum(path.stat().st_size for path in GRAPHS.iterdir()) < 250_000


@pytest.mark.parametrize("name", NAMES)
def test_outputs_differ_between_inputs(name: str) -> None:
    """What is the same for all inputs, or huge, would prove nothing."""
    session = open_session(name)
    for output in run_onnxruntime(session, draw(load(name), 4)):
        rows = np.asarray(output, np.float32).reshape(4, -1)
        assert np.abs(rows).max() < 50
        assert rows.std(axis=0).mean() > 0.1 * rows.std()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_encoder(name: str, dtype: str) -> None:
    """Every element of every output within what rounding does to it; nothing is left to the host."""
    session = open_session(name, dtype)
    report = validate(session, draw(load(name), 2))
    assert [output for output in report.outputs if not output.passed] == []
    assert report.passed and report.tolerances == "measured"
    assert session.last_run.plan is not None and session.last_run.plan.host == ()
