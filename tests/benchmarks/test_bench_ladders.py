"""The ladders: ranks with ties, the fit without each ladder, what is kept of it, and the page."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.timing.ladders import (
    BAR,
    LADDERS,
    TIE,
    Ladder,
    Ranking,
    check_ladders,
    keep_rankings,
    rank_ladders,
    ranks,
    read_rankings,
    spearman,
)
from benchmarks.timing.report import LADDER_COLUMNS, ladders_table
from trnrt.calibration.cases import Case
from trnrt.calibration.fit import FREE, Model, Parameter
from trnrt.calibration.published import CASES
from trnrt.nki.machine.pace import Timing

PAGE = Path(__file__).parents[2] / "docs" / "timing.md"
SMALL = ("additions of 25,600 elements, trn2", "additions of 25,600 elements, trn1")
BY_ID = {case.id: case for case in CASES}


# --- ranks


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([10, 30, 20], [1, 3, 2]),
        ([10, 10.2, 20], [1.5, 1.5, 3]),
        ([10, 10.2, 10.4, 20], [2, 2, 2, 4]),  # each is close to the one before it
        ([10, 10.3, 20], [1, 2, 3]),  # 3 % are no tie
        ([5, 5, 5], [2, 2, 2]),
    ],
)
def test_ranks(times: list[float], expected: list[float]) -> None:
    assert ranks(times) == expected
    assert TIE == 0.03


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=12, unique=True), st.randoms())
def test_the_correlation_is_spearman_s(times: list[int], generator: Any) -> None:
    """Without ties it is that of the textbook: 1 - 6 sum d^2 / (n (n^2 - 1))."""
    other = times[:]
    generator.shuffle(other)
    order = [sorted(found).index for found in (times, other)]
    squares = sum((order[0](a) - order[1](b)) ** 2 for a, b in zip(times, other, strict=True))
    n = len(times)
    assert spearman(times, other, tie=0.0) == pytest.approx(1 - 6 * squares / (n * (n * n - 1)))


def test_ties_of_one_side_cost() -> None:
    assert spearman([40, 28, 28.1, 28.2], [40, 28, 28.2, 28.1]) == 1
    assert spearman([40, 28, 28.1, 28.2], [40, 33, 28, 30]) == pytest.approx(3 / 15**0.5)
    assert (spearman([1, 1], [1, 1]), spearman([1, 1], [1, 2]), spearman([1, 2], [2, 1])) == (1, 0, -1)


# --- the ladders


def test_steps_are_cases_of_one_target_and_clock() -> None:
    check_ladders()
    with pytest.raises(ValueError, match="is no case"):
        check_ladders([Ladder("wrong", ("no-such-case",))])
    with pytest.raises(ValueError, match="several targets"):
        check_ladders([Ladder("mixed", ("add-stream-2", "add-stream-2-trn1"))])


def test_every_product_addition_and_convolution_is_in_a_ladder() -> None:
    steps = {step for ladder in LADDERS for step in ladder.hidden_ids}
    wanted = {name for name in BY_ID if name.startswith(("add-", "conv-", "matmul-"))}
    assert wanted - steps == {"matmul-2048-trn2"}  # another product, in one version


def test_the_fit_does_not_see_the_ladder() -> None:
    """A number that only the ladder decides keeps its prior; its own kernels are then ranked by that."""
    parameter = Parameter(("trn2",), "head_ns", 1000, 100000, prior=5000)

    def predict(case: Case, timing: Timing) -> float:
        return case.values_us[0] * (1 + abs(timing.head_ns - 20000) / 1e5)

    seen, hidden = BY_ID["add-stream-2"], BY_ID["add-stream-200"]
    model = Model((parameter,), (seen, hidden), predict)
    both = Ladder("both", (seen.id, hidden.id))
    assert rank_ladders(model, [both])[0].values == {"head_ns": 5000}
    one = rank_ladders(model, [Ladder("one", (hidden.id,))])[0]
    assert one.values["head_ns"] == pytest.approx(20000, rel=0.02)
    assert rank_ladders(model, [Ladder("one", (hidden.id,), beside=(seen.id,))])[0].values == {"head_ns": 5000}


def test_pairs_count_where_the_publication_tells_steps_apart() -> None:
    found = Ranking("l", ("a", "b", "c"), (10, 10.1, 20), (11, 10, 10.5), (1, 2, 3), {})
    assert found.pairs == (1, 2)
    assert not found.meets_bar and replace(found, predicted_us=(10, 11, 30.0)).pairs == (2, 2)


# --- what is kept


def test_rankings_are_kept_as_they_are(tmp_path: Path) -> None:
    kept = read_rankings()
    keep_rankings(kept, tmp_path / "again.json")
    assert read_rankings(tmp_path / "again.json") == kept
    assert [(one.ladder, one.steps) for one in kept] == [(one.name, one.steps) for one in LADDERS]
    assert all(set(one.values) == {parameter.name for parameter in FREE} for one in kept)
    assert json.dumps([one.document for one in kept])


@pytest.mark.parametrize("name", SMALL)
def test_the_kept_times_are_those_of_the_present_model(name: str) -> None:
    """If not: python -m benchmarks.timing --ladders. The other ladders take longer, and go by the same model."""
    (kept,) = [one for one in read_rankings() if one.ladder == name]
    model = Model()
    for index, step in enumerate(kept.steps):
        case = BY_ID[step]
        assert model.predict(case, model.timings[case.target]) == pytest.approx(kept.shipped_us[index])
        point = tuple(_steps_of(parameter, kept.values[parameter.name]) for parameter in FREE)
        assert model.predicted_us(case, point) == pytest.approx(kept.predicted_us[index])


def _steps_of(parameter: Any, value: Any) -> int:
    """The place of a value on a parameter's lattice."""
    places = range(len(parameter.values)) if hasattr(parameter, "values") else range(-256, 257)
    return min(places, key=lambda place: parameter.value_at(place) != value)


# --- the page


def test_the_page_has_the_kept_ladders() -> None:
    table = ladders_table(read_rankings())
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in table.rows]
    head = ["| " + " | ".join(LADDER_COLUMNS) + " |", "|" + "---|" * len(LADDER_COLUMNS)]
    before, start, rest = PAGE.read_text(encoding="utf-8").partition("<!-- ladders -->\n")
    _, end, after = rest.partition("<!-- end of ladders -->\n")
    wanted = "\n".join([*head, *lines]) + "\n"
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(before + start + wanted + end + after, encoding="utf-8")
    assert wanted in PAGE.read_text(encoding="utf-8")


def test_the_page_says_which_ladders_miss_the_bar() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("<!-- end of ladders -->")[2].partition("\n**What would")[0]
    for one in read_rankings():
        assert (one.spearman < BAR) == (f"**`{one.ladder}`** misses" in section), one.ladder
