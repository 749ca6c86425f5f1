"""The timing model's calibration: that its kernels compute what they say, its arithmetic, its fit, and its bars."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from trnrt.bench.timing import cases, fit, instructions, kernels, table
from trnrt.bench.timing.calibration import Calibration, shortening_error
from trnrt.bench.timing.cases import CASES, Case, figure_us, measurements, predicted_us, published
from trnrt.bench.timing.fit import FREE, Fit, Fitted, Model, Parameter, Point, value_at, value_of, with_value
from trnrt.bench.timing.instructions import MEASURES, InstructionRow
from trnrt.bench.timing.table import MEDIAN_BAR, WORST_BAR, Row, Summary, summary
from trnrt.cli import app
from trnrt.nki import nisa, simulate
from trnrt.nki.machine.pace import Timing
from trnrt.nki.machine.targets import get_target
from trnrt.nki.profiling import profile_programs

RNG = np.random.default_rng(0)
BY_ID = {case.id: case for case in CASES}
TARGETS = ("trn1", "trn2")


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def close(ours: Any, expected: Any, tolerance: float = 1e-4) -> bool:
    return np.allclose(np.asarray(ours, np.float32), expected, rtol=tolerance, atol=tolerance)


# --- the kernels compute what they say


@pytest.mark.parametrize("target", TARGETS)
def test_additions(target: str) -> None:
    a, b = normal(9, 1), normal(9, 1)
    assert close(simulate(kernels.add_elements, target)(a, b), a + b)
    a, b = normal(128, 40), normal(128, 40)
    assert close(simulate(kernels.add_tile, target)(a, b), a + b)


def test_descriptors_can_be_chosen() -> None:
    a, b = normal(3, 1), normal(3, 1)
    assert close(simulate(kernels.add_elements)(a, b, dge_mode=nisa.dge_mode.none), a + b)


@pytest.mark.parametrize("target", TARGETS)
def test_transpose(target: str) -> None:
    x = normal(256, 384)
    assert close(simulate(kernels.transpose_tiles, target)(x), x.T)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tiled_matmul(dtype: Any) -> None:
    lhs_t, rhs = normal(256, 256, dtype=dtype), normal(256, 1024, dtype=dtype)
    expected = lhs_t.astype(np.float32).T @ rhs.astype(np.float32)
    tolerance = 1e-3 if dtype is np.float32 else 0.2
    assert close(simulate(kernels.matmul_tiled, "trn1")(lhs_t, rhs), expected, tolerance)


@pytest.mark.parametrize("blocks", [(1, 1, 1), (2, 2, 1), (1, 2, 2), (2, 1, 4)])
def test_blocked_matmul(blocks: tuple[int, int, int]) -> None:
    lhs_t, rhs = normal(512, 512), normal(512, 2048)
    ours = simulate(kernels.matmul_blocked)(lhs_t, rhs, *blocks)
    assert close(ours, lhs_t.T @ rhs, 1e-3)


@pytest.mark.parametrize("target", TARGETS)
def test_silu_and_exponential(target: str) -> None:
    x = normal(256, 1024)
    assert close(simulate(kernels.silu, target)(x), x / (1 + np.exp(-x)), 1e-3)
    x = normal(4, 64, dtype=ml_dtypes.bfloat16)
    assert close(simulate(kernels.exponential, target)(x), np.exp(x.astype(np.float32)), 2e-2)


# --- the cases are the published measurements


def test_every_measurement_has_a_case() -> None:
    assert [case.id for case in CASES] == list(measurements())
    assert {case.target for case in CASES} == set(TARGETS)
    assert all(case.measured_us > 0 for case in CASES)
    assert BY_ID["exp-4x4096"].measured_us == pytest.approx(7.626)
    assert BY_ID["matmul-best-trn1"].measured_us == 6970


def test_the_published_sizes() -> None:
    shapes = {case.id: [argument.shape for argument in case.arguments(*case.length)] for case in CASES}
    product = [(8192, 4096), (8192, 8192)]
    assert all(shapes[name] == product for name in shapes if name.startswith("matmul"))
    assert shapes["add-rows-1"] == [(25600, 1)] * 2
    assert shapes["add-stream-2000-trn1"] == [(128, 2000)] * 2
    assert shapes["transpose-1024"] == [(1024, 1024)]
    assert shapes["silu-trn1"] == [(4096, 7168)]
    assert shapes["exp-4x4096"] == [(4, 4096)]


def test_published_facts_name_their_sources() -> None:
    for kind in ("parameters", "instructions", "measurements"):
        assert all(entry["source"] and entry["target"] for entry in published()[kind])
    for kind in ("instructions", "measurements"):
        names = [entry["id"] for entry in published()[kind]]
        assert len(set(names)) == len(names)


# --- predictions


@pytest.mark.parametrize("stat", ["benchmark", "profiler"])
def test_figures_are_those_of_a_profile(stat: str) -> None:
    case = BY_ID["add-stream-2000"]
    profile = profile_programs([cases.program(case.id, case.length)])
    expected = profile.benchmark_us if stat == "benchmark" else profile.profiler_us
    assert figure_us(stat, cases.timeline(case, case.length)) == pytest.approx(expected, abs=0.001)  # type: ignore[arg-type]


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
        ("matmul-tiled-trn1", 16),
        ("matmul-tiled-trn2", 16),
        ("silu-trn1", 32),
    ],
)
def test_shortened_kernels_take_what_whole_ones_take(name: str, length: int) -> None:
    near, far = (number for (number,) in BY_ID[name].short)
    case = replace(BY_ID[name], length=(length,), short=cases.line(near, far, length))
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.005)


@pytest.mark.parametrize("name", ["matmul-best-trn1", "matmul-blocked-trn2"])
def test_shortened_products_take_what_whole_ones_take(name: str) -> None:
    case = replace(BY_ID[name], length=(4, 4), short={(2, 2): 1 - 2 - 4, (3, 2): 2, (2, 3): 4})
    assert predicted_us(case, short=True) == pytest.approx(predicted_us(case), rel=0.005)


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


def a_row(error: float, name: str = "a") -> Row:
    return Row(name, "trn2", "profiler", 100.0, 100.0 * (1 + error))


def test_errors() -> None:
    assert a_row(-0.1).error == pytest.approx(-0.1)
    assert InstructionRow("a", "trn2", "a", 200.0, 210.0).error == pytest.approx(0.05)
    found = summary([a_row(0.01), a_row(-0.3), a_row(0.05)])
    assert found.median_error == pytest.approx(0.05)
    assert found.worst_error == pytest.approx(0.3)


def test_bars() -> None:
    assert (MEDIAN_BAR, WORST_BAR) == (0.08, 0.20)
    assert Summary(0.08, 0.2).passed
    assert not Summary(0.081, 0.2).passed
    assert not Summary(0.08, 0.201).passed


def test_a_fit_must_pass_without_each_measurement_too() -> None:
    good, bad = (a_row(0.01),), (a_row(0.5),)
    assert Calibration(good, ()).passed
    assert not Calibration(bad, ()).passed
    assert Calibration(good, (), Fit((), good, good)).passed
    assert not Calibration(good, (), Fit((), good, bad)).passed


# --- the fit


@dataclass(frozen=True)
class Synthetic(Case):
    """A case whose measurement is made up."""

    made_up_us: float = 0.0

    @property
    def target(self) -> str:
        return "trn1" if self.id.startswith("one") else "trn2"

    @property
    def measured_us(self) -> float:
        return self.made_up_us


Formula = Callable[[Timing, float], float]
PACKET = Parameter(("trn1",), "dma.packet_ns", 4, 100, prior=8)
START = Parameter(("trn1", "trn2"), "dma.start_hardware_ns", 400, 2500, prior=1250)
HEAD = Parameter(("trn2",), "head_ns", 1000, 50000, prior=10000)


def made_up(timing: Timing, size: float) -> float:
    return timing.dma.packet_ns * size + timing.dma.start_hardware_ns + 100


def synthetic(name: str, size: float, factor: float = 1.0) -> Synthetic:
    truth = get_target("trn1").timing
    truth = with_value(with_value(truth, "dma.packet_ns", 43.0), "dma.start_hardware_ns", 700.0)
    return Synthetic(
        name, kernels.silu, lambda n: (), (int(size),), "profiler", made_up_us=made_up(truth, size) * factor
    )


def model(*given: Synthetic, parameters: tuple[Parameter, ...] = (PACKET, START)) -> Model:
    return Model(parameters, given, lambda case, timing: made_up(timing, case.length[0]))


def test_the_fit_finds_the_parameters_again() -> None:
    found = fit.fit(model(*(synthetic(f"one-{size}", size) for size in (1, 10, 50, 200))))
    packet, start = found.values
    assert packet.after == pytest.approx(43, rel=0.02)
    assert start.after == pytest.approx(700, rel=0.03)
    assert packet.before == get_target("trn1").timing.dma.packet_ns
    assert summary(found.rows).worst_error < 0.02
    assert summary(found.left_out).worst_error < 0.03


def test_one_wrong_measurement_does_not_pull_the_others_away() -> None:
    given = [synthetic(f"one-{size}", size) for size in (1, 10, 50, 200, 400)]
    found = fit.fit(model(*given, synthetic("one-wrong", 100, factor=2.0)))
    assert found.values[0].after == pytest.approx(43, rel=0.06)
    assert found.left_out[-1].error == pytest.approx(-0.5, abs=0.02)


def test_what_only_the_left_out_measurement_decides_keeps_its_prior() -> None:
    found = fit.fit(model(synthetic("one-only", 50), parameters=(PACKET,)))
    assert abs(found.rows[0].error) < 0.3
    assert found.left_out[0].predicted_us == made_up(with_value(get_target("trn1").timing, "dma.packet_ns", 8), 50)


def test_values_stay_within_their_bounds() -> None:
    assert value_at(PACKET, 0) == 8
    assert (value_at(PACKET, -10_000), value_at(PACKET, 10_000)) == (4, 100)
    found = fit.fit(model(synthetic("one-much", 50, factor=50.0), parameters=(PACKET,)))
    assert found.values[0].after == 100


def test_a_target_is_predicted_anew_only_where_one_of_its_parameters_moved() -> None:
    asked: list[str] = []
    given = (synthetic("one", 1), synthetic("two", 1))

    def predict(case: Case, timing: Timing) -> float:
        asked.append(case.id)
        return timing.head_ns

    tried = Model((PACKET, HEAD), given, predict)
    for point in [(0, 0), (1, 0), (1, 0), (1, 5)]:
        tried.predictions(point)
    assert asked == ["one", "two", "one", "two"]
    assert tried.timing("trn2", (1, 5)).dma == get_target("trn2").timing.dma


def test_places_in_a_timing() -> None:
    timing = get_target("trn2").timing
    assert value_of(with_value(timing, "dma.packet_ns", 11.0), "dma.packet_ns") == 11
    assert with_value(timing, "head_ns", 1.0) == replace(timing, head_ns=1.0)


def test_free_parameters_are_few_and_plausible() -> None:
    assert len(FREE) < len(CASES)
    for parameter in FREE:
        assert 0 < parameter.low <= parameter.prior <= parameter.high
        for target in parameter.targets:
            assert parameter.low <= value_of(get_target(target).timing, parameter.name) <= parameter.high


# --- the bars


class Linear(Model):
    """The model's predictions near its present numbers, as straight lines: what makes leaving out cheap."""

    STEP, FAR = 8, 64

    def predictions(self, point: Point) -> dict[str, float]:
        here = super().predictions((0,) * len(point))
        logs = {name: math.log(value) for name, value in here.items()}
        for index, steps in enumerate(point):
            there = super().predictions(tuple(self.STEP * (i == index) for i in range(len(point)))) if steps else here
            for name in logs:
                logs[name] += math.log(there[name] / here[name]) * min(max(steps, -self.FAR), self.FAR) / self.STEP
        return {name: math.exp(value) for name, value in logs.items()}


def test_the_model_is_within_its_bars() -> None:
    """The whole table; long kernels from shortened ones."""
    rows = table.compare(short=True)
    assert summary(rows).passed, [(row.id, round(row.error, 3)) for row in rows]


def test_the_page_shows_the_table() -> None:
    """docs/timing.md, whose figures are those of the whole kernels: within half a point of the shortened ones'."""
    page = (Path(__file__).parents[2] / "docs" / "timing.md").read_text(encoding="utf-8")
    rows = [line.removeprefix("| ").split(" | ") for line in page.splitlines() if line.count("|") == 8]
    shown = {cells[0]: cells for cells in rows}
    for row in table.compare(short=True):
        cells = shown[row.id]
        assert float(cells[3].replace(",", "")) == pytest.approx(row.measured_us, rel=0.01)
        assert float(cells[5].rstrip("%")) / 100 == pytest.approx(row.error, abs=0.005)


def test_the_model_is_within_its_bars_where_each_is_left_out() -> None:
    """A reduced form of ``--fit``: near the present numbers, by straight lines."""
    near = tuple(replace(p, prior=value_of(get_target(p.targets[0]).timing, p.name)) for p in FREE)
    rows = fit.fit(Linear(near)).left_out
    assert summary(rows).passed, [(row.id, round(row.error, 3)) for row in rows]


# --- the verb


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BY_ID["add-stream-2000"]
    monkeypatch.setattr(table, "compare", lambda: [table.row(case, case.measured_us * 1.04)])
    monkeypatch.setattr(
        instructions, "compare_instructions", lambda: [InstructionRow("copy", "trn2", "tensor_copy", 400.0, 410.0)]
    )
    fitted = Fit((Fitted(PACKET, 8.0, 43.21),), (a_row(0.02, "one"),), (a_row(0.3, "one"),))
    monkeypatch.setattr(fit, "fit", lambda model: fitted)
    monkeypatch.setattr("trnrt.bench.timing.calibration.shortening_error", lambda rows: 0.0012)


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, ["bench", "timing", *flags], catch_exceptions=False)


@pytest.mark.usefixtures("told")
def test_the_document() -> None:
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["rows"] == [
        {
            "id": "add-stream-2000",
            "target": "trn2",
            "stat": "profiler",
            "measured_us": 28.9,
            "predicted_us": pytest.approx(30.056),
            "error": pytest.approx(0.04),
        }
    ]
    assert document["schema_version"] == 1
    assert (document["benchmark"], document["passed"], document["fit"]) == ("timing", True, None)
    assert (document["median_error"], document["worst_error"]) == (pytest.approx(0.04), pytest.approx(0.04))
    assert [row["id"] for row in document["instructions"]] == ["copy"]


@pytest.mark.usefixtures("told")
def test_the_document_of_a_fit() -> None:
    result = run("--fit", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1  # the left-out row is too far off
    assert document["fit"]["parameters"] == [
        {"name": "dma.packet_ns", "targets": ["trn1"], "before": 8.0, "after": 43.21}
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
    whole = [Row(case.id, case.target, case.stat, 1.0, 2.0) for case in CASES]
    monkeypatch.setattr("trnrt.bench.timing.calibration.predicted_us", lambda case, short: 2.02)
    assert shortening_error(whole) == pytest.approx(0.01)
