"""``python -m benchmarks.size``: count the instructions of networks' kernels, and time what a budget of them costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import working

if TYPE_CHECKING:
    from benchmarks.size.table import Compared

OnlyFlag = Annotated[
    list[str] | None,
    option("--only", metavar="NAME", help="Only this network; repeatable.", show_default=False),
]


def compare_sizes(
    target: SimulatedTargetFlag = None,
    only: OnlyFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Count the instructions of networks' kernels, and time what a budget costs; exit 1 if the bar is missed."""
    from benchmarks.size.report import size_document, size_parts
    from benchmarks.size.table import measure
    from trnrt.nki.sim.kernel import default_target

    rows: list[Compared] = []
    with working("planning networks"):
        rows += measure(target or default_target(), only or [])
    document = size_document(rows)
    show(Reporting(as_json, json_out), document, lambda: size_parts(rows))
    fail_unless(document["passed"])


app = command_line(compare_sizes)

if __name__ == "__main__":
    call(app)
