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
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from trnrt import errors
from trnrt.errors import BackendError, DeviceError, InputError, ModelFileError, OptionError, TrnrtError
from trnrt.predict.clusters import CLIENT, CPU, NEURON_CORES, join_cluster, start_cluster
from trnrt.predict.job import Job, Opened, open_job
from trnrt.predict.output import Output
from trnrt.predict.part import PartDone, bad_file, make_part, part_file

ATTEMPTS = 4
"""Processes that one part may be the end of, as it may be the part that kills them; Ray itself never gives up."""
SEEN_S = 10.0
"""How long a file that was written on another machine may take to be seen here."""
THREAD_S = 2.0
"""How long a thread of Ray Data may take to end."""
_SHARED = "model, input and output must be at the same paths on all machines, on shared storage"
_OF_FILES = (InputError, ModelFileError, OptionError)
"""What another machine's files are wrong with, mostly."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where parts are made: by so many processes, with so many CPUs set aside for each, and on which cluster.

    OptionError for an address that Ray Data does not work with.
    """

    replicas: int = 1
    replica_cpus: float = 0.5
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith(CLIENT):
            told = f"--address {self.address}: Ray Data works on machines of the cluster alone"
            raise OptionError(told, hint="ray start --address HOST:PORT makes this one one of them; then say HOST:PORT")


def run_parts(opened: Opened, output: Output, place: Place, advance: Callable[[int], None]) -> None:
    """Make the missing parts, in any order; ``advance`` is called with the rows that are done.

    Raises what ``make_part`` and ``Output.add`` raise, and BackendError for what Ray can't do. A signal ends it at
    once; the parts that are written down are kept.
    """
    device = opened.job.request.device
    cores = {NEURON_CORES: float(device.cores if device else 1)} if opened.session.backend == "neuron" else {}
    # Closed before Ray is: after an error its threads are at work, and one that finds Ray gone ends this process at
    # once, before anybody was told of the error.
    with _cluster(place, cores), closing(_make_parts(opened.job, output, place, cores)) as rows:
        for row in rows:
            done = _read_answer(row, opened.job, output.workshop)
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
            told = {"host": socket.gethostname(), **asdict(make_part(self._open(), number, self._workshop))}
            return {"told": [json.dumps(told)]}
        except DeviceError:
            os._exit(1)  # the device is free again when the process has ended; the part goes to another one
        except TrnrtError as error:
            told = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
            told["host"] = socket.gethostname()
            return {"told": [json.dumps(told)]}

    def _open(self) -> Opened:
        """The job, opened when the first part comes: what is wrong with it travels as a row, not as a traceback."""
        if self._opened is None:
            try:
                os.chdir(self._folder)
            except OSError as error:
                raise BackendError(
                    f"{socket.gethostname()} has no folder {self._folder!r}: {error.strerror}",
                    hint=_SHARED,
                ) from None
            self._opened = open_job(self._job)
        return self._opened


def _make_parts(job: Job, output: Output, place: Place, cores: dict[str, float]) -> Generator[Row, None, None]:
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
    before, whole = set(threading.enumerate()), False
    try:
        yield from told.iter_rows()
        whole = True
    except RayError as error:
        reason = " ".join(str(error).split())[-500:]
        raise BackendError(f"Ray could not make a part: {reason}", hint="the same command again goes on") from None
    finally:
        for thread in [] if whole else set(threading.enumerate()) - before:
            thread.join(THREAD_S)


def _read_answer(row: Row, job: Job, workshop: Path) -> PartDone:
    """The part that was made, whose files are here, or the error in its place."""
    told = json.loads(row["told"])
    host = told.pop("host")
    if "error" not in told:
        done = PartDone(**{**told, "reasons": tuple(told["reasons"])})
        _check_here(job, workshop, done, host)
        return done
    kind, message, hint = getattr(errors, told["error"], BackendError), told["message"], told["hint"]
    if host != socket.gethostname():
        message = f"on {host}: {message}"
        hint = _SHARED if issubclass(kind, _OF_FILES) else hint
    try:
        error: TrnrtError = kind(message, hint=hint)
    except TypeError:  # one that is made of more than its words
        error = BackendError(message, hint=hint)
    raise error


def _check_here(job: Job, workshop: Path, done: PartDone, host: str) -> None:
    """BackendError unless the files of a part that was made on ``host`` are to be seen on this machine.

    A directory of the same name there, on a disk of its own, would swallow them. Storage that is shared may show them
    a little later.
    """
    names = [part_file(job, done.number), *([bad_file(job, done.number)] if done.bad_sha256 else [])]
    files = [workshop / path.name for path in names]
    end = time.monotonic() + SEEN_S
    while not all(path.is_file() for path in files) or files[0].stat().st_size != done.size:
        if time.monotonic() >= end:
            here = f"{str(files[0])!r} on {socket.gethostname()}"
            raise BackendError(f"{host} wrote part {done.number}, and {here} is not what it wrote", hint=_SHARED)
        time.sleep(0.1)


@contextmanager
def _cluster(place: Place, cores: dict[str, float]) -> Iterator[None]:
    """Ray, with the signals left to whoever has them: Ray takes one of them when it connects."""
    entered: AbstractContextManager[Any] = (
        start_cluster({CPU: place.replica_cpus, **cores}, place.replicas)
        if place.address is None
        else join_cluster(place.address)
    )
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    with entered:
        _restore(handlers)
        yield


def _restore(handlers: dict[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)
