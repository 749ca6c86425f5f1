"""A stand-in for AWS's nrtpy, made from its pages in SDK 2.32 (neuron-runtime/nrtpy); it refuses what they don't have.

The worker imports it in a process of its own, with this file's folder on PYTHONPATH. Its NEFF is a JSON file:

    {"target": "trn2", "inputs": [[name, shape, dtype], ...], "outputs": [...], "compute": [expression of numpy], ...}

``compute`` has an expression for each output, over the inputs' names. A NEFF may also say how it fails: see
``_misbehave``. FAKE_NRTPY (a folder) is the machine: its file ``machine.json`` has the ``target``, ``cores`` and
``bytes`` of memory, and ``core-N`` is locked by the process that has the core.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy

VARIABLES = {
    # neuron-runtime/guides/configuration-guide.rst and nrt-developer-guide.rst, neuron-runtime/nrt-troubleshoot.rst
    "NEURON_RT_VISIBLE_CORES",
    "NEURON_RT_NUM_CORES",
    "NEURON_RT_ROOT_COMM_ID",
    "NEURON_RT_LOG_LOCATION",
    "NEURON_RT_LOG_LEVEL",
    "NEURON_RT_EXEC_TIMEOUT",
    "NEURON_RT_VALIDATE_HASH",
    "NEURON_RT_STOCHASTIC_ROUNDING_EN",
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED",
    "NEURON_RT_DBG_DUMP_INPUTS_ON_ERR",
    # nki/get-started/quickstart-implement-run-kernel.rst
    # about-neuron/arch/neuron-features/logical-neuroncore-config.rst
    "NEURON_PLATFORM_TARGET_OVERRIDE",
    "NEURON_LOGICAL_NC_CONFIG",
}

print("nrtpy: a library may print to stdout, even while it is imported")
if "/opt/aws/neuron/lib" not in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
    raise ImportError("libnrt.so.1: cannot open shared object file: No such file or directory")


class NrtpyError(RuntimeError):
    """errors.rst: found by nrtpy itself."""


class NrtError(RuntimeError):
    """errors.rst: a status of libnrt, in the message."""


def _nrt_error(status: str, number: int, doing: str) -> NrtError:
    os.write(2, f"2026-Nov-23 12:00:00 ERROR NRT:fake {doing}\n".encode())
    return NrtError(f"NRT Error {status}({number}): Failed to {doing}")


class _Runtime:
    """libnrt of this process: its cores, and the bytes of its tensors."""

    def __init__(self) -> None:
        folder = Path(os.environ["FAKE_NRTPY"])
        machine = json.loads((folder / "machine.json").read_text())
        unknown = [name for name in os.environ if name.startswith("NEURON_") and name not in VARIABLES]
        if unknown:
            raise AssertionError(f"no page has {unknown}")
        self.target, self.bytes, self.is_open = machine["target"], machine["bytes"], True
        visible = os.environ.get("NEURON_RT_VISIBLE_CORES")
        self.cores = _parse_cores(visible) if visible is not None else list(range(machine["cores"]))
        self.locks = []
        for core in self.cores:
            if core >= machine["cores"]:
                raise _nrt_error("NRT_INVALID", 2, f"find core {core}")
            self.locks.append((folder / f"core-{core}").open("w"))
            try:
                fcntl.flock(self.locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.write(2, b"ERROR NRT:nrt_allocate_neuron_cores NeuronCore(s) not available - Requested:1\n")
                raise _nrt_error("NRT_FAILURE", 1, "load model") from None

    def take(self, count: int) -> None:
        if count > self.bytes:
            raise _nrt_error("NRT_RESOURCE", 4, "allocate tensor")
        self.bytes -= count

    def check_core(self, core_id: int) -> None:
        if type(core_id) is not int:
            raise TypeError(f"core_id is {core_id!r}")
        if not 0 <= core_id < len(self.cores):
            raise _nrt_error("NRT_INVALID", 2, f"use core_id {core_id} of {len(self.cores)} visible cores")


_active: list[_Runtime] = []


def _runtime() -> _Runtime:
    if not _active:
        _active.append(_Runtime())
    return _active[0]


def _parse_cores(text: str) -> list[int]:
    cores: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores


def configure(visible_cores: Iterable[int] | None = None) -> None:
    if _active:
        raise RuntimeError("the runtime is active: call reset() first")
    if visible_cores is None:
        return
    if isinstance(visible_cores, int) or not isinstance(visible_cores, Iterable):
        raise TypeError("visible_cores must be an iterable of int")
    cores = list(visible_cores)
    if not all(type(core) is int for core in cores):
        raise TypeError("visible_cores must be an iterable of int")
    if any(core < 0 for core in cores):
        raise ValueError("core IDs must not be negative")
    os.environ["NEURON_RT_VISIBLE_CORES"] = ",".join(map(str, cores))


def reset() -> None:
    while _active:
        runtime = _active.pop()
        runtime.is_open = False
        (Path(os.environ["FAKE_NRTPY"]) / "reset").touch()
        for lock in runtime.locks:
            lock.close()


class TensorMetadata:
    """model.rst names two attributes; the tutorial prints the shape as a list."""

    def __init__(self, shape: list[int], size: int) -> None:
        self.shape, self.size = shape, size


class NrtpyTensor:
    """tensor.rst. ``tensor_ref`` is the runtime and the bytes."""

    def __init__(self, tensor_ref: Any, shape: Any, dtype: Any, name: str | None = None) -> None:
        self._runtime, self._bytes = tensor_ref
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.dtype, self.name = numpy.dtype(dtype), name or ""

    @classmethod
    def from_numpy(cls, array: Any, name: str | None = None, core_id: int = 0) -> NrtpyTensor:
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"from_numpy takes a numpy.ndarray, not {type(array)}")
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"name is {name!r}")
        memoryview(array.data)  # index.rst: the buffer protocol; it has no types of other packages
        runtime = _runtime()
        runtime.check_core(core_id)
        runtime.take(array.nbytes)
        return cls((runtime, bytearray(numpy.ascontiguousarray(array).tobytes())), array.shape, array.dtype, name)

    def __del__(self) -> None:
        if hasattr(self, "_runtime"):
            self._runtime.bytes += len(self._bytes)

    def _check(self) -> None:
        if not self._runtime.is_open:
            raise NrtpyError("the tensor's runtime was closed")

    def write_from_numpy(self, array: Any) -> None:
        self._check()
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"write_from_numpy takes a numpy.ndarray, not {type(array)}")
        if array.nbytes != len(self._bytes):
            raise ValueError(f"{array.nbytes} bytes do not fit a tensor of {len(self._bytes)}")
        self._bytes[:] = numpy.ascontiguousarray(array).tobytes()

    def numpy(self) -> Any:
        self._check()
        return numpy.frombuffer(bytes(self._bytes), self.dtype).reshape(self.shape)


class BenchmarkResult:
    """model.rst."""

    def __init__(self, durations_ms: list[float], warmup_iterations: int) -> None:
        self.durations_ms, self.warmup_iterations = durations_ms, warmup_iterations
        self.iterations = len(durations_ms)
        self.mean_ms, self.std_dev_ms = float(numpy.mean(durations_ms)), float(numpy.std(durations_ms))
        self.min_ms, self.max_ms = min(durations_ms), max(durations_ms)


class NrtpyModel:
    """model.rst."""

    def __init__(self, runtime: _Runtime, neff: dict[str, Any], folder: Path) -> None:
        self._runtime, self._neff, self._folder = runtime, neff, folder
        self.input_tensors_info = {name: _metadata(shape, dtype) for name, shape, dtype in neff["inputs"]}
        self.output_tensors_info = {name: _metadata(shape, dtype) for name, shape, dtype in neff["outputs"]}

    @classmethod
    def load_from_neff(
        cls,
        neff_path: Path | str,
        name: str | None = None,
        core_id: int = 0,
        cc_enabled: bool = False,
        rank_id: int = 0,
        world_size: int = 1,
    ) -> NrtpyModel:
        if not isinstance(neff_path, Path | str) or not (name is None or isinstance(name, str)):
            raise TypeError("load_from_neff takes a path and a name")
        if cc_enabled or rank_id or world_size != 1:
            raise AssertionError("one core has no collectives")
        runtime = _runtime()
        runtime.check_core(core_id)
        try:
            neff = json.loads(Path(neff_path).read_text())
        except (OSError, ValueError):
            raise _nrt_error("NRT_FAILURE", 1, "load model") from None
        if neff["target"] != runtime.target:  # nrtpy-troubleshooting.rst
            raise _nrt_error("NRT_FAILURE", 6, "load model")
        return cls(runtime, neff, Path(neff_path).parent)

    def __call__(
        self,
        inputs: dict[str, NrtpyTensor],
        outputs: dict[str, NrtpyTensor] | None = None,
        save_trace: bool = False,
        ntff_name: str | None = None,
    ) -> dict[str, NrtpyTensor] | None:
        if save_trace or ntff_name is not None:
            raise AssertionError("no run here asks for a trace")
        if not self._runtime.is_open:
            raise NrtpyError("the model's runtime was closed")
        returned = outputs is None
        if outputs is None:
            outputs = {name: self._void_tensor(name, info) for name, info in self.output_tensors_info.items()}
        for tensors, known in ((inputs, self.input_tensors_info), (outputs, self.output_tensors_info)):
            if set(tensors) != set(known):
                raise _nrt_error("NRT_INVALID", 2, f"execute model: {sorted(tensors)} instead of {sorted(known)}")
            for name, tensor in tensors.items():
                if not isinstance(tensor, NrtpyTensor):
                    raise TypeError(f"{name} is {type(tensor)}")
                if len(tensor._bytes) != known[name].size:
                    raise _nrt_error("NRT_INVALID", 2, "execute model")
                tensor._check()
        self._misbehave()
        arrays = {
            name.removesuffix(".must_alias_input"): numpy.frombuffer(bytes(inputs[name]._bytes), _dtype(dtype)).reshape(
                shape
            )
            for name, shape, dtype in self._neff["inputs"]
        }
        for (name, shape, dtype), expression in zip(self._neff["outputs"], self._neff["compute"], strict=True):
            result = eval(expression, {"numpy": numpy}, arrays)
            outputs[name]._bytes[:] = numpy.broadcast_to(result, shape).astype(_dtype(dtype)).tobytes()
        return outputs if returned else None

    def _void_tensor(self, name: str, info: TensorMetadata) -> NrtpyTensor:
        """nrtpy-troubleshooting.rst: its dtype is void, of the width of an item."""
        width = info.size // int(numpy.prod(info.shape))
        self._runtime.take(info.size)
        return NrtpyTensor((self._runtime, bytearray(info.size)), tuple(info.shape), f"V{width}", name)

    def _misbehave(self) -> None:
        """Fail as the NEFF says: ``status`` and ``number`` of the runtime, ``sleep`` seconds, or die by ``signal``."""
        neff = self._neff
        if "started" in neff:
            Path(neff["started"]).touch()
        if "print" in neff:
            print(neff["print"], flush=True)
        time.sleep(neff.get("sleep", 0))
        if "signal" in neff:
            os.kill(os.getpid(), neff["signal"])
        if "status" in neff:
            raise _nrt_error(neff["status"], neff["number"], "execute model")

    def benchmark(
        self,
        inputs: dict[str, NrtpyTensor],
        outputs: dict[str, NrtpyTensor] | None = None,
        warmup_iter: int = 5,
        benchmark_iter: int = 5,
        mode: str = "device",
    ) -> BenchmarkResult:
        if mode not in ("device", "host"):
            raise ValueError(f"mode is {mode!r}")
        if benchmark_iter < 1:
            raise ValueError("benchmark_iter must be at least 1")
        if mode == "device" and self._neff.get("events") == 0:
            raise RuntimeError("no device execution events were captured")
        durations = []
        for k in range(warmup_iter + benchmark_iter):
            begin = time.perf_counter()
            self(inputs, outputs)
            if k >= warmup_iter:
                durations.append((time.perf_counter() - begin) * 1e3)
        events = self._neff.get("events", 1) if mode == "device" else 1
        return BenchmarkResult(durations * events, warmup_iter)


def _metadata(shape: list[int], dtype: str) -> TensorMetadata:
    return TensorMetadata(list(shape), int(numpy.prod(shape)) * _dtype(dtype).itemsize)


def _dtype(name: str) -> Any:
    """A dtype of the fake's NEFF. numpy knows those of 16 and 8 bits by ml_dtypes, which no user of nrtpy needs."""
    try:
        return numpy.dtype(name)
    except TypeError:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
