"""docs/exports.md: what came out of one file of every kind, from models/exports/results.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnrt.text import count_text

RESULTS = Path(__file__).parents[2] / "models" / "exports" / "results.json"

_INTRO = """# One file of every kind

This table shows which files of PyTorch, Keras, scikit-learn, Paddle and others run on trnrt, for one row in float32 on
the simulator. [The last section](#why-some-dont-run-or-differ) says why some don't.

The scripts in `models/exports/` export these files with random weights, and `models/exports/try_exports.py` runs each
of them ([models/README.md](https://github.com/trnrt/trnrt/blob/main/models/README.md#one-file-of-every-kind) says how).
The page is generated from `models/exports/results.json` (`tests/shared/exports_page.py`).

- **result**: "runs" if every number is within the tolerance of `trnrt validate`; "differs" if one isn't; "planned" if
  the file was planned and timed, but not simulated, because that takes too long; "refused" if trnrt can't run it.
- **difference**: the largest difference from onnxruntime's outputs of the same file; for an int8 file, from its
  [integer meaning](quantised.md#validating).
- **outputs up to**: the outputs' largest magnitude.
- **predicted**: the latency of one row on trn2.
"""
_REFUSED = """## Why some don't run, or differ

For a refused file, the reasons are those of the error. `trnrt inspect` prints each with a way out, and the commands
that cut the model or leave these nodes to onnxruntime.
"""
_ORDER = (
    "integers", "optimised", "constant subgraphs", "3-D", "recurrent", "Resize", "GridSample", "MaxUnpool", "Einsum",
    "CumSum, Trilu", "EmbeddingBag", "detectors", "segmentation", "Ultralytics", "tf2onnx", "Keras 3", "Paddle",
    "trees",
)  # fmt: skip
"""Kinds in the page's order; others follow by name."""
_MOST_REASONS = 4


def read_results() -> list[dict[str, Any]]:
    """The rows as try_exports.py wrote them, in the page's order."""
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    places = {kind: place for place, kind in enumerate(_ORDER)}
    return sorted(rows, key=lambda row: (places.get(row["kind"], len(places)), row["kind"], row["file"]))


def exports_page() -> str:
    """The page."""
    rows = read_results()
    lines = [_INTRO, "| kind | model | exporter | result | difference | outputs up to | predicted |", "|" + "---|" * 7]
    lines += [_row(row) for row in rows]
    refused = [row for row in rows if row.get("why")]
    if refused:
        lines += ["", _REFUSED, "| file | reason |", "|---|---|"]
        lines += [f"| {row['file']} | {_reasons(row['why'])} |" for row in refused]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> str:
    ran = "error" in row
    cells = [
        row["kind"],
        row["title"],
        row["exporter"],
        _result(row),
        _number(row["error"]) if ran else "-",
        _number(row["largest"]) if ran else "-",
        f"{row['predicted_us']:,.0f} us" if "predicted_us" in row else "-",
    ]
    return f"| {' | '.join(cells)} |"


def _result(row: dict[str, Any]) -> str:
    notes = [" with `--shape`"] if row.get("needs_shape") else []
    notes += [f"; its end, of {count_text(len(row['host']), 'operator')}, on the host"] if row.get("host") else []
    return "".join([row["result"], *notes])


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}" if value < 1e-3 else f"{value:.3g}"


def _reasons(whys: list[str]) -> str:
    shown = [why.replace("|", "\\|").replace("<", "&lt;") for why in whys[:_MOST_REASONS]]
    more = [f"and {len(whys) - _MOST_REASONS} more"] if len(whys) > _MOST_REASONS else []
    return "; ".join(shown + more)
