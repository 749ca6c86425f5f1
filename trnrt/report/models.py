"""What ``bench models`` shows: the table of a terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from trnrt.planner.crossing import host_link
from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.tables import plain_table
from trnrt.report.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.bench.models.table import Row

_VERDICTS = {None: Text("-"), True: Text("pass", "green"), False: Text("MISS", "bold red")}


def models_document(rows: Sequence[Row]) -> Document:
    """``bench models``: microseconds of a batch; ``ratio`` is predicted over published.

    ``published_us`` and ``ratio`` are null where nothing is published, ``passed`` where there is no bar.
    """
    lines = [
        {
            "model": row.model,
            "target": row.target,
            "dtype": row.dtype,
            "batch": row.batch,
            "predicted_us": row.predicted_us,
            "bound_us": row.bound_us,
            "published_us": row.published_us,
            "ratio": row.ratio,
            "passed": row.passed,
        }
        for row in rows
    ]
    passed = all(row.passed is not False for row in rows)
    return {"schema_version": SCHEMA_VERSION, "benchmark": "models", "rows": lines, "passed": passed}


def models_parts(rows: Sequence[Row]) -> list[RenderableType]:
    """All that a terminal shows: the table, what its columns mean, and how many bars are missed."""
    held = [row for row in rows if row.passed is not None]
    missed = sum(row.passed is False for row in held)
    parts: list[RenderableType] = [models_table(rows), "", *_told(rows)]
    if held:
        parts.append(f"{counted(len(held), 'row')} with a bar, {f'{missed} missed' if missed else 'all reached'}")
    return parts


def models_table(rows: Sequence[Row]) -> Table:
    """A line for each row; what is not published is left empty."""
    lines = [
        (
            row.model,
            row.target,
            row.dtype,
            str(row.batch),
            f"{row.predicted_us:,.1f}",
            f"{row.bound_us:,.1f}",
            f"{row.predicted_us / row.bound_us:.2f}",
            "" if row.published_us is None else f"{row.published_us:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.bar_us is None else f"{row.bar_us:,.1f}",
            _VERDICTS[row.passed],
            f"{host_us(row):,.0f}",
        )
        for row in rows
    ]
    columns = ("model", "target", "dtype", "batch", "predicted us", "bound", "x bound", "published", "ratio", "bar")
    return plain_table((*columns, "", "host us"), lines, right=(3, 4, 5, 6, 7, 8, 9, 11))


def host_us(row: Row) -> float:
    """An estimate of what the host takes beside the device: the batch to it, and the answer back, over PCIe."""
    link = host_link(row.target)
    to_device, to_host = row.host_bytes
    return link.transfer_us(to_device) + link.transfer_us(to_host)


def _told(rows: Sequence[Row]) -> list[str]:
    """What the columns mean, a line each."""
    told = []
    for target in dict.fromkeys(row.target for row in rows):
        link = host_link(target)
        told.append(
            f"host us: an estimate for {target} at {link.gbps:g} GB/s and {link.latency_us:g} us each way, which are"
            " assumptions (trnrt/planner/host_link.toml)"
        )
    if any(row.published_us is not None for row in rows):
        told += [
            "published: AWS's own compiler, the time of the host and of PCIe included, which is not in ours; at batch 8"
            " what two cores' images a second mean for one core",
            "ratio: predicted over published; bar: the most that is accepted, the physical bound counted in",
        ]
    return told
