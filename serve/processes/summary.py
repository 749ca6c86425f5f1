"""The operator's summary at the start: the models, and their URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range
    from trnrt.serve.hosting.repository import Repository


@dataclass(frozen=True)
class SummaryRow:
    """One model, or one version of it (NAME@2), and its predicted time on the device for each bucket."""

    name: str
    state: str
    reason: str | None
    buckets: tuple[int, ...]
    predictions: Mapping[int, Range]


def summary_rows(repository: Repository) -> list[SummaryRow]:
    """A row for each model."""
    return [
        SummaryRow(key, model.state, model.reason, model.described.buckets, model.described.predictions)
        for key, model in repository.models.items()
    ]


def summary_text(rows: Sequence[SummaryRow], url: str, grpc_address: str | None = None) -> str:
    """A table of the models, and below it why some are not ready, the URL, and gRPC's address."""
    from trnrt.report.console import render
    from trnrt.report.tables import plain_table
    from trnrt.text import escaped_lines, name_text

    lines = [(name_text(row.name), row.state, ", ".join(map(str, row.buckets)), _latency(row)) for row in rows]
    table = plain_table(("model", "state", "buckets", "predicted on the device"), lines)
    reasons = [f"{name_text(row.name)}: {escaped_lines(row.reason)}" for row in rows if row.reason]
    ready = sum(row.state == "ready" for row in rows)
    where = url if grpc_address is None else f"{url}, and over gRPC at {grpc_address}"
    return render([table]) + "".join(f"{text}\n" for text in [*reasons, f"{ready} of {len(rows)} ready at {where}"])


def _latency(row: SummaryRow) -> str:
    """The predicted time of the smallest and the largest bucket."""
    from trnrt.text import count_text, range_text

    ends = sorted({min(row.predictions), max(row.predictions)}) if row.predictions else []
    times = [(count_text(rows, "row"), range_text(row.predictions[rows])) for rows in ends]
    return "; ".join(f"{rows}: {time}" for rows, time in times) if len(times) > 1 else "".join(t for _, t in times)
