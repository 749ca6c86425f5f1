"""Run one benchmark case in a new process, whose environment sets the threads of BLAS and PyTorch.

``python -m benchmarks.simulator.worker CASE [--quick]`` prints the case's rows as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict

from benchmarks import ROOT
from benchmarks.measuring import Row
from benchmarks.simulator.cases import CASES, QUICK, Effort
from trnrt.nki.blas import THREAD_VARIABLES


def measure(name: str, *, quick: bool = False) -> list[Row]:
    """The rows of a case, with its number of threads."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(CASES[name].threads))
    command = [sys.executable, "-m", "benchmarks.simulator.worker", name, *(["--quick"] if quick else [])]
    text = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [Row(**row) for row in json.loads(text)]


def main(arguments: list[str]) -> None:
    """Measure in this process, whose environment is set."""
    rows = CASES[arguments[0]].run(QUICK if "--quick" in arguments else Effort())
    sys.stdout.write(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1:])
