"""NeuronCores are leased: two workers, of this server or another, never fight for one.

The Neuron runtime takes every core that it can see and keeps it until its process ends; a second process then fails.
So each worker locks a file for each core that it uses, in a folder that all servers of the machine share, and shows
the runtime only those. The kernel frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trnrt.backends import device_target
from trnrt.errors import BackendError

VISIBLE = "NEURON_RT_VISIBLE_CORES"
CORES_OF_A_DEVICE = {"trn1": 2, "trn2": 4, "trn3": 4}
"""Logical cores, as the runtime numbers them by default; on trn2 and trn3 two physical ones make one."""
_MOST_CORES = 1024
_SPAN = re.compile(r"\d{1,4}(-\d{1,4})?", re.ASCII)


class Lease:
    """Cores that this process may use until it ends, or ``release``."""

    def __init__(self, cores: tuple[int, ...], files: Sequence[int]) -> None:
        self.cores, self._files = cores, list(files)

    def release(self) -> None:
        """Let others have them."""
        while self._files:
            os.close(self._files.pop())


def lease_cores(known: Sequence[int], count: int = 1, folder: Path | None = None) -> Lease:
    """The first ``count`` of the known cores that nobody has. BackendError where there are too few."""
    folder = folder or Path(tempfile.gettempdir()) / "trnrt-cores"
    _make_shared(folder)
    files: list[int] = []
    cores: list[int] = []
    for core in known:
        if len(cores) == count:
            break
        file = _open_shared(folder / f"core-{core}")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        files.append(file)
        cores.append(core)
    lease = Lease(tuple(cores), files)
    if len(cores) < count:
        lease.release()
        raise BackendError(
            f"{len(cores)} of {len(known)} NeuronCores are free, and a worker needs {count}",
            hint="ask for fewer --workers, or stop another server of this machine",
        )
    return lease


def lease_for_worker() -> Lease:
    """A core for this worker, from those that the environment allows or the machine has; the runtime sees no other."""
    told = os.environ.get(VISIBLE)
    lease = lease_cores(parse_cores(told) if told else device_cores())
    os.environ[VISIBLE] = ",".join(map(str, lease.cores))
    return lease


def parse_cores(text: str) -> list[int]:
    """``0-3,8`` as numbers. BackendError for anything else."""
    cores: list[int] = []
    try:
        for part in text.split(","):
            if not _SPAN.fullmatch(part.strip()):
                raise ValueError
            first, _, last = part.partition("-")
            span = range(int(first), int(last or first) + 1)
            if not 0 < len(span) <= _MOST_CORES:
                raise ValueError
            cores.extend(span)
    except ValueError:
        raise BackendError(f"{VISIBLE}={text!r} names no cores", hint="it is as 0-3 or 0,2") from None
    return cores


def device_cores() -> list[int]:
    """The cores of this machine, as the runtime numbers them."""
    devices = len(list(Path("/dev").glob("neuron[0-9]*")))
    return list(range(devices * CORES_OF_A_DEVICE[device_target() or "trn2"]))


def _open_shared(path: Path) -> int:
    """A file to lock; it may be another user's, which the kernel lets nobody open as if it were to be created."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)


def _make_shared(folder: Path) -> None:
    """The folder, in which every user may lock: it is made once, by whoever comes first."""
    try:
        folder.mkdir()
    except FileExistsError:
        return
    folder.chmod(0o1777)
