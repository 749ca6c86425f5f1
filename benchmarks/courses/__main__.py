"""``python -m benchmarks.courses``: run courses' harnesses and AWS's samples of the old namespace, unchanged."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated

from benchmarks.command import QuickFlag, command_line, fail_unless, show
from trnrt.commands.exits import call
from trnrt.commands.options import JsonFlag, JsonOutFlag, Reporting
from trnrt.commands.verbs import option
from trnrt.report.progress import working

FromFlag = Annotated[
    Path | None, option("--from", metavar="DIR", help="Use the copies of the repositories in DIR, not GitHub.")
]
PythonFlag = Annotated[
    str, option("--python", metavar="FILE", help="The harnesses' interpreter: trnrt's dependencies and PyTorch.")
]
OnlyFlag = Annotated[
    str | None, option("--only", metavar="REGEX", help="Only harnesses, files and kernels that match.")
]


def run_courses(
    source: FromFlag = None,
    python: PythonFlag = sys.executable,
    only: OnlyFlag = None,
    quick: QuickFlag = False,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Run the harnesses of CS149 and CS152 and the kernels of nki-samples; exit 1 if one is not as it must be.

    --quick leaves out the harnesses that take minutes."""
    from benchmarks.courses import repositories
    from benchmarks.courses.harnesses import RUNS
    from benchmarks.courses.report import courses_document, courses_parts
    from benchmarks.courses.samples.running import run_samples
    from benchmarks.courses.working import check_python, run_harness

    runs = [run for run in RUNS if re.search(only or "", run.name) and not (quick and run.slow)]
    if runs:
        check_python(python)
    with tempfile.TemporaryDirectory(prefix="courses-") as name:
        folder = Path(name)
        wanted = {run.course for run in runs} | {run.solution[0] for run in runs if run.solution}
        with working("fetching the repositories"):
            trees = {one: repositories.bring(one, source, folder) for one in wanted}
            samples = repositories.bring(repositories.SAMPLES, source, folder)
        results = []
        for run in runs:
            with working(f"running {run.name}"):
                results.append(run_harness(run, trees, folder, python))
        with working("running the kernels of nki-samples"):
            outcomes = run_samples(samples, only or "")
    document = courses_document(results, outcomes)
    show(Reporting(as_json, json_out), document, lambda: courses_parts(results, outcomes))
    fail_unless(document["passed"])


app = command_line(run_courses)

if __name__ == "__main__":
    call(app)
