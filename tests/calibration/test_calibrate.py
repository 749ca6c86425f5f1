"""``trnrt calibrate`` and ``--timing``: from reports to numbers that all verbs predict with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
from commanding import trnrt
from rehearsed import PROBES

from benchmarks.reports.rehearsal import made_up_report
from trnrt.errors import OptionError
from trnrt.nki.machine.overlays import CAUSE, overlay_text, read_overlay
from trnrt.nki.machine.targets import cache_name, get_target, overlay_of

ROOT = Path(__file__).parents[2]
FFNN = ROOT / "models" / "digits_ffnn.onnx"
CHANGES = {"vector.clock_ghz": 0.75, "dma.packet_ns": 1.3}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return made_up_report("trn2", CHANGES, 11, names=(*PROBES, "add_direct", "matmul_blocked"))


@pytest.fixture
def report(document: dict[str, Any], tmp_path: Path) -> Path:
    return saved(document, tmp_path / "report.json")


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    before = os.environ.get("TRNRT_TIMING")
    yield
    assert os.environ.get("TRNRT_TIMING") == before


def saved(document: Any, path: Path) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


OVERLAY = """
like = "trn2"
made = "2026-11-23"
trnrt = "0.1.0"
error_before = 0.2
error_after = 0.01
[[reports]]
digest = "0123456789ab"
made = "2026-11-20"
versions = "nki 0.7.0"
[[numbers]]
name = "dma.total_gbps"
value = 167.0
low = 160.0
high = 170.0
before = 334.0
"""


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    path = tmp_path / "timing.toml"
    path.write_text(OVERLAY, encoding="utf-8")
    return path


def test_from_a_report_to_a_prediction(report: Path, tmp_path: Path) -> None:
    out, copy = tmp_path / "timing.toml", tmp_path / "calibration.json"
    ran = trnrt("calibrate", report, "-o", out, "--json-out", copy)
    found = json.loads(copy.read_text(encoding="utf-8"))
    assert ran.code == 0 and f"use the numbers with --timing {out}" in ran.err
    decided = {one["name"]: one for one in found["numbers"] if one["decided"]}
    own = {"vector.clock_ghz": 0.96, "dma.packet_ns": 8.0}
    for name, factor in CHANGES.items():
        assert decided[name]["value"] == pytest.approx(own[name] * factor, rel=0.05)
        assert name in ran.out
    assert "left as they are" in ran.out and "benchmark_ns" in ran.out.split("left as they are")[1]
    places = {one["name"]: one for one in found["places"]}
    for place in ("vector", "DMA packets"):
        assert places[place]["error_before"] > 0.05 > places[place]["error_after"]
    kernels = {one["name"]: one for one in found["kernels"]}
    assert kernels["add_vectors"]["count"] == 1 and "probes.repeat_loads" in kernels
    assert found["hosts"][0]["us"] == pytest.approx(180, rel=0.03)
    read = read_overlay(out)
    assert {number.name for number in read.numbers} == set(decided) and read.error_after < read.error_before
    before = trnrt("profile", FFNN, "--target", "trn2", "--json").document
    after = trnrt("profile", FFNN, "--target", "trn2", "--json", "--timing", out)
    assert after.code == 0 and f"{out}: {read.describe()}" in after.err
    assert after.document["timing"] == read.describe() and "timing" not in before
    assert after.document["predicted_us"]["benchmark"] > before["predicted_us"]["benchmark"]


def test_a_calibration_starts_from_the_targets_own_numbers(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An overlay's intervals are sharp: what starts from one decides less, and its file would lose the rest.
    probes = ("bytes", "bytes_of_an_engine", "descriptors_of_4")
    report = saved(made_up_report("trn2", {"dma.packet_ns": 1.3}, 3, names=probes), overlay.parent / "report.json")
    plain, first = trnrt("calibrate", report, "--json"), overlay.parent / "first.toml"
    trnrt("calibrate", report, "-o", first)
    monkeypatch.setenv("TRNRT_TIMING", str(first))
    again = trnrt("calibrate", report, "--json")
    assert again.document == plain.document
    (packets,) = (one for one in again.document["numbers"] if one["name"] == "dma.packet_ns")
    assert packets["before"] == 8.0 and packets["decided"]
    assert f"TRNRT_TIMING={first} is not used here" in again.err and "is not used" not in plain.err


def test_the_targets_numbers_under_an_overlay(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, other = get_target("trn2"), cache_name("trn1")
    assert overlay_of("trn2") is None and cache_name("trn2") == "trn2"
    monkeypatch.setenv("TRNRT_TIMING", str(overlay))
    changed = get_target("trn2")
    assert changed.name == "trn2" and changed.timing.dma.total_gbps == 167.0 != plain.timing.dma.total_gbps
    assert cache_name("trn2").startswith("trn2@") and cache_name("trn1") == other
    assert get_target("gen3").timing == changed.timing
    assert get_target("trn1").timing.dma == get_target("trn1").timing.dma and overlay_of("trn1") is None
    assert changed.timing.move_to("least").dma.total_gbps == 170.0
    assert changed.timing.move_to("most").dma.total_gbps == 160.0
    assert [one.cause for one in changed.timing.uncertain][-1] == CAUSE
    assert changed.timing.dma.packet_ns == plain.timing.dma.packet_ns


def test_all_that_is_written_names_the_overlay(overlay: Path, tmp_path: Path) -> None:
    html, chrome = tmp_path / "page.html", tmp_path / "trace.json"
    assert trnrt("profile", FFNN, "--timing", overlay, "--html", html, "--trace", chrome).code == 0
    described = read_overlay(overlay).describe()
    assert json.loads(chrome.read_text(encoding="utf-8"))["otherData"]["timing"] == described
    assert escape(described) in html.read_text(encoding="utf-8")
    planned = trnrt("plan", FFNN, "--rps", "100", "--p99", "20ms", "--timing", overlay)
    assert described in planned.out + planned.err and planned.code == 0


def test_an_overlay_is_written_as_it_is_read(overlay: Path, tmp_path: Path) -> None:
    first = read_overlay(overlay)
    again = tmp_path / "again.toml"
    again.write_text(overlay_text(first), encoding="utf-8")
    second = read_overlay(again)
    assert (second.like, second.reports, second.numbers) == (first.like, first.reports, first.numbers)


@pytest.mark.parametrize("verb", ["profile", "inspect", "nki"])
def test_numbers_of_another_target_are_refused(verb: str, overlay: Path) -> None:
    arguments = ("nki", "profile", ROOT / "kernels" / "addition.py") if verb == "nki" else (verb, FFNN)
    ran = trnrt(*arguments, "--timing", overlay, "--target", "trn1")
    assert (ran.code, ran.out) == (2, "") and "has numbers of trn2, not of trn1" in ran.err


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('like = "trn2"', 'like = "trn9"', "is no target of trnrt"),
        ("dma.total_gbps", "dma.total", "is no key of [timing]"),
        ("value = 167.0", "value = -1", "it is a number from 0"),
        ("low = 160.0", "low = 169.0", "low, value and high ascend"),
        ("made =", "day =", "is no key"),
        ("[[numbers]]", "[[numbers", "it is not TOML"),
    ],
)
def test_overlays_that_are_wrong(old: str, new: str, told: str, overlay: Path) -> None:
    overlay.write_text(OVERLAY.replace(old, new, 1), encoding="utf-8")
    ran = trnrt("profile", FFNN, "--timing", overlay)
    assert (ran.code, ran.out) == (2, "") and told in ran.err


def test_an_overlay_that_is_not_there() -> None:
    with pytest.raises(OptionError, match="can't read the timing"):
        read_overlay(Path("nowhere.toml"))


def changed(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**document, **changes}


def test_reports_that_are_wrong(document: dict[str, Any], report: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    broken = [{**document["cases"][0], "measured": {"median": -1}}]
    for wrong, told in (
        (changed(document, kind="profile"), "is no report of a self-test"),
        (changed(document, target="trn9"), "is of the target 'trn9'"),
        (changed(document, cases=broken), "cases[0] is broken"),
        ([], "is no report of a self-test"),
    ):
        ran = trnrt("calibrate", saved(wrong, other))
        assert (ran.code, ran.out) == (2, "") and told in ran.err
    other.write_text("{", encoding="utf-8")
    assert "is not JSON" in trnrt("calibrate", other).err
    assert trnrt("calibrate", tmp_path / "nowhere.json").code == 2
    assert "is given twice" in trnrt("calibrate", report, report).err
    mixed = trnrt("calibrate", report, saved(made_up_report("trn1", {}, 1, names=("bytes",)), other))
    assert mixed.code == 2 and "the reports are of trn1 and trn2" in mixed.err


def test_reports_that_say_nothing(document: dict[str, Any], tmp_path: Path) -> None:
    """Exit code 1: the files are right, and the answer is no."""
    path = tmp_path / "report.json"
    simulated = [{**case, "measured": None} for case in document["cases"]]
    ran = trnrt("calibrate", saved(changed(document, cases=simulated, backend="simulator"), path))
    assert ran.code == 1 and "has no times of a device (simulator)" in ran.err
    foreign = [{**case, "ran": {"kernel": "of another version"}} for case in document["cases"]]
    ran = trnrt("calibrate", saved(changed(document, cases=foreign), path))
    assert ran.code == 1 and "which has other cases" in ran.err
    few = [case for case in document["cases"] if case["name"] == "bytes_2"]
    ran = trnrt("calibrate", saved(changed(document, cases=few), path), "-o", tmp_path / "timing.toml")
    assert ran.code == 1 and "decide no number" in ran.err and not (tmp_path / "timing.toml").exists()


def timed_by(case: dict[str, Any], clock: str) -> dict[str, Any]:
    return {**case, "measured": {**case["measured"], "clock": clock}}


def test_calls_that_compile_teach_nothing(document: dict[str, Any], tmp_path: Path) -> None:
    path, probes = tmp_path / "report.json", ("bytes", "desc")
    some = [case for case in document["cases"] if case["name"].startswith(probes)]
    others = [case for case in document["cases"] if case["name"] in ("additions_64_32", "additions_64_256")]
    calls = [timed_by({**case, "measured": {**case["measured"], "runs": 1}}, "call") for case in others]
    with_calls = trnrt("calibrate", saved(changed(document, cases=[*some, *calls]), path), "--json")
    assert with_calls.code == 0 and "2 times left out: each call compiled (route jit)" in with_calls.err
    assert with_calls.document["reports"][0]["calls"] == ["additions_64_32", "additions_64_256"]
    without = trnrt("calibrate", saved(changed(document, cases=some), path), "--json")
    assert without.document["numbers"] == with_calls.document["numbers"] and "left out" not in without.err
    only = trnrt("calibrate", saved(changed(document, cases=[timed_by(case, "call") for case in some]), path))
    assert (only.code, only.out) == (1, "") and "--route neff" in only.err
    assert "hold a compilation" in only.err
    assert trnrt("calibrate", saved(changed(document, cases=[timed_by(some[0], "moon")]), path)).code == 2


def test_a_case_timed_with_an_unknown_host_is_not_compared(tmp_path: Path) -> None:
    document = made_up_report("trn2", {}, 3, host=None, names=("bytes", "descriptors_of_4", "add_direct"))
    path = tmp_path / "report.json"
    names = [row["name"] for row in trnrt("calibrate", saved(document, path), "--json").document["cases"]]
    assert names == ["bytes", "descriptors_of_4", "add_direct"]
    cases = [timed_by(case, "host") if case["name"] == "add_direct" else case for case in document["cases"]]
    ran = trnrt("calibrate", saved(changed(document, cases=cases), path), "--json")
    assert [row["name"] for row in ran.document["cases"]] == names[:2] and ran.document["hosts"] == []


def test_cases_of_another_version_are_left_out(document: dict[str, Any], tmp_path: Path) -> None:
    first, *rest = (case for case in document["cases"] if case["name"].startswith(("bytes", "desc")))
    cases = [{**first, "ran": {}}, *rest]
    ran = trnrt("calibrate", saved(changed(document, cases=cases), tmp_path / "report.json"), "--json")
    assert ran.code == 0 and "1 case left out" in ran.err
    assert ran.document["reports"][0]["left_out"] == [first["name"]]
