"""``python -m benchmarks.recurrent``: compare a step of recurrent layers with its least time."""

from __future__ import annotations

from typing import Annotated

from benchmarks.command import command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting, SimulatedTargetFlag
from trnrt.commands.verbs import option
from trnrt.report.progress import working

KindFlag = Annotated[
    list[str] | None,
    option("--kind", metavar="KIND", help="Only this kind of layer: lstm, gru or rnn; repeatable."),
]
HiddenFlag = Annotated[
    list[int] | None,
    option("--hidden", min=1, metavar="N", help="Hidden units; repeatable. By default 64, 128, 256, 512 and 1024."),
]
BatchFlag = Annotated[
    list[int] | None, option("--batch", min=1, metavar="N", help="A batch; repeatable. By default 1, 16 and 64.")
]


def compare_steps(
    target: SimulatedTargetFlag = None,
    kind: KindFlag = None,
    hidden: HiddenFlag = None,
    batch: BatchFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict a step of LSTM, GRU and RNN layers, beside its bound; exit 1 if the bar is missed."""
    from benchmarks.recurrent.report import recurrent_document, recurrent_parts
    from benchmarks.recurrent.table import HIDDEN, KINDS, ROWS, make_cases, measure
    from trnrt.errors import OptionError
    from trnrt.nki.sim.kernel import default_target

    for name in kind or []:
        if name not in KINDS:
            raise OptionError(f"unknown kind of layer {name!r}", hint=f"it is one of {', '.join(KINDS)}")
    with working("predicting steps"):
        rows = list(measure(make_cases([target or default_target()], kind or KINDS, hidden or HIDDEN, batch or ROWS)))
    document = recurrent_document(rows)
    show(Reporting(as_json, json_out), document, lambda: recurrent_parts(rows))
    fail_unless(document["passed"])


app = command_line(compare_steps)

if __name__ == "__main__":
    call(app)
