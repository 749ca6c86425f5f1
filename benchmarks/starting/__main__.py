"""``python -m benchmarks.starting``: measure the CPU time of the imports, of a first answer and of a small profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from benchmarks.command import QuickFlag, command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.report.progress import working

BeforeFlag = Annotated[
    Path | None,
    option("--before", metavar="DIR", exists=True, help="Compare with the profile of an earlier checkout of trnrt."),
]


def measure_starting(
    before: BeforeFlag = None, quick: QuickFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None
) -> None:
    """Measure the CPU time of the imports, of a first answer and of a small profile; exit 1 if a bar is missed."""
    from benchmarks.rows import passed, rows_document, rows_table
    from benchmarks.starting.cpu import measure

    with working("measuring"):
        rows = measure(3 if quick else 15, before)
    show(Reporting(as_json, json_out), rows_document("starting", rows, quick=quick), lambda: [rows_table(rows)])
    fail_unless(passed(rows))


app = command_line(measure_starting)

if __name__ == "__main__":
    call(app)
