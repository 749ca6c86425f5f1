"""Start a server in its own process, as a user would, to load, inspect and stop it."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT

READY_S = 180.0  # on a machine with a load of 9 for 2 cores, a server without a cache takes more than 60
STOP_S = 40.0
_POLL_S = 0.02


class ServerFailed(RuntimeError):
    """The server did not start, or did not stop; includes the end of its log."""


@dataclass(frozen=True)
class Server:
    """A running server; ``log`` is the file with its output, and ``stop_s`` the longest time that it may take to
    end."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    stop_s: float = STOP_S

    def get(self, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
        """The status and the body of a GET on its own connection; OSError without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"no answer to {path}: {error!r}") from error
        finally:
            connection.close()

    @property
    def ready(self) -> bool:
        """True if it reports every model ready."""
        try:
            return self.get("/v2/health/ready")[0] == 200
        except OSError:
            return False

    def workers(self) -> list[int]:
        """The ids of its child processes that answer requests: those that have loaded a worker's Python modules.

        Only for a server with several workers; multiprocessing's tracker process is none of them.
        """
        return [pid for pid in children(self.process.pid) if b"spawn_main" in _command(pid)]

    def resident(self) -> int:
        """Bytes of memory in use by the server's process and its children."""
        return sum(resident(pid) for pid in [self.process.pid, *children(self.process.pid)])

    def stop(self) -> int:
        """Stop it and return its exit code. Raises ServerFailed if it takes too long."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.stop_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server did not end within {self.stop_s:g} s\n{self.tail()}") from None

    def tail(self) -> str:
        """The end of its log."""
        return _read_log(self.log)[-4000:]


@contextmanager
def serving(
    arguments: Sequence[str],
    cache: Path,
    *,
    module: Sequence[str] = ("trnrt", "serve"),
    python: str = sys.executable,
    ready_s: float = READY_S,
    stop_s: float = STOP_S,
) -> Iterator[Server]:
    """Start a server with these arguments on a free port, wait until it is ready, and stop it in the end. Raises
    ServerFailed if it isn't ready after ``ready_s``.

    ``cache``: its folder of compiled models, so that the next one starts sooner. It takes no settings from the
    environment. ``python``: the interpreter, for a server whose packages are in another environment.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRNRT_")}
    environment |= {"TRNRT_CACHE": str(cache)}
    first, *rest = module
    command = [python, "-m", first, *rest, *arguments, "--port", "0"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink
            )
        try:
            yield _ready(process, log, ready_s, stop_s)
        finally:
            end(process, stop_s)


def _ready(process: subprocess.Popen[bytes], log: Path, ready_s: float, stop_s: float) -> Server:
    """The server of this process, once every model is ready."""
    deadline = time.monotonic() + ready_s
    while True:
        listens = re.search(r"listening on http://\S+:(\d+);", _read_log(log))
        if listens and (server := Server(process, int(listens[1]), log, stop_s)).ready:
            return server
        if process.poll() is not None:
            raise ServerFailed(f"the server ended with {process.returncode}\n{_read_log(log)[-4000:]}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"the server was not ready within {ready_s:g} s\n{_read_log(log)[-4000:]}")
        time.sleep(_POLL_S)


def _read_log(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def end(process: subprocess.Popen[bytes], stop_s: float = STOP_S) -> None:
    """Stop a process that was started here and its children, by their ids, if they still run."""
    if process.poll() is not None:
        return
    started = children(process.pid)
    process.terminate()
    try:
        process.wait(stop_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """A process's running descendants."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # each thread lists the processes it started
        with suppress(OSError):
            found += [int(child) for child in task.read_text(encoding="ascii").split()]
    return [*found, *(deeper for child in found for deeper in children(child))]


def resident(pid: int) -> int:
    """Bytes of memory in use by a process; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024 if "VmRSS:" in text else 0


def sockets(pid: int) -> int:
    """The number of open sockets of a process."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
