"""``python -m benchmarks.networks``: show how far whole networks are above the hardware's least time, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.members import DType
from trnrt.commands.options import EFFORT, EffortFlag, JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import counting

if TYPE_CHECKING:
    from benchmarks.networks.table import Row

NetFlag = Annotated[
    list[str] | None,
    option("--net", metavar="NAME", help="Only this network; repeatable.", show_default=False),
]
BatchFlag = Annotated[
    list[int] | None,
    option("--batch", min=1, metavar="N", help="A batch; repeatable. By default 1, 2, 4 and 8.", show_default=False),
]
DtypeFlag = Annotated[DType, option("--dtype", help="The dtype of weights and activations.")]
LncFlag = Annotated[
    int,
    option("--lnc", min=1, max=2, help="With 2: also predict two physical cores as one, beside a single one."),
]


def compare_networks(
    target: SimulatedTargetFlag = None,
    net: NetFlag = None,
    batch: BatchFlag = None,
    dtype: DtypeFlag = DType.BFLOAT16,
    effort: EffortFlag = EFFORT,
    lnc: LncFlag = 1,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict whole networks at several batches, beside the physical bound; exit 1 if a bar is missed."""
    from benchmarks.networks.report import networks_document, networks_parts
    from benchmarks.networks.table import BATCHES, choose_networks, measure
    from trnrt.nki.sim.kernel import default_target

    names, batches = choose_networks(net or []), tuple(dict.fromkeys(batch or BATCHES))
    rows: list[Row] = []
    with counting("planning networks", len(names) * len(batches), unit="plans") as done:
        rows += measure(target or default_target(), dtype.value, names, batches, effort, done, lnc)
    document = networks_document(rows)
    show(Reporting(as_json, json_out), document, lambda: networks_parts(rows))
    fail_unless(document["passed"])


app = command_line(compare_networks)

if __name__ == "__main__":
    call(app)
