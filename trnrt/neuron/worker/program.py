"""The worker's script: loads NEFFs with AWS's nrtpy and runs them, for the process that started it.

``PYTHON program.py SOCKET CORE``. It runs in an environment without trnrt, so it imports the standard library, numpy
and nrtpy alone. The client, in ``client.py``, imports ``send`` and ``receive`` from here.

Messages are a length and JSON, on a socket. Arrays are in memory that both processes map: on two cores a call with
600 KB in and 4 KB out takes 90 us so, and 105 to 170 us where they go through a socket or pipes; with 10 MB in it takes
1.5 ms, and 6 to 8 ms (tests/shared/measure_worker.py).

All calls of nrtpy are as in neuron-runtime/nrtpy/{configuration,model,tensor,errors}.rst of SDK 2.32. Those pages do
not say which dtypes ``NrtpyTensor.from_numpy`` takes: bfloat16 and 8-bit floats are given to it as unsigned integers of
their width, since only sizes in bytes are said to be checked. None of it was ever run on a device.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_HEAD = 4  # bytes of a message's length


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    text = json.dumps(message).encode("utf-8")
    channel.sendall(len(text).to_bytes(_HEAD, "big") + text)


def receive(channel: socket.socket) -> dict[str, Any]:
    """The next message. EOFError if the other side has ended."""
    count = int.from_bytes(_receive_exactly(channel, _HEAD), "big")
    message: dict[str, Any] = json.loads(_receive_exactly(channel, count))
    return message


def _receive_exactly(channel: socket.socket, count: int) -> bytes:
    data = channel.recv(count)
    while 0 < len(data) < count:
        part = channel.recv(count - len(data))
        data = data + part if part else b""
    if not data:
        raise EOFError
    return data


class Neff:
    """A loaded NEFF, its tensors on the device by their names, and the memory that it shares with the client.

    ``inputs``: each tensor that runs fill, and its part of the memory. ``outputs``: each output's name and its part.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.memory: Any = None
        self.arguments: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self.inputs: list[tuple[Any, Any]] = []
        self.outputs: list[tuple[str, Any]] = []


class Worker:
    """Answers requests: each ``do`` is a method, which takes the request and returns the answer."""

    def __init__(self, channel: socket.socket, core: int) -> None:
        import nrtpy  # type: ignore[import-not-found, unused-ignore]
        import numpy

        self.numpy, self.nrtpy = numpy, nrtpy
        for name in ("NrtpyModel", "NrtpyTensor", "configure", "reset"):
            if not hasattr(nrtpy, name):  # nki brings a package of the same name, with other classes
                raise ImportError(f"{getattr(nrtpy, '__file__', 'nrtpy')} has no {name}: it is not the nrtpy wheel")
        nrtpy.configure(visible_cores=[core])
        self.channel, self.neffs = channel, dict[int, Neff]()

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a NEFF on this worker's core, which is the first that the runtime sees."""
        model = self.nrtpy.NrtpyModel.load_from_neff(request["neff"], name=request["name"], core_id=0)
        self.neffs[request["model"]] = Neff(model)
        return {"inputs": _describe(model.input_tensors_info), "outputs": _describe(model.output_tensors_info)}

    def share(self, request: dict[str, Any]) -> dict[str, Any]:
        """Map the memory whose file follows the request, in place of the one before."""
        _, [file], _, _ = socket.recv_fds(self.channel, 1, 1)
        memory = mmap.mmap(file, request["size"])
        os.close(file)
        self.neffs[request["model"]].memory = self.numpy.frombuffer(memory, dtype=self.numpy.uint8)
        return {}

    def place(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make tensors on the device from arrays in the memory: weights, inputs and outputs."""
        neff = self.neffs[request["model"]]
        for entry in request["tensors"]:
            name, part = entry["name"], neff.memory[entry["offset"] : entry["offset"] + entry["size"]]
            array = part.view(entry["dtype"]).reshape(entry["shape"])
            tensor = self.nrtpy.NrtpyTensor.from_numpy(array, name=name, core_id=0)
            if entry["role"] == "output":
                neff.results[name] = tensor
                neff.outputs.append((name, part))
                continue
            neff.arguments[name] = tensor
            if entry["role"] == "input":
                neff.inputs.append((tensor, array))
        return {}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run on the inputs in the memory, and leave the outputs there."""
        neff = self.neffs[request["model"]]
        for tensor, array in neff.inputs:
            tensor.write_from_numpy(array)
        neff.model(inputs=neff.arguments, outputs=neff.results)
        for name, part in neff.outputs:
            result = self.numpy.ascontiguousarray(neff.results[name].numpy()).reshape(-1).view(self.numpy.uint8)
            if result.size != part.size:
                raise ValueError(f"output {name} has {result.size} bytes, not {part.size}")
            part[:] = result
        return {}

    def benchmark(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run it repeatedly on the inputs of the last run; times in milliseconds, as nrtpy has them."""
        neff = self.neffs[request["model"]]
        result = neff.model.benchmark(
            inputs=neff.arguments,
            outputs=neff.results,
            warmup_iter=request["warmup"],
            benchmark_iter=request["iterations"],
            mode=request["mode"],
        )
        return {
            "mean_ms": float(result.mean_ms),
            "min_ms": float(result.min_ms),
            "max_ms": float(result.max_ms),
            "std_dev_ms": float(result.std_dev_ms),
            "iterations": int(result.iterations),
            "warmup_iterations": int(result.warmup_iterations),
            "durations_ms": [float(duration) for duration in result.durations_ms],
        }

    def unload(self, request: dict[str, Any]) -> dict[str, Any]:
        """Drop a NEFF and its tensors: nrtpy frees them when they are garbage."""
        self.neffs.pop(request["model"], None)
        return {}

    def stop(self, request: dict[str, Any]) -> dict[str, Any]:
        """Close the runtime."""
        self.neffs.clear()
        self.nrtpy.reset()
        return {}


def _describe(tensors: Any) -> list[dict[str, Any]]:
    """nrtpy's description of a model's inputs or outputs: names, shapes, and sizes in bytes."""
    return [
        {"name": str(name), "shape": [int(size) for size in info.shape], "size": int(info.size)}
        for name, info in tensors.items()
    ]


def serve(channel: socket.socket, core: int) -> None:
    """Answer requests until one says stop, or the client has ended."""
    worker, answer = _start(channel, core)
    send(channel, answer)
    while worker is not None:
        request = receive(channel)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:
            answer = _describe_error(error)
        send(channel, answer)
        if request["do"] == "stop":
            return


def _start(channel: socket.socket, core: int) -> tuple[Worker | None, dict[str, Any]]:
    """The worker, and the first message, which says what it runs in, or why it does not start."""
    described = {"python": ".".join(map(str, sys.version_info[:3]))}
    try:
        return Worker(channel, core), described
    except Exception as error:
        return None, described | _describe_error(error)


def _describe_error(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "text": str(error), "module": getattr(error, "name", None) or ""}


def _end_with_parent() -> None:
    """Let the system kill this process once its parent has ended, even in the middle of a run.

    stdin is a pipe into which nobody writes: its writer's end makes the signal. A thread could not run where nrtpy
    holds the interpreter, and PR_SET_PDEATHSIG also acts when only the thread that started this process ends.
    """
    import fcntl

    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, getattr(fcntl, "F_SETSIG", 10), signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def main() -> None:
    """Serve on the socket that the command line names."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]  # nothing in it is to be imported
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    try:
        serve(channel, int(sys.argv[2]))
    except (EOFError, ConnectionError):
        return  # the client has ended


if __name__ == "__main__":
    main()
