"""A real ``trnrt serve --engine ray`` for tests, in a session of processes of its own that is gone at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from serving import MODELS, fetch

START_S = 180.0


class RayServer:
    """A server with its own Ray; ``log`` is the file with what it says."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @cached_property
    def url(self) -> str:
        """Where it answers, once it is ready."""
        return found(r"ready at (http://\S+)", self.said())

    @property
    def port(self) -> int:
        """The port that it has taken."""
        return int(self.url.rpartition(":")[2])

    def said(self) -> str:
        """What it said so far."""
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Wait until all replicas are there."""
        end = time.monotonic() + START_S
        while not re.search(r"ready at http\S+\n", self.said()):
            assert self.process.poll() is None and time.monotonic() < end, self.said()[-4000:]
            time.sleep(0.1)

    @property
    def address(self) -> str:
        """That of its Ray."""
        return found(r"starting Ray at (\S+),", self.said())

    def processes(self, deployment: str) -> list[int]:
        """Those of a deployment's replicas that live."""
        return [pid for pid in self.started(deployment).values() if Path(f"/proc/{pid}").exists()]

    def started(self, deployment: str) -> dict[str, int]:
        """The process of each replica of a deployment that was ever started, by the replica's name."""
        lines = [line for line in self.logged("replica_started") if f"#{deployment}#" in line["replica"]]
        return {line["replica"].rpartition("#")[2]: line["process"] for line in lines}

    def replicas(self, deployment: str) -> set[str]:
        """Those that report their metrics now; of those that live, some may be too slow for this page."""
        page = fetch("GET", f"{self.url}/metrics").text
        return set(re.findall(rf'replica="SERVE_REPLICA::trnrt#{deployment}#(\w+)"', page))

    def heard(self, text: str) -> bool:
        """Whether one of Ray's own processes wrote this down."""
        folder = Path(found(r"logs in (\S+);", self.said()))
        return any(text in path.read_text(errors="replace") for path in (folder / "serve").glob("*.log"))

    def logged(self, event: str) -> list[dict[str, Any]]:
        """What its processes have logged of this."""
        folder = Path(found(r"logs in (\S+);", self.said()))
        texts = [path.read_text(errors="replace") for path in folder.glob("worker-*.err")]
        wanted = f'"event":"{event}"'
        return [json.loads(line) for text in texts for line in text.splitlines() if wanted in line and line[-1] == "}"]


@contextmanager
def ray_server(folder: Path, *arguments: str) -> Iterator[RayServer]:
    """``trnrt serve ARGUMENTS --engine ray`` on a free port, ready; its processes, all of them, are gone at the end."""
    log = folder / "ray.log"
    command = [sys.executable, "-m", "trnrt", "serve", *arguments, "--engine", "ray", "--port", "0"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    server = RayServer(process, log)
    try:
        server.wait_ready()
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        for pid in of_session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(10)


def of_session(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


def found(pattern: str, text: str) -> str:
    """The group of the pattern's first match."""
    match = re.search(pattern, text)
    assert match is not None, text[-4000:]
    return match.group(1)


def save_digits(folder: Path, word: str, *, opposite: bool = False) -> Path:
    """The digits CNN with labels as ``old 3``; the ``opposite`` one decides for the class that it thinks least of."""
    model = onnx.load(MODELS / "digits_cnn.onnx")
    for tensor in model.graph.initializer:
        if opposite and tensor.name.startswith("fc."):
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), tensor.name))
    for entry in model.metadata_props:
        if entry.key == "labels":
            entry.value = str([f"{word} {digit}" for digit in range(10)]).replace("'", '"')
    folder.mkdir(exist_ok=True)
    path = folder / "digits.onnx"
    onnx.save(model, path)
    return path


@cache
def pictures() -> np.ndarray:
    """Test pictures, with few digits, so that JSON holds them exactly."""
    with np.load(MODELS / "digits_test.npz") as held:
        kept: np.ndarray = held["image"][:64]
    return kept
