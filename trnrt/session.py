"""A session: a loaded model that answers ``run``, with onnxruntime's interface."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.backends import LoadedKernel, choose, device_target
from trnrt.cache import KernelCache, write_whole
from trnrt.errors import InputError, OptionError
from trnrt.importer import ImportedModel, TensorInfo, import_model
from trnrt.nki.machine.dtypes import as_dtype
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target
from trnrt.planner import Plan, make_plan
from trnrt.planner.making import default_shapes
from trnrt.planner.naming import identifier

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16")

_ONNX_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "str": "string",
}


@dataclass(frozen=True)
class NodeArg:
    """An input or output as onnxruntime describes it."""

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class _Compiled:
    plan: Plan
    kernel: LoadedKernel
    path: Path

    @cached_property
    def predicted_us(self) -> float | None:
        """What one run costs on the device; None where the backend has no program that could be timed."""
        from trnrt.backends.simulator import SimulatedKernel
        from trnrt.profiler import profile_traced

        program = self.kernel.program if isinstance(self.kernel, SimulatedKernel) else None
        return None if program is None else profile_traced(self.plan, program).benchmark_us


class InferenceSession:
    """A model, compiled for a target, that runs on the simulator or on a NeuronCore.

    ``model``: a file's path or its content. ``target``: "trn1", "trn2" or "trn3"; by default this machine's device,
    else trn2. ``dtype``: what weights and activations are computed in (accumulation is float32). What a shape needs
    is compiled once and kept. Errors are TrnrtErrors. ``sess_options`` and ``providers`` are accepted so that a script
    written for onnxruntime changes one import; they mean nothing here.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        *,
        target: str | None = None,
        dtype: str = "float32",
        backend: str = "auto",
        cache_dir: Path | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise OptionError(f"unknown dtype {dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}")
        choice = choose(backend)
        self.target = get_target(target or device_target() or DEFAULT_TARGET).name
        self.dtype = dtype
        self.backend = choice.backend.name
        self.backend_reason = choice.reason
        self._file = model
        self.model: ImportedModel = import_model(model)
        self.name = self.model.name
        self.metadata = self.model.metadata
        self.notes: list[str] = []
        self.kernel_path: Path | None = None
        self.last_plan: Plan | None = None
        self._backend = choice.backend
        self._cache = KernelCache(cache_dir)
        self._compiled: dict[tuple[tuple[int, ...], ...], _Compiled] = {}
        self._last: _Compiled | None = None
        self._slices = 1

    @property
    def predicted_us(self) -> float | None:
        """The predicted latency of the last ``run`` on the device, microseconds, as a benchmark would measure it.

        Computed when it is asked for, so that ``run`` does not pay for it. A run in slices costs each of them: it is
        one slice's latency times their number. None before the first run.
        """
        one = None if self._last is None else self._last.predicted_us
        return None if one is None else one * self._slices

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs."""
        return [_node_arg(info) for info in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs."""
        return [_node_arg(info) for info in self.model.outputs]

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array] | None = None,
        run_options: object = None,
        *,
        input_feed: Mapping[str, Array] | None = None,
    ) -> list[Array]:
        """The outputs called ``output_names`` (all where None) for these inputs, in the model's own dtypes.

        A model with a fixed batch is run in slices of it, the last one padded; ``notes`` says so. Lists of numbers
        are taken as arrays of the input's dtype. ``input_feed`` is what onnxruntime calls ``feeds``.
        """
        wanted = self._wanted(output_names)
        arrays = self._check({**(feeds or {}), **(input_feed or {})})
        self.notes = []
        batch, rows = self.model.batch, _rows(arrays)
        if isinstance(batch, int) and rows != batch:
            outputs, self._slices = self._run_slices(arrays, rows, batch), -(-rows // batch)
        else:
            outputs, self._slices = self._run_once(arrays), 1
        return [outputs[name] for name in wanted]

    def plan_for(self, batch: int = 1) -> Plan:
        """The plan for ``batch`` rows."""
        return make_plan(self.model, default_shapes(self.model, batch), target=self.target, dtype=self.dtype)

    def random_inputs(self, batch: int | None = None, seed: int = 0) -> dict[str, Array]:
        """A seeded random value for each input: floats in [0, 1), integers in [0, 10).

        ``batch``: how many rows; by default as many as the model fixes, else 1.
        """
        generator = np.random.default_rng(seed)
        fixed = self.model.batch if isinstance(self.model.batch, int) else None
        shapes = default_shapes(self.model, batch or 1)
        arrays: dict[str, Array] = {}
        for info in self.model.inputs:
            shape = shapes[info.name] if fixed is None else (batch or fixed, *shapes[info.name][1:])
            if info.dtype == "str":
                raise InputError(f"input {info.name!r} holds strings; no random value can be drawn for it")
            kind = as_numpy(info.dtype)
            drawn = generator.integers(0, 10, shape) if kind.kind in "iub" else generator.random(shape)
            arrays[info.name] = drawn.astype(kind)
        return arrays

    def save(self, directory: Path, batch: int = 1, plan: Plan | None = None) -> list[Path]:
        """Write the kernel module, its weights (.npz) and a summary of the plan (.json) into ``directory``.

        ``plan``: the one to write, such as ``last_plan``; by default that for ``batch`` rows.
        """
        plan = plan or self.plan_for(batch)
        directory.mkdir(parents=True, exist_ok=True)
        stem = identifier(plan.name)
        module, weights, summary = (directory / f"{stem}{end}" for end in (".py", "_weights.npz", "_plan.json"))
        # npz has no bfloat16: such weights are stored as the float32 numbers that they are.
        arrays = {n: a.astype(np.float32) if a.dtype.kind == "V" else a for n, a in plan.weights.items()}
        packed = io.BytesIO()
        np.savez(packed, allow_pickle=False, **arrays)
        contents = (
            plan.source.encode("utf-8"),
            packed.getvalue(),
            json.dumps(plan_summary(plan), indent=1).encode("utf-8"),
        )
        for path, content in zip((module, weights, summary), contents, strict=True):
            write_whole(path, content, mode=0o644)
        return [module, weights, summary]

    def serialized(self) -> str | bytes:
        """What onnxruntime can load: the model's path, or its bytes."""
        return self._file if isinstance(self._file, bytes) else os.fspath(self._file)

    def _wanted(self, output_names: Sequence[str] | None) -> list[str]:
        known = [info.name for info in self.model.outputs]
        if isinstance(output_names, str):
            raise InputError("the names of outputs are a list, not one text", hint=f"say [{output_names!r}]")
        for name in output_names or ():
            if name not in known:
                raise InputError(f"the model has no output {name!r}", hint=f"its outputs are {', '.join(known)}")
        return list(output_names) if output_names else known

    def _check(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        known = {info.name: info for info in self.model.inputs}
        for name in feeds:
            if name not in known:
                raise InputError(f"the model has no input {name!r}", hint=f"its inputs are {', '.join(known)}")
        missing = [info for info in self.model.inputs if info.name not in feeds]
        if missing:
            wanted = "; ".join(f"{i.name!r}, {i.dtype} {_shape_text(i.shape)}" for i in missing)
            raise InputError(f"missing input: {wanted}", hint=f"given were {', '.join(feeds) or 'none'}")
        arrays = {name: _as_array(array, known[name]) for name, array in feeds.items()}
        for name, info in known.items():
            _check_array(arrays[name], info, self.model.batch)
        rows = {a.shape[0] for a in arrays.values() if a.ndim}
        if self.model.batch is not None and len(rows) > 1:
            raise InputError(f"the inputs have different numbers of rows: {sorted(rows)}")
        return arrays

    def _run_slices(self, arrays: dict[str, Array], rows: int, batch: int) -> dict[str, Array]:
        slices = range(0, rows, batch)
        padding = -rows % batch
        padded = f", the last one padded with {_counted(padding, 'row')}" if padding else ""
        ran = f"{_counted(rows, 'row')} ran in {_counted(len(slices), 'slice')}{padded}"
        self.notes.append(f"the model's batch is fixed at {batch}: {ran}")
        parts = []
        for start in slices:
            part = {name: _pad(array[start : start + batch], batch) for name, array in arrays.items()}
            parts.append(self._run_once(part))
        return {name: np.concatenate([part[name] for part in parts])[:rows] for name in parts[0]}

    def _run_once(self, arrays: dict[str, Array]) -> dict[str, Array]:
        compiled = self._compile(arrays)
        plan = compiled.plan
        held = as_dtype(self.dtype).numpy
        with np.errstate(all="ignore"):
            inputs = [arrays[tensor.name].astype(held) for tensor in plan.inputs]
        results = compiled.kernel.run(inputs)
        self.kernel_path, self.last_plan, self._last = compiled.path, plan, compiled
        values: dict[str, Array] = dict(arrays) | plan.constants
        values |= {tensor.name: array for tensor, array in zip(plan.results, results, strict=True)}
        for node in plan.host:
            values[node.output] = node.compute(*(values[name] for name in node.inputs))
        return {o.name: values[o.source].astype(o.dtype, copy=False).reshape(o.shape) for o in plan.outputs}

    def _compile(self, arrays: dict[str, Array]) -> _Compiled:
        key = tuple(arrays[info.name].shape for info in self.model.inputs)
        if key not in self._compiled:
            shapes = {name: array.shape for name, array in arrays.items()}
            plan = make_plan(self.model, shapes, target=self.target, dtype=self.dtype)
            path = self._cache.put(plan.name, plan.source)
            kernel = self._backend.load(plan, path, self._cache.read(path))
            self._compiled[key] = _Compiled(plan, kernel, path)
        return self._compiled[key]


def as_numpy(dtype: str) -> np.dtype[Any]:
    """The numpy dtype of a tensor of the model; strings are objects."""
    if dtype == "str":
        return np.dtype(object)
    return as_dtype("bfloat16").numpy if dtype == "bfloat16" else np.dtype(dtype)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The plan without its arrays, as JSON."""
    return {
        "schema_version": 1,
        "model": plan.name,
        "target": plan.target,
        "dtype": plan.dtype,
        "entry": plan.entry,
        "inputs": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.inputs],
        "results": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in plan.results],
        "weights": [{"name": n, "shape": list(a.shape), "dtype": a.dtype.name} for n, a in plan.weights.items()],
        "host": [{"name": n.name, "op": n.op, "inputs": list(n.inputs), "output": n.output} for n in plan.host],
    }


def _node_arg(info: TensorInfo) -> NodeArg:
    return NodeArg(info.name, list(info.shape), f"tensor({_ONNX_TYPES.get(info.dtype, info.dtype)})")


def _shape_text(shape: tuple[int | str | None, ...]) -> str:
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def _as_array(given: Array | Sequence[object], info: TensorInfo) -> Array:
    """What is given for an input; a list has no dtype of its own, and gets the input's, as in onnxruntime."""
    try:
        return np.asarray(given, as_numpy(info.dtype)) if isinstance(given, (list, tuple)) else np.asarray(given)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"input {info.name!r} is no array of {info.dtype}: {error}") from None


def _check_array(array: Array, info: TensorInfo, batch: int | str | None) -> None:
    """Dtype, rank and fixed dimensions; a fixed batch takes any number of rows (they are run in slices)."""
    expected = as_numpy(info.dtype)
    if array.dtype != expected and not (info.dtype == "str" and array.dtype.kind in "OUS"):
        raise InputError(
            f"input {info.name!r} is {array.dtype}; the model wants {info.dtype}",
            hint=f'convert it: array.astype("{info.dtype}")',
        )
    if array.ndim != len(info.shape):
        wanted = f"the model wants {_shape_text(info.shape)}"
        raise InputError(
            f"input {info.name!r} has shape {array.shape}, of rank {array.ndim}; {wanted}",
            hint="one row needs its batch dimension, too: array[None]" if array.ndim == len(info.shape) - 1 else None,
        )
    for d, (size, declared) in enumerate(zip(array.shape, info.shape, strict=True)):
        if size == 0:
            raise InputError(
                f"input {info.name!r} has shape {array.shape}: dimension {d} is 0, there is nothing to run"
            )
        if isinstance(declared, int) and size != declared and not (d == 0 and isinstance(batch, int)):
            raise InputError(f"input {info.name!r} has shape {array.shape}; the model wants {_shape_text(info.shape)}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _rows(arrays: dict[str, Array]) -> int:
    return next((a.shape[0] for a in arrays.values() if a.ndim), 1)


def _pad(array: Array, rows: int) -> Array:
    """``array`` with its last row repeated up to ``rows``."""
    missing = rows - array.shape[0]
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
