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
"""The most that the import of the simulator may take, in imports of numpy; Python's own start counts for neither. Also
the most that the import of a session may take, in imports of onnxruntime."""
PROFILE = 0.5
"""The most that a profile may take, in the CPU time of an earlier checkout's."""

BARE: Command = ("-c", "pass")
NUMPY: Command = ("-c", "import numpy")
ONNXRUNTIME: Command = ("-c", "import onnxruntime")
SESSION: Command = ("-c", "from trnrt import InferenceSession")
SIMULATOR: Command = ("-c", "from trnrt.nki import nki, nl, nisa")
ADDITION: Command = ("-m", "trnrt", "nki", "profile", str(Path(__file__).with_name("add.py")))
_ANSWER = """
import numpy as np
from {library} import InferenceSession
session = InferenceSession("models/digits_cnn.onnx")
session.run(None, {{"image": np.zeros((1, 1, 8, 8), np.float32)}})
"""
ANSWER: Command = ("-c", _ANSWER.format(library="trnrt"))
"""Import, session and first answer; the plan is in the cache after the first run, which is not counted."""
ONNXRUNTIMES_ANSWER: Command = ("-c", _ANSWER.format(library="onnxruntime"))


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


COMMANDS = {
    "bare": BARE,
    "numpy": NUMPY,
    "simulator": SIMULATOR,
    "onnxruntime": ONNXRUNTIME,
    "session": SESSION,
    "answer": ANSWER,
    "onnxruntime's answer": ONNXRUNTIMES_ANSWER,
    "profile": ADDITION,
}


def _compare(name: str, ours: str, other: str, unit: str, took: Mapping[str, float], most: float | None = None) -> Row:
    """A run in units of another one; Python's own start counts for neither."""
    left, right = took[ours] - took["bare"], took[other] - took["bare"]
    return Row(name, left / right, unit, most, note=f"{left:.0f} ms, {right:.0f} ms")


def measure(rounds: int, before: Path | None = None) -> Sequence[Row]:
    """The rows; ``before``: an earlier checkout, to compare the profile with."""
    runs = {name: (command, ROOT) for name, command in COMMANDS.items()}
    if before is not None:
        runs["before"] = (ADDITION, before)
    took = cpu_in_turns(runs, rounds)
    rows = [
        _compare("import of nki, nl, nisa", "simulator", "numpy", "imports of numpy", took, IMPORT),
        _compare("import of InferenceSession", "session", "onnxruntime", "imports of onnxruntime", took, IMPORT),
        _compare("first answer of a cached model", "answer", "onnxruntime's answer", "of onnxruntime's", took),
        Row("nki profile of an addition", took["profile"], "ms of CPU"),
    ]
    if before is not None:
        share, note = took["profile"] / took["before"], f"{took['before']:.0f} ms of CPU before"
        rows.append(Row("nki profile, against before", share, "of before", PROFILE, note=note))
    return rows
