"""``python -m benchmarks.quantised``: predict networks in float32, bfloat16, int8 and 8-bit floats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from benchmarks.command import command_line, show
from trnrt.commands.exits import call
from trnrt.commands.options import EFFORT, EffortFlag, JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import counting

if TYPE_CHECKING:
    from benchmarks.quantised.table import Row

NetFlag = Annotated[
    list[str] | None,
    option(
        "--net", metavar="NAME", help="A network; repeatable. By default resnet18 and resnet50.", show_default=False
    ),
]
BatchFlag = Annotated[
    list[int] | None,
    option("--batch", min=1, metavar="N", help="A batch; repeatable. By default 1, 4 and 8.", show_default=False),
]


def compare_forms(
    target: SimulatedTargetFlag = None,
    net: NetFlag = None,
    batch: BatchFlag = None,
    effort: EffortFlag = EFFORT,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict networks in float32, bfloat16, int8 and float8_e4m3 at several batches; 8 bits on random images.

    trn1 has no 8-bit floats, and its table leaves them out.
    """
    from benchmarks.networks.table import choose_networks
    from benchmarks.quantised.report import quantised_document, quantised_parts
    from benchmarks.quantised.table import BATCHES, NETS, forms_of, measure
    from trnrt.nki.sim.kernel import default_target

    names, batches = choose_networks(net or NETS), tuple(dict.fromkeys(batch or BATCHES))
    hardware = target or default_target()
    forms = forms_of(hardware)
    rows: list[Row] = []
    with counting("planning networks", len(names) * len(batches) * len(forms), unit="plans") as done:
        rows += measure(hardware, names, batches, forms, effort, done)
    show(Reporting(as_json, json_out), quantised_document(rows), lambda: quantised_parts(rows))


app = command_line(compare_forms)

if __name__ == "__main__":
    call(app)
