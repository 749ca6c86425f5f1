"""The whole self-test: each case on the simulator, for a prediction, and then on the backend under test."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from trnrt.neuron.frontend import FRONTEND_VARIABLE
from trnrt.neuron.selftest.table import CASES
from trnrt.nki.machine.targets import get_target, portable_name

LIMIT_S = {"simulator": 120.0, "neuron": 900.0}
"""Seconds after which a case's process is killed. AWS's compiler alone takes minutes for some."""

LOG = 3000
"""Characters that are kept of a dead process's output."""

POLL_S = 0.02

TRIED = ("add", "matmul", "conv_pooled", "digits_cnn_1")
"""The cases that are compiled with each frontend: kernels alone, and rendered modules."""

STATES = ("passed", "failed", "error", "timeout", "crashed", "skipped")

Document = dict[str, Any]
Progress = Callable[[str], None]


@dataclass
class Outcome:
    """A case's result on the backend. ``simulated``: the same on the simulator, None if that is the backend.

    ``off_simulator``: the largest difference from the simulator's numbers.
    """

    name: str
    document: Document
    simulated: Document | None = None
    off_simulator: float | None = None

    @property
    def state(self) -> str:
        """One of STATES."""
        return str(self.document["state"])

    @property
    def predicted_us(self) -> float | None:
        """The device's latency, by the timing model."""
        return self._prediction("predicted_us")

    @property
    def ends_us(self) -> tuple[float | None, float | None]:
        """The least and the most of that latency."""
        return self._prediction("low_us"), self._prediction("high_us")

    def _prediction(self, key: str) -> float | None:
        source = self.document if self.simulated is None else self.simulated
        return source.get(key)

    @property
    def clock(self) -> str:
        """The clock of the times: "device", "host" or "call" (see ``Times``); "" if no device was timed."""
        if self.simulated is None or self.document.get("wall_us") is None:
            return ""
        return str(self.document.get("clock", "host"))

    @property
    def measured_us(self) -> float | None:
        """The device's latency, by the host's clock with the host's part of a call; None if it was not measured."""
        return float(self.document["wall_us"]["median"]) if self.clock in ("device", "host") else None


@dataclass(frozen=True)
class Tried:
    """A case compiled with one of NKI's frontends. ``off_simulator``: as in ``Outcome``; ``state``: one of STATES."""

    frontend: str
    name: str
    state: str
    summary: str
    off_simulator: float | None


@dataclass
class Suite:
    """The results of a run. ``tried``: some cases, once with each frontend of NKI."""

    backend: str
    target: str
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    interrupted: bool = False
    tried: list[Tried] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        """True if all cases ran and passed; those that the target can't run are skipped.

        The frontends that were ``tried`` don't count: AWS takes one away.
        """
        return not self.interrupted and all(outcome.state in ("passed", "skipped") for outcome in self.outcomes)


class Worker:
    """Runs cases for a backend in a process, and starts a new one if that dies. ``frontend``: NKI's, "" for the usual
    one."""

    def __init__(
        self, backend: str, target: str, folder: Path, limit_s: float | None = None, frontend: str = ""
    ) -> None:
        self.backend, self.target, self.frontend = backend, target, frontend
        self.limit_s = LIMIT_S[backend] if limit_s is None else limit_s
        self.folder = folder / f"{backend}{frontend}"
        self.folder.mkdir()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    def run(self, name: str) -> Document:
        """A case's result, or how its process died."""
        process = self._running_process()
        result = self.folder / f"{name}.json"
        end = time.monotonic() + self.limit_s
        with suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        while not result.exists():
            if time.monotonic() > end:
                self.close()
                return self._death_document("timeout", f"no result after {self.limit_s:g} s: the process was ended")
            if process.poll() is not None and not result.exists():
                self.close()
                return self._death_document("crashed", f"the process ended with {process.returncode}")
            time.sleep(POLL_S)
        document: Document = json.loads(result.read_bytes())
        return document

    def outputs(self, name: str) -> list[Any]:
        """A case's numbers."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return []
        with np.load(path) as stored:
            return [stored[key] for key in stored.files]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            # Its whole group: AWS's compiler is a process of its own.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _running_process(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._log = (self.folder / "log").open("wb")
            self._process = subprocess.Popen(
                command(self.backend, self.target, self.folder),
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment(os.environ, self.backend, self.target, self.frontend),
                start_new_session=True,
                cwd=self.folder,  # the compiler's files are deleted with the folder
            )
        return self._process

    def _death_document(self, state: str, summary: str) -> Document:
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        return {"state": state, "summary": summary, "detail": log[-LOG:]}


def command(backend: str, target: str, folder: Path) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "trnrt.neuron.selftest.worker", backend, portable_name(target), str(folder)]


def environment(before: Mapping[str, str], backend: str, target: str, frontend: str = "") -> dict[str, str]:
    """A worker's environment: for the simulator, or for AWS's packages on one physical core, with a frontend of NKI."""
    made = {**before, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if backend == "simulator":
        return made | {"TRNRT_NKI": "simulator"}
    made.pop("TRNRT_NKI", None)
    made.setdefault("NEURON_LOGICAL_NC_CONFIG", "1")
    made.setdefault("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    made.setdefault("NEURON_RT_VISIBLE_CORES", "0")
    return made | ({FRONTEND_VARIABLE: frontend} if frontend else {})


def run_suite(
    backend: str,
    target: str,
    names: Iterable[str] = CASES,
    progress: Progress = print,
    limit_s: float | None = None,
    frontends: Sequence[str] = (),
) -> Suite:
    """Run the cases, and those of TRIED again with each frontend. Their errors are results, not raised; an interrupted
    run keeps its results."""
    names = tuple(names)
    target = get_target(target).name
    suite, start = Suite(backend, target), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trnrt-self-test-") as folder:
        workers = [Worker(name, target, Path(folder), limit_s) for name in dict.fromkeys(("simulator", backend))]
        try:
            for name in names:
                progress(name)
                suite.outcomes.append(_outcome(name, target, workers))
            if frontends:
                workers[-1].close()  # a core is for one process at a time
            for frontend in frontends:
                workers.append(Worker(backend, target, Path(folder), limit_s, frontend))
                for name in (name for name in TRIED if name in names):
                    progress(f"{name}, {frontend}")
                    suite.tried.append(_try_frontend(name, workers[0], workers[-1]))
                workers[-1].close()
        except KeyboardInterrupt:
            suite.interrupted = True
        finally:
            for worker in workers:
                worker.close()
    suite.seconds = time.monotonic() - start
    return suite


def _try_frontend(name: str, simulator: Worker, device: Worker) -> Tried:
    """A case with the frontend of ``device``."""
    document = device.run(name)
    off = _largest_difference(device.outputs(name), simulator.outputs(name))
    return Tried(device.frontend, name, str(document["state"]), str(document.get("summary", "")), off)


def _outcome(name: str, target: str, workers: list[Worker]) -> Outcome:
    if get_target(target).generation < CASES[name].since:
        return Outcome(name, {"state": "skipped", "summary": f"{target} does not have it"})
    simulated = workers[0].run(name)
    if len(workers) == 1:
        return Outcome(name, simulated)
    document = workers[1].run(name)
    return Outcome(name, document, simulated, _largest_difference(workers[1].outputs(name), workers[0].outputs(name)))


def _largest_difference(ours: list[Any], theirs: list[Any]) -> float | None:
    """The largest difference of two lists of arrays; None if they can't be compared."""
    if not ours or [array.shape for array in ours] != [array.shape for array in theirs]:
        return None
    pairs = zip(ours, theirs, strict=True)
    worst = max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0.0)) for a, b in pairs)
    return worst if math.isfinite(worst) else None
