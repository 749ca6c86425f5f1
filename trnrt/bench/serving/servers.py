"""A server in a process of its own, as its user would start it, to be loaded, looked at and stopped."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

READY_S = 60.0
STOP_S = 40.0
_POLL_S = 0.02


class ServerFailed(RuntimeError):
    """The server did not start, or not stop: with the end of what it logged."""


@dataclass(frozen=True)
class Server:
    """A running server; ``log`` is the file with what it says."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str, timeout: float = 5.0) -> tuple[int, bytes]:
        """The status and the body of a GET on a connection of its own; OSError where there is no answer."""
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
        """Whether it says that every model is."""
        try:
            return self.get("/v2/health/ready")[0] == 200
        except OSError:
            return False

    def workers(self) -> list[int]:
        """The ids of the processes that it started and that answer requests: those that have the Python modules of one.

        Only of a server with several workers; a tracker that multiprocessing starts beside them is none.
        """
        return [pid for pid in children(self.process.pid) if b"spawn_main" in _command(pid)]

    def resident(self) -> int:
        """Bytes of memory in use, of the server's process and those it started."""
        return sum(resident(pid) for pid in [self.process.pid, *children(self.process.pid)])

    def stop(self, seconds: float = STOP_S) -> int:
        """Ask it to stop, and wait for it: its exit code. ServerFailed where it does not within these seconds."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def wait(self, seconds: float = STOP_S) -> int:
        """The exit code, once it ends. ServerFailed where it does not within these seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server did not end within {seconds:g} s\n{self.tail()}") from None

    def tail(self) -> str:
        """The end of what it said."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


@contextmanager
def serving(arguments: Sequence[str], cache: Path, *, module: Sequence[str] = ("trnrt", "serve")) -> Iterator[Server]:
    """A server that is ready, with these arguments; it is stopped in the end, if it still runs.

    ``cache``: where it keeps compiled models, so that the next one starts sooner. No setting comes from the
    environment.
    """
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRNRT_")}
    environment |= {"TRNRT_CACHE": str(cache)}
    first, *rest = module
    command = [sys.executable, "-m", first, *rest, *arguments, "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        server = Server(process, port, log)
        try:
            _await_ready(server)
            yield server
        finally:
            end(process)


def _await_ready(server: Server) -> None:
    deadline = time.monotonic() + READY_S
    while not server.ready:
        if server.process.poll() is not None:
            raise ServerFailed(f"the server ended with {server.process.returncode}\n{server.tail()}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"the server was not ready within {READY_S:g} s\n{server.tail()}")
        time.sleep(_POLL_S)


def end(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that was started here and those that it started, by their ids, if they still run."""
    if process.poll() is not None:
        return
    started = children(process.pid)
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        for pid in started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def children(pid: int) -> list[int]:
    """The processes that a process started and that still run, and theirs."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):  # of each thread: those that it started
        with suppress(OSError):
            found += [int(child) for child in task.read_text(encoding="ascii").split()]
    return [*found, *(deeper for child in found for deeper in children(child))]


def resident(pid: int) -> int:
    """Bytes of memory that a process has in use; 0 where it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024 if "VmRSS:" in text else 0


def sockets(pid: int) -> int:
    """How many sockets a process has open."""
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
