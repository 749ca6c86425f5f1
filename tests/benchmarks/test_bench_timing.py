"""The timing model's calibration: its table, its arithmetic, its fit, and its bars."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.timing import instructions, ladders, table
from benchmarks.timing.__main__ import app
from benchmarks.timing.calibration import Calibration, shortening_error
from benchmarks.timing.instructions import MEASURES, InstructionRow
from benchmarks.timing.ladders import Ranking
from benchmarks.timing.table import BARS, LEFT_OUT_BARS, Summary, summary
from trnrt.calibration import cases, fit
from trnrt.calibration.cases import Case, Row, figure_us, measurements, predicted_us, published_facts
from trnrt.calibration.fit import Choice, Fit, Fitted, Parameter
from trnrt.calibration.published import BLOCKS, CASES, LARGE_BLOCKS, groups, line, plane
from trnrt.nki import nisa
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import WIDEST, Range
from trnrt.nki.profiling import profile_programs

BY_ID = {case.id: case for case in CASES}
TARGETS = ("trn1", "trn2")


# --- the cases are the published measurements


FIGURES = {
    *(f"M-{n:02}" for n in range(1, 14)),
    *("M-20", "M-22", "M-30", "M-31", "M-41", "M-5D", "M-54", "M-55", "M-56", "M-57", "M-59", "M-60", "M-62", "M-7I"),
}
"""The numbers of all published figures that may be calibrated on, but those that were left out."""


def test_every_measurement_has_a_case() -> None:
    assert {case.id for case in CASES} == measurements().keys()
    assert len(CASES) == len(measurements()) == 37
    assert {case.target for case in CASES} == set(TARGETS)
    assert BY_ID["exp-4x4096"].values_us == (7.626,)
    assert sum(BY_ID["exp-4x4096"].facts["parts"].values()) == 7626
    assert BY_ID["matmul-best-trn1"].values_us == (6970,)


def test_every_figure_is_there() -> None:
    shown = [case.facts["figure"] for case in CASES]
    assert {figure for figure in shown if figure} == FIGURES
    assert {figure: shown.count(figure) for figure in FIGURES if shown.count(figure) > 1} == {
        "M-30": 2,
        "M-31": 2,
        "M-41": 2,
        "M-5D": 6,
    }
    assert {case.id for case in CASES if not case.facts["figure"]} == {"matmul-best-trn1", "silu-trn1"}
    (left_out,) = published_facts()["left_out"]
    assert left_out["figures"] == ["M-50", "M-51", "M-52"] and left_out["why"]


def test_what_is_said_of_each_figure() -> None:
    for case in CASES:
        assert case.author and case.facts["source"]
        assert str(case.facts["clock"]) in ("profiler", "benchmark", "parts")
        assert case.facts["mode"] in cases.MODES and case.facts["rewritable"] in ("yes", "no", "unknown")
        assert case.target == "trn2" or case.facts["mode"] == "static"
    assert BY_ID["add-rows-1"].facts["mode"] == "software"  # it ran without a profile: the device made descriptors
    assert list(BY_ID["add-rows-128-trn1"].values_us) == [206]
    assert list(BY_ID["add-stream-1000"].values_us) == [26.4, 27.9]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.id))
def test_kernels_have_the_published_descriptors(case: Case) -> None:
    length = min(case.short, default=case.length)
    transfers = [i for i in cases.program(case, length).instructions if "dge_mode" in i.args]
    modes = {i["dge_mode"] for i in transfers}
    expected = {cases.MODES[case.facts["mode"]]}
    if case.id.startswith("attention-unfused"):
        expected.add(nisa.dge_mode.hwdge)  # the scores'
    assert modes == expected


def test_the_published_sizes() -> None:
    shapes = {case.id: [argument.shape for argument in case.arguments(*case.length)] for case in CASES}
    product = [(8192, 4096), (8192, 8192)]
    large = [name for name in shapes if name.startswith("matmul") and "2048" not in name]
    assert len(large) == 11 and all(shapes[name] == product for name in large)
    assert shapes["matmul-2048-trn2"] == [(2048, 2048)] * 2
    assert all(shapes[f"add-rows-{n}"] == [(25600, 1)] * 2 for n in ("1", "128", "1-trn1", "128-trn1"))
    streams = [name for name in shapes if name.startswith("add-stream")]
    assert all(np.prod(shapes[name][0]) == (256000 if "000" in name else 25600) for name in streams)
    assert shapes["transpose-1024"] == shapes["transpose-1024-vector"] == [(1024, 1024)]
    for name in (name for name in shapes if name.startswith("conv")):
        assert shapes[name] == [(256, 224, 224), (256, 256, 3, 3), (256, 1)]
    assert shapes["attention-fused-fp32-512"] == shapes["attention-unfused-fp32-512"] == [(128, 512)] * 3
    assert shapes["silu-trn1"] == [(4096, 7168)]
    assert shapes["exp-4x4096"] == [(4, 4096)]


def test_published_facts_name_their_sources() -> None:
    for kind in ("parameters", "instructions", "measurements"):
        assert all(entry["source"] and entry["target"] for entry in published_facts()[kind])
    for kind in ("instructions", "measurements"):
        names = [entry["id"] for entry in published_facts()[kind]]
        assert len(set(names)) == len(names)


# --- predictions


@pytest.mark.parametrize("clock", ["benchmark", "profiler"])
def test_figures_are_those_of_a_profile(clock: str) -> None:
    case = BY_ID["add-stream-2000"]
    profile = profile_programs([cases.program(case, case.length)])
    expected = profile.benchmark_us if clock == "benchmark" else profile.profiler_us
    assert figure_us(clock, cases.timeline(case, case.length)) == pytest.approx(expected, abs=0.001)  # type: ignore[arg-type]


def test_the_parts_of_a_kernel() -> None:
    case = BY_ID["exp-4x4096"]
    parts = cases.parts_us(cases.timeline(case, case.length))
    assert list(parts) == ["load", "table load", "activation", "store"]
    assert parts["activation"] > 4096 / 1.2 / 1000
    assert sum(parts.values()) == predicted_us(case)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("add-rows-1", 1600),
        ("add-rows-1-trn1", 1600),
        ("matmul-ladder-1-trn1", 16),
        ("matmul-tiled-trn2", 16),
        ("silu-trn1", 32),
        ("conv-rows-fp32", 64),
        ("conv-rows-fp16-pool", 64),
        ("conv-blocks-fp16-pool", 64),
    ],
)
def test_shortened_kernels_take_what_whole_ones_take(name: str, length: int) -> None:
    near, far = (number for (number,) in BY_ID[name].short)
    case = replace(BY_ID[name], length=(length,), short=line(near, far, length))
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.005)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("matmul-best-trn1", {(2, 2): 1 - 2 - 4, (3, 2): 2, (2, 3): 4}),
        ("matmul-blocked-trn2", {(3, 3): 1 - 1 - 4 / 3, (4, 3): 1, (3, 4): 4 / 3}),
    ],
)
def test_shortened_products_take_what_whole_ones_take(name: str, short: dict[tuple[int, ...], float]) -> None:
    assert min(BY_ID[name].short) == min(short)
    case = replace(BY_ID[name], length=(4, 4), short=short)
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.005)


@pytest.mark.parametrize("name", ["matmul-ladder-2-trn1", "matmul-ladder-3-trn1"])
def test_shortened_groups_take_what_whole_ones_take(name: str) -> None:
    case = replace(BY_ID[name], length=(2, 6), short=groups((2, 6)))
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.01)


def test_shortened_columns_take_what_whole_ones_take() -> None:
    case = replace(BY_ID["matmul-hoisted-trn2"], length=(4, 4), short=plane((2, 3), (4, 4)))
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.01)


def test_weights_are_those_of_straight_lines() -> None:
    def time(rows: int, columns: int) -> float:
        return 7 + 5 * rows + 3 * rows * columns

    for near, whole in (((2, 2), (32, 16)), ((1, 3), (4, 9))):
        weights = plane(near, whole)
        assert sum(weight * time(*length) for length, weight in weights.items()) == pytest.approx(time(*whole))
    assert sum(w * (7 + 3 * r * c) for (r, c), w in groups((16, 8)).items()) == pytest.approx(7 + 3 * 128)
    assert sum(w * (7 + 3 * n) for (n,), w in line(4, 8, 512).items()) == pytest.approx(7 + 3 * 512)
    assert [sum(weights.values()) for weights in (BLOCKS, LARGE_BLOCKS)] == pytest.approx([1, 1])


def test_weights_of_shortened_kernels_add_up_to_one() -> None:
    assert all(sum(case.short.values()) == pytest.approx(1) for case in CASES if case.short)


def test_another_timing_is_used_and_not_kept() -> None:
    case = BY_ID["add-stream-2000"]
    timing = get_target("trn2").timing
    before = predicted_us(case)
    assert predicted_us(case, replace(timing, head_ns=timing.head_ns + 5000)) == pytest.approx(before + 5)
    assert predicted_us(case) == before


def test_every_single_instruction_was_published() -> None:
    rows = {row.id: row for row in instructions.compare_instructions()}
    assert rows.keys() == MEASURES.keys()
    assert all(row.measured_ns > 0 and row.predicted_ns > 0 for row in rows.values())
    assert rows["tensor_tensor-sbuf"].measured_ns == pytest.approx(158.3 + 512 / 0.96, abs=0.1)
    assert rows["tensor_copy-sbuf"].measured_ns == 428.5
    assert rows["dma-packet-16-trn1"].measured_ns == 779
    assert abs(rows["tensor_tensor-sbuf"].error) < 0.02
    assert abs(rows["activation-copy"].error) < 0.02


# --- the table


def sure(us: float) -> Range:
    return Range(us, us, us)


def a_row(error: float, name: str = "add-stream-2") -> Row:
    case = BY_ID[name]
    return cases.row(case, sure(case.values_us[0] * (1 + error)))


def test_errors() -> None:
    assert a_row(-0.1).error == pytest.approx(-0.1)
    assert InstructionRow("a", "trn2", "a", 200.0, 210.0).error == pytest.approx(0.05)
    found = summary([a_row(0.01), a_row(-0.3), a_row(0.05)])
    assert found.median_error == pytest.approx(0.05)
    assert found.worst_error == pytest.approx(0.3)
    assert found.inside == 0


def test_an_error_is_to_the_nearest_of_several_figures() -> None:
    case = BY_ID["add-stream-1000"]
    assert [cases.row(case, sure(us)).measured_us for us in (20, 26.5, 27.7, 40)] == [26.4, 26.4, 27.9, 27.9]


def test_what_lies_inside_a_range() -> None:
    case = BY_ID["add-stream-1000"]
    assert Row(case, 25.0, 24.0, 26.4).inside
    assert not Row(case, 25.0, 24.0, 26.3).inside
    assert not Row(case, 27.0, 26.5, 27.8).inside  # between two figures is no figure
    assert Row(case, 27.0, 26.0, 28.0).inside  # around both
    assert summary([Row(case, 25.0, 24.0, 26.4), Row(case, 25.0, 24.0, 26.3)]).inside == 0.5


def test_a_range_that_is_too_wide_says_nothing() -> None:
    case = BY_ID["add-stream-1000"]
    assert Row(case, 25.0, 20.0, 32.0).inside
    assert not Row(case, 25.0, 20.0, 32.01).inside
    assert Row(case, 25.0, 20.0, 32.0).ratio == WIDEST == 1.6


def test_a_row_has_the_prediction_s_range() -> None:
    case = BY_ID["add-stream-2000"]
    (found,) = table.compare([case])
    expected = profile_programs([cases.program(case, case.length)]).profiler
    assert (found.low_us, found.predicted_us, found.high_us) == pytest.approx(
        (expected.least_us, expected.us, expected.most_us)
    )
    assert found.low_us < found.predicted_us < found.high_us


def test_the_range_of_a_long_kernel_follows_from_shorter_ones() -> None:
    case = replace(BY_ID["silu-trn1"], length=(12,), short=line(4, 8, 12))
    near, far = (cases.predicted_range(replace(case, length=(n,))) for n in (4, 8))
    found = cases.predicted_range(case, short=True)
    for end in ("least_us", "us", "most_us"):
        assert getattr(found, end) == pytest.approx(2 * getattr(far, end) - getattr(near, end))
    assert found.us == pytest.approx(predicted_us(case, short=True))


def test_bars() -> None:
    assert (BARS.median_error, BARS.worst_error, BARS.inside) == (0.05, 0.20, 0.80)
    assert (LEFT_OUT_BARS.median_error, LEFT_OUT_BARS.worst_error, LEFT_OUT_BARS.inside) == (0.08, 0.25, 0.80)
    assert Summary(0.05, 0.2, 0.8, 1.2).passed()
    assert not Summary(0.051, 0.2, 0.8, 1.2).passed()
    assert not Summary(0.05, 0.201, 0.8, 1.2).passed()
    assert not Summary(0.05, 0.2, 0.79, 1.2).passed()
    assert not Summary(0.05, 0.2, 0.8, 1.21).passed()
    assert Summary(0.08, 0.25, 0.8, 1.2).passed(LEFT_OUT_BARS)


def test_a_fit_must_pass_without_each_author_too() -> None:
    case = BY_ID["add-stream-2"]
    good = (Row(case, 187.0, 180.0, 190.0),)
    near = (Row(case, 200.0, 180.0, 210.0),)  # 7.5 %
    bad = (Row(case, 300.0, 180.0, 310.0),)
    assert Calibration(good, ()).passed
    assert not Calibration(near, ()).passed
    assert Calibration(good, (), Fit((), good, good)).passed
    assert Calibration(good, (), Fit((), good, near)).passed
    assert not Calibration(good, (), Fit((), good, bad)).passed


# --- the page


def shown_rows() -> dict[str, list[str]]:
    """The rows of the table in docs/timing.md by their id."""
    page = (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| [a-z0-9-]+ \| (M-|-)", line)]
    return {cells[0]: cells for cells in rows}


def test_the_page_shows_the_table() -> None:
    """Every row, with the figures that the command prints."""
    shown, rows = shown_rows(), table.compare(short=True)
    assert list(shown) == [row.case.id for row in rows]
    for row in rows:
        name, figure, author, target, mode, clock, measured, predicted, ends, error, inside = shown[row.case.id]
        assert (figure, author) == (row.case.facts["figure"] or "-", row.case.author), name
        assert (target, mode, clock) == (row.case.target, row.case.facts["mode"], row.case.clock), name
        assert [float(value.replace(",", "")) for value in measured.split(" to ")] == pytest.approx(
            row.case.values_us, abs=0.05
        )
        assert float(predicted.replace(",", "")) == pytest.approx(row.predicted_us, rel=0.005, abs=0.06)
        least, most = (float(value.replace(",", "")) for value in ends.split(" to "))
        assert (least, most) == pytest.approx((row.low_us, row.high_us), rel=0.005, abs=0.06), name
        assert float(error.rstrip("%")) / 100 == pytest.approx(row.error, abs=0.005), name
        assert (inside == "yes") == row.inside and (inside == "too wide") == (row.ratio > WIDEST), name


# --- the verb


PACKET = Parameter(("trn1",), "dma.packet_ns", 4, 100, prior=8)


GOOD_LADDER = Ranking("a ladder", ("a", "b"), (1.0, 2.0), (1.0, 3.0), (1.0, 4.0), {})
BAD_LADDER = replace(GOOD_LADDER, predicted_us=(3.0, 1.0))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_ID["add-stream-2000"]
    row = Row(case, 28.9 * 1.04, 28.0, 31.0)
    monkeypatch.setattr(table, "compare", lambda short: [row])
    monkeypatch.setattr(
        instructions, "compare_instructions", lambda: [InstructionRow("copy", "trn2", "tensor_copy", 400.0, 410.0)]
    )
    order = Fitted(Choice(("trn1", "trn2"), "order", ("program", "free")), "program", "free")
    fitted = Fit((Fitted(PACKET, 8.0, 43.21), order), (a_row(0.02),), (a_row(0.3),))
    monkeypatch.setattr(ladders, "read_rankings", lambda: (GOOD_LADDER,))
    monkeypatch.setattr(fit, "fit", lambda model: fitted)
    monkeypatch.setattr("benchmarks.timing.calibration.shortening_error", lambda: 0.0012)


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, flags, catch_exceptions=False)


@pytest.mark.usefixtures("told")
def test_the_document() -> None:
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    (row,) = document["rows"]
    facts = {name: row.pop(name) for name in ("kernel", "source")}
    assert all(facts.values())
    assert row == {
        "id": "add-stream-2000",
        "figure": "M-05",
        "author": "six authors of the CS149 lab",
        "sdk": None,
        "mode": "static",
        "rewritable": "no",
        "target": "trn2",
        "clock": "profiler",
        "stat": "profiler",
        "measured_us": 28.9,
        "measured_low_us": 28.2,
        "measured_high_us": 28.9,
        "predicted_us": pytest.approx(30.056),
        "low_us": 28.0,
        "high_us": 31.0,
        "error": pytest.approx(0.04),
        "inside": True,
        "note": None,
    }
    assert document["inside"] == 1
    assert document["schema_version"] == 1
    assert (document["benchmark"], document["passed"], document["fit"]) == ("timing", True, None)
    assert (document["median_error"], document["worst_error"]) == (pytest.approx(0.04), pytest.approx(0.04))
    assert [row["id"] for row in document["instructions"]] == ["copy"]
    (ladder,) = document["ladders"]
    assert (ladder["ladder"], ladder["spearman"], ladder["passed"]) == ("a ladder", 1, True)
    assert (ladder["pairs_in_order"], ladder["pairs"]) == (1, 1)


@pytest.mark.usefixtures("told")
def test_a_ladder_in_the_wrong_order_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "read_rankings", lambda: (GOOD_LADDER, BAD_LADDER))
    result = run()
    assert result.exit_code == 1 and "1 of 2 ladders at 0.9 or more" in result.stdout


@pytest.mark.usefixtures("told")
def test_ladders_are_fitted_and_kept_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(ladders, "rank_ladders", lambda model, which, advance: (GOOD_LADDER,))
    monkeypatch.setattr(ladders, "keep_rankings", kept.append)
    assert run("--ladders").exit_code == 0 and kept == [(GOOD_LADDER,)]
    assert run("--ladders", "--trace", "x.json").exit_code == 2


@pytest.mark.usefixtures("told")
def test_the_document_of_a_fit() -> None:
    result = run("--fit", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1  # the left-out row is too far off
    assert document["fit"]["parameters"] == [
        {"name": "dma.packet_ns", "targets": ["trn1"], "before": 8.0, "after": 43.21},
        {"name": "order", "targets": ["trn1", "trn2"], "before": "program", "after": "free"},
    ]
    assert document["fit"]["left_out"]["rows"][0]["error"] == pytest.approx(0.3)
    assert document["fit"]["fitted"]["worst_error"] == pytest.approx(0.02)
    assert document["fit"]["shortening_error"] == 0.0012


@pytest.mark.usefixtures("told")
def test_the_tables(tmp_path: Any) -> None:
    text = run("--json-out", str(tmp_path / "out.json")).stdout
    assert "add-stream-2000" in text and "+4.0 %" in text and "pass" in text and "tensor_copy" in text
    assert json.loads((tmp_path / "out.json").read_text())["passed"] is True
    text = run("--fit").stdout
    assert "dma.packet_ns" in text and "43.2" in text and "+30.0 %" in text and "MISS" in text and "0.12 %" in text


def test_how_far_shortened_kernels_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def predict(case: Case, *, short: bool = False) -> float:
        asked.append(case.id)
        return 2.02 if short else 2.0

    monkeypatch.setattr("benchmarks.timing.calibration.predicted_us", predict)
    assert shortening_error() == pytest.approx(0.01)
    assert set(asked) == {case.id for case in CASES if case.short}
