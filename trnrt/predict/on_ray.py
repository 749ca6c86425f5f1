"""All parts of a job on Ray Data: who makes a part is Ray's business, who believes it is the driver's.

The parts that are missing are the rows of a data set, and the processes that make them hold a session each. What a
process died with is made again, by Ray, in another one: a part has the same bytes whoever makes it. The driver alone
puts parts in their places and writes down what is done, so that a job that was stopped goes on, on Ray or without, and
processes that outlive a driver that was killed (1.7 seconds on one machine) change nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from trnrt import errors
from trnrt.clusters import CPU, NEURON_CORES, joined, started
from trnrt.errors import BackendError, DeviceError, TrnrtError
from trnrt.predict.job import Job, Opened, open_job
from trnrt.predict.output import Output
from trnrt.predict.part import PartDone, make_part

ATTEMPTS = 4
"""Processes that one part may be the end of, as it may be the part that kills them; Ray itself never gives up."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where parts are made: by so many processes, with so many CPUs set aside for each, and on which cluster."""

    replicas: int = 1
    replica_cpus: float = 0.5
    address: str | None = None


def run_parts(opened: Opened, output: Output, place: Place, advance: Callable[[int], None]) -> None:
    """Make the missing parts, in any order; ``advance`` is called with the rows that are done.

    Raises what ``make_part`` and ``Output.add`` raise, and BackendError for what Ray can't do. A signal ends it at
    once; the parts that are written down are kept.
    """
    device = opened.job.request.device
    cores = {NEURON_CORES: float(device.cores if device else 1)} if opened.session.backend == "neuron" else {}
    with _cluster(place, cores):
        for row in _made(opened.job, output, place, cores):
            done = _believed(row)
            output.add(done)
            advance(done.rows)


class Attempts:
    """Counts, in a process that does nothing else, how often each part was begun."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Once more; how often it is now."""
        self._begun[number] += 1
        return self._begun[number]


class PartMaker:
    """A process that makes parts. ``folder``: where the driver stands, from which the job's paths go."""

    def __init__(self, job: Job, folder: str, workshop: Path, attempts: Any) -> None:
        self._job, self._folder, self._workshop, self._attempts = job, folder, workshop, attempts
        self._opened: Opened | None = None

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """One row with the number of a part -> one row that says what became of it."""
        number = int(rows["number"][0])
        try:
            if ray.get(self._attempts.begin.remote(number)) > ATTEMPTS:
                raise BackendError(f"{ATTEMPTS} processes of Ray ended before they had made part {number}")
            return {"told": [json.dumps(asdict(make_part(self._open(), number, self._workshop)))]}
        except DeviceError:
            os._exit(1)  # the device is free again when the process has ended; the part goes to another one
        except TrnrtError as error:
            told = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
            return {"told": [json.dumps(told)]}

    def _open(self) -> Opened:
        """The job, opened when the first part comes: what is wrong with it travels as a row, not as a traceback."""
        if self._opened is None:
            try:
                os.chdir(self._folder)
            except OSError as error:
                raise BackendError(
                    f"{socket.gethostname()} has no folder {self._folder!r}: {error.strerror}",
                    hint="model, input and output must be at the same paths on all machines, on shared storage",
                ) from None
            self._opened = open_job(self._job)
        return self._opened


def _made(job: Job, output: Output, place: Place, cores: dict[str, float]) -> Iterator[Row]:
    """What Ray's processes say of each part, as it comes."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    items = [{"number": number} for number in output.missing]
    parts = ray.data.from_items(items, override_num_blocks=len(items))
    # One part at a time: one that waits at a busy process is one that an idle process does not make.
    pool = ray.data.ActorPoolStrategy(size=min(place.replicas, len(items)), max_tasks_in_flight_per_actor=1)
    told = parts.map_batches(
        PartMaker,
        fn_constructor_args=(job, str(Path.cwd()), output.workshop, ray.remote(num_cpus=0)(Attempts).remote()),
        batch_size=1,
        compute=pool,
        num_cpus=place.replica_cpus,
        resources=cores or None,
    )
    try:
        yield from told.iter_rows()
    except RayError as error:
        reason = " ".join(str(error).split())[-500:]
        raise BackendError(f"Ray could not make a part: {reason}", hint="the same command again goes on") from None


def _believed(row: Row) -> PartDone:
    """The part that was made, or the error in its place."""
    told = json.loads(row["told"])
    if "error" not in told:
        return PartDone(**{**told, "reasons": tuple(told["reasons"])})
    kind = getattr(errors, told["error"], BackendError)
    try:
        error: TrnrtError = kind(told["message"], hint=told["hint"])
    except TypeError:  # one that is made of more than its words
        error = BackendError(told["message"], hint=told["hint"])
    raise error


@contextmanager
def _cluster(place: Place, cores: dict[str, float]) -> Iterator[None]:
    """Ray, with the signals left to whoever has them: Ray takes one of them when it connects."""
    entered: AbstractContextManager[Any] = (
        started({CPU: place.replica_cpus, **cores}, place.replicas) if place.address is None else joined(place.address)
    )
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    with entered:
        _restore(handlers)
        yield


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)
