"""The benchmark of sizes: networks of the right sizes, the bar, and what is shown of a budget that can't be met."""

from __future__ import annotations

import json
import math

import onnx
import pytest
from click.testing import CliRunner
from planning import drawn, modelled

from benchmarks.baseline.building import PARAMETER
from benchmarks.size import table
from benchmarks.size.__main__ import app
from benchmarks.size.report import size_document, size_parts
from benchmarks.size.table import MOST_RATIO, Compared, Row, measure
from benchmarks.size.vit import vit_b_16
from trnrt.nki.machine.timing import Range
from trnrt.planner.options import DEFAULT_BUDGET
from trnrt.report.console import render


def chain() -> onnx.ModelProto:
    """Three steps that are not fused."""
    return modelled(
        "(float[N,6] x) => (float[N,6] y) { a = Softmax(x)  b = MatMul(a, w)  y = Softmax(b) }", {"w": drawn(6, 6)}
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small network in place of the four."""
    monkeypatch.setattr(table, "NETWORKS", {"chain": chain})


def test_vit_has_the_published_number_of_parameters() -> None:
    """86,567,656: torchvision's table of classification weights."""
    sizes = [math.prod(t.dims) for t in vit_b_16().graph.initializer if t.name.startswith(PARAMETER)]
    assert sum(sizes) == 86_567_656


def test_a_row_for_each_batch_and_budget(small: None) -> None:
    rows = list(measure("trn2", [], budgets=(DEFAULT_BUDGET, 12, 2)))
    assert [(one.row.batch, one.row.budget) for one in rows] == [
        (batch, budget) for batch in (1, 8) for budget in (0, DEFAULT_BUDGET, 12, 2)
    ]
    free, default, cut, refused = rows[:4]
    assert free.row.compiled == default.row.compiled and default.ratio == 1.0 and default.meets_bar
    assert len(cut.row.compiled) > 1 and max(cut.row.compiled) <= 12
    assert cut.ratio is not None and cut.ratio > 1 and cut.meets_bar is None
    assert refused.row.predicted is None and "alone takes" in refused.row.problem
    text = render(size_parts(rows))
    assert refused.row.problem.split(":")[1].strip() in " ".join(text.split())


def test_the_bar() -> None:
    """It is the range's end that counts."""
    before = Row("net", 1, 0, (10,), (10,), 1, Range(1.0, 2.0, 4.0))
    within, beyond = (
        Compared(Row("net", 1, DEFAULT_BUDGET, (10,), (10,), 1, Range(1.0, 2.0, 4.0 * ratio)), before)
        for ratio in (MOST_RATIO - 0.001, MOST_RATIO + 0.001)
    )
    assert within.meets_bar and beyond.meets_bar is False
    assert size_document([within])["passed"] and not size_document([within, beyond])["passed"]


def test_the_command(small: None) -> None:
    outcome = CliRunner().invoke(app, ["--only", "chain", "--json"])
    assert outcome.exit_code == 0
    assert [row["model"] for row in json.loads(outcome.stdout)["rows"]] == ["chain"] * 6
    assert CliRunner().invoke(app, ["--only", "nothing"]).exit_code == 2
