"""Measure a call of a NEFF worker: ``python tests/shared/measure_worker.py``, in microseconds, beside plain pipes.

The device is an nrtpy whose runs take no time, but which copies arrays in and out as a device's driver would.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from trnrt.neuron.worker.client import NeffWorker
from trnrt.planner.plan import DeviceTensor

SIZES = ((24, 24), (600_000, 4_000), (10_000_000, 4_000))  # bytes in and out
IDLE = """
import json, numpy
from types import SimpleNamespace
class NrtpyTensor:
    def __init__(self, array): self.array = array
    @classmethod
    def from_numpy(cls, array, name=None, core_id=0): return cls(array.copy())
    def write_from_numpy(self, array): numpy.copyto(self.array, array)
    def numpy(self): return self.array.copy()
class NrtpyModel:
    @classmethod
    def load_from_neff(cls, path, name=None, core_id=0):
        model, sizes = cls(), json.load(open(path))
        described = [SimpleNamespace(shape=[size], size=size) for size in sizes]
        model.input_tensors_info, model.output_tensors_info = {"x": described[0]}, {"output_0": described[1]}
        return model
    def __call__(self, inputs, outputs=None): pass
def configure(visible_cores=None): pass
def reset(): pass
"""
ECHO = """
import os, sys
import numpy
source, sink, count, answer = map(int, sys.argv[1:])
array, device, result = numpy.empty(count, numpy.uint8), numpy.empty(count, numpy.uint8), bytes(answer)
view = memoryview(array)
while True:
    done = 0
    while done < count:
        got = os.readv(source, [view[done:]])
        if not got:
            sys.exit()
        done += got
    numpy.copyto(device, array)
    done = 0
    while done < answer:
        done += os.write(sink, result[done:])
"""
_PIPE_BYTES = 1031  # fcntl's F_SETPIPE_SZ


def measure(call: Callable[[], object], pid: int, label: str) -> None:
    """Print the times of a call, and the CPU time that it takes here and in process ``pid``."""
    for _ in range(50):
        call()
    times: list[float] = []
    begin, theirs = time.process_time(), cpu_seconds(pid)
    until = time.perf_counter() + 1.5
    while time.perf_counter() < until:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    own, theirs = time.process_time() - begin, cpu_seconds(pid) - theirs
    low, middle, high = np.percentile(times, [10, 50, 90])
    per_call = 1e6 / len(times)
    sys.stdout.write(
        f"{label:<42} {middle:7.0f} us ({low:.0f} to {high:.0f}); CPU {own * per_call:.0f} here, "
        f"{theirs * per_call:.0f} there\n"
    )


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_worker(folder: Path, taken: int, given: int) -> None:
    """The client and its script."""
    (folder / "nrtpy.py").write_text(IDLE, encoding="utf-8")
    neff = folder / "idle.neff"
    neff.write_text(json.dumps([taken, given]), encoding="utf-8")
    array = np.ones(taken, np.uint8)
    with NeffWorker(Path(sys.executable), 0, environment={"PYTHONPATH": str(folder)}) as worker:
        inputs, outputs = [DeviceTensor("x", (taken,), "uint8")], [DeviceTensor("y", (given,), "uint8")]
        loaded = worker.load(neff, inputs, outputs, {})
        measure(lambda: loaded.run([array], 30), worker.pid, f"worker           {taken:>9} in {given:>6} out")


def measure_copying(kind: str, taken: int, given: int) -> None:
    """A process that reads arrays from a "pipe", a "wide pipe" of 1 MiB, or a "socket", and nothing else."""
    if kind == "socket":
        sockets = socket.socketpair()
        ours = theirs = (0, 0)
        ours, theirs = ((end.fileno(), end.fileno()) for end in sockets)
    else:
        (source, forward), (back, sink) = os.pipe(), os.pipe()
        ours, theirs = (back, forward), (source, sink)
        if kind == "wide pipe":
            for file in (source, sink):
                fcntl.fcntl(file, _PIPE_BYTES, 1 << 20)
    command = [sys.executable, "-c", ECHO, *map(str, theirs), str(taken), str(given)]
    array, result = memoryview(bytes(taken)), memoryview(bytearray(given))

    def call() -> None:
        done = 0
        while done < taken:
            done += os.write(ours[1], array[done:])
        done = 0
        while done < given:
            done += os.readv(ours[0], [result[done:]])

    with subprocess.Popen(command, pass_fds=set(theirs)) as process:
        measure(call, process.pid, f"{kind:<16} {taken:>9} in {given:>6} out")
        process.kill()


def main() -> None:
    """Measure each size in each way."""
    for taken, given in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            measure_worker(Path(folder), taken, given)
        for kind in ("pipe", "wide pipe", "socket"):
            measure_copying(kind, taken, given)


if __name__ == "__main__":
    main()
