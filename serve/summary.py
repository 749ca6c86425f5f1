"""What an operator sees at the start: the models, and where they answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnrt.serve.repository import Repository


@dataclass(frozen=True)
class SummaryRow:
    """One model: the first and the last of ``predicted_us`` are for the smallest and the largest bucket."""

    name: str
    state: str
    reason: str | None
    buckets: tuple[int, ...]
    predicted_us: tuple[float, ...]


def summary_rows(repository: Repository) -> list[SummaryRow]:
    """A row for each model."""
    return [
        SummaryRow(model.name, model.state, model.reason, model.buckets, tuple(model.predicted_us.values()))
        for model in repository.models.values()
    ]


def summary_text(rows: Sequence[SummaryRow], url: str) -> str:
    """A table of the models, and below it where they answer and why some do not."""
    from trnrt.report.console import render
    from trnrt.report.tables import plain_table
    from trnrt.report.text import escaped_lines, shown

    lines = [(shown(row.name), row.state, ", ".join(map(str, row.buckets)), _latency(row)) for row in rows]
    table = plain_table(("model", "state", "buckets", "predicted on the device"), lines)
    told = [f"{shown(row.name)}: {escaped_lines(row.reason)}" for row in rows if row.reason]
    ready = sum(row.state == "ready" for row in rows)
    return render([table]) + "".join(f"{text}\n" for text in [*told, f"{ready} of {len(rows)} ready at {url}"])


def _latency(row: SummaryRow) -> str:
    if not row.predicted_us:
        return ""
    first, last = row.predicted_us[0], row.predicted_us[-1]
    return f"{first:,.1f} us" if first == last else f"{first:,.1f} to {last:,.1f} us"
