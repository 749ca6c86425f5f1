"""NeuronCores as a backend: a route compiles kernel modules, and AWS's runtime runs them on leased cores.

``trnrt/neuron/routes`` has the routes, each written to the documentation of AWS's packages and tested against a fake
that is made from it. **Nothing here was ever run on a device.**

The runtime starts when the first model is compiled or loaded, reads the environment then, and keeps its cores until the
process ends. So cores are leased first, and the variables are set here, before any of AWS's packages is imported.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from copy import copy as copy_of
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from traceback import clear_frames
from typing import Any

import numpy as np

from trnrt.backends import Array, DeviceOptions
from trnrt.errors import BackendError, DeviceError, TrnrtError
from trnrt.neuron.artefacts import Made, describe_made, find, find_below, keep, stem_of
from trnrt.neuron.cores import Lease, lease_for_process, note_failure
from trnrt.neuron.device import LNC_VARIABLE, TARGET_VARIABLE, device_target, logical_config
from trnrt.neuron.failures import device_error
from trnrt.neuron.frontend import set_frontend
from trnrt.neuron.routes import Job, Program, Route
from trnrt.neuron.routes.opening import open_route
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.planner.plan import Plan

TIMEOUT_VARIABLE = "NEURON_RT_EXEC_TIMEOUT"
LOADING_S = 700.0
"""Seconds that loading a model on its core may take: a worker process has less to start and to load it."""
COMPILING_S = 7200.0
"""Seconds that a run may take by a route that compiles when it runs: AWS's compiler took 30 minutes for large kernels
(aws-neuron-sdk, issue 1374)."""
DEBUG_SETTINGS = {
    "NKI_DEBUG_INFO": "True",
    "NEURON_FRAMEWORK_DEBUG": "1",
    "XLA_IR_DEBUG": "1",
    "XLA_HLO_DEBUG": "1",
}
"""With these, compiled kernels keep their source lines (tools/neuron-explorer/environment-variables.rst, and
nki/guides/use-neuron-profile.rst)."""
GRACE_S = 5.0
"""Seconds that we wait beyond the runtime's own limit, in whole seconds, in case that limit fails."""

_hung: set[int] = set()
_models_on: dict[int, int] = {}


class NeuronBackend:
    """Compiles kernel modules by ``route``, and runs them on this process's cores. ``folder``: where compiled modules
    are kept."""

    name = "neuron"

    def __init__(self, options: DeviceOptions, folder: Path | None = None, route: str = "trace") -> None:
        self.lnc = logical_config(options.lnc)
        self.parallel = options.cores
        self.route: Route = open_route(route, options)
        self._options, self._folder = options, folder
        if self.route.most_cores is not None and options.cores > self.route.most_cores:
            raise BackendError(
                f"--cores {options.cores}: the route {route} uses {self.route.most_cores}",
                hint="use --route neff or trace, or a process for each core (trnrt serve --workers)",
            )

    def starting_at(self, core: int) -> NeuronBackend:
        """The same backend on as many cores from another one on (``DeviceOptions.first_core``)."""
        other = copy_of(self)
        other._options = replace(self._options, first_core=core)
        return other

    def load(self, plan: Plan, path: Path, source: bytes) -> NeuronKernel:
        """Compile the module, unless it is compiled already, and load it on its cores with its weights."""
        if self._options.compile_only:
            raise BackendError("this session was opened to compile, not to run", hint="open it without compile_only")
        first = self._options.first_core
        lease = lease_for_process(self.parallel + (first or 0), self.lnc)
        self._set_environment(plan.target)
        cores = _usable_cores(lease, self.parallel, first)
        with ExitStack() as stack:
            folder = self._folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = self._describe_made(plan, source)
            job = self._job(plan, path, source, folder / f"{made.key}_neuronx-cc")
            file = self._find_file(job, made, folder) if self.route.suffix else None
            return NeuronKernel(self.route, job, file, cores, self._options.timeout_s)

    def compile_into(self, directory: Path, plan: Plan, path: Path, source: bytes) -> list[Path]:
        """Compile the module into ``directory``, on the CPU alone, without a device."""
        stem = stem_of(plan)
        self._set_environment(plan.target)
        job = self._job(plan, path, source, directory / f"{stem}_neuronx-cc", on_device=False)
        made = self._describe_made(plan, source)
        return keep(directory, stem, made, self.route.suffix, lambda file: self.route.compile(job, file))

    def _describe_made(self, plan: Plan, source: bytes) -> Made:
        return describe_made(plan, source, self.lnc, self.route, debug_info=self._options.debug_info)

    def _job(self, plan: Plan, path: Path, source: bytes, work: Path, *, on_device: bool | None = None) -> Job:
        here = device_target() == plan.target if on_device is None else on_device
        return Job(plan, path, source, self.lnc, here, work)

    def _find_file(self, job: Job, made: Made, folder: Path) -> Path:
        """The compiled kernel: from the user's directory, or from the cache, or compiled now."""
        if self._options.compiled is not None:
            return self._find_compiled(self._options.compiled, job)
        found, _ = find(folder, made.key, made, self.route)
        if found is not None:
            os.utime(found)
            return found
        return keep(folder, made.key, made, self.route.suffix, lambda file: self.route.compile(job, file))[0]

    def _find_compiled(self, directory: Path, job: Job) -> Path:
        wanted = describe_made(job.plan, job.source, self.lnc, self.route)
        found, reason = find_below(directory, stem_of(job.plan), wanted, self.route)
        if found is None:
            shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in job.plan.inputs)
            raise BackendError(
                f"{job.plan.name} for {shapes}: {reason}",
                hint=f"compile it here: trnrt compile MODEL --backend neuron --route {self.route.name} -o DIR",
            )
        return found

    def _set_environment(self, target: str) -> None:
        set_environment(target, self.lnc)
        if self._options.debug_info:
            os.environ.update(DEBUG_SETTINGS)
        os.environ.setdefault(TIMEOUT_VARIABLE, str(max(1, math.ceil(self._options.timeout_s))))


def set_environment(target: str, lnc: int) -> None:
    """Set the variables that AWS's packages read: target, logical cores, and frontend."""
    set_frontend()
    os.environ[TARGET_VARIABLE] = target
    os.environ[LNC_VARIABLE] = str(lnc)


class NeuronKernel:
    """A compiled kernel on its cores, a copy on each. An error of the device closes it."""

    def __init__(self, route: Route, job: Job, file: Path | None, cores: Sequence[int], timeout_s: float) -> None:
        # Without a file the route compiles when it runs.
        self._plan, self._timeout_s = job.plan, timeout_s if file is not None else COMPILING_S
        self.neff = None if file is None else route.find_neff(file)
        self._closed = ""
        self._free: SimpleQueue[_Copy] = SimpleQueue()
        self._copies: list[_Copy] = []
        weakref.finalize(self, _close, self._copies)  # else a thread would keep each copy alive, and on its core
        try:
            for core in cores:
                self._copies.append(_Copy(job.plan.name, partial(route.load, job, file, core), core))
                self._free.put(self._copies[-1])
        except BaseException:
            self.close()
            raise

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on the first free core; several threads run on several cores at a time."""
        copy = self._free.get()
        try:
            if self._closed:
                raise DeviceError(f"{self._plan.name} is closed: {self._closed}", hint="open it again", usable=True)
            results = self._check_results(copy.run(inputs, self._timeout_s))
        except DeviceError as error:
            self.close(str(error))
            raise
        finally:
            self._free.put(copy)
        return results

    def time_runs(self, count: int) -> list[float] | None:
        """The microseconds of runs on the inputs of the last ``run``, by the device's own clock; None if the route has
        none. For a kernel on one core. BackendError if the runs can't be timed: the kernel may still run."""
        copy = self._free.get()
        try:
            return copy.time_runs(count)
        finally:
            self._free.put(copy)

    def close(self, reason: str = "it was closed") -> None:
        """Unload it. The runtime keeps the cores until this process ends."""
        self._closed = self._closed or reason
        _close(self._copies)

    def _check_results(self, results: list[Array]) -> list[Array]:
        """The results in the plan's dtypes; DeviceError if their shapes or dtypes differ from the plan's."""
        dtypes = [as_dtype(tensor.dtype).numpy for tensor in self._plan.results]
        got = [array.shape for array in results]
        if got != [tensor.shape for tensor in self._plan.results] or not all(map(_fits, results, dtypes)):
            wanted = ", ".join(f"{tensor.dtype} {tensor.shape}" for tensor in self._plan.results)
            found = ", ".join(f"{array.dtype} {array.shape}" for array in results)
            raise DeviceError(
                f"{self._plan.name}: the device returned {found}; its plan has {wanted}",
                hint="the compiled model belongs to another one: trnrt cache clear",
                usable=True,
            )
        return [array.astype(dtype, copy=False) for array, dtype in zip(results, dtypes, strict=True)]


def _close(copies: list[_Copy]) -> None:
    """End each copy once: runs on several cores may fail at the same time, and each closes all copies."""
    ended: list[_Copy] = []
    with suppress(IndexError):
        while True:
            ended.append(copies.pop())
    for copy in ended:
        copy.end()
    until = time.monotonic() + GRACE_S
    for copy in ended:
        copy.wait(until - time.monotonic())


_Answers = SimpleQueue[BaseException | list[Array] | None]


class _Copy:
    """A model on one core, and a thread that loads, runs and unloads it: if the device hangs, only this thread does."""

    def __init__(self, name: str, load_program: Callable[[], Program], core: int) -> None:
        self._name, self._core = name, core
        self._asked: SimpleQueue[tuple[Callable[[], list[Array] | None], _Answers] | None] = SimpleQueue()
        self._program: Program | None = None  # used by the thread alone: dropping the last reference unloads it
        self._lock, self._ended, self._gone = threading.Lock(), False, threading.Event()
        self._models_on = _models_on
        self._models_on[core] = self._models_on.get(core, 0) + 1
        self._thread = threading.Thread(target=self._serve, name=f"{name} on core {core}", daemon=True)
        self._thread.start()

        def load() -> None:
            self._program = load_program()

        try:
            self._call(load, LOADING_S, "loading it")
        except BaseException:
            _close([self])
            raise

    def run(self, inputs: Sequence[Array], timeout_s: float) -> list[Array]:
        def run() -> list[Array]:
            assert self._program is not None
            return self._program.run(inputs)

        results = self._call(run, timeout_s + GRACE_S, "running it")
        assert results is not None
        return results

    def time_runs(self, count: int) -> list[float] | None:
        timed: list[float] | None = None

        def time_them() -> None:
            nonlocal timed
            assert self._program is not None
            timed = self._program.time_runs(count)

        self._call(time_them, LOADING_S, "timing it")
        return timed

    def end(self) -> None:
        """Refuse further calls, and unload the model after those that are queued."""
        if self._core not in _hung:
            self._models_on[self._core] -= 1
        with self._lock:
            self._ended = True
            self._asked.put(None)

    def wait(self, seconds: float) -> None:
        """Wait until it is unloaded, for at most ``seconds``; not if it hangs or is this very thread."""
        if self._core not in _hung and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._gone.wait(seconds)

    def _call(self, function: Callable[[], list[Array] | None], timeout_s: float, doing: str) -> list[Array] | None:
        doing = f"{self._name}: {doing} on core {self._core}"
        answers: _Answers = SimpleQueue()  # of this call alone: a call that Ctrl-C ended is still answered
        with self._lock:  # a call after the None that ends the thread would get no answer, as if the device hung
            if self._ended:
                raise DeviceError(f"{doing}: it was closed", hint="open it again", usable=True)
            if not self._thread.is_alive():  # forks have none of their parent's threads
                raise BackendError(
                    f"{doing}: it was loaded before this process was forked; a fork can't use its parent's NeuronCore",
                    hint="open the model in each process; multiprocessing has spawn for that",
                )
            self._asked.put((function, answers))
        try:
            answer = answers.get(timeout=timeout_s)
        except Empty:
            _hung.add(self._core)
            note_failure(self._core)
            raise DeviceError(
                f"{doing}: no answer after {timeout_s:g} s: the device hangs",
                hint="end this process, which frees the core; a longer limit is timeout_s",
                usable=False,
            ) from None
        if not isinstance(answer, BaseException):
            return answer
        error = answer if isinstance(answer, TrnrtError) else device_error(doing, answer)
        if isinstance(error, DeviceError) and not error.usable:
            note_failure(self._core)
        if error is answer:
            raise error
        raise error from answer

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            function, answers = asked
            try:
                answers.put(function())
            except BaseException as error:
                clear_frames(error.__traceback__)  # they hold the module: whoever drops the error would unload it
                answers.put(error)
            del asked, function, answers
        if self._program is not None:
            with suppress(Exception):  # nobody is left to tell
                self._program.close()
        self._program = None
        self._gone.set()


def _usable_cores(lease: Lease, count: int, first: int | None) -> list[int]:
    """The cores to load on, from ``first`` on or else the least used, numbered from 0 among those that the process
    sees, as the placement page of torch_neuronx counts them."""
    asked = range(len(lease.cores)) if first is None else range(first, first + count)
    usable = [core for core in asked if core not in _hung]
    if len(usable) < count:
        raise DeviceError(
            f"{len(_hung)} of the process's {len(lease.cores)} cores hang, and {count} are needed",
            hint="end this process, which frees them",
            usable=False,
        )
    return sorted(usable, key=lambda core: (_models_on.get(core, 0), core))[:count]


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """True if a result fits a dtype. PyTorch/XLA may hold a kernel's unsigned integers in another integer type."""
    return array.dtype == dtype or (array.dtype.kind in "iu" and dtype.kind in "iu")
