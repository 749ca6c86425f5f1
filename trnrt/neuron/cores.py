"""Leases of NeuronCores, so that processes of one or several servers never compete for a core.

The Neuron runtime takes every core that it can see and keeps it until its process ends; a second process then fails. So
each process locks a file for each physical core that it uses, in a folder that all processes of the machine share, and
shows the runtime only those cores. The operating system releases the lock when the process ends, however it ends. Files
beside the locks record when a core failed, so that a process that replaces a failed one gets another core.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from trnrt.errors import BackendError, CoresTakenError
from trnrt.neuron.device import device_target, logical_config, neuron_devices

VISIBLE = "NEURON_RT_VISIBLE_CORES"
AVOIDED_S = 600.0
"""Seconds for which a failed core is leased only after all others."""
_MOST_CORES = 1024
_SPAN = re.compile(r"\d{1,4}(-\d{1,4})?", re.ASCII)
_LOCKS = Path("/proc/locks")


class Lease:
    """Cores, in the runtime's numbers, that this process may use until it ends or calls ``release``."""

    def __init__(self, cores: tuple[int, ...], lnc: int, files: Sequence[int]) -> None:
        self.cores, self.lnc, self._files = cores, lnc, list(files)

    @property
    def is_held(self) -> bool:
        """True if the cores are still locked."""
        return bool(self._files)

    def release(self) -> None:
        """Unlock the cores."""
        while self._files:
            os.close(self._files.pop())


class _Process:
    """The lease of this process: the runtime starts once, and keeps the cores that it saw then."""

    lock = Lock()
    lease: Lease | None = None


def _forget_lease() -> None:
    """Drop the parent's lease in a fork, which can't use the parent's runtime. The parent keeps the locks."""
    lease, _Process.lease, _Process.lock = _Process.lease, None, Lock()
    if lease is not None:
        lease.release()


os.register_at_fork(after_in_child=_forget_lease)


def lease_cores(known: Sequence[int], count: int = 1, folder: Path | None = None, lnc: int = 1) -> Lease:
    """Lease the first ``count`` consecutive cores of those known that are free. Cores that failed lately come last.

    The cores are consecutive because the runtime takes no other list. ``lnc``: physical cores in each of them; the
    locks are on the physical ones, so that processes with another setting are seen, too.

    BackendError if too few cores are known, CoresTakenError if other processes have them.
    """
    folder = folder or _shared_folder()
    _make_shared(folder)
    failed = failed_cores(folder)
    rows = [tuple(known[start : start + count]) for start in range(len(known) - count + 1)]
    rows = [cores for cores in rows if cores == tuple(range(cores[0], cores[0] + count))]
    with _lock_choice(folder):
        for cores in sorted(rows, key=lambda cores: max(failed.get(core, 0.0) for core in _physical_cores(cores, lnc))):
            files = _lock_cores(folder, cores, lnc)
            if files is not None:
                return Lease(cores, lnc, files)
        free = sum(_is_free(folder, core, lnc) for core in known)
    holders = _holders(folder)
    by = f"; the others are held by process {', '.join(map(str, holders))}" if holders else ""
    row = " in a row" if count > 1 else ""
    visible = os.environ.get(VISIBLE)  # a process with cores shows its children these alone
    kind = CoresTakenError if rows else BackendError
    raise kind(
        f"{free} of {len(known)} NeuronCores are free, and {count}{row} {'is' if count == 1 else 'are'} needed{by}",
        hint="ask for fewer cores or --workers, or stop another process that uses them"
        + (f"; {VISIBLE}={visible} allows no others" if visible else ""),
    )


def lease_for_process(count: int = 1, lnc: int = 1) -> Lease:
    """The cores of this process: those it has already, or ``count`` leased now; the runtime sees no others.

    BackendError if it has fewer, or in another logical configuration, or if none are free.
    """
    with _Process.lock:
        lease = _Process.lease
        if lease is None or not lease.is_held:
            return _lease_for_process(count, lnc)
    visible = os.environ.get(VISIBLE)
    if visible is not None and not set(lease.cores) <= set(parse_cores(visible)):
        raise BackendError(
            f"this process took NeuronCore {_span(lease)}, and {VISIBLE} now says {visible!r}: the runtime keeps it",
            hint="use a new process for other cores",
        )
    if lease.lnc != lnc or len(lease.cores) < count:
        raise BackendError(
            f"this process has {len(lease.cores)} NeuronCores of {lease.lnc} physical cores each, which the runtime "
            f"keeps until the process ends; {count} of {lnc} were asked for",
            hint="ask for all of them when the first model is opened, or use another process",
        )
    return lease


def lease_for_worker(count: int = 1, lnc: int | None = None) -> Lease:
    """Lease cores for this worker, of ``known_cores``; the runtime sees no others."""
    with _Process.lock:
        return _lease_for_process(count, logical_config(lnc))


def known_cores(lnc: int = 1) -> list[int]:
    """The cores that the environment allows, else the machine's. BackendError if it names none, or unknown ones.

    In a container with some of the machine's devices, the environment may use the whole machine's numbers.
    """
    visible, there = os.environ.get(VISIBLE), device_cores(lnc)
    allowed = there if visible is None else parse_cores(visible)
    devices = neuron_devices()
    is_whole = devices == [f"/dev/neuron{k}" for k in range(len(devices))]
    if there and is_whole and not set(allowed) <= set(there):
        raise BackendError(
            f"{VISIBLE}={visible} names a missing core: this machine has {len(there)}, of {lnc} physical cores each",
            hint=f"unset {VISIBLE}, or name some of 0-{len(there) - 1}",
        )
    return allowed


def leased_cores(folder: Path | None = None) -> tuple[int, ...]:
    """The physical cores that any process has leased, this one included."""
    folder = folder or _shared_folder()
    names = [path.name.removeprefix("core-") for path in folder.glob("core-*") if not path.is_symlink()]
    known = sorted(int(name) for name in names if name.isdecimal())
    if not known:
        return ()
    with _lock_choice(folder):  # _is_free locks for a moment, and must not make a core look taken
        return tuple(core for core in known if not _is_free(folder, core, 1))


def note_failure(number: int) -> None:
    """Record that this process's core ``number``, from 0, failed: others will lease it last."""
    lease = _Process.lease
    if lease is None or number >= len(lease.cores):
        return
    for core in _physical_cores(lease.cores[number : number + 1], lease.lnc):
        with suppress(OSError):  # another user's file can't be touched; it is only a preference
            file = _open_shared(_shared_folder() / f"failed-{core}")
            try:
                os.utime(file)
            finally:
                os.close(file)


def failed_cores(folder: Path | None = None) -> dict[int, float]:
    """The physical cores that failed within AVOIDED_S, with the time."""
    now, found = time.time(), dict[int, float]()
    for path in (folder or _shared_folder()).glob("failed-*"):
        number = path.name.removeprefix("failed-")
        with suppress(OSError):
            at = path.lstat().st_mtime
            if number.isdecimal() and abs(now - at) < AVOIDED_S:
                found[int(number)] = at
    return found


def parse_cores(text: str) -> list[int]:
    """Parse ``0-3,8``. BackendError for anything else, and for "": then the process was given no core."""
    if not text.strip():
        raise BackendError(
            f"{VISIBLE} is set to nothing: this process was given no NeuronCore",
            hint=f"ask for one where the process is started, or unset {VISIBLE}",
        )
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
        raise BackendError(f"{VISIBLE}={text!r} names no cores", hint="it is as 0-3 or 0,1") from None
    return cores


def device_cores(lnc: int = 1) -> list[int]:
    """The cores of this machine, in the runtime's numbers if ``lnc`` physical cores make one."""
    from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target

    device = get_target(device_target() or DEFAULT_TARGET).device
    return list(range(len(neuron_devices()) * device.cores // lnc))


def _lease_for_process(count: int, lnc: int) -> Lease:
    lease = lease_cores(known_cores(lnc), count, lnc=lnc)
    os.environ[VISIBLE] = _span(lease)
    _Process.lease = lease
    return lease


def _span(lease: Lease) -> str:
    """A lease's cores in the runtime's format."""
    first, last = lease.cores[0], lease.cores[-1]
    return str(first) if first == last else f"{first}-{last}"


def _physical_cores(cores: Sequence[int], lnc: int) -> list[int]:
    """The physical cores of logical ones."""
    return [core * lnc + k for core in cores for k in range(lnc)]


def _lock_cores(folder: Path, cores: Sequence[int], lnc: int) -> list[int] | None:
    """Lock the files of all these cores and return them; None if another process has one of them."""
    files: list[int] = []
    for physical in _physical_cores(cores, lnc):
        file = _open_shared(folder / f"core-{physical}")
        files.append(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for opened in files:
                os.close(opened)
            return None
    return files


def _is_free(folder: Path, core: int, lnc: int) -> bool:
    files = _lock_cores(folder, [core], lnc)
    for file in files or ():
        os.close(file)
    return files is not None


@contextmanager
def _lock_choice(folder: Path) -> Iterator[None]:
    """Let one process at a time look for cores: else two could each hold a core that the other needs."""
    file = _open_shared(folder / "choosing")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _holders(folder: Path) -> list[int]:
    """The processes that hold locks in the folder, if the system shows them."""
    try:
        files = {str(path.stat().st_ino) for path in folder.glob("core-*")}
        lines = [line.split() for line in _LOCKS.read_text(encoding="ascii").splitlines()]
    except (OSError, ValueError):
        return []
    held = [f for f in lines if len(f) > 5 and f[1] == "FLOCK" and f[5].rpartition(":")[2] in files]
    return sorted({int(fields[4]) for fields in held if fields[4].isdigit() and fields[4] != "0"})


def _shared_folder() -> Path:
    return Path(tempfile.gettempdir()) / "trnrt-cores"


def _open_shared(path: Path) -> int:
    """Open a file to lock. Without O_CREAT if it exists: Linux refuses that for another user's file."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o644)


def _make_shared(folder: Path) -> None:
    """Make the folder, in which every user may lock, unless it exists."""
    try:
        folder.mkdir()
    except FileExistsError:
        return
    folder.chmod(0o1777)
