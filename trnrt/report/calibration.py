"""The numbers that a calibration learned from a device's reports: tables, and a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from trnrt.calibration.comparing import group, median_errors
from trnrt.report.documents import SCHEMA_VERSION
from trnrt.text import count_text, escape_text

if TYPE_CHECKING:
    from trnrt.calibration.comparing import Compared, Group
    from trnrt.calibration.learning import Learned, Number
    from trnrt.calibration.reports import Report

TIMES = "measured us"


def calibration_document(
    target: str, reports: Sequence[Report], learned: Learned, rows: Sequence[Compared], *, version: str
) -> dict[str, Any]:
    """``calibrate``. Errors are predicted over measured, less 1; a ``half`` is that of a 95 % interval, as a share.

    ``hosts``: for each report measured by the host's clock, the part of a call that is not the device's.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "trnrt_version": version,
        "kind": "calibration",
        "target": target,
        "reports": [
            {
                "digest": report.digest,
                "made": report.made,
                "trnrt_version": report.trnrt,
                "versions": report.versions,
                "cases": len(report.cases),
                "left_out": list(report.foreign),
                "calls": list(report.calls),
            }
            for report in reports
        ],
        "hosts": [{"report": k, "us": us, "us_per_mb": more} for k, (us, more) in sorted(learned.hosts.items())],
        "residual_scale": learned.scale,
        "numbers": [asdict(number) | {"decided": number.is_decided} for number in learned.numbers],
        "places": [asdict(one) for one in group(rows, lambda row: row.place)],
        "kernels": [asdict(one) for one in group(rows, lambda row: row.kernel)],
        "cases": [
            asdict(row) | {"error_before": row.error_before, "error_after": row.error_after, "known": row.is_known}
            for row in rows
        ],
    }


def calibration_parts(target: str, reports: Sequence[Report], learned: Learned, rows: Sequence[Compared]) -> list[Any]:
    """The headline, the errors by place and by kernel, the probes, and the numbers."""
    known = [row for row in rows if row.is_known]
    headline = f"{target}: {count_text(len(reports), 'report')}, {len(known)} of {count_text(len(rows), 'time')} known"
    parts: list[Any] = [Text(headline, "bold")]
    if known:
        before, after = median_errors(known)
        then = "" if after is None else f"; {after:.1%} with the decided numbers, models left out"
        parts.append(f"median error {before:.1%} with the target's numbers{then}")
    for k, (us, more) in sorted(learned.hosts.items()):
        parts.append(f"the host's part of a call, report {k + 1}: {us:,.1f} us, and {more:,.1f} us a MB")
    parts += ["", _group_table("engine, descriptors or part", group(rows, lambda row: row.place))]
    parts += ["", _group_table("kernel", group(rows, lambda row: row.kernel))]
    parts += ["", _case_table(known), "", _number_table(learned.decided_numbers)]
    left = ", ".join(_reason(number) for number in learned.left_numbers)
    parts += ["", f"left as they are, as the reports do not decide them: {left}"]
    return parts


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:.1%}"


def _group_table(heading: str, groups: Sequence[Group]) -> Table:
    table = _table(heading, "times", "error before", "after")
    for one in groups:
        table.add_row(escape_text(one.name), str(one.count), _percent(one.error_before), _percent(one.error_after))
    return table


def _case_table(rows: Sequence[Compared]) -> Table:
    table = _table("case", TIMES, "+-", "predicted before", "after", "error before", "after")
    for row in rows:
        after = "" if row.after_us is None else f"{row.after_us:,.1f}"
        times = f"{row.measured_us:,.1f}", _percent(row.error_us / row.measured_us), f"{row.before_us:,.1f}", after
        errors = [f"{row.error_before:+.1%}", "" if row.error_after is None else f"{row.error_after:+.1%}"]
        table.add_row(escape_text(row.name), *times, *errors)
    return table


def _number_table(numbers: Sequence[Number]) -> Table:
    table = _table("decided number", "before", "fitted", "95 % interval", "change")
    for one in numbers:
        interval = f"{one.low:,.4g} to {one.high:,.4g}"
        table.add_row(
            one.name, f"{one.before:,.4g}", f"{one.value:,.4g}", interval, f"{one.value / one.before - 1:+.1%}"
        )
    return table


def _reason(number: Number) -> str:
    return f"{number.name} (+-{number.half:.0%})" if number.moves else f"{number.name} (no case uses it)"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
