"""What ``bench labs`` and ``bench kernels`` show: the tables of a terminal, and the JSON documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table

from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.bench.labs.cases import Row
    from trnrt.bench.labs.checking import Checked
    from trnrt.bench.shapes.families import Share


def labs_document(rows: Sequence[Row], checked: Sequence[Checked] | None) -> Document:
    """``bench labs``: microseconds; ``checked`` is null where the numbers were not asked for."""
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "labs",
        "rows": [asdict(row) | {"passed": row.passed} for row in rows],
        "checked": None if checked is None else [asdict(one) | {"passed": one.passed} for one in checked],
        "passed": all(row.passed for row in rows) and all(one.passed for one in checked or ()),
    }


def labs_parts(rows: Sequence[Row], checked: Sequence[Checked] | None) -> list[RenderableType]:
    """All that a terminal shows."""
    parts: list[RenderableType] = [labs_table(rows)]
    missed = sum(not row.passed for row in rows)
    parts.append(f"{len(rows)} cases, {missed} miss a bar" if missed else f"{len(rows)} cases, all within their bars")
    if checked is not None:
        lines = [(one.case, f"{one.worst:.2g}", "pass" if one.passed else "FAIL") for one in checked]
        parts += ["", plain_table(("numbers of", "error over the allowed", ""), lines, right=(1,))]
    return parts


def labs_table(rows: Sequence[Row]) -> Table:
    """A line for each case."""
    lines = [
        (
            row.case,
            row.target,
            row.dtype,
            row.clock,
            f"{row.predicted_us:,.1f}",
            "" if row.published_us is None else f"{row.published_us:,.1f}",
            "" if row.theirs_us is None else f"{row.theirs_us:,.1f}",
            "" if row.bar_us is None else f"{row.bar_us:,.1f}",
            f"{row.bound_us:,.1f}",
            f"{row.peak_share:.1%}",
            "pass" if row.passed else "MISS",
        )
        for row in rows
    ]
    columns = ("case", "target", "dtype", "clock", "predicted us", "published", "theirs, predicted", "bar", "bound")
    return plain_table((*columns, "share of peak", ""), lines, right=(4, 5, 6, 7, 8, 9))


def shares_document(shares: Sequence[Share]) -> Document:
    """``bench kernels``: quantiles of the shares of the hardware's limit over random shapes."""
    return {"schema_version": SCHEMA_VERSION, "benchmark": "kernels", "rows": [asdict(share) for share in shares]}


def shares_table(shares: Sequence[Share]) -> Table:
    """A line for each family."""
    lines = [
        (
            s.family,
            s.target,
            s.dtype,
            f"{s.p10:.1%}",
            f"{s.median:.1%}",
            f"{s.p90:.1%}",
            f"{s.least:.1%}",
            s.least_shape,
        )
        for s in shares
    ]
    columns = ("family", "target", "dtype", "10th percentile", "median", "90th", "least", "of shapes")
    return plain_table(columns, lines, right=(3, 4, 5, 6))
