"""``trnrt plan``: what the ends of the predicted latencies' ranges would need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from arrivals import fewer

from trnrt.capacity import choosing
from trnrt.capacity.assumptions import Host
from trnrt.capacity.choosing import Demand
from trnrt.capacity.instances import find_instances
from trnrt.capacity.planning import Question, answer
from trnrt.capacity.workers import Served
from trnrt.nki.machine.timing import Range
from trnrt.planner.parts.crossing import HostLink
from trnrt.report.capacity import assumed_lines, capacity_document, end_lines
from trnrt.text import range_text

HOST = Host(100.0, 40.0, 10.0, 20.0, 0.0, 1.0, HostLink(10.0, 5.0))
SERVED = Served(
    {1: 200.0, 2: 220.0, 4: 260.0, 8: 340.0}, row_sent=1_000_000, row_in=20_000, row_out=10_000, mergeable=True
)
DEMAND = Demand(rps=4000, p99_us=5000, rows=1, burst=1.0, utilisation=0.7)


@pytest.fixture(autouse=True)
def fewer_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "stream", fewer)


def ranged(low: float, high: float) -> dict[int, Range]:
    """Ranges around ``SERVED``'s headlines."""
    return {size: Range(low * us, us, high * us) for size, us in SERVED.predicted_us.items()}


def test_the_ends_of_the_ranges_are_planned_for_as_if_they_were_headlines() -> None:
    demand, limits, known = replace(DEMAND, rps=400_000), [1, 4], find_instances("trn2")
    ranges = ranged(0.1, 10.0)
    found = answer(Question("m", "trn2", "float32", (), demand, HOST, SERVED, ranges), limits, known)
    plain = answer(Question("m", "trn2", "float32", (), demand, HOST, SERVED), limits, known)
    assert plain.ends == [] and (found.chosen, found.fleets) == (plain.chosen, plain.fleets)  # for the headline
    assert [end.name for end in found.ends] == ["low", "high"]
    for end in found.ends:
        times = {size: r.least_us if end.name == "low" else r.most_us for size, r in ranges.items()}
        alone = Question("m", "trn2", "float32", (), demand, HOST, replace(SERVED, predicted_us=times))
        assert (end.chosen, end.fleets) == (answer(alone, limits, known).chosen, answer(alone, limits, known).fleets)
    low, high = (end.chosen for end in found.ends)
    assert low is not None and high is not None and found.chosen is not None
    assert low.cores <= found.chosen.cores < high.cores
    document = capacity_document(found)
    assert {name: end["chosen"]["cores"] for name, end in document["ends"].items()} == {
        "low": low.cores,
        "high": high.cores,
    }
    assert document["low_us"]["4"] == pytest.approx(0.1 * document["predicted_us"]["4"])
    told = [line.plain for line in end_lines(found)]
    assert f"if the device takes the most of its range: {high.cores:,} cores" in told[1]
    assert told[2].startswith("Uncertain: the range of batch 1,") and "too wide to plan with" in told[2]


def test_an_end_that_is_not_possible_is_told() -> None:
    question = Question("m", "trn2", "float32", (), DEMAND, HOST, SERVED, ranged(0.95, DEMAND.p99_us))
    found = answer(question, [1], find_instances("trn2"))
    assert found.chosen is not None and found.ends[1].chosen is None and found.ends[1].fleets == []
    assert end_lines(found)[1].plain == "if the device takes the most of its range: not possible"
    assert capacity_document(found)["ends"]["high"] == {"chosen": None, "instances": []}


def test_a_plan_says_the_range_of_its_batch() -> None:
    question = Question("m", "trn2", "float32", (), DEMAND, HOST, SERVED, ranged(0.9, 1.2))
    found = answer(question, [4], find_instances("trn2"))
    assert not any("Uncertain" in line.plain for line in end_lines(found))
    (line,) = [line for line in assumed_lines(found) if line.startswith("the device")]
    assert f"a batch of 4 {range_text(question.ranges[4])}; the plan is made for the headline" in line
