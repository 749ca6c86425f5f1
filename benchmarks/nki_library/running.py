"""Run the library's tests under its own harness, and count the results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from benchmarks import ROOT
from benchmarks.nki_library.families import FAMILIES, SLOW, reason
from trnrt.errors import OptionError

NEEDED = ("allpairspy", "pytest", "scipy", "torch", "xdist")
_HASH = "0"


@dataclass(frozen=True)
class Failure:
    """A failed test, the first line of its error, and the known reason, if any."""

    test: str
    message: str
    why: str | None


@dataclass
class Result:
    """The numbers of passed and skipped tests of a family, and the failures."""

    family: str
    passed: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def unexplained(self) -> int:
        return sum(failure.why is None for failure in self.failures)


def require() -> None:
    """Raise OptionError if a package is missing that the library's tests compute with."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        packages = " ".join("pytest-xdist" if name == "xdist" else name for name in missing)
        raise OptionError(f"{', '.join(missing)}: not installed", hint=f"pip install {packages}")


def run_family(
    library: Path,
    family: str,
    folder: Path,
    *,
    workers: int,
    capacity: bool = True,
    select: str | None = None,
    slow: bool = False,
) -> Result:
    """Run one family's tests in a process of their own; ``select`` is pytest's -k, ``slow`` runs the slow ones, too.

    Raises:
        OptionError: if the tests could not be collected, or no test was chosen.
    """
    report, began = folder / f"{family}.xml", time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.nki_library.stand_ins", "-p", "no:cacheprovider"]
    command += ["-c", "test/pytest.ini", "--rootdir=.", "-o", f"artifacts_dir={folder / 'logs'}"]
    command += ["--test-mode=simulation", f"--output-directory={folder / 'outputs'}", "--force-local-cleanup"]
    command += [f"--junitxml={report}", "-n", str(workers), *_selection(select, slow=slow), FAMILIES[family]]
    environment = _environment(library, capacity=capacity)
    done = subprocess.run(command, cwd=library, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not report.is_file():
        raise OptionError(f"{family}: pytest ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    result = read_report(report, family)
    result.seconds = time.monotonic() - began
    return result


def _selection(select: str | None, *, slow: bool) -> list[str]:
    """pytest's -k for the requested tests."""
    wanted = [f"({select})"] if select else []
    wanted += [] if slow else [f"not {SLOW}"]
    return ["-k", " and ".join(wanted)] if wanted else []


def _environment(library: Path, *, capacity: bool) -> dict[str, str]:
    """The environment for the tests: seeds that make the library choose the same shapes each time, and both import
    paths."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(library / "src"))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": _HASH,
        "NEURON_PYTHONHASHSEED": _HASH,
        "NKILIB_SIMULATION_RUN_ALL": "1",
        "TRNRT_NKI_VERSION": "0.6",  # the copy at this commit has nl.dynamic_range
        "TRNRT_NKI_LIBRARY_CAPACITY": "1" if capacity else "0",
        "OMP_NUM_THREADS": "1",
    }


def read_report(report: Path, family: str) -> Result:
    """The counts in a JUnit report. A skipped test is no failure; one whose setup failed is."""
    result = Result(family)
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
        test = case.get("name", "")
        if problem is not None:
            text = f"{problem.get('message', '')}\n{problem.text or ''}"
            result.failures.append(Failure(test, _error_line(text), reason(family, test, text)))
        elif case.find("skipped") is not None:
            result.skipped += 1
        else:
            result.passed += 1
    return result


def _error_line(text: str) -> str:
    """The class and message of the innermost exception in pytest's report."""
    raised = re.findall(r"^E\s+([\w.]+(?:Error|Exception|Failed)): (.*)$", text, re.MULTILINE)
    return f"{raised[0][0].rpartition('.')[2]}: {raised[0][1]}" if raised else text.strip().partition("\n")[0]


def total(results: Iterable[Result]) -> Result:
    """The sum of all families."""
    added = Result("all")
    for result in results:
        added.passed += result.passed
        added.skipped += result.skipped
        added.failures += result.failures
        added.seconds += result.seconds
    return added


def chosen(names: Sequence[str]) -> list[str]:
    """The requested families, or all."""
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise OptionError(f"there is no family {unknown[0]!r}", hint=f"there are {', '.join(FAMILIES)}")
    return list(names) or list(FAMILIES)
