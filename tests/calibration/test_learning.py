"""The fit of the timing model to reports: it finds changed numbers again, and names those that it can't decide.

The reports are made by the model itself, of a device with other numbers, with noise (benchmarks/reports). Here a part
of the probes has to do; ``python -m benchmarks.reports`` changes every number with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from rehearsed import PROBES

from benchmarks.reports.rehearsal import HOST, Host, made_up_report, predictions
from trnrt.calibration.learning import Learned, Observation, learn
from trnrt.calibration.reports import probed_observations, report_of


def learned(changes: Mapping[str, float], seed: int, host: Host | None = HOST) -> Learned:
    document = made_up_report("trn2", changes, seed, host, PROBES)
    return learn(probed_observations([report_of(document, "digest", "report.json")]), predictions("trn2"))


def off(found: Learned, changes: Mapping[str, float]) -> dict[str, float]:
    """Decided number -> how far it is from the truth, as a share."""
    return {one.name: abs(one.value / (one.before * changes.get(one.name, 1.0)) - 1) for one in found.decided_numbers}


DECIDED = {"vector.clock_ghz", "scalar.clock_ghz", "dma.total_gbps", "dma.engine_gbps", "dma.packet_ns"}
DECIDED |= {"dma.trigger_hardware_ns"}


@pytest.mark.parametrize(
    "changes",
    [
        {"vector.clock_ghz": 0.75},
        {"dma.packet_ns": 1.3},
        {"dma.trigger_hardware_ns": 0.8},
        {"scalar.clock_ghz": 1.3, "dma.total_gbps": 0.75, "dma.packet_ns": 0.8},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_changed_numbers_are_found_again(changes: dict[str, float]) -> None:
    found = learned(changes, seed=5)
    assert {one.name for one in found.decided_numbers} == DECIDED
    assert max(off(found, changes).values()) <= 0.05
    for one in found.decided_numbers:
        assert one.low <= one.before * changes.get(one.name, 1.0) * 1.02 and one.half <= 0.05
    assert found.hosts[0] == pytest.approx((HOST.us, HOST.us_per_mb), rel=0.03)


def test_what_cannot_be_decided_is_left() -> None:
    """The program's fixed cost is the host's to the host's clock; the start of a transfer is seen in a sum only."""
    changes = {"benchmark_ns": 1.3, "dma.start_hardware_ns": 0.75, "vector.signal_ns": 1.3}
    found = learned(changes, seed=6)
    left = {one.name for one in found.left_numbers}
    assert set(changes) <= left and max(off(found, changes).values()) <= 0.05
    unused = {one.name for one in found.left_numbers if not one.moves}
    assert {"tensor.clock_ghz", "dma.transpose_share", "table_load_ns", "dma.trigger_software_ns"} <= unused
    for name in left:
        part, _, last = name.rpartition(".")
        timing = getattr(found.timing, part) if part else found.timing
        own = predictions("trn2").timing
        assert getattr(timing, last) == getattr(getattr(own, part) if part else own, last)


def test_a_device_clock_has_no_host() -> None:
    found = learned({"dma.packet_ns": 1.3}, seed=7, host=None)
    assert found.hosts == {} and max(off(found, {"dma.packet_ns": 1.3}).values()) <= 0.05
    assert "dma.packet_ns" in {one.name for one in found.decided_numbers}


def test_a_device_clock_decides_the_programs_own_cost() -> None:
    """To the host's clock that cost is the host's."""
    changes = {"benchmark_ns": 1.2}
    for host in (None, HOST):
        found = learned(changes, seed=5, host=host)
        (number,) = (one for one in found.numbers if one.name == "benchmark_ns")
        assert number.is_decided == (host is None)
        if host is None:
            assert number.value == pytest.approx(1.2 * number.before, rel=0.02)


def test_two_reports_have_hosts_of_their_own() -> None:
    changes, slow = {"vector.clock_ghz": 0.8}, Host(900.0, 20.0)
    documents = [made_up_report("trn2", changes, seed, host, PROBES) for seed, host in ((8, HOST), (9, slow))]
    both = [report_of(document, str(k), "report.json") for k, document in enumerate(documents)]
    found = learn(probed_observations(both), predictions("trn2"))
    assert found.hosts[1] == pytest.approx((slow.us, slow.us_per_mb), rel=0.03)
    assert max(off(found, changes).values()) <= 0.05


def test_times_that_no_numbers_explain_decide_nothing() -> None:
    """Times that have nothing to do with the cases."""
    report = report_of(made_up_report("trn2", {}, 1, HOST, PROBES), "", "report.json")
    cases = [one.case for one in probed_observations([report])]
    wild = [Observation(case, 0, 50.0 + 997 * k % 700, 0.5, "device") for k, case in enumerate(cases)]
    assert learn(wild, predictions("trn2")).decided_numbers == ()
