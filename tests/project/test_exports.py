"""The page of exported files is what was measured, and what was measured could show a mistake."""

from __future__ import annotations

import os
from pathlib import Path

from exports_page import exports_page, read_results

PAGE = Path(__file__).parents[2] / "docs" / "exports.md"
KINDS = {
    "integers", "optimised", "constant subgraphs", "3-D", "recurrent", "Resize", "GridSample", "MaxUnpool", "Einsum",
    "CumSum, Trilu", "EmbeddingBag", "detectors", "segmentation", "tf2onnx", "Keras 3", "Paddle", "trees",
}  # fmt: skip


def test_the_page_is_generated() -> None:
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(exports_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == exports_page()


def test_every_kind_has_a_file() -> None:
    assert {row["kind"] for row in read_results()} >= KINDS


def test_every_result_says_what_came_out() -> None:
    """Outputs that are 0, or the same for other inputs, would prove nothing."""
    for row in read_results():
        if row["result"] in ("runs", "differs"):
            assert row["lively"] and row["largest"] > 1e-3, row["file"]
            assert row["error"] <= 1e-3 * row["largest"], row["file"]
        assert row["result"] in ("runs", "planned") or row["why"], row["file"]
