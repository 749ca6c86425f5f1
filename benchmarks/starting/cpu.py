"""The CPU time of short commands, each in a process of its own, in turns with what it is compared with.

CPU time and ratios: other programs on the machine change both less than the time that passes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.measuring import Row

Command = tuple[str, ...]

IMPORT = 2.0
"""The most that the import of the simulator may take, in imports of numpy; Python's own start counts for neither."""
PROFILE = 0.5
"""The most that a profile may take, in the CPU time of an earlier checkout's."""

BARE: Command = ("-c", "pass")
NUMPY: Command = ("-c", "import numpy")
SIMULATOR: Command = ("-c", "from trnrt.nki import nki, nl, nisa")
ADDITION: Command = ("-m", "trnrt", "nki", "profile", str(Path(__file__).with_name("add.py")))


def cpu_ms(command: Command, checkout: Path = ROOT) -> float:
    """The user and system CPU time of Python with these arguments, in milliseconds; ``checkout`` has its trnrt."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run([sys.executable, *command], env=environment, check=True, capture_output=True, cwd=checkout)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def cpu_in_turns(runs: Mapping[str, tuple[Command, Path]], rounds: int) -> dict[str, float]:
    """The median CPU milliseconds of each run by name, in turns, after one uncounted run of each."""
    for command, checkout in runs.values():
        cpu_ms(command, checkout)
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (command, checkout) in runs.items():
            taken[name].append(cpu_ms(command, checkout))
    return {name: median(found) for name, found in taken.items()}


def measure(rounds: int, before: Path | None = None) -> Sequence[Row]:
    """The rows; ``before``: an earlier checkout, to compare the profile with."""
    runs = {"bare": (BARE, ROOT), "numpy": (NUMPY, ROOT), "simulator": (SIMULATOR, ROOT), "profile": (ADDITION, ROOT)}
    if before is not None:
        runs["before"] = (ADDITION, before)
    took = cpu_in_turns(runs, rounds)
    numpy, ours = (took[name] - took["bare"] for name in ("numpy", "simulator"))
    rows = [
        Row("import of nki, nl, nisa", ours / numpy, "imports of numpy", IMPORT, note=f"{ours:.0f} ms, {numpy:.0f} ms"),
        Row("nki profile of an addition", took["profile"], "ms of CPU"),
    ]
    if before is not None:
        share, note = took["profile"] / took["before"], f"{took['before']:.0f} ms of CPU before"
        rows.append(Row("nki profile, against before", share, "of before", PROFILE, note=note))
    return rows
