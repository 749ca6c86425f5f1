"""``python -m benchmarks.labs`` and ``python -m benchmarks.kernels``: bars, shares, and that wrong numbers are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.comparing import Figure, Kind
from benchmarks.documented import rates
from benchmarks.kernels import families, plot
from benchmarks.kernels.__main__ import app as kernels_app
from benchmarks.kernels.entries import addition
from benchmarks.labs import bars, cases, checking, entries, table
from benchmarks.labs.__main__ import app
from benchmarks.labs.bars import Bar
from benchmarks.labs.cases import Case, Tolerance, case_floor, measured, row, tensor_us
from benchmarks.labs.floors import edges_of, stream_of, turned_weights_us
from benchmarks.labs.report import labs_table
from trnrt.nki import nisa, nki, nl, profile
from trnrt.nki.machine.targets import get_target
from trnrt.nki.machine.timing import Range
from trnrt.report.console import render
from trnrt.text import range_text

ROOT = Path(__file__).parents[2]
BY_NAME = {(case.name, case.target, case.dtype): case for case in table.CASES}
ADDITION = BY_NAME["vector addition 256,000", "trn2", "float32"]


@nki.jit
def wrong_addition(a: Any, b: Any) -> Any:
    """a + a. a, b: HBM (N,)"""
    out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
    x = nl.ndarray((1, a.shape[0]), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=x, src=a.reshape((1, a.shape[0])))
    nisa.tensor_tensor(dst=x, data1=x, data2=x, op=nl.add)
    nisa.dma_copy(dst=out.reshape((1, a.shape[0])), src=x)
    return out


def test_cases_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(table.CASES)
    for case in table.CASES:
        assert case.target_us is not None or case.factor is not None or case.against is not None
        assert case.flops or case.hbm_bytes


def test_a_row_says_what_the_hardware_needs_at_least() -> None:
    found = row(ADDITION)
    assert rates("trn2").gbps == pytest.approx(435.2)  # 16 engines of 27.2 GB/s
    assert found.bound_us == pytest.approx(ADDITION.hbm_bytes / 435_200 + 14.1)
    assert found.bound_us < found.predicted_us
    assert found.peak_share == pytest.approx((found.bound_us - 14.1) / found.predicted_us)


def test_bounds_are_at_documented_bandwidths() -> None:
    assert [rates(target).gbps for target in ("trn1", "trn2", "trn3")] == pytest.approx([272, 435.2, 614.4])


def test_bars() -> None:
    alone = replace(ADDITION, target_us=None, against=None)
    found = row(alone)
    assert (found.verdict, found.target_us) == ("pass", None)
    assert row(ADDITION).target_us == 25.5
    assert row(replace(alone, target_us=found.predicted_us + 0.1)).verdict == "pass"
    assert row(replace(alone, target_us=found.predicted_us - 0.1)).verdict == "missed"
    assert row(replace(alone, limit_us=found.predicted_us - 0.1)).verdict == "missed"
    assert row(replace(alone, share_target=found.peak_share + 0.01)).verdict == "missed"
    assert row(replace(alone, factor=2.0)).target_us == pytest.approx(2 * found.bound_us)


def test_bars_and_ratios_are_of_the_headline_and_the_range_is_beside_it() -> None:
    alone = replace(ADDITION, target_us=None, against=None)
    found = row(alone)
    assert found.low_us < found.predicted_us < found.high_us
    assert row(replace(alone, target_us=found.predicted_us)).verdict == "pass"  # though it may take more
    assert row(replace(alone, limit_us=found.low_us)).verdict == "missed"  # though it may take less
    assert found.predicted_us == profile(addition, *ADDITION.specs(), target="trn2").profiler_us
    assert range_text(Range(found.low_us, found.predicted_us, found.high_us), "") in render([labs_table([found])])


def test_theirs_is_a_target_too() -> None:
    found = row(replace(ADDITION, target_us=None))
    assert found.theirs_us == found.target_us
    assert found.theirs_us is not None and found.predicted_us != found.theirs_us
    turned = row(replace(ADDITION, target_us=None, kernel=entries.streamed_addition, against=ADDITION.kernel))
    assert (turned.predicted_us, turned.theirs_us) == (found.theirs_us, found.predicted_us)
    faster, slower = sorted((found, turned), key=lambda one: one.predicted_us)
    assert (faster.verdict, slower.verdict) == ("pass", "missed")


def test_a_ratio_is_formed_with_measured_kernels_only() -> None:
    for kind in get_args(Kind):
        found = row(replace(ADDITION, measured=(Figure(26.4, kind, "profiler", ""),)))
        comparable = kind in {"measured kernel", "less host"}
        assert (found.ratio is not None) == comparable, kind
        assert found.compared_with == (kind if comparable else "no comparison")
    limited = row(replace(ADDITION, measured=(), limit_us=26.4))
    assert (limited.ratio, limited.compared_with) == (None, "no comparison")


def test_a_ratio_is_by_the_figures_own_clock() -> None:
    both = (measured(20.0, "benchmark", ""), measured(26.4, "profiler", ""))
    found = row(replace(ADDITION, measured=both))
    assert [one.figure.clock for one in found.compared] == ["profiler", "benchmark"]  # the least ahead of comes first
    profiler, benchmark = found.compared
    assert profiler.predicted_us == found.predicted_us
    assert benchmark.predicted_us == pytest.approx(found.predicted_us - 6.7)
    assert found.ratio == profiler.ratio == pytest.approx(found.predicted_us / 26.4)
    with pytest.raises(ValueError, match="the host's clock"):
        row(replace(ADDITION, measured=(Figure(26.4, "measured kernel", "host", ""),)))


def test_the_cases_declare_what_they_are_compared_with() -> None:
    for case in table.CASES:
        assert {figure.kind for figure in case.measured} <= {"measured kernel"}
        assert all(figure.source and figure.clock in {"benchmark", "profiler"} for figure in case.measured)
        # A limit of a course is no measurement, and a time on a CPU is none of the device.
        assert all(figure.us != case.limit_us and figure.us < 400_000 for figure in case.measured)
        if case.name.startswith("in") or "feed-forward" in case.name or "prepared" in case.name:
            assert not case.measured


def test_float32_products_take_four_passes() -> None:
    timing = get_target("trn1").timing
    half = replace(ADDITION, dtype="bfloat16", flops=2.0 * 128 * 128 * 2800)
    assert tensor_us(half, timing) == pytest.approx(1)
    assert tensor_us(replace(half, dtype="float32"), timing) == pytest.approx(4)


def test_wrong_numbers_are_told() -> None:
    small = replace(ADDITION, against=None, shapes=((200,), (200,)), tolerance=Tolerance(1e-5, 1e-6))
    assert checking.check(small).passed
    assert checking.check(replace(small, kernel=wrong_addition)).worst > 1


def test_shares_are_seeded() -> None:
    family = next(f for f in families.FAMILIES if f.name == "addition")
    first, second = (families.measure(family, "trn2", 5) for _ in range(2))
    assert first == second
    assert 0 < first.least <= first.p10 <= first.median <= first.p90 <= 1


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: f"{family.name}-{family.dtype}")
def test_no_family_beats_the_hardware(family: families.Family) -> None:
    generator = np.random.default_rng(1)
    item = 4 if family.dtype == "float32" else 2
    for _ in range(3):
        assert 0 < families.share_of(family, family.draw(generator, item), "trn2") <= 1


def test_the_floor_of_a_transfer_is_counted_by_hand() -> None:
    """Head and tail, static descriptors (60 ns to trigger while 900 to the first data pass), bytes, completion."""
    floor = case_floor(ADDITION, "profiler")
    assert (floor.by, floor.fixed_us, floor.first_load_us, floor.last_store_us) == ("memory", 14.1, 0.9, 0.355)
    assert floor.data_us == pytest.approx(3 * 256_000 * 4 / 435_200)
    assert floor.us == pytest.approx(14.1 + 0.9 + 3_072_000 / 435_200 + 0.355)
    assert case_floor(ADDITION, "benchmark").us == pytest.approx(floor.us - 6.7)


def test_the_floor_of_products_is_counted_by_hand() -> None:
    """2048^3: 524,288 columns in 1024 passes of 512; half of what the first window has left after the first load."""
    case = BY_NAME["matmul [2048,2048]x[2048,2048]", "trn2", "bfloat16"]
    floor = case_floor(case, "profiler")
    loaded = edges_of("trn2", "bfloat16").loaded / 1e6
    assert floor.by == "tensor" and floor.data_us == 0
    assert floor.columns_us == pytest.approx(524_288 / 2400)
    assert floor.gaps_us == pytest.approx(1024 * 0.0025, rel=0.02)  # none at half the clock
    assert floor.ramp_us == pytest.approx((6.8267 - loaded) / 2, abs=0.2)  # weights and a pass reach over its end
    assert floor.first_load_us == pytest.approx(loaded + 0.1, abs=0.001)  # 100 ns to load the first weights


@pytest.mark.parametrize(("dtype", "passes"), [("bfloat16", 1), ("float32", 4)])
def test_trn1_has_a_gap_for_each_pass_and_no_ramp(dtype: str, passes: int) -> None:
    target = get_target("trn1")
    found = stream_of(target, dtype, 2.0 * 128 * 128 * 512 * 10, 1_000_000)
    assert found.ramp == 0
    assert found.columns == pytest.approx(passes * 5120 / 2.8 * 1000, abs=1)
    gap = target.timing.tensor.gap_ns * 1000
    # After the last part, which is two passes in float32, no gap counts.
    assert found.gaps == pytest.approx((10 * passes - (2 if passes == 4 else 1)) * gap, abs=50)


def test_passes_end_with_the_columns_of_a_stationary_tile() -> None:
    """25 taps over 28 x 28 results of 16 images: 25 passes each, not 24.5."""
    case = BY_NAME["in128_out128_filter5x5_batch16_32x32_float16", "trn1", "float16"]
    gap = get_target("trn1").timing.tensor.gap_ns / 1000
    assert case.run == 16 * 28 * 28
    assert case_floor(case, "benchmark").gaps_us == pytest.approx((25 * 25 - 1) * gap, abs=1e-3)
    assert case_floor(replace(case, run=0), "benchmark").gaps_us == pytest.approx((24.5 * 25 - 0.5) * gap, abs=0.02)


def test_natural_weights_arrive_before_products_are_full() -> None:
    """128 x 128 x 25 elements of 2 bytes at 272 GB/s, half of that; and a transpose: 213.5 ns, and its semaphores."""
    case = BY_NAME["in128_out128_filter5x5_batch16_32x32_float16", "trn1", "float16"]
    more = case_floor(case, "benchmark").first_load_us - case_floor(replace(case, taps=0), "benchmark").first_load_us
    assert more == pytest.approx(128 * 128 * 25 * 2 / 272_000 / 2 + 0.2135 + 0.057 + 0.036, abs=0.1)
    # Few bytes, where the elements take longer; many bytes, where they don't.
    single, many = (turned_weights_us("trn1", "float32", taps, 272) for taps in (1, 1000))
    assert single < many < 1000 * 128 * 128 * 4 / 272_000 / 2
    assert turned_weights_us("trn2", "float32", 9, 435.2) == 0  # DMA transposes there


def test_the_least_that_can_be_predicted_is_at_the_models_bandwidth() -> None:
    """The addition is there: DMA is never idle between the first load and the last store."""
    found = row(ADDITION).held
    assert found is not None
    assert found.least.data_us == pytest.approx(3_072_000 / get_target("trn2").timing.dma.total_gbps / 1000)
    assert found.least.us <= found.predicted_us <= found.least.us + 0.01
    products = row(BY_NAME["conv 256->256 3x3 32x16", "trn2", "float16"]).held
    assert products is not None and products.least.us == products.floor_us


def test_a_slower_memory_moves_the_floor_to_the_other_path() -> None:
    case = BY_NAME["matmul [2048,2048]x[2048,2048]", "trn2", "bfloat16"]
    heavy = case_floor(replace(case, hbm_bytes=1_000_000_000), "profiler")
    assert (heavy.by, heavy.columns_us, heavy.gaps_us, heavy.ramp_us) == ("memory", 0, 0, 0)


@pytest.mark.parametrize("name", ["vector addition 256,000", "transpose 1024x1024", "conv 256->256 3x3 32x16"])
def test_no_kernel_is_below_its_floor(name: str) -> None:
    for case in (one for one in table.CASES if one.name == name):
        found = row(case)
        assert found.over_floor > 1, (name, case.dtype)
        assert found.floor.clock == found.clock


def test_every_bar_is_of_a_case() -> None:
    assert set(bars.BARS) <= set(BY_NAME)
    for name, target, dtype in BY_NAME:
        held = bars.bar_of(name, target, dtype)
        assert (held is not None) == (target == "trn1" or (name, target, dtype) in bars.BARS)


def test_a_bar_is_by_its_own_clock() -> None:
    conv = BY_NAME["conv 256->256 3x3 224x224", "trn2", "float16"]
    held = bars.bar_of(conv.name, conv.target, conv.dtype)
    assert held is not None and (conv.clock, held.clock, held.limit) == ("benchmark", "profiler", 778)
    found = row(ADDITION).held
    assert found is not None and found.bar.limit == 1.1
    assert found.most_us == pytest.approx(1.1 * case_floor(ADDITION, "profiler").us)
    assert found.verdict == ("pass" if found.predicted_us <= found.most_us else "missed")


def test_what_a_bar_allows() -> None:
    assert Bar("us", 778.0, "profiler", "").most_us(739.0, 761.0) == 778
    assert Bar("share of the tensor engine", 0.96, "profiler", "").most_us(2880.0, 3005.0) == pytest.approx(3000)
    assert Bar("x floor", 1.02, "benchmark", "").most_us(1.0, 100.0) == pytest.approx(102)


def test_a_bar_below_the_floor_is_missed_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    key = (ADDITION.name, ADDITION.target, ADDITION.dtype)
    monkeypatch.setattr(bars, "BARS", {key: Bar("us", 20.0, "profiler", "no reason")})
    monkeypatch.setattr(table, "CASES", (replace(ADDITION, target_us=None, against=None),))
    result = run("--json")
    (line,) = json.loads(result.stdout)["rows"]
    assert result.exit_code == 1 and line["passed"] is True
    assert (line["held"]["passed"], line["held"]["reachable"]) == (False, False)
    assert line["floor"]["over"] == pytest.approx(line["predicted_us"] / line["floor"]["us"])
    text = " ".join(run().stdout.split())
    assert (
        "the bar allows 20.0 us, less than the least that can be predicted, 24.6 us: 14.10 fixed + 0.90 first load"
        in text
        and "+ 9.20 data at the bandwidth of the model's DMA engines + 0.35 last store" in text
        and "no reason" in text
        and "1 floor with a bar, 1 missed" in text
    )


def run(*flags: str) -> Any:
    return CliRunner().invoke(app, flags, catch_exceptions=False)


def test_the_verb_fails_where_a_bar_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless = replace(ADDITION, name="hopeless", target_us=1.0, measured=())
    easy = replace(ADDITION, target_us=100.0, against=None)
    monkeypatch.setattr(table, "CASES", (easy, hopeless))
    result = run("--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["schema_version"] == 3
    assert [one["passed"] for one in document["rows"]] == [True, False]
    assert [one["compared_with"] for one in document["rows"]] == ["measured kernel", "no comparison"]
    assert [one["clock"] for one in document["rows"]] == ["profiler", "profiler"]
    first, second = document["rows"]
    assert (first["compared"][0]["figure"]["us"], first["limit_us"], first["target_us"]) == (26.4, None, 100.0)
    assert first["ratio"] == pytest.approx(first["predicted_us"] / 26.4) and second["ratio"] is None
    assert "published_us" not in first and document["checked"] is None
    text = run().stdout
    assert "MISS" in text and "2 cases with a bar, 1 missed" in text and "no comparison" in text


def test_the_numbers_are_checked_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(ADDITION, against=None, shapes=((200,), (200,)))
    monkeypatch.setattr(table, "CASES", (small, replace(small, name="wrong", kernel=wrong_addition)))
    result = run("--check", "--json")
    assert result.exit_code == 1
    assert [one["passed"] for one in json.loads(result.stdout)["checked"]] == [True, False]


def test_shares_as_json() -> None:
    result = CliRunner().invoke(kernels_app, ["--trials", "2", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert [one["family"] for one in document["rows"]] == [family.name for family in families.FAMILIES]
    assert {one["trials"] for one in document["rows"]} == {2}


def test_a_case_can_draw_its_own_inputs() -> None:
    def draw(generator: np.random.Generator, shapes: Any) -> list[cases.Array]:
        return [np.full(shape, 2.0) for shape in shapes]

    seen: list[float] = []

    def reference(a: cases.Array, b: cases.Array) -> cases.Array:
        seen.append(float(a.max()))
        result: cases.Array = a + b
        return result

    case: Case = replace(ADDITION, shapes=((200,), (200,)), draw=draw, reference=reference)
    assert checking.check(case).passed
    assert seen == [2.0]


def test_the_plot_is_an_image() -> None:
    image = plot.svg([("a", [(128, 0.1), (256, 0.5)]), ("b", [(128, 0.2), (512, 1.0)])])
    root = ElementTree.fromstring(image)
    names = [element.tag.rpartition("}")[2] for element in root]
    assert names.count("polyline") == 2
    shares = [text.text for text in root if text.tag.endswith("text")]
    assert {"a", "b", "128", "512", "0 %", "100 %"} <= set(shares)


def test_the_page_names_every_kernel_file() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    for file in (ROOT / "kernels").rglob("*.py"):
        assert file.name == "common.py" or f"`{file.name}`" in page, file.name
    assert (ROOT / "docs" / "kernels.svg").is_file()
