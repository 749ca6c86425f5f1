"""NeuronCores as a backend: torch_neuronx.trace compiles kernel modules, and AWS's runtime runs them.

Written to the documentation of Neuron SDK 2.32 (torch-neuronx 2.9 of 2.31, its last with PyTorch/XLA), and tested
against a fake that is generated from it. **Nothing here was ever run on a device.** No other file imports torch.

The runtime starts when the first model is compiled or loaded, reads the environment then, and keeps its cores until the
process ends. So cores are leased first, and the variables are set here, before torch is imported.
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
from pathlib import Path
from queue import Empty, SimpleQueue
from traceback import clear_frames
from typing import Any

import numpy as np

from trnrt.backends import Array, DeviceOptions
from trnrt.backends.simulator import load_entry
from trnrt.errors import BackendError, DeviceError, TrnrtError
from trnrt.neuron.artefacts import Made, describe_made, find, find_below, keep, stem_of
from trnrt.neuron.cores import Lease, lease_for_process, note_failure
from trnrt.neuron.device import LNC_VARIABLE, TARGET_VARIABLE, device_target, logical_config
from trnrt.neuron.failures import compile_error, device_error
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import get_target
from trnrt.planner.plan import Plan

TIMEOUT_VARIABLE = "NEURON_RT_EXEC_TIMEOUT"
LOADING_S = 600.0
"""Seconds that loading a model on its core may take."""
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

_PLACING = threading.Lock()  # torch_neuronx.neuron_cores_context documents that it is for one thread at a time
_hung: set[int] = set()
_models_on: dict[int, int] = {}


class NeuronBackend:
    """Compiles kernel modules, and runs them on this process's cores. ``folder``: where compiled modules are kept."""

    name = "neuron"

    def __init__(self, options: DeviceOptions, folder: Path | None = None) -> None:
        self.lnc = logical_config(options.lnc)
        self.parallel = options.cores
        self._options, self._folder = options, folder

    def load(self, plan: Plan, path: Path, source: bytes) -> NeuronKernel:
        """Compile the module, unless it is compiled already, and load it on its cores with its weights."""
        if self._options.compile_only:
            raise BackendError("this session was opened to compile, not to run", hint="open it without compile_only")
        lease = lease_for_process(self.parallel, self.lnc)
        self._set_environment(plan.target)
        cores = _least_used(lease, self.parallel)
        with ExitStack() as stack:
            if self._options.compiled is not None:
                artefact = self._find_compiled(self._options.compiled, plan, source)
            else:
                folder = self._folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
                artefact = self._find_or_compile(plan, path, source, folder)
            return NeuronKernel(plan, artefact, cores, self._options.timeout_s)

    def compile_into(self, directory: Path, plan: Plan, path: Path, source: bytes) -> list[Path]:
        """Compile the module into ``directory``, on the CPU alone, without a device."""
        self._set_environment(plan.target)
        made = self._describe_made(plan, source)
        stem = stem_of(plan)
        work = directory / f"{stem}_neuronx-cc"
        return keep(directory, stem, made, lambda file: self._compile(file, plan, path, source, work, on_device=False))

    def _describe_made(self, plan: Plan, source: bytes) -> Made:
        return describe_made(plan, source, self.lnc, debug_info=self._options.debug_info)

    def _find_or_compile(self, plan: Plan, path: Path, source: bytes, folder: Path) -> Path:
        made = self._describe_made(plan, source)
        found, _ = find(folder, made.key, made)
        if found is not None:
            os.utime(found)
            return found
        # If the device is of another target or unknown, the compiler must be told the target.
        on_device = device_target() == plan.target
        work = folder / f"{made.key}_neuronx-cc"

        def save(file: Path) -> None:
            self._compile(file, plan, path, source, work, on_device=on_device)

        return keep(folder, made.key, made, save)[0]

    def _find_compiled(self, directory: Path, plan: Plan, source: bytes) -> Path:
        found, reason = find_below(directory, stem_of(plan), describe_made(plan, source, self.lnc))
        if found is None:
            shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in plan.inputs)
            raise BackendError(
                f"{plan.name} for {shapes}: {reason}",
                hint="compile it here: trnrt compile MODEL --backend neuron -o DIR",
            )
        return found

    def _compile(self, file: Path, plan: Plan, path: Path, source: bytes, work: Path, *, on_device: bool) -> None:
        """Trace and compile the module; save it with its weights beside the NEFF, not in it."""
        torch, torch_neuronx = _import_torch()
        kernel = load_entry(plan, path, source, importable=True)
        module = _as_module(torch, kernel if self.lnc == 1 else kernel[self.lnc], list(plan.weights.values()))  # type: ignore[index]
        examples = tuple(
            _as_tensor(torch, np.zeros(tensor.shape, as_dtype(tensor.dtype).numpy)) for tensor in plan.inputs
        )
        # The compiler has this flag only for targets with logical cores of several physical ones.
        arguments = ["--lnc", str(self.lnc)] if get_target(plan.target).device.most_lnc > 1 else []
        if not on_device:
            arguments += ["--target", plan.target]
        work.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            traced = torch_neuronx.trace(
                module,
                examples,
                compiler_workdir=str(work),
                compiler_args=arguments,
                inline_weights_to_neff=False,
                cpu_backend=not on_device,
            )
        except Exception as error:
            raise compile_error(plan.name, plan.target, str(work), error) from error
        torch.jit.save(traced, str(file))

    def _set_environment(self, target: str) -> None:
        os.environ[TARGET_VARIABLE] = target
        os.environ[LNC_VARIABLE] = str(self.lnc)
        if self._options.debug_info:
            os.environ.update(DEBUG_SETTINGS)
        os.environ.setdefault(TIMEOUT_VARIABLE, str(max(1, math.ceil(self._options.timeout_s))))


class NeuronKernel:
    """A compiled kernel on its cores, a copy on each. An error of the device closes it."""

    def __init__(self, plan: Plan, artefact: Path, cores: Sequence[int], timeout_s: float) -> None:
        self._plan, self._timeout_s = plan, timeout_s
        self.neff = _neff_in(artefact.with_name(f"{artefact.stem}_neuronx-cc"))
        self._closed = ""
        self._free: SimpleQueue[_Copy] = SimpleQueue()
        self._copies: list[_Copy] = []
        weakref.finalize(self, _close, self._copies)  # else a thread would keep each copy alive, and on its core
        try:
            for core in cores:
                self._copies.append(_Copy(plan.name, artefact, core))
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


def _neff_in(work: Path) -> Path | None:
    """The compiled kernel in the compiler's folder, None if it is not clear which file that is.

    It is graph.neff (nki/guides/use-neuron-profile.rst), or has a hash in its name (neuron-runtime/nrtpy/
    nrtpy-troubleshooting.rst).
    """
    found = [*work.glob("graph.neff")] or [*work.rglob("*.neff")]
    return found[0] if len(found) == 1 else None


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

    def __init__(self, name: str, artefact: Path, core: int) -> None:
        self._name, self._core = name, core
        self._asked: SimpleQueue[tuple[Callable[[], list[Array] | None], _Answers] | None] = SimpleQueue()
        self._module: Any = None  # used by the thread alone: dropping the last reference unloads it
        self._lock, self._ended, self._gone = threading.Lock(), False, threading.Event()
        self._models_on = _models_on
        self._models_on[core] = self._models_on.get(core, 0) + 1
        self._thread = threading.Thread(target=self._serve, name=f"{name} on core {core}", daemon=True)
        self._thread.start()

        def load() -> None:
            self._module = _load_on_core(artefact, core)

        try:
            self._call(load, LOADING_S, "loading it")
        except BaseException:
            _close([self])
            raise

    def run(self, inputs: Sequence[Array], timeout_s: float) -> list[Array]:
        results = self._call(lambda: _run(self._module, inputs), timeout_s + GRACE_S, "running it")
        assert results is not None
        return results

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
        if isinstance(answer, TrnrtError):  # not from the device
            raise answer
        if isinstance(answer, BaseException):
            error = device_error(doing, answer)
            if isinstance(error, DeviceError) and not error.usable:
                note_failure(self._core)
            raise error from answer
        return answer

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            function, answers = asked
            try:
                answers.put(function())
            except BaseException as error:
                clear_frames(error.__traceback__)  # they hold the module: whoever drops the error would unload it
                answers.put(error)
            del asked, function, answers
        self._module = None
        self._gone.set()


def run_kernel(kernel: Callable[..., Any], *arguments: Any, target: str) -> list[Array]:
    """Compile ``kernel`` and run it on numpy arrays by AWS's direct route, without PyTorch: for tests of kernels."""
    cores = logical_config()
    lease_for_process(1, cores)
    os.environ[TARGET_VARIABLE], os.environ[LNC_VARIABLE] = target, str(cores)
    try:
        results = (kernel if cores == 1 else kernel[cores])(*arguments)  # type: ignore[index]
    except Exception as error:
        raise device_error(f"kernel {getattr(kernel, '__name__', kernel)}", error) from error
    return [np.asarray(result) for result in (results if isinstance(results, tuple | list) else [results])]


def _import_torch() -> tuple[Any, Any]:
    """PyTorch and torch-neuronx. After the environment is set: importing them may start the runtime."""
    try:
        import torch
        import torch_neuronx
    except Exception as error:
        raise BackendError(
            f"torch_neuronx can't be imported: {type(error).__name__}: {error}", hint="trnrt doctor looks for the cause"
        ) from error
    return torch, torch_neuronx


def _least_used(lease: Lease, count: int) -> list[int]:
    """The cores to load on, in torch_neuronx's numbers: from 0, of those that the process sees."""
    usable = [core for core in range(len(lease.cores)) if core not in _hung]
    if len(usable) < count:
        raise DeviceError(
            f"{len(_hung)} of the process's {len(lease.cores)} cores hang, and {count} are needed",
            hint="end this process, which frees them",
            usable=False,
        )
    return sorted(usable, key=lambda core: (_models_on.get(core, 0), core))[:count]


def _load_on_core(artefact: Path, core: int) -> Any:
    """Load the model on a core, and move its weights there once, not with each run."""
    torch, torch_neuronx = _import_torch()
    with _PLACING, torch_neuronx.neuron_cores_context(start_nc=core, nc_count=1):
        module = torch.jit.load(str(artefact))
    torch_neuronx.move_trace_to_device(module, core)
    return module


def _run(module: Any, inputs: Sequence[Array]) -> list[Array]:
    torch, _ = _import_torch()
    results = module(*(_as_tensor(torch, array) for array in inputs))
    return [_as_array(torch, result) for result in (results if isinstance(results, tuple | list) else [results])]


def _fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """True if a result fits a dtype. PyTorch/XLA may hold a kernel's unsigned integers in another integer type."""
    return array.dtype == dtype or (array.dtype.kind in "iu" and dtype.kind in "iu")


def _as_module(torch: Any, kernel: Callable[..., Any], weights: Sequence[Array]) -> Any:
    """The kernel as a torch module, whose parameters are the weights."""

    class Kernel(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for k, weight in enumerate(weights):
                # No requires_grad: integers have no gradient, and nothing is trained.
                parameter = torch.nn.Parameter(_as_tensor(torch, weight), requires_grad=False)
                self.register_parameter(f"weight_{k}", parameter)

        def forward(self, *inputs: Any) -> Any:
            return kernel(*inputs, *(getattr(self, f"weight_{k}") for k in range(len(weights))))

    return Kernel().eval()


def _as_tensor(torch: Any, array: Array) -> Any:
    """An array as a tensor; bfloat16, which torch takes from no array, by its bits."""
    array = np.require(array, requirements=["C", "W"])
    if array.dtype == as_dtype("bfloat16").numpy:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise BackendError(f"torch has no tensors of {array.dtype}: {error}") from None


def _as_array(torch: Any, tensor: Any) -> Array:
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return bits.view(as_dtype("bfloat16").numpy)
    array: Array = tensor.numpy()
    return array
