"""``python -m benchmarks.baseline.speed --old PATH``: CPU time of a prediction in this checkout and in another.

Both predict the kept kernel module of ResNet-50 for trn2 (trace, timing and attribution, as in ``trnrt profile``). They
take turns, each time in a new process, so that no cache helps. The figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).resolve().parents[2]))  # if run as a script

from benchmarks import ROOT
from benchmarks.baseline.library import Library
from benchmarks.baseline.timing import time_part

CASE = ("resnet50", "trn2")
ROUNDS = 7
LIMIT = 1.5
"""The most CPU time, relative to the commit's, now that a prediction is a range."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; exit code 1 if it takes more than LIMIT times as long."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baseline.speed", description=__doc__)
    parser.add_argument("--old", type=Path, help="the other checkout, such as one of 1e68255")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="processes of each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--once", action="store_true", help="predict once with the trnrt that is imported, and no more")
    asked = parser.parse_args(arguments)
    if asked.once:
        sys.stdout.write(f"{seconds_of_one()}\n")
        return 0
    if asked.old is None:
        parser.error("--old is required")
    trees = {"old": asked.old.resolve(), "new": ROOT}
    taken: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(asked.rounds):
        for name in list(trees) if number % 2 == 0 else reversed(trees):
            taken[name].append(_time_once(trees[name]))
    found = {f"{name}_s": median(times) for name, times in taken.items()}
    ratio = found["new_s"] / found["old_s"]
    if asked.json:
        sys.stdout.write(json.dumps(found | {"ratio": ratio, "limit": LIMIT, "taken_s": taken}, indent=2) + "\n")
    else:
        sys.stdout.write(f"{CASE[0]} on {CASE[1]}: {found['new_s']:.3f} s of CPU time here, {found['old_s']:.3f} s in ")
        sys.stdout.write(f"{trees['old']}: {ratio:.2f} times as long (limit {LIMIT})\n")
    return 0 if ratio <= LIMIT else 1


def seconds_of_one() -> float:
    """CPU seconds of one prediction, without imports and the unpacking of the archive."""
    library = Library.read()
    (case,) = (one for one in library.cases if (one["name"], one["target"]) == CASE)
    (part,) = case["parts"]
    with library.unpack():
        start = time.process_time()
        time_part(part, case["target"], case["dtype"])
        return time.process_time() - start


def _time_once(tree: Path) -> float:
    """``seconds_of_one`` in a new process with a tree's trnrt, which is imported from the working directory."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.baseline.speed", "--once"]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
