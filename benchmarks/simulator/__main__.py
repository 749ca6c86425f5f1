"""``python -m benchmarks.simulator``: measure the simulator against numpy, PyTorch and onnxruntime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.command import QuickFlag, command_line, fail_unless, show, warn_if_busy
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.report.progress import working

if TYPE_CHECKING:
    from benchmarks.measuring import Row


def measure_simulator(quick: QuickFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None) -> None:
    """Measure the simulator against numpy and PyTorch; exit 1 if a bar is missed."""
    from benchmarks.rows import passed, rows_document, rows_table
    from benchmarks.simulator.cases import CASES
    from benchmarks.simulator.networks import measure_networks
    from benchmarks.simulator.worker import measure

    warn_if_busy()
    rows: list[Row] = []
    for name in CASES:
        with working(f"measuring {name}"):
            rows += measure(name, quick=quick)
    rows += measure_networks(quick=quick, working=lambda name: working(f"measuring {name}"))
    document = rows_document("simulator", rows, quick=quick)
    show(Reporting(as_json, json_out), document, lambda: [rows_table(rows)])
    fail_unless(passed(rows))


app = command_line(measure_simulator)

if __name__ == "__main__":
    call(app)
