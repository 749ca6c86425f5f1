"""``python -m benchmarks.kernels``: show the kernels' share of the hardware's limit."""

from __future__ import annotations

from typing import Annotated

from benchmarks.command import command_line, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import working

TrialsFlag = Annotated[int, option("--trials", min=1, metavar="N", help="Random shapes per family.")]


def measure_shares(
    target: SimulatedTargetFlag = None,
    trials: TrialsFlag = 50,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict each family of kernels on seeded random shapes; show how close they are to the hardware's limit."""
    from benchmarks.kernels.families import FAMILIES, measure
    from benchmarks.kernels.report import shares_document, shares_table
    from benchmarks.verdicts import target_notes
    from trnrt.nki.sim.kernel import default_target

    shares = []
    for family in FAMILIES:
        with working(f"predicting {family.name} in {family.dtype}"):
            shares.append(measure(family, target or default_target(), trials))
    notes = target_notes(share.target for share in shares)
    show(Reporting(as_json, json_out), shares_document(shares), lambda: [shares_table(shares), *notes])


app = command_line(measure_shares)

if __name__ == "__main__":
    call(app)
