"""Random quantised graphs: a sample of them gives the integers that numpy does, and onnxruntime agrees with these.

To look into graph 123: ``python tests/shared/random_graphs.py --quantised --seed 123 --count 1``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import islice

import numpy as np
import pytest
from graphs.noise import Dropped, session_of
from graphs.quantised import FORMATS, draw_quantised
from graphs.quantised_draft import OPSETS, Quantised, quantised_model
from graphs.quantised_trying import find_difference, judge_quantised, try_quantised
from graphs.trying import NOTHING, RIGHT, WRONG

from trnrt.importer.quantised.rewriting import rewritten_operators

COUNT, PARTS = 100, 2
# onnxruntime's quantisers don't write these, or another test has them.
UNDRAWN = {
    "MatMulIntegerToFloat", "QLinearAveragePool", "QLinearReduceMean", "QLinearSoftmax", "QLinearWhere",
}  # fmt: skip


def draws(first: int = 0) -> list[Quantised]:
    found = []
    for seed in range(first, first + 400):
        with suppress(Dropped):
            found.append(draw_quantised(seed))
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_quantised_graphs(part: int) -> None:
    found = [try_quantised(seed)[0] for seed in range(part, COUNT, PARTS)]
    ends = Counter(verdict.end for verdict in found)
    assert set(ends) <= {RIGHT, NOTHING}, [verdict for verdict in found if verdict.end not in (RIGHT, NOTHING)]
    assert ends[RIGHT] >= 0.8 * len(found)


def test_every_quantised_operator_is_drawn() -> None:
    graphs = draws()
    drawn = {node.op_type for graph in graphs for node in graph.nodes}
    assert {name for _, name in rewritten_operators()} - drawn == UNDRAWN
    assert {graph.form for graph in graphs} == set(FORMATS) and {graph.opset for graph in graphs} == set(OPSETS)


def test_onnxruntime_has_the_same_integers_where_floats_are_exact() -> None:
    """Dequantised numbers are floats in onnxruntime without rewrites: exact if the scales are powers of two."""
    compared = 0
    for graph in islice((graph for graph in draws() if graph.exact and graph.form == "QDQ"), 40):
        if {node.op_type for node in graph.nodes} & {"Sigmoid", "GlobalAveragePool"}:
            continue
        try:
            answers = session_of(quantised_model(graph)).run(list(graph.outputs), graph.feeds)
        except Dropped:  # a type that it doesn't have
            continue
        for (name, expected), got in zip(graph.outputs.items(), answers, strict=True):
            assert not find_difference(name, got, expected), graph.seed
        compared += 1
    assert compared > 15


def test_a_single_wrong_integer_is_found() -> None:
    graph = next(graph for graph in draws() if graph.rows == 1)
    name, array = next(iter(graph.outputs.items()))
    graph.outputs[name] = array.copy()
    graph.outputs[name].reshape(-1)[-1] += np.asarray(1, array.dtype)
    verdict = judge_quantised(graph)
    assert verdict.end == WRONG and "1 of" in verdict.text
