"""``python -m benchmarks.reports``: which numbers a self-test's report decides, and how well they are found again."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated

from rich.table import Table

from benchmarks.command import command_line, fail_unless, show
from benchmarks.reports.rehearsal import predictions
from benchmarks.reports.sweep import Found, sweep
from trnrt.calibration.learning import NAMES
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.report.progress import counting

TargetFlag = Annotated[str, option("--target", help="The target whose numbers are changed.")]
TriplesFlag = Annotated[int, option("--triples", min=0, help="How many threes of numbers to change together.")]


def find_numbers(
    target: TargetFlag = "trn2", triples: TriplesFlag = 12, as_json: JsonFlag = False, json_out: JsonOutFlag = None
) -> None:
    """Change each number alone, and threes of them, and fit; exit 1 if a decided number is off by more than 5 %."""
    names = [name for name in NAMES if attrgetter(name)(predictions(target).timing) > 0]
    with counting("fitting", len(names) + triples, unit="changes") as advance:
        found = list(sweep(target, triples, lambda: advance(1)))
    rows = [
        {
            "changes": dict(one.changes),
            "errors": dict(one.errors),
            "left": list(one.left),
            "others": one.others,
            "passed": one.has_passed,
        }
        for one in found
    ]
    passed = all(one.has_passed for one in found)
    show(Reporting(as_json, json_out), {"target": target, "passed": passed, "rows": rows}, lambda: [_table(found)])
    fail_unless(passed)


def _table(found: list[Found]) -> Table:
    table = Table("changed", "found with error", "left", "others at most", box=None, pad_edge=False)
    for one in found:
        changes = ", ".join(f"{name} x{factor:g}" for name, factor in one.changes.items())
        errors = ", ".join(f"{error:+.1%}" for error in one.errors.values())
        table.add_row(
            changes, errors, ", ".join(one.left), f"{one.others:.1%}" + ("" if one.has_passed else "  MISSED")
        )
    return table


app = command_line(find_numbers)

if __name__ == "__main__":
    call(app)
