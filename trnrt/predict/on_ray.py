"""Make all parts of a job on Ray Data: Ray chooses the process for a part, the driver accepts the result.

The missing parts are the rows of a data set; each process that makes them has a session. If a process dies, Ray makes
its part again in another one, with the same bytes. The driver alone moves parts to their places and records them. So a
stopped job continues, with Ray or without, and processes that outlive a killed driver (by 1.7 seconds on one machine)
change nothing.
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
"""Processes that may die while they make one part: the part itself may kill them, and Ray never gives up."""
SEEN_S = 10.0
"""Seconds that a file from another machine may take to appear here."""
THREAD_S = 2.0
"""Seconds that a thread of Ray Data may take to end."""
_SHARED = "model, input and output must be at the same paths on all machines, on shared storage"
_OF_FILES = (InputError, ModelFileError, OptionError)
"""On another machine these errors mostly mean that its files differ."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The processes that make parts: their number, the CPUs reserved for each, and the cluster.

    OptionError for an address that Ray Data does not work with.
    """

    replicas: int = 1
    replica_cpus: float = 0.5
    address: str | None = None

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith(CLIENT):
            message = f"--address {self.address}: Ray Data works on machines of the cluster alone"
            raise OptionError(message, hint="join it: ray start --address HOST:PORT; then say --address HOST:PORT")


def run_parts(opened: Opened, output: Output, place: Place, advance: Callable[[int], None]) -> None:
    """Make the missing parts, in any order; ``advance`` is called with the rows that are done.

    Raises the errors of ``make_part`` and ``Output.add``, and BackendError if Ray fails. A signal stops it at once;
    recorded parts are kept.
    """
    device = opened.job.request.device
    cores = {NEURON_CORES: float(device.cores if device else 1)} if opened.session.backend == "neuron" else {}
    # Close it before Ray: after an error its threads still run, and one that finds Ray gone ends this process at once,
    # before the error is shown.
    with _cluster(place, cores), closing(_make_parts(opened.job, output, place, cores)) as rows:
        for row in rows:
            done = _read_answer(row, opened.job, output.workshop)
            output.add(done)
            advance(done.rows)


class Attempts:
    """Counts, in a process of its own, how often each part was begun."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Count one more, and return how often it is now."""
        self._begun[number] += 1
        return self._begun[number]


class PartMaker:
    """A process that makes parts. ``folder``: the driver's working directory, which the job's paths are relative to."""

    def __init__(self, job: Job, folder: str, workshop: Path, attempts: Any) -> None:
        self._job, self._folder, self._workshop, self._attempts = job, folder, workshop, attempts
        self._opened: Opened | None = None

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """One row with a part's number -> one row with the part's record or the error, as JSON."""
        number = int(rows["number"][0])
        answer: dict[str, Any] = {"host": socket.gethostname()}
        try:
            if ray.get(self._attempts.begin.remote(number)) > ATTEMPTS:
                raise BackendError(f"{ATTEMPTS} processes of Ray ended before they had made part {number}")
            answer |= asdict(make_part(self._open(), number, self._workshop))
        except DeviceError:
            os._exit(1)  # this releases the device; Ray gives the part to another process
        except TrnrtError as error:
            answer |= {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        return {"answer": [json.dumps(answer)]}

    def _open(self) -> Opened:
        """Open the job when the first part comes, so that an error travels as a row, not as a traceback."""
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
    """The answers of Ray's processes, in the order in which they arrive."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    items = [{"number": number} for number in output.missing]
    parts = ray.data.from_items(items, override_num_blocks=len(items))
    # One part at a time: a part queued at a busy process would not go to an idle one.
    pool = ray.data.ActorPoolStrategy(size=min(place.replicas, len(items)), max_tasks_in_flight_per_actor=1)
    answers = parts.map_batches(
        PartMaker,
        fn_constructor_args=(job, str(Path.cwd()), output.workshop, ray.remote(num_cpus=0)(Attempts).remote()),
        batch_size=1,
        compute=pool,
        num_cpus=place.replica_cpus,
        resources=cores or None,
    )
    before, whole = set(threading.enumerate()), False
    try:
        yield from answers.iter_rows()
        whole = True
    except RayError as error:
        reason = " ".join(str(error).split())[-500:]
        raise BackendError(f"Ray could not make a part: {reason}", hint="the same command continues") from None
    finally:
        for thread in [] if whole else set(threading.enumerate()) - before:
            thread.join(THREAD_S)


def _read_answer(row: Row, job: Job, workshop: Path) -> PartDone:
    """The part, once its files are here; raises the error that came in its place."""
    answer = json.loads(row["answer"])
    host = answer.pop("host")
    if "error" not in answer:
        done = PartDone(**{**answer, "reasons": tuple(answer["reasons"])})
        _check_here(job, workshop, done, host)
        return done
    kind, message, hint = getattr(errors, answer["error"], BackendError), answer["message"], answer["hint"]
    if host != socket.gethostname():
        message = f"on {host}: {message}"
        hint = _SHARED if issubclass(kind, _OF_FILES) else hint
    try:
        error: TrnrtError = kind(message, hint=hint)
    except TypeError:  # a kind with more arguments
        error = BackendError(message, hint=hint)
    raise error


def _check_here(job: Job, workshop: Path, done: PartDone, host: str) -> None:
    """BackendError unless the files of a part that ``host`` made appear on this machine.

    They don't if the directory is on a disk of that machine's own. Shared storage may show them a little later.
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
    """Ray, without its signal handler: it sets one when it connects."""
    entered: AbstractContextManager[Any] = (
        start_cluster({CPU: place.replica_cpus, **cores}, place.replicas)
        if place.address is None
        else join_cluster(place.address)
    )
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    with entered:
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)
        yield
