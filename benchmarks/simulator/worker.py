"""Run one benchmark case, in this process or a new one.

If BLAS's threads can't be set in this process, they are set through the environment of a new one: ``python -m
benchmarks.simulator.worker CASE [--quick]`` prints the case's rows as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from benchmarks import ROOT
from benchmarks.measuring import Row, can_limit_threads, threads
from benchmarks.simulator.cases import CASES, QUICK, Effort

_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def measure(name: str, *, quick: bool = False) -> list[Row]:
    """The rows of a case, with its number of BLAS threads."""
    case = CASES[name]
    if can_limit_threads():
        with threads(case.threads):
            return case.run(QUICK if quick else Effort())
    return _elsewhere(name, quick=quick)


def _elsewhere(name: str, *, quick: bool) -> list[Row]:
    environment = os.environ | dict.fromkeys(_VARIABLES, str(CASES[name].threads))
    command = [sys.executable, "-m", "benchmarks.simulator.worker", name, *(["--quick"] if quick else [])]
    text = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Row(**row) for row in json.loads(text)]


def main(arguments: list[str]) -> None:
    """Measure in this process, whose environment is set."""
    rows = CASES[arguments[0]].run(QUICK if "--quick" in arguments else Effort())
    sys.stdout.write(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1:])
