"""The results of ``python -m benchmarks.recurrent``: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from benchmarks.recurrent.table import MOST_RATIO, StepTime
from trnrt.report.documents import Document
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

RECURRENT_SCHEMA_VERSION = 1
_COLUMNS = (
    "target",
    "layer",
    "dtype",
    "batch",
    "hidden",
    "chain",
    "tensor",
    "bound us",
    "step us",
    "in order",
    "ratio",
)


def recurrent_document(rows: Sequence[StepTime]) -> Document:
    """Times in microseconds; ``ratio`` is a step's time over its bound."""
    return {
        "schema_version": RECURRENT_SCHEMA_VERSION,
        "benchmark": "recurrent",
        "most_ratio": MOST_RATIO,
        "rows": [asdict(row) | {"bound_us": row.bound.us, "ratio": row.ratio} for row in rows],
        "passed": all(row.meets_bar for row in rows),
    }


def recurrent_parts(rows: Sequence[StepTime]) -> list[RenderableType]:
    """A line for each case, the worst ratio, and the bar."""
    lines = [_line(row) for row in rows]
    worst = max((row.ratio for row in rows), default=0.0)
    missed = sum(not row.meets_bar for row in rows)
    counts = f"{missed} of {len(rows)} miss it, the worst {worst:.2f}"
    bar = f"bar: a step takes at most {MOST_RATIO:g} times its bound; {counts}"
    return [plain_table(_COLUMNS, lines, right=tuple(range(3, len(_COLUMNS)))), "", bar]


def _line(row: StepTime) -> tuple[str, ...]:
    case, bound = row.case, row.bound
    numbers = (bound.chain, bound.tensor, bound.us, row.us, row.in_order_us, row.ratio)
    return (case.target, case.kind, case.dtype, str(case.rows), str(case.hidden), *(f"{one:,.2f}" for one in numbers))
