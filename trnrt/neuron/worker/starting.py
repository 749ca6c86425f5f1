"""Start and end the worker's process, and say why one did not start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trnrt.errors import BackendError
from trnrt.neuron.worker import program

LIBRARIES = "/opt/aws/neuron/lib"
"""The folder of libnrt (neuron-runtime/nrtpy/nrtpy-getting-started.rst)."""
STOP_S = 5.0
"""Seconds for the worker to close its runtime before it is killed, and then to end."""
# The process's own environment is not the worker's: its Python path would hide nrtpy's packages, and the core is given.
_LONGEST_LINE = 1 << 16
_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "NEURON_RT_NUM_CORES")


def worker_environment(environ: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The worker's variables: those of ``environ`` that suit another Python, with libnrt's folder, and ``more``."""
    kept = {name: value for name, value in environ.items() if name not in _NOT_INHERITED} | dict(more)
    folders = [folder for folder in kept.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    if LIBRARIES not in folders:
        folders.insert(0, LIBRARIES)
    return kept | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}


def start_process(
    python: Path, channel: socket.socket, core: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the script in a session of its own, so that Ctrl-C in a terminal is this process's to handle.

    stdin stays open until the worker is to end. stdout is for whatever libraries print, with stderr.
    """
    return subprocess.Popen(
        [str(python), "-X", "faulthandler", program.__file__, str(channel.fileno()), str(core)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=worker_environment(os.environ, environment),
        pass_fds=[channel.fileno()],
        start_new_session=True,
    )


def read_lines(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
    """Pass the worker's output on to this process's stderr, keep its last lines, and reap it when it has ended."""
    assert process.stdout is not None
    while line := process.stdout.readline(_LONGEST_LINE):
        lines.append(line.decode("utf-8", "replace").rstrip()[:400])
        with suppress(OSError):
            os.write(2, line)
    process.stdout.close()
    process.wait()


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kill the process if it still runs, and reap it. One that hangs in the driver is left: nothing can end it."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    if process.stdin is not None:
        process.stdin.close()


def start_error(python: Path, answer: Mapping[str, Any]) -> BackendError:
    """The error for a worker whose environment lacks something, with the way out."""
    text, module = answer["text"], answer["module"]
    hint = "nrtpy needs Python 3.11 to 3.14 and the runtime's library of its own version (aws-neuronx-runtime-lib)"
    if "libnrt" in text:
        hint = f"install aws-neuronx-runtime-lib; its libraries are looked for in {LIBRARIES} and LD_LIBRARY_PATH"
    elif module == "numpy":
        hint = f"{python} -m pip install numpy"
    elif module == "nrtpy":
        hint = (
            f"{python} -m pip install nrtpy --extra-index-url=https://pip.repos.neuron.amazonaws.com"
            " (Python 3.11 to 3.14)"
        )
    elif "not the nrtpy wheel" in text:
        hint = "nki and nrtpy can't share an environment: make one with nrtpy and numpy alone"
    return BackendError(
        f"the NEFF worker can't start with {python}, Python {answer['python']}: {answer['error']}: {text}", hint=hint
    )


def exit_text(code: int | None) -> str:
    """An exit status in words."""
    if code is None:
        return "and its status is not known"
    if code >= 0:
        return f"with exit status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
