"""The benchmark of recurrent layers: the bound of a step, and steps that meet the bar."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks.recurrent.__main__ import app
from benchmarks.recurrent.bound import Case, find_bound
from benchmarks.recurrent.table import KINDS, MOST_RATIO, make_cases, measure

SMALL = Case("lstm", 128, 1, "float32", "trn2")


def test_the_chain_of_an_lstm() -> None:
    """By hand, from trn2.toml: a product of four passes, two functions, and three vector instructions, with waits."""
    product = 43 + 4 * 64 / 2.4 + 163 + 15
    function, vector = 23 + 158.3 + 120 + 1 / 1.2 + 10, 24 + 158.3 + 1 / 0.96 + 12
    assert find_bound(SMALL).chain == pytest.approx((product + 2 * function + 3 * vector) / 1000)
    assert find_bound(SMALL).us == find_bound(SMALL).chain


def test_large_layers_are_bound_by_products() -> None:
    """64 products of 4 passes for R @ h, each with a gap of 2.5 ns behind it; W @ x takes a row's share of 512."""
    bound = find_bound(replace(SMALL, hidden=512))
    recurred, projected = 64 * 4 * (64 / 2.4 + 2.5), 64 * 4 * (512 / 2.4 + 2.5) / 512
    assert bound.us == bound.tensor == pytest.approx((recurred + projected) / 1000)
    assert find_bound(replace(SMALL, hidden=512, dtype="bfloat16")).tensor == pytest.approx(bound.tensor / 4)


def test_elements_count() -> None:
    wide = find_bound(replace(SMALL, hidden=256, rows=64))
    assert wide.scalar == pytest.approx(5 * 2 * 64 / 1.2 / 1000) and wide.vector == pytest.approx(
        4 * 2 * 64 / 0.96 / 1000
    )
    assert wide.chain > find_bound(SMALL).chain


@pytest.mark.parametrize("kind", KINDS)
def test_steps_meet_the_bar(kind: str) -> None:
    for row in measure(make_cases(["trn2"], [kind], [256], [1])):
        assert 1 <= row.ratio <= MOST_RATIO and row.us <= row.in_order_us * 1.01


def test_the_command() -> None:
    result = CliRunner().invoke(app, ["--kind", "rnn", "--hidden", "64", "--batch", "1", "--json"])
    document = json.loads(result.stdout)
    assert result.exit_code == 0 and document["passed"] and len(document["rows"]) == 2
    assert document["rows"][0]["ratio"] == pytest.approx(document["rows"][0]["us"] / document["rows"][0]["bound_us"])
    assert "bar: a step takes" in CliRunner().invoke(app, ["--kind", "rnn", "--hidden", "64", "--batch", "1"]).stdout
    assert CliRunner().invoke(app, ["--kind", "lstms"]).exit_code == 2
