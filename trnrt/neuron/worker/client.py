"""A worker process that runs NEFFs, as its parent sees it.

    with NeffWorker(Path("/opt/nrtpy/bin/python"), core=0) as worker:
        neff = worker.load(Path("kernel.neff"), plan.inputs, plan.results, plan.weights)
        [result] = neff.run([array], timeout_s=30)

The worker has AWS's nrtpy in a Python environment of its own, where trnrt is not. It has one core, for any number of
models, and keeps it until it ends. If a run hangs, or if the runtime can't go on after a failure, the worker is killed:
that frees the core, and this process may start another worker.

The pages of SDK 2.32 that this follows are in neuron-runtime/nrtpy; tests run it with a fake that is made from them.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from trnrt.backends import Array
from trnrt.errors import BackendError, DeviceError, InputError
from trnrt.neuron.failures import device_error, status_of
from trnrt.neuron.worker import program
from trnrt.neuron.worker.matching import Described, match_tensors
from trnrt.neuron.worker.starting import STOP_S, end_process, exit_text, read_lines, start_error, start_process
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.plan import DeviceTensor

START_S = 60.0
"""Seconds that starting Python and importing nrtpy may take."""
LOAD_S = 600.0
"""Seconds that loading a model may take."""
_LOG_S = 0.1  # for the runtime's lines to arrive
_LOGGED = ("TDRV", "NMGR", "NRT")  # their prefixes (neuron-runtime/nrtpy/nrtpy-troubleshooting.rst)
_LINES = 12  # of the worker's output, shown when it fails
_ALIGNMENT = 64
# These are states of a process's runtime, which the next worker starts without.
_OF_PROCESS = {
    "NRT_TIMEOUT",
    "NRT_INVALID_HANDLE",
    "NRT_UNINITIALIZED",
    "NRT_CLOSED",
    "NRT_EXEC_UNIT_UNRECOVERABLE",
}


@dataclass(frozen=True)
class Benchmark:
    """nrtpy's times of repeated runs, in milliseconds. ``iterations``: events, which may be several in each run."""

    mean_ms: float
    min_ms: float
    max_ms: float
    std_dev_ms: float
    iterations: int
    warmup_iterations: int
    durations_ms: tuple[float, ...]


class _Fault(Exception):
    """An exception in the worker: its type and message."""


class NeffWorker:
    """A worker process on one core. Several threads may use it; it does one thing at a time.

    ``python``: the interpreter of an environment with nrtpy and numpy. ``core``: in the runtime's numbers.
    ``environment``: variables for the worker besides this process's own. BackendError if it does not start.
    """

    def __init__(
        self,
        python: Path,
        core: int,
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = START_S,
    ) -> None:
        self.python, self.core = python, core
        self.lock, self._models, self._ended = threading.RLock(), 0, ""
        self._channel, theirs = socket.socketpair()
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._dropped: deque[int] = deque()
        with theirs:
            try:
                self._process = start_process(python, theirs, core, environment or {})
            except OSError as error:
                self._channel.close()
                raise BackendError(
                    f"the NEFF worker's Python {python} can't be started: {error.strerror or error}",
                    hint="name the Python of an environment that has nrtpy",
                ) from error
        self._reader = threading.Thread(
            target=read_lines, args=(self._process, self._lines), name=f"output of NEFF worker {core}", daemon=True
        )
        self._reader.start()
        self._finalizer = weakref.finalize(self, end_process, self._process)
        weakref.finalize(self, self._channel.close)
        _workers.add(self)
        self._greet(start_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        """True while it can answer. In a fork of the process that started it, it can't."""
        return not self._ended and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def load(
        self,
        neff: Path,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        weights: Mapping[str, Array],
        *,
        timeout_s: float = LOAD_S,
    ) -> LoadedNeff:
        """Load a NEFF with its weights. ``inputs`` and ``weights`` have the names of the kernel's parameters.

        BackendError if the NEFF has other tensors, DeviceError if the runtime can't load it.
        """
        if not neff.is_file():
            raise BackendError(f"there is no NEFF {neff}", hint="compile the model again")
        with self.lock:
            self._models += 1
            model, until = self._models, time.monotonic() + timeout_s
        doing = f"{neff.name}: loading it on core {self.core}"
        self._unload_dropped(doing, until)
        try:
            loaded = LoadedNeff(self, model, neff.name)
            weakref.finalize(loaded, self._dropped.append, model)
            request = {"do": "open", "model": model, "neff": str(neff.absolute()), "name": neff.stem}
            described = self._open(doing, until, request)
            held = [DeviceTensor(name, array.shape, array.dtype.name) for name, array in weights.items()]
            arguments = match_tensors(neff.name, "input", [*inputs, *held], Described.parse(described["inputs"]))
            results = match_tensors(neff.name, "output", outputs, Described.parse(described["outputs"]))
            loaded.place_weights(doing, until, arguments[len(inputs) :], list(weights.values()))
            loaded.place_tensors(doing, until, (inputs, arguments[: len(inputs)]), (outputs, results))
        except BaseException:
            if self.is_alive:
                with suppress(BackendError):
                    self.ask(doing, time.monotonic() + STOP_S, {"do": "unload", "model": model})
            raise
        return loaded

    def _unload_dropped(self, doing: str, until: float) -> None:
        """Unload what was dropped and not closed: garbage is collected in the middle of other requests."""
        with suppress(IndexError):
            while True:
                self.ask(doing, until, {"do": "unload", "model": self._dropped.popleft()})

    def _open(self, doing: str, until: float, request: dict[str, Any]) -> dict[str, Any]:
        """Load the NEFF. nrtpy-troubleshooting.rst has one reason for NRT_FAILURE then: another target."""
        self._lines.clear()  # a failure is explained by its own lines
        try:
            return self.ask(doing, until, request)
        except DeviceError as error:
            if "(NRT_FAILURE, " not in str(error.args[0]):
                raise
            raise BackendError(
                str(error.args[0]),
                hint="if it was compiled for another target, compile the model again for this machine; else see "
                "the runtime's log: NEURON_RT_LOG_LEVEL=INFO",
            ) from error

    def ask(self, doing: str, until: float, request: dict[str, Any], file: int | None = None) -> dict[str, Any]:
        """Send a request and wait for its answer until a time of ``time.monotonic``; ``doing`` is for errors.

        ``file``: an open file for the worker. BackendError or DeviceError if the worker fails or is too late.
        """
        with self.lock:
            begin = time.monotonic()
            if self._ended:
                raise DeviceError(f"{doing}: the NEFF worker {self._ended}", hint="open the model again", usable=True)
            try:
                self._channel.settimeout(max(until - time.monotonic(), 0.001))
                program.send(self._channel, request)
                if file is not None:
                    socket.send_fds(self._channel, [b"f"], [file])
                answer = self._receive(until)
            except TimeoutError:
                raise self._hang(f"{doing}: no answer after {until - begin:.3g} s") from None
            except (OSError, EOFError):
                raise self._crash(doing) from None
            except BaseException as error:  # Ctrl-C: the answer would be taken for the next request's
                self._kill(f"was ended by {type(error).__name__}")
                raise
            if "error" not in answer:
                return answer
            raise self._failure(doing, answer)

    def close(self) -> None:
        """Close the runtime and end the process; it is killed if it does not end by itself in 5 s."""
        if self.is_alive and self.lock.acquire(timeout=STOP_S):
            try:
                with suppress(BackendError):
                    self.ask("closing the NEFF worker", time.monotonic() + STOP_S, {"do": "stop"})
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOP_S)
            finally:
                self.lock.release()
        self._kill("was closed")

    def forget(self) -> None:
        """Drop the worker in a fork of the process that started it: it ends with that process, not with its forks."""
        self._finalizer.detach()
        self.lock, self._ended = threading.RLock(), "belongs to the process that this one was forked from"
        self._channel.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _greet(self, timeout_s: float) -> None:
        """Wait for the worker's first message."""
        try:
            answer = self._receive(time.monotonic() + timeout_s)
        except TimeoutError:
            self._kill("did not start")
            raise BackendError(
                f"the NEFF worker did not start within {timeout_s:g} s with {self.python}{self._last_lines()}",
                hint="try it: PYTHON -c 'import nrtpy'",
            ) from None
        except (OSError, EOFError):
            crash = self._crash(f"starting the NEFF worker with {self.python}")
            raise BackendError(str(crash.args[0]), hint="try it: PYTHON -c 'import nrtpy'") from None
        except BaseException as error:
            self._kill(f"was ended by {type(error).__name__}")
            raise
        if "error" in answer:
            self._kill("did not start")
            raise start_error(self.python, answer)

    def _receive(self, until: float) -> dict[str, Any]:
        self._channel.settimeout(max(until - time.monotonic(), 0.001))
        return program.receive(self._channel)

    def _failure(self, doing: str, answer: dict[str, Any]) -> BackendError:
        """The error for an exception in the worker, which is killed if its runtime can't go on."""
        text = f"{answer['error']}: {answer['text']}"
        if answer["error"] == "NrtError" and "NRT_FAILURE" in text:
            time.sleep(_LOG_S)  # the message has no reason: that is in the runtime's log
            text += "".join(f"; {line}" for line in self._lines if any(part in line for part in _LOGGED))
        error = device_error(doing, _Fault(text))
        found = status_of(text)
        if isinstance(error, DeviceError) and not error.usable and found is not None:
            self._kill(f"was ended after {found[0]}")
            if found[0] in _OF_PROCESS:
                hint = "the worker was ended, which frees the core: open the model again"
                return DeviceError(str(error.args[0]), hint=hint, usable=True)
        return error

    def _hang(self, late: str) -> DeviceError:
        """The error for a worker that is ``late``, after killing it."""
        self._kill("was ended because it hung")
        if self._process.poll() is None:  # it is inside the driver
            return DeviceError(
                f"{late}, and process {self.pid} can't be killed: the driver hangs",
                hint="look at dmesg; reload the driver, or reboot",
                usable=False,
            )
        return DeviceError(
            f"{late}: the device hangs; the worker was ended, which frees the core",
            hint="open the model again; a longer limit is timeout_s",
            usable=True,
        )

    def _crash(self, doing: str) -> DeviceError:
        """The error for a worker that ended, by itself or because another thread closed it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        if self._ended:
            return DeviceError(f"{doing}: the NEFF worker {self._ended}", hint="open the model again", usable=True)
        code = self._process.poll()
        self._kill("ended by itself")
        return DeviceError(
            f"{doing}: the NEFF worker ended by itself, {exit_text(code)}{self._last_lines()}",
            hint="open the model again; dmesg may say more",
            usable=True,
        )

    def _last_lines(self) -> str:
        """The last lines of the worker's output, for an error."""
        self._reader.join(1.0)
        return "; its last lines:\n  " + "\n  ".join(self._lines) if self._lines else ""

    def _kill(self, ended: str) -> None:
        self._ended = self._ended or ended
        self._finalizer()
        with self.lock:  # a thread that waits for an answer sees that the worker ended, and lets go
            self._channel.close()


class LoadedNeff:
    """A NEFF in a worker, with its weights and its tensors on the device."""

    def __init__(self, worker: NeffWorker, model: int, name: str) -> None:
        self.name = name
        self._worker, self._model, self._closed = worker, model, False
        self._inputs: list[Array] = []  # parts of the shared memory, as the outputs
        self._outputs: list[Array] = []

    def place_weights(self, doing: str, until: float, names: Sequence[str], weights: Sequence[Array]) -> None:
        """Move weights to the device, one at a time, through memory that is dropped afterwards."""
        if not weights:
            return
        memory = self._share(doing, until, max(array.nbytes for array in weights))
        for name, array in zip(names, weights, strict=True):
            memory[: array.nbytes] = _as_bytes(array)
            tensor = _entry("weight", name, array.shape, array.dtype, 0)
            self._worker.ask(doing, until, {"do": "place", "model": self._model, "tensors": [tensor]})

    def place_tensors(
        self,
        doing: str,
        until: float,
        inputs: tuple[Sequence[DeviceTensor], Sequence[str]],
        outputs: tuple[Sequence[DeviceTensor], Sequence[str]],
    ) -> None:
        """Make the inputs and outputs on the device, and the memory through which they go; with names in the NEFF."""
        entries, size = [], 0
        for role, (tensors, names) in (("input", inputs), ("output", outputs)):
            for tensor, name in zip(tensors, names, strict=True):
                entries.append(_entry(role, name, tensor.shape, as_dtype(tensor.dtype).numpy, size))
                size += -(-entries[-1]["size"] // _ALIGNMENT) * _ALIGNMENT
        memory = self._share(doing, until, size)
        self._worker.ask(doing, until, {"do": "place", "model": self._model, "tensors": entries})
        views = [
            memory[entry["offset"] : entry["offset"] + entry["size"]]
            .view(as_dtype(tensor.dtype).numpy)
            .reshape(tensor.shape)
            for entry, tensor in zip(entries, (*inputs[0], *outputs[0]), strict=True)
        ]
        self._inputs, self._outputs = views[: len(inputs[0])], views[len(inputs[0]) :]

    def run(self, inputs: Sequence[Array], timeout_s: float) -> list[Array]:
        """Inputs in the order and dtypes that it was loaded with -> outputs likewise, as arrays of their own.

        InputError for other inputs, DeviceError if the device fails or takes longer than ``timeout_s``.
        """
        doing = f"{self.name}: running it on core {self._worker.core}"
        with self._worker.lock:
            self._refuse_if_closed(doing)
            self._check_inputs(inputs)
            for array, view in zip(inputs, self._inputs, strict=True):
                np.copyto(view, array, casting="no")
            self._worker.ask(doing, time.monotonic() + timeout_s, {"do": "run", "model": self._model})
            return [view.copy() for view in self._outputs]

    def benchmark(
        self, *, warmup: int = 5, iterations: int = 5, mode: str = "device", timeout_s: float = LOAD_S
    ) -> Benchmark:
        """Time repeated runs on the inputs of the last ``run``, by nrtpy (SDK 2.32 or later).

        ``mode``: "device" times the core alone, "host" the whole call of the runtime.
        """
        doing = f"{self.name}: timing it on core {self._worker.core}"
        request = {"do": "benchmark", "model": self._model, "warmup": warmup, "iterations": iterations, "mode": mode}
        with self._worker.lock:
            self._refuse_if_closed(doing)
            answer = self._worker.ask(doing, time.monotonic() + timeout_s, request)
        values = {name: answer[name] for name in Benchmark.__dataclass_fields__}
        return Benchmark(**values | {"durations_ms": tuple(answer["durations_ms"])})

    def close(self) -> None:
        """Unload it. The worker goes on with its other models."""
        with self._worker.lock:
            if self._closed:
                return
            self._closed, self._inputs, self._outputs = True, [], []
            if self._worker.is_alive:
                request = {"do": "unload", "model": self._model}
                with suppress(BackendError):
                    self._worker.ask(f"unloading {self.name}", time.monotonic() + STOP_S, request)

    def _refuse_if_closed(self, doing: str) -> None:
        if self._closed:
            raise DeviceError(f"{doing}: it was closed", hint="open it again", usable=True)

    def _check_inputs(self, inputs: Sequence[Array]) -> None:
        wanted = [(view.shape, view.dtype) for view in self._inputs]
        if [(array.shape, array.dtype) for array in inputs] != wanted:
            found, takes = (
                ", ".join(f"{array.dtype} {array.shape}" for array in arrays) or "nothing"
                for arrays in (inputs, self._inputs)
            )
            raise InputError(f"{self.name} was given {found}; it takes {takes}", hint="pass arrays of these shapes")

    def _share(self, doing: str, until: float, size: int) -> Array:
        """Map memory that the worker maps, too. It has no name: the system frees it with its last user."""
        size = max(size, 1)
        file = os.memfd_create(f"trnrt {self.name}"[:200])
        try:
            os.ftruncate(file, size)
            memory = np.frombuffer(mmap.mmap(file, size), dtype=np.uint8)
            self._worker.ask(doing, until, {"do": "share", "model": self._model, "size": size}, file)
        finally:
            os.close(file)
        return memory


_workers: weakref.WeakSet[NeffWorker] = weakref.WeakSet()


def _forget_workers() -> None:
    for worker in list(_workers):
        worker.forget()


os.register_at_fork(after_in_child=_forget_workers)


def _entry(role: str, name: str, shape: Sequence[int], dtype: np.dtype[Any], offset: int) -> dict[str, Any]:
    """A tensor as the worker is asked for it. numpy alone has no bfloat16: it crosses as integers of its width."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    plain = dtype.name if dtype.kind in "biuf" and dtype.isbuiltin == 1 else f"uint{8 * dtype.itemsize}"
    return {"role": role, "name": name, "shape": list(shape), "dtype": plain, "offset": offset, "size": size}


def _as_bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
