"""``python -m benchmarks.models``: compare whole networks with the least time that the hardware needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import working

if TYPE_CHECKING:
    from benchmarks.models.table import Row

OnlyFlag = Annotated[
    list[str] | None,
    option("--only", metavar="NAME", help="Only this network; repeatable.", show_default=False),
]


def compare_models(
    target: SimulatedTargetFlag = None,
    only: OnlyFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict whole networks, beside the physical bound and AWS's times; exit 1 if a bar is missed."""
    from benchmarks.models.report import models_document, models_parts
    from benchmarks.models.table import Model, named
    from trnrt.nki.sim.kernel import default_target

    used = target or default_target()
    rows: list[Row] = []
    for network in named(only or []):
        with working(f"predicting {network.name} on {used}"):
            rows += Model(network).rows(used)
    document = models_document(rows)
    show(Reporting(as_json, json_out), document, lambda: models_parts(rows))
    fail_unless(document["passed"])


app = command_line(compare_models)

if __name__ == "__main__":
    call(app)
