"""No network or kernel gets slower unseen: ``tests/golden`` has the predicted range of each, and the reason for each
that got slower.

``UPDATE_GOLDEN=1 pytest tests/benchmarks/test_golden_predictions.py`` writes them anew. For ``models.json`` the planner
searches again (``found.json`` keeps what it finds), which takes a while: otherwise it plans as it was found.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import recorded
from recorded import check_lines, compare_lines, is_updating, load_golden, record_group, round_range

from benchmarks.labs.cases import row as predict_case
from benchmarks.labs.table import CASES
from benchmarks.models.networks import Network
from benchmarks.models.table import Model, Row, kinds, networks
from benchmarks.networks.table import NETWORKS, measure
from trnrt.nki.machine.timing import Range
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.session import InferenceSession

TARGETS = ("trn1", "trn2")
BATCHES = (1, 8)
OTHERS = [name for name in NETWORKS if name not in {network.name for network in networks()}]
"""Networks that ``models.json`` hasn't."""


def key(row: Row) -> str:
    return f"{row.target} {row.dtype} batch {row.batch}"


def found_before(network: Network, target: str) -> dict[tuple[str, int], Choices]:
    """What the search has found for a network's rows, when it was last asked."""
    known = load_golden("found").get(network.name, {})
    return {
        (dtype, batch): Choices.from_document(known.get(f"{target} {dtype} batch {batch}", {}))
        for dtype, batch in kinds(network)
    }


def test_the_search_finds_what_is_recorded() -> None:
    network = next(network for network in networks() if network.name == "light_squeezenet")
    session = InferenceSession(
        network.build().SerializeToString(), target="trn2", backend="simulator", cache=False, effort=1
    )
    assert session.partition(1, cached=True).choices == found_before(network, "trn2")["float32", 1] != DEFAULT


# The slowest come first, so that no process is left alone with one of them at the end.
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("network", networks()[::-1], ids=lambda network: network.name)
def test_models(network: Network) -> None:
    model = Model(network)
    known = {target: None if is_updating() else found_before(network, target) for target in TARGETS}
    rows = [row for target in TARGETS for row in model.rows(target, known[target])]
    if is_updating():
        record_group("found", network.name, {key(row): row.choices.document for row in rows if row.choices != DEFAULT})
    check_lines("models", network.name, {key(row): round_range(row.predicted) for row in rows})


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", OTHERS)
def test_networks(name: str) -> None:
    rows = list(measure("trn2", "bfloat16", [name], BATCHES, 0, lambda _: None))
    found = {f"trn2 bfloat16 batch {row.batch}": round_range(row.predicted) for row in rows}
    check_lines("networks", name, found)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
def test_labs(target: str) -> None:
    rows = [predict_case(case) for case in CASES if case.target == target]
    found = {f"{row.case} {row.dtype}": Range(row.low_us, row.predicted_us, row.high_us) for row in rows}
    check_lines("labs", target, {name: round_range(us) for name, us in found.items()})


def test_every_model_is_recorded_and_no_other() -> None:
    golden = load_golden("models")
    assert {name: list(numbers) for name, numbers in golden.items()} == {
        network.name: [f"{target} {dtype} batch {batch}" for target in TARGETS for dtype, batch in kinds(network)]
        for network in sorted(networks(), key=lambda network: network.name)
    }
    assert list(load_golden("networks")) == sorted(OTHERS)


def test_reasons_are_of_lines_that_are_recorded() -> None:
    for reasons in load_golden(recorded.REASONS).values():
        assert reasons.keys() == {"was", "now", "why"} and reasons["why"]


HUNDRED = (90.0, 100.0, 120.0)


def times(factor: float, *, most: float | None = None) -> list[float]:
    return [90 * factor, 100 * factor, 120 * (factor if most is None else most)]


def test_two_percent_are_accepted_and_more_is_told() -> None:
    golden = {"a": HUNDRED, "b": HUNDRED}
    assert compare_lines({"a": times(1.019), "b": times(0.981)}, golden) == []
    slower, faster = compare_lines({"a": times(1.021), "b": times(0.979)}, golden)
    assert slower.startswith("a: +2.1% +2.1% +2.1%") and slower.endswith("or say why")
    assert faster.startswith("b: -2.1%") and faster.endswith("lost unseen")
    lost, new = compare_lines({"a": HUNDRED, "c": HUNDRED}, golden)
    assert lost.startswith("b: recorded") and new.startswith("c: 100.0 (90.0 to 120.0) us, not recorded")


def test_one_end_may_pay_for_the_other() -> None:
    (told,) = compare_lines({"a": times(1.03, most=0.9)}, {"a": HUNDRED})
    assert told.startswith("a: +3.0% +3.0% -10.0%") and told.endswith("lost unseen")


def test_slower_lines_are_recorded_with_a_reason_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "GOLDEN", tmp_path)
    monkeypatch.setenv("UPDATE_GOLDEN", "1")
    monkeypatch.delenv("SLOWER", raising=False)
    check_lines("some", "net", {"a": HUNDRED, "b": HUNDRED})
    with pytest.raises(AssertionError, match=r"net, a: .* or say why"):
        check_lines("some", "net", {"a": times(1.1), "b": times(0.9)})
    assert load_golden("some") == {"net": {"a": list(HUNDRED), "b": times(0.9)}}
    monkeypatch.setenv("SLOWER", "a bug was in the way")
    check_lines("some", "net", {"a": times(1.1), "b": times(0.9)})
    reasons = json.loads((tmp_path / "slower.json").read_text(encoding="utf-8"))
    assert reasons == {"some: net, a": {"was": list(HUNDRED), "now": times(1.1), "why": "a bug was in the way"}}
    monkeypatch.delenv("SLOWER")
    check_lines("some", "net", {"a": times(1.0), "b": times(0.9)})
    assert load_golden("slower") == {}
