"""``python -m benchmarks.search``: compare the planner's search with an exhaustive one, on ten small layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.members import DType
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import counting

if TYPE_CHECKING:
    from benchmarks.search.table import Row

OnlyFlag = Annotated[
    list[str] | None, option("--only", metavar="NAME", help="Only this layer; repeatable.", show_default=False)
]
DtypeFlag = Annotated[DType, option("--dtype", help="The dtype of weights and activations.")]


def compare_searches(
    target: SimulatedTargetFlag = None,
    only: OnlyFlag = None,
    dtype: DtypeFlag = DType.BFLOAT16,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare the planner's search with an exhaustive one, on ten small layers; exit 1 if the bar is missed."""
    from benchmarks.search.report import search_document, search_parts
    from benchmarks.search.table import choose_layers, measure
    from trnrt.nki.sim.kernel import default_target

    layers, name = choose_layers(only or []), target or default_target()
    rows: list[Row] = []
    with counting("trying all choices", len(layers), unit="layers") as done:
        rows += measure(name, dtype.value, layers, done)
    document = search_document(rows, name, dtype.value)
    show(Reporting(as_json, json_out), document, lambda: search_parts(rows))
    fail_unless(document["passed"])


app = command_line(compare_searches)

if __name__ == "__main__":
    call(app)
