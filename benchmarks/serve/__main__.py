"""``python -m benchmarks.serve``: measure the server under load, during a shutdown and without one of its workers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from benchmarks.command import QuickFlag, command_line, fail_unless, show, warn_if_busy
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.report.progress import working

MlserverFlag = Annotated[
    str | None,
    option("--mlserver", metavar="PYTHON", help="Also compare with MLServer, of this interpreter's packages."),
]


def measure_server(
    quick: QuickFlag = False, mlserver: MlserverFlag = None, as_json: JsonFlag = False, json_out: JsonOutFlag = None
) -> None:
    """Measure the server under load, in a shutdown and after a worker dies; exit 1 if a bar is missed."""
    from benchmarks.measuring import Row
    from benchmarks.rows import passed, rows_document, rows_table
    from benchmarks.serve.cases import CASES, measure, require

    require()
    warn_if_busy()
    rows: list[Row] = []
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            with working(f"measuring {name}"):
                try:
                    rows += measure(name, Path(folder), quick=quick, mlserver=mlserver)
                except RuntimeError as error:  # the other cases are worth their time all the same
                    failed = True
                    rows.append(Row(name, None, "", note=str(error)))
    show(Reporting(as_json, json_out), rows_document("serve", rows, quick=quick), lambda: [rows_table(rows)])
    fail_unless(passed(rows) and not failed)


app = command_line(measure_server)

if __name__ == "__main__":
    call(app)
