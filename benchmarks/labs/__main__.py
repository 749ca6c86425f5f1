"""``python -m benchmarks.labs``: compare the kernels with times that others measured."""

from __future__ import annotations

from typing import Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.report.progress import working

CheckFlag = Annotated[bool, option("--check", help="Run every case, too, and check its numbers (slow).")]


def compare_labs(check: CheckFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None) -> None:
    """Predict the time of the hand-written kernels on the labs' cases; exit 1 if a bar is missed."""
    from benchmarks.labs.cases import row
    from benchmarks.labs.checking import check as check_numbers
    from benchmarks.labs.report import labs_document, labs_parts
    from benchmarks.labs.table import CASES

    rows, checked = [], []
    for case in CASES:
        with working(f"predicting {case.name} on {case.target}"):
            rows.append(row(case))
        if check:
            with working(f"checking {case.name} on {case.target}"):
                checked.append(check_numbers(case))
    numbers = checked if check else None
    document = labs_document(rows, numbers)
    show(Reporting(as_json, json_out), document, lambda: labs_parts(rows, numbers))
    fail_unless(document["passed"])


app = command_line(compare_labs)

if __name__ == "__main__":
    call(app)
