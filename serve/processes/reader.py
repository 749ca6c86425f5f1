"""The process that reads large JSON, and writes it: Python's parser would stop the worker's event loop meanwhile.

It sends a byte when it has started, and waits for jobs on a socket: a byte, with a parcel of a function's name and
arguments and, for a request, the file of its body. It answers with a byte and a parcel of the result, or of the error.
Its memory is limited, and it ends when its worker does.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trnrt.serve.http.large import FUNCTIONS
from trnrt.serve.http.problems import Problem
from trnrt.serve.http.protocol import RequestError
from trnrt.serve.http.tensors import TensorError
from trnrt.serve.processes.parcels import MemoryFile, pack, unpack

STARTED = b"r"
"""Sent once, before the first job is taken."""
STAYS, LEAVES = b"s", b"l"
"""With a result: the reader takes more jobs; it ends, as it was short of memory or keeps too much of it."""
KEPT_MOST = 128 << 20
"""Bytes that a reader may keep after a job."""


class ReaderError(RuntimeError):
    """A job failed by our own fault; the text is the traceback."""


def do_job(parcel: MemoryFile, bodies: Sequence[MemoryFile]) -> Any:
    """The result of a job, or its error."""
    try:
        name, arguments = unpack(parcel)
        return FUNCTIONS[name](*(body.map() for body in bodies), *arguments)
    except MemoryError:
        return MemoryError()
    except (RequestError, TensorError, Problem) as error:
        return error
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:  # to map a file takes memory, too
            return MemoryError()
        return ReaderError(traceback.format_exc())


def serve_jobs(connection: socket.socket) -> None:
    """Do jobs until the worker is gone, or the memory is used up."""
    start = _pages(1)
    stay = True
    while stay:
        message, numbers, _, _ = socket.recv_fds(connection, 1, 2)
        if not message:
            return
        parcel, *bodies = map(MemoryFile, numbers)
        result = do_job(parcel, bodies)
        del parcel, bodies
        try:
            made = pack(result)
        except MemoryError:
            result = MemoryError()
            made = pack(result)
        stay = not isinstance(result, MemoryError)
        del result
        stay = stay and _pages(1) - start < KEPT_MOST
        with suppress(OSError):  # the worker is gone: the next recv_fds says so
            socket.send_fds(connection, [STAYS if stay else LEAVES], [made.number])
        del made


def _pages(column: int) -> int:
    """Bytes of this process by /proc: its addresses (0), or what is in memory (1); 0 where there is no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[column]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _limit_memory(more: int) -> None:
    """Let this process take ``more`` bytes than now; beyond, Python raises MemoryError."""
    import resource

    with suppress(OSError, ValueError):  # an operator's lower limit stands
        resource.setrlimit(resource.RLIMIT_AS, (_pages(0) + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> None:
    """Read jobs from the socket of the first argument, within the bytes of the second."""
    # Ctrl-C reaches all processes of a terminal, systemd's SIGTERM all of a service: accepted requests still need this.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=int(sys.argv[1]))
    if Path("/proc/self/statm").exists():
        _limit_memory(int(sys.argv[2]))
    connection.send(STARTED)
    serve_jobs(connection)
