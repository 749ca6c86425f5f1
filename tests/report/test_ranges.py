"""How a prediction's range is shown, and what makes it wide: text, tables, JSON, the HTML page, a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commanding import trnrt
from profiles import CAUSES, around, made_prediction, made_profile

from benchmarks.documented import rates
from benchmarks.timing.report import timing_table
from benchmarks.timing.table import BARS, WIDTH_BAR, summary
from trnrt.calibration.cases import Row
from trnrt.calibration.published import CASES
from trnrt.nki import Spec, nisa, nki, nl, profile
from trnrt.nki.machine.targets import get_target, target_names
from trnrt.nki.machine.timing import WIDEST, Range, add_ranges, largest_range
from trnrt.report.console import render
from trnrt.report.documents import profile_document
from trnrt.report.page import report_html
from trnrt.report.profiles import CAUSES_SHOWN, profile_parts, range_lines
from trnrt.report.trace import trace_document
from trnrt.running import profiler
from trnrt.serve.processes.summary import SummaryRow, summary_text
from trnrt.text import ends_text, range_text

CNN = str(Path(__file__).parents[2] / "models" / "digits_cnn.onnx")
NARROW, WIDE = Range(230.4, 251.2, 289.6), Range(10.0, 12.0, 16.1)


@nki.jit
def copied(x: Any) -> Any:
    """x, through SBUF."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


def page_of(found: Range, causes: tuple[Any, ...] = CAUSES) -> str:
    """What a terminal shows of a profile with this range."""
    return render(profile_parts(made_profile(predictions=(made_prediction(found, around(50.0), causes),)), "net"))


# --- text


def test_a_range_in_words() -> None:
    assert range_text(NARROW) == "251 us (230 to 290)"
    assert range_text(Range(900.0, 1234.5, 12_345.6)) == "1,234 us (900 to 12,346)"
    assert range_text(WIDE) == "12.0 us (10.0 to 16.1)"
    assert range_text(Range(99.0, 99.96, 101.0)) == "100 us (99 to 101)"
    assert range_text(NARROW, "") == "251 (230 to 290)"
    assert ends_text(NARROW) == "230 to 290"


def test_ranges_add_up_in_turn_and_the_slowest_counts_at_once() -> None:
    one, other = Range(1.0, 2.0, 4.0), Range(0.5, 3.0, 3.5)
    assert add_ranges([one, other], 10.0) == Range(11.5, 15.0, 17.5)
    assert add_ranges([], 10.0) == Range(10.0, 10.0, 10.0)
    assert largest_range([one, other]) == Range(1.0, 3.0, 4.0)


def test_what_is_too_wide() -> None:
    assert not Range(10.0, 12.0, 10 * WIDEST).too_wide
    assert WIDE.too_wide


def test_a_page_has_both_ranges_and_what_makes_the_first_one_wide() -> None:
    lines = page_of(around(40.0)).splitlines()
    assert lines[1].split("  ")[0] == "40.0 us (36.0 to 50.0)"
    assert lines[2].split("  ")[0] == "50.0 us (45.0 to 62.5)"
    start = lines.index("What makes the first range wide, each cause alone:")
    assert lines[start + 1 : start + 5] == [
        "  order of instructions: 40.0 to 48.0 us",
        "    to pin it, write in the kernel: nl.no_reorder()",
        "  DMA starts: 37.0 to 41.0 us",
        "",
    ]
    assert "too wide" not in page_of(around(40.0))


def test_a_range_that_is_too_wide_is_told() -> None:
    told = "The range is too wide to plan with: its most is 1.61 times its least, where 1.6 is the limit"
    assert told in page_of(WIDE).splitlines()


def test_the_widest_causes_are_shown_and_the_rest_counted() -> None:
    many = tuple(replace(CAUSES[1], name=f"cause {number}") for number in range(CAUSES_SHOWN + 2))
    lines = [str(line) for line in range_lines(NARROW, many)]
    assert [line.split(":")[0].strip() for line in lines[1 : CAUSES_SHOWN + 1]] == [c.name for c in many[:CAUSES_SHOWN]]
    assert lines[CAUSES_SHOWN + 1] == "  and 2 narrower causes; --json has all, with their sources"
    assert range_lines(NARROW, ()) == []


# --- documents


def test_documents_have_the_ends_and_the_causes_with_their_sources() -> None:
    found = profile_document("m", made_profile(), version="1")
    assert found["predicted_us"] == {"benchmark": 40.0, "profiler": 50.0}
    assert found["low_us"] == {"benchmark": 36.0, "profiler": 45.0}
    assert found["high_us"] == {"benchmark": 50.0, "profiler": 62.5}
    assert found["causes"] == [
        {"name": cause.name, "low_us": low, "high_us": high, "source": cause.source, "pin": pin}
        for cause, low, high, pin in zip(CAUSES, (40.0, 37.0), (48.0, 41.0), ("nl.no_reorder()", None), strict=True)
    ]
    traced = trace_document(made_profile())["otherData"]
    assert {key: traced[key] for key in ("predicted_us", "low_us", "high_us")} == {
        key: found[key] for key in ("predicted_us", "low_us", "high_us")
    }


def test_a_profile_is_read_as_its_json() -> None:
    found = profile(copied, Spec((128, 512), "float32"), target="trn2")
    assert found["low_us"]["benchmark"] == found.benchmark.least_us < found.benchmark_us < found.high_us.benchmark
    assert found["low_us"]["profiler"] == found.profiler.least_us < found.profiler_us < found.high_us.profiler
    assert {cause.name for cause in found["causes"]} >= {"fixed cost of a program", "DMA starts"}


def test_each_cause_alone_is_within_the_range_of_all_of_them() -> None:
    """For a kernel without a choice of order: all of its causes are numbers."""
    found = profile(copied, Spec((128, 512), "float32"), target="trn2")
    for cause in found.causes:
        assert found.benchmark.least_us <= cause.range.least_us <= found.benchmark_us
        assert found.benchmark_us <= cause.range.most_us <= found.benchmark.most_us


def test_what_pins_the_mode_of_descriptors_narrows_the_range() -> None:
    @nki.jit
    def pinned(x: Any) -> Any:
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)
        nisa.dma_copy(dst=out, src=tile, dge_mode=nisa.dge_mode.hwdge)
        return out

    free, stated = (profile(kernel, Spec((128, 512), "float32"), target="trn2") for kernel in (copied, pinned))
    (cause,) = [cause for cause in free.causes if "hwdge" in cause.pin]
    assert cause.name not in {one.name for one in stated.causes}
    assert stated.benchmark_us == free.benchmark_us and stated.benchmark.most_us < free.benchmark.most_us


def test_of_several_cores_each_end_is_that_of_the_slowest() -> None:
    first, second = made_prediction(Range(30, 40, 45), around(50)), made_prediction(Range(35, 38, 60), around(48))
    found = made_profile(predictions=(first, second))
    assert found.benchmark == Range(35, 40, 60)
    assert profile_document("m", found, version="1")["high_us"]["benchmark"] == 60


# --- the page


def test_the_html_page_has_the_ranges_the_causes_and_their_sources() -> None:
    page = report_html(made_profile(), "net")
    assert "40.0 us (36.0 to 50.0)" in page and "50.0 us (45.0 to 62.5)" in page
    for cause in CAUSES:
        assert cause.name in page and cause.source in page
    assert "<code>nl.no_reorder()</code>" in page
    assert 'id="too-wide"' not in page
    wide = made_profile(predictions=(made_prediction(WIDE, WIDE, ()),))
    assert 'id="too-wide"' in report_html(wide, "net")
    assert "Nothing that is uncertain changes this prediction" in report_html(wide, "net")


def test_causes_are_data_on_the_html_page() -> None:
    hostile = replace(CAUSES[0], name="<script>alert(1)</script>", source="</td><b>", pin="<i>")
    page = report_html(made_profile(predictions=(made_prediction(around(40.0), around(50.0), (hostile,)),)), "net")
    assert "<script>alert" not in page and "</td><b>" not in page and "<i>" not in page


# --- a baseline from before there were ranges


def test_a_baseline_without_ranges_is_still_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(plan: Any) -> Any:
        return made_profile(target=plan.target, dtype=plan.dtype, batch=plan.batch)

    monkeypatch.setattr(profiler, "profile_plan", made)
    path = tmp_path / "old.json"
    assert trnrt("profile", CNN, "--json-out", path).code == 0
    document = json.loads(path.read_text())
    for key in ("low_us", "high_us", "causes"):
        del document[key]
    path.write_text(json.dumps(document))
    assert trnrt("profile", CNN, "--baseline", path).code == 0
    document["predicted_us"]["benchmark"] = 30.0
    path.write_text(json.dumps(document))
    found = trnrt("profile", CNN, "--baseline", path, "--json")
    assert found.code == 1
    assert found.document["comparison"]["changes"][0]["before_us"]["benchmark"] == 30.0


def test_a_script_s_calls_have_their_ranges(tmp_path: Path) -> None:
    script = tmp_path / "kernel.py"
    script.write_text(
        "from trnrt.nki import nki, nl, nisa\n\n\n@nki.jit\ndef copied(x):\n"
        "    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)\n"
        "    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)\n"
        "    nisa.dma_copy(dst=tile, src=x)\n    nisa.dma_copy(dst=out, src=tile)\n    return out\n"
    )
    call = ("nki", "profile", script, "--call", "copied(f32[128,512])", "--target", "trn2")
    (found,) = trnrt(*call, "--json").document["calls"]
    assert found["low_us"]["benchmark"] < found["predicted_us"]["benchmark"] < found["high_us"]["benchmark"]
    assert any(cause["pin"] and "hwdge" in cause["pin"] for cause in found["causes"])
    text = trnrt(*call).out
    us, low, high = (found[key]["benchmark"] for key in ("predicted_us", "low_us", "high_us"))
    assert f"{us:,.1f} us ({low:,.1f} to {high:,.1f})" in text
    assert "to pin it, write in the kernel: dge_mode=nisa.dge_mode.hwdge" in text


# --- bench timing


def a_row(low: float, us: float, high: float) -> Row:
    case = next(case for case in CASES if case.id == "add-stream-1000")  # 26.4 and 27.9 us
    return Row(case, us, low, high)


def test_the_timing_table_shows_the_ends_and_whether_they_hold_what_was_measured() -> None:
    rows = [a_row(24.0, 26.0, 27.0), a_row(28.0, 29.0, 30.0), a_row(20.0, 26.0, 33.0)]
    table = timing_table(rows)
    assert list(table.columns)[-5:] == ["predicted us", "low", "high", "error", "inside"]
    cells = [list(map(str, column)) for column in zip(*table.rows, strict=True)]
    assert cells[-4:-2] == [["24.0", "28.0", "20.0"], ["27.0", "30.0", "33.0"]]
    assert cells[-1] == ["yes", "no", "too wide"]
    assert [row.inside for row in rows] == [True, False, False]


def test_the_median_width_is_a_bar() -> None:
    good = a_row(26.0, 26.4, 26.0 * WIDTH_BAR)
    assert summary([good]).median_width == pytest.approx(WIDTH_BAR)
    assert BARS.width == WIDTH_BAR == 1.2
    assert replace(summary([good]), median_width=1.2).passed()
    assert not replace(summary([good]), median_width=1.21).passed()


# --- rates


@pytest.mark.parametrize("target", target_names())
def test_the_headline_has_no_more_bandwidth_than_is_documented(target: str) -> None:
    """Bars are passed or missed by the model as it is shipped: so it must not be ahead of the hardware."""
    dma, most = get_target(target).timing.dma, rates(target)
    assert dma.total_gbps <= most.gbps
    assert dma.engine_gbps <= most.engine_gbps


# --- the server's start


def test_the_servers_table_has_the_ranges_of_its_least_and_largest_batch() -> None:
    one, all_three = {1: around(40.0)}, {1: around(40.0), 8: NARROW, 32: Range(900.0, 1000.0, 1200.0)}
    rows = [SummaryRow("a", "ready", None, (1,), one), SummaryRow("b", "ready", None, (1, 8, 32), all_three)]
    text = summary_text([*rows, SummaryRow("c", "failed", "why", (), {})], "http://x")
    a, b, c = text.splitlines()[1:4]
    assert a.endswith("40.0 us (36.0 to 50.0)")
    assert b.endswith("1 row: 40.0 us (36.0 to 50.0); 32 rows: 1,000 us (900 to 1,200)")
    assert "us" not in c
