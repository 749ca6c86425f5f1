"""The zoo's pages: docs/zoo.md is what was measured, and the HTML page has the same table."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from zoo_rows import HOSTILE, made_up_row

from benchmarks.zoo.html import zoo_html
from benchmarks.zoo.page import zoo_page
from benchmarks.zoo.published import figure_text, find_published, list_published
from benchmarks.zoo.results import Result, Results, read_results
from benchmarks.zoo.table import cost_cell, held_cell, lines_of, profile_command, rate_cell, time_cell
from trnrt.capacity.prices import Price
from trnrt.nki.machine.timing import Range

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "zoo.md"
ROWS = [made_up_row("bert_base.onnx", "BERT-base", 900.0), made_up_row("yolo26n.onnx", "YOLO26n", 3000.0, kernels=2)]
PRICES = {
    "trn2.3xlarge": Price(7.2, "nowhere-1", "2026-11-26", "https://prices.example"),
    "trn2.48xlarge": Price(144.0, "nowhere-1", "2026-11-26", "https://prices.example"),
}


# ---- docs/zoo.md


def test_the_page_is_generated() -> None:
    rows = Results().rows
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(zoo_page(rows), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == zoo_page(rows)


def test_the_results_could_show_a_mistake() -> None:
    """Outputs that are the same for other inputs would prove nothing; float32 is right to rounding. (A detector's
    boxes of nearly equal scores may come in another order.) Every number has its version."""
    rows = read_results()
    assert rows
    for row in rows:
        assert row.has_numbers and all(one.version for one in row.predictions), row.entry.file
        for dtype, found in row.accuracy.items():
            assert found.version and (found.between is None or found.between > 1e-3), row.entry.file
            if dtype == "float32" and row.entry.kind != "detectors":
                assert found.rank > 0.999, row.entry.file


def test_a_row_for_each_model_and_target() -> None:
    page = zoo_page(ROWS)
    first = "| BERT-base | trn2 | 1 | 0.45 (0.405 to 0.54) |"
    best = "4 (of 1, 4) | 0.9 (0.81 to 1.08) | 0.225 | 4,444 (3,704 to 4,938) |"
    assert f"{first} {best} 4,000 | 100 | tensor engine 50%, DMA data 25% |" in page
    assert "| YOLO26n | trn1 |" in page and "4,000 in 2 |" in page
    assert "| BERT-base | 2 | 3.0e-07 | 1 | 1 | 2 of 2 | 4.0e-03 | 0.9987 | 0.99988 | 1 of 2 |" in page
    assert "- Predictions by trnrt 0.2.0+abc.\n- Accuracy by trnrt 0.2.0+def.\n" in page
    assert "| a kind | BERT-base | 1.23 M | 4.8 MiB | by hand |" in page


def test_versions_are_those_of_the_numbers(tmp_path: Path) -> None:
    row = ROWS[0]
    older = tuple(replace(one, version="0.1.0+old") if one.batch == 1 else one for one in row.predictions[:3])
    rows = [replace(row, predictions=older, accuracy={})]
    assert "- Predictions by trnrt 0.1.0+old (2), 0.2.0+abc (1).\n\n" in zoo_page(rows)
    page = zoo_html(rows, page=tmp_path / "zoo.html")
    assert "<li>predictions by trnrt 0.1.0+old (2), 0.2.0+abc (1)</li></ul>" in page


def test_only_batches_that_were_tried_are_named(tmp_path: Path) -> None:
    row = ROWS[0]
    alone = [one for one in row.predictions if one.batch == 1]
    rows = [replace(row, predictions=tuple(alone), tried={"trn1": (1,), "trn2": (1, 4, 8)})]
    page = zoo_page(rows)
    assert "| BERT-base | trn1 | 1 | 0.9 (0.81 to 1.08) | 1 | 0.9" in page
    assert "| BERT-base | trn2 | 1 | 0.45 (0.405 to 0.54) | 1 (of 1, 4, 8) | 0.45" in page
    assert zoo_html(rows, page=tmp_path / "zoo.html").count('1 <span class="range">(of 1, 4, 8)</span>') == 1


def test_a_model_without_predictions_is_named() -> None:
    page = zoo_page([*ROWS, Result(replace(ROWS[0].entry, title="Unplanned"), 1, "", ROWS[0].accuracy)])
    assert "Not predicted yet: Unplanned." in page and "Not predicted yet" not in zoo_page(ROWS)
    assert "Predicted so far, of 3 models: 2 on trn1, 2 on trn2, 0 on trn3.\n" in page


def test_published_figures_stand_beside_a_prediction_and_no_ratio_is_formed() -> None:
    page = zoo_page(ROWS)
    (line,) = (line for line in page.splitlines() if line.startswith("| BERT-base | 3,422/s"))
    assert "3,422/s by 2 cores (0.585 ms a core)" in line and "the host's part is in it" in line
    assert line.endswith("| 2,222 (1,852 to 2,469)/s on trn1, batch 4 |")
    assert "| YOLO26n | 33.2/s |" in page and "DistilBERT" not in page


def test_a_refusal_is_shown_with_its_reasons() -> None:
    row = ROWS[0].with_refusal("trn1", ["Hardmax: not | supported", "b", "c", "d", "e"])
    page = zoo_page([row])
    assert "| BERT-base | trn1 | Hardmax: not \\| supported; b; c; and 2 more reasons |" in page
    assert "## Refused" not in zoo_page(ROWS)


# ---- published figures


def test_every_published_figure_has_its_page_and_what_it_measured() -> None:
    for one in list_published():
        assert one.page.startswith("https://") and one.what and one.source and one.items_per_second > 0
        assert one.target in ("trn1", "trn2", "trn3") and (one.cores is None) == (one.work is None)
    assert {one.model for one in list_published()} >= {"bert_base", "distilbert", "vit_b16", "yolo26n", "convnext_tiny"}


@pytest.mark.parametrize(
    ("model", "target", "text"),
    [
        ("bert_base", "trn1", "3,422/s by 2 cores (0.585 ms a core)"),
        ("bert_large", "trn1", "1,104/s by 2 cores (1.81 ms a core)"),
        ("vit_b16", "trn1", "1,955/s by 2 cores (1.02 ms a core)"),
        ("dinov3_b16", "trn1", "434/s by 1 core"),
        ("dinov3_b16", "trn2", "214/s by 2 cores as one"),
        ("yolo26s", "trn2", "65.5/s"),
    ],
)
def test_only_cores_with_their_own_items_are_divided_by(model: str, target: str, text: str) -> None:
    (one,) = find_published(model, target)
    assert figure_text(one) == text


# ---- the table


def test_ranges_are_in_order() -> None:
    line = lines_of(ROWS)[1]
    assert (line.target, line.first.batch, line.best.batch) == ("trn2", 1, 4)
    assert time_cell(line.best).text == "0.9 (0.81 to 1.08)" and rate_cell(line.best).text == "4,444 (3,704 to 4,938)"
    assert held_cell(line.best).text == "tensor engine 50%, DMA data 25%"


def test_times_have_three_digits_until_a_second() -> None:
    one = lines_of(ROWS)[1].best
    shown = [time_cell(replace(one, predicted=Range(us, us, us))).text.split()[0] for us in (12.5, 999_400, 999_600)]
    assert shown == ["0.0125", "999", "1,000"]


def test_the_cost_is_that_of_a_whole_instance_on_the_cheapest_type() -> None:
    line = lines_of(ROWS)[1]
    cores, rate = 8, line.best.items_per_second
    cost = cost_cell(line, PRICES)
    assert cost.value == pytest.approx(7.2 / (cores * rate * 3600) * 1e6) and "(trn2.3xlarge)" in cost.text
    cheaper = PRICES | {"trn2.48xlarge": Price(7.0, "nowhere-1", "2026-11-26", "https://prices.example")}
    assert cost_cell(line, cheaper).value == pytest.approx(7.0 / (128 * rate * 3600) * 1e6)
    assert cost_cell(lines_of(ROWS)[0], PRICES).text == "-"  # trn1 has no price in the file


def test_the_profile_command_is_one_that_trnrt_takes() -> None:
    words = profile_command(lines_of(ROWS)[0]).split()
    assert words[:3] == ["trnrt", "profile", "bert_base.onnx"]
    assert words[words.index("--shape") + 1] == "x=3x4" and words[words.index("--batch") + 1] == "4"
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    help_text = text.partition("## trnrt profile")[2].partition("\n## ")[0]
    assert all(f"`{word}`" in help_text for word in words if word.startswith("--"))


# ---- the page for a browser


def test_the_page_has_every_row_and_no_outside_resource(tmp_path: Path) -> None:
    page = zoo_html(ROWS, page=tmp_path / "zoo.html")
    assert page.count("<tr data-target=") == 4 and page.isascii()
    assert "$ a million" not in page and "default-src 'none'" in page
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert links and all(link.startswith(("data:", "https://github.com/")) for link in links)


def test_prices_add_a_column_and_their_source(tmp_path: Path) -> None:
    page = zoo_html(ROWS, PRICES, page=tmp_path / "zoo.html")
    assert "$ a million" in page and "(trn2.3xlarge)" in page
    assert "trn2.3xlarge $7.2 in nowhere-1 on 2026-11-26, https://prices.example" in page


def test_names_are_data(tmp_path: Path) -> None:
    page = zoo_html([made_up_row("m.onnx", HOSTILE, 1.0)], page=tmp_path / "zoo.html")
    assert "<img" not in page and "&lt;/script&gt;&lt;img" in page
    assert "<img" not in zoo_page([made_up_row("m.onnx", HOSTILE, 1.0)])
