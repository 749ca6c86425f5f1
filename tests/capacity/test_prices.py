"""Prices: a user's file, what is wrong with one, and the cheapest plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from arrivals import fewer
from commanding import trnrt

from trnrt.capacity import choosing
from trnrt.capacity.assumptions import Host
from trnrt.capacity.choosing import Demand
from trnrt.capacity.instances import Instance, find_instances, fleets
from trnrt.capacity.planning import Question, answer
from trnrt.capacity.prices import Price, read_prices, usd_per_million
from trnrt.capacity.workers import Served
from trnrt.errors import OptionError
from trnrt.planner.parts.crossing import HostLink
from trnrt.report.capacity import usd_text

ROOT = Path(__file__).parents[2]
CNN = str(ROOT / "models" / "digits_cnn.onnx")
GOOD = """
[instances."trn2.3xlarge"]
usd_per_hour = 7
region = "nowhere-1"
date = 2026-11-26
page = "https://prices.example/trn2"

[instances."trn2.48xlarge"]
usd_per_hour = 3.5
region = "nowhere-1"
date = 2026-11-26
page = "https://prices.example/trn2"
"""


@pytest.fixture(autouse=True)
def fewer_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "stream", fewer)


def write(folder: Path, text: str) -> Path:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_of_prices(tmp_path: Path) -> None:
    found = read_prices(write(tmp_path, GOOD))
    assert found["trn2.3xlarge"] == Price(7.0, "nowhere-1", "2026-11-26", "https://prices.example/trn2")
    assert list(found) == ["trn2.3xlarge", "trn2.48xlarge"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ('"trn2.3xlarge"', '"trn2.4xlarge"', "trn2.4xlarge is no instance type"),
        ("usd_per_hour = 7", "usd_per_hour = -7", "usd_per_hour = -7"),
        ("usd_per_hour = 7", "usd_per_hour = 0", "usd_per_hour = 0"),
        ("usd_per_hour = 7", "usd_per_hour = inf", "usd_per_hour = inf"),
        ("usd_per_hour = 7", "usd_per_hour = true", "usd_per_hour = True"),
        ("usd_per_hour = 7", 'usd_per_hour = "7"', "usd_per_hour = 7"),
        ("usd_per_hour = 7\n", "", "usd_per_hour is missing"),
        ('region = "nowhere-1"\n', "", "region is missing"),
        ('region = "nowhere-1"', 'region = " "', "region = ' '"),
        ("date = 2026-11-26\n", "", "date is missing"),
        ("date = 2026-11-26", 'date = "today"', "date = 'today'"),
        ("date = 2026-11-26", "date = 2026-11-26T10:00:00", "date = '2026-11-26 10:00:00'"),
        ('page = "https://prices.example/trn2"\n', "", "page is missing"),
        ('page = "https://prices.example/trn2"', 'page = "my notes"', "page = 'my notes'"),
        ("usd_per_hour = 7", "usd_per_hour = 7\ndiscount = 1", "discount is no key of a price"),
        ("\n[instances", "\ncurrency = 1\n[instances", "currency is no key of a price file"),
        (GOOD, "", "has no table"),
        (GOOD, "instances = 7", "has no table"),
        (GOOD, "[instances]\n'trn2.3xlarge' = 7", "trn2.3xlarge is not a table"),
        (GOOD, "[instances", "is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, before: str, after: str, told: str) -> None:
    assert before in GOOD
    path = write(tmp_path, GOOD.replace(before, after, 1))
    with pytest.raises(OptionError, match=re.escape(told)) as caught:
        read_prices(path)
    assert "prices.toml" in str(caught.value) and caught.value.hint


def test_a_type_that_is_nearly_right_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        read_prices(write(tmp_path, GOOD.replace("trn2.3xlarge", "trn2.3xlrge")))
    assert caught.value.hint == "did you mean trn2.3xlarge?"


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OptionError, match="can't read the prices"):
        read_prices(tmp_path / name)


def test_the_example_of_the_page_is_a_file_of_prices_once_it_is_filled_in(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    with pytest.raises(OptionError, match="usd_per_hour = 0"):
        read_prices(write(tmp_path, example))  # it has no number that one could take for real
    filled = example.replace("0.0", "1.25").replace('"..."', '"nowhere-1"').replace("https://...", "https://a.example")
    assert read_prices(write(tmp_path, filled))["trn2.3xlarge"].usd_per_hour == 1.25


def test_a_million_at_a_rate() -> None:
    assert usd_per_million(3600.0, 1.0) == 1e6
    assert usd_per_million(7.2, 1000.0) == pytest.approx(2.0)


def test_the_cheapest_fleet_comes_first_and_one_without_a_price_last() -> None:
    known = find_instances("trn2")
    found = fleets(known, 20, 0.1, 0.7, {"trn2.3xlarge": 7.0, "trn2u.48xlarge": 20.0})
    assert [(fleet.instance.name, fleet.count, fleet.usd_per_hour) for fleet in found] == [
        ("trn2u.48xlarge", 1, 20.0),
        ("trn2.3xlarge", 3, 21.0),
        ("trn2.48xlarge", 1, None),
    ]


def test_a_batch_that_needs_more_cores_may_cost_less() -> None:
    """Merged requests need fewer cores, but copying them takes the only vCPU, and so a second instance."""
    served = Served({1: 1000.0, 8: 2000.0}, 1_000_000, 1, 1, mergeable=True)
    host = Host(100.0, 0.0, 0.0, 100.0, 0.0, 1.0, HostLink(10.0, 0.0))
    demand = Demand(rps=4000, p99_us=1e6, rows=1, burst=1.0, utilisation=0.7)
    known = [Instance("small", "trn2", 1, 8, 1, 8, "made up")]
    free = Question("m", "trn2", "float32", (), demand, host, served)
    priced = replace(free, prices={"small": Price(7.0, "nowhere-1", "2026-11-26", "https://prices.example")})
    by_cores, by_cost = answer(free, [1, 8], known), answer(priced, [1, 8], known)
    assert by_cores.chosen is not None and by_cost.chosen is not None
    assert (by_cores.chosen.max_batch, by_cores.fleets[0].count) == (8, 2)
    assert (by_cost.chosen.max_batch, by_cost.fleets[0].count) == (1, 1)
    assert by_cost.chosen.cores > by_cores.chosen.cores
    assert by_cost.usd_per_million(by_cost.fleets[0]) == pytest.approx(7 / 4000 / 3600 * 1e6)
    assert by_cores.usd_per_million(by_cores.fleets[0]) is None


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (None, "-"),
        (12.345, "$12.35"),
        (1234.5, "$1,234.50"),
        (0.25, "$0.25"),
        (0.012345, "$0.0123"),
        (1e-6, "$0.000001"),
        (3e-11, "$0.00000000003"),
        (0.5, "$0.50"),
        (0.9996, "$1.00"),
    ],
)
def test_amounts_are_read_by_people(dollars: float | None, text: str) -> None:
    assert usd_text(dollars) == text


# ---- trnrt plan --prices


def plan(*arguments: str | Path) -> list[str | Path]:
    return ["plan", CNN, "--rps", "5000", "--p99", "20ms", "--target", "trn2", "--max-batch", "2", *arguments]


def test_plan_takes_the_cheapest_instances_and_says_what_they_cost(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    outcome = trnrt(*plan("--prices", path))
    assert outcome.code == 0
    # Without prices the small instance is taken, which rents fewer cores.
    assert "1 x trn2.48xlarge, each runs:" in outcome.out and "1 x trn2.3xlarge, each runs:" in trnrt(*plan()).out
    line = "$3.50 an hour, $0.194 a million requests at this rate: the price in nowhere-1 on 2026-11-26, https://"
    assert line in outcome.out
    assert "$ an hour" in outcome.out and "$ an hour" not in trnrt(*plan()).out
    document = trnrt(*plan("--prices", path, "--json")).document
    first, second, third = document["instances"]
    assert first["name"] == "trn2.48xlarge" and first["usd_per_hour"] == 3.5
    assert first["usd_per_million_requests"] == pytest.approx(3.5 / 5000 / 3600 * 1e6)
    assert first["price"]["region"] == "nowhere-1" and second["usd_per_hour"] == 7
    assert third["price"] is third["usd_per_hour"] is third["usd_per_million_requests"] is None
    assert document["ends"]["low"]["instances"][0]["usd_per_hour"] == 3.5


def test_plan_without_prices_knows_no_cost() -> None:
    document = trnrt(*plan("--json")).document
    assert {fleet["usd_per_hour"] for fleet in document["instances"]} == {None}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--target", "trn1"), "none of the types to choose from"),
        (("--instance", "trn2u.48xlarge"), "none of the types to choose from"),
    ],
)
def test_a_file_without_the_types_to_choose_from_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    outcome = trnrt(*plan("--prices", write(tmp_path, GOOD), *arguments))
    assert outcome.code == 2 and told in outcome.err and not outcome.out
