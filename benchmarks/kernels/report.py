"""The results of ``python -m benchmarks.kernels``: a table for the terminal, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table

if TYPE_CHECKING:
    from benchmarks.kernels.families import Share


def shares_document(shares: Sequence[Share]) -> Document:
    """Quantiles of the shares of the hardware's limit over random shapes."""
    return {"schema_version": SCHEMA_VERSION, "benchmark": "kernels", "rows": [asdict(share) for share in shares]}


def shares_table(shares: Sequence[Share]) -> Grid:
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
