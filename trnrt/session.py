"""A session: a loaded model that answers ``run``, with onnxruntime's interface."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.backends import Backend, DeviceOptions, choose, device_target
from trnrt.cache import write_whole
from trnrt.cache.entries import NEW_MODEL
from trnrt.cache.plan_files import save_plan
from trnrt.cache.plans import PlanCache, request_for
from trnrt.errors import Blocker, DeviceError, InputError, OptionError, UnsupportedModelError
from trnrt.importer import ImportedModel, TensorInfo, import_model
from trnrt.inputs.drawing import as_array, check_array, draw, shape_text
from trnrt.nki.machine.targets import DEFAULT_TARGET, get_target
from trnrt.nki.machine.timing import Range, add_ranges
from trnrt.planner import Plan, make_plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.naming import identifier
from trnrt.planner.parts.partition import FALLBACKS, CpuPart, Partition, fallback_notes, make_partition
from trnrt.planner.searching.search import EFFORTS
from trnrt.planner.sizes import default_shapes
from trnrt.running.buckets import DEFAULT_BUCKETS, MOST_BUCKETS, Slice, check_buckets, cover, shared, slices_note
from trnrt.running.buckets import choose as choose_buckets
from trnrt.running.no_rows import outputs_of_no_rows
from trnrt.running.partition import LoadedPartition, add_known_ranges

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


class InferenceSession:
    """A model, compiled for a target, that runs on the simulator or on a NeuronCore.

    ``model``: a file's path or its content. ``target``: "trn1", "trn2", "trn3" or a target's file; by default this
    machine's device, else trn2. ``dtype``: what weights and activations are computed in (accumulation is float32).
    ``fallback``: "onnxruntime" runs on the CPU what the device can't, and ``notes`` tells what that is; without it such
    a model is refused. ``choices`` override the planner's own; with ``effort`` 1 it chooses by the predicted time where
    that can gain, with 0 by estimates, which is quicker and no slower on the simulator: by default 1 on a device.
    ``device``: which NeuronCores, for how long. What a shape needs is compiled once, and kept. Errors are TrnrtErrors.
    ``sess_options`` and ``providers`` are accepted so that a script written for onnxruntime changes one import; they
    mean nothing here.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        *,
        target: str | os.PathLike[str] | None = None,
        dtype: str = "float32",
        backend: str = "auto",
        fallback: str | None = None,
        buckets: Sequence[int] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        choices: Choices = DEFAULT,
        effort: int | None = None,
        cache_dir: Path | None = None,
        cache: bool = True,
        device: DeviceOptions | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise OptionError(f"unknown dtype {dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}")
        if fallback is not None and fallback not in FALLBACKS:
            raise OptionError(f"unknown fallback {fallback!r}", hint=f"it is {', '.join(FALLBACKS)}, or None")
        if effort is not None and effort not in EFFORTS:
            raise OptionError(f"effort is {effort!r}", hint=f"it is one of {', '.join(map(str, EFFORTS))}")
        self._cache = PlanCache(cache_dir, enabled=cache)
        choice = choose(backend, target, device, self._cache.compiled)
        self.target = get_target(target or device_target() or DEFAULT_TARGET).name
        self.dtype = dtype
        self.backend = choice.backend.name
        self.backend_reason = choice.reason
        self.fallback = fallback
        self.choices = choices
        self.effort = int(choice.backend.name == "neuron") if effort is None else effort
        self._file = model
        self.model: ImportedModel = import_model(model)
        self.name = self.model.name
        self.metadata = self.model.metadata
        self.notes: list[str] = []
        self.kernel_path: Path | None = None
        self.last_plan: Plan | None = None
        self.last_partition: Partition | None = None
        self._backend = choice.backend
        self.cache_notes: list[str] = []
        self._compiled: dict[tuple[tuple[tuple[int, ...], ...], tuple[bytes, ...]], LoadedPartition] = {}
        self.buckets = check_buckets(DEFAULT_BUCKETS if buckets is None else buckets)
        self._shapes = dict(shapes or {})
        self._ran: list[LoadedPartition] = []
        self._mixings: dict[tuple[object, ...], str | None] = {}

    @property
    def runner(self) -> Backend:
        """What runs its kernels."""
        return self._backend

    @property
    def predicted_us(self) -> float | None:
        """The predicted latency of the last ``run`` on the device, microseconds, as a benchmark would measure it.

        Computed when it is asked for, so that ``run`` does not pay for it. A run in slices costs the sum of theirs.
        With a fallback it is that of the parts on the device and of the round trips between them; the CPU's own time is
        not in it. None before the first run.
        """
        return None if self.predicted_range is None else self.predicted_range.us

    @property
    def predicted_range(self) -> Range | None:
        """``predicted_us`` with the least and the most that it may be: the sums of those of the parts and slices."""
        return add_known_ranges([loaded.predicted for loaded in self._ran])

    @property
    def crossings_us(self) -> float:
        """What of ``predicted_us`` are round trips to the CPU; 0 without a fallback."""
        return sum(loaded.partition.crossings_us for loaded in self._ran)

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

        The rows are run in slices of the model's fixed batch, or of one of the session's ``buckets`` where the batch is
        open, the last one padded; ``notes`` says so. In one bucket a row's answer does not depend on its neighbours,
        bit for bit. A model whose rows are not independent is compiled for the very number of rows. Lists of numbers
        are taken as arrays of the input's dtype. ``input_feed`` is what onnxruntime calls ``feeds``.
        """
        wanted = self._wanted(output_names)
        arrays = self._check({**(feeds or {}), **(input_feed or {})})
        self.notes, self.cache_notes = [], []
        self._ran = []
        try:
            outputs = self._run_slices(arrays, self._cover(arrays)) if self._rows(arrays) else self._of_no_rows(arrays)
        except DeviceError:
            self.close()
            raise
        if self._ran and self.last_partition is not None:
            self.notes += fallback_notes(self.last_partition)
        return [outputs[name] for name in wanted]

    def close(self) -> None:
        """Let go of what was compiled, and of its place on a device; a later ``run`` puts it there again."""
        while True:
            try:
                _, loaded = self._compiled.popitem()
            except KeyError:  # not asked before: another thread's run may have failed, too, and close the last one
                return
            loaded.close()

    def plan_for(self, batch: int = 1) -> Plan:
        """The plan for ``batch`` rows."""
        shapes = self.shapes_for(batch)
        options: Any = {"target": self.target, "dtype": self.dtype, "choices": self.choices, "effort": self.effort}
        return make_plan(self.model, shapes, **options)

    def choose_buckets(self, expected: Mapping[int, float], most: int = MOST_BUCKETS) -> tuple[int, ...]:
        """The buckets with the least predicted latency for batches of these sizes and weights; at most ``most``.

        OptionError where the model has no open batch, or its rows are not independent.
        """
        if not isinstance(self.model.batch, str):
            raise OptionError("the model has no open batch, which buckets are for")
        reason = self.mixing(self.random_inputs(2))
        if reason is not None:
            raise OptionError(f"the rows of the model are not independent: {reason}")
        return choose_buckets(expected, self.predicted_for, most=most)

    def predicted_for(self, batch: int) -> float:
        """The predicted latency of a batch on the device, microseconds; nothing is run."""
        return self.predicted_range_for(batch).us

    def predicted_range_for(self, batch: int) -> Range:
        """``predicted_for`` with the least and the most that it may be."""
        values = {name: array for name, array in self.random_inputs(1).items() if name in self.model.parameters}
        return self._timed(self.shapes_for(batch), values)[1]

    def predicted(self, partition: Partition) -> Range:
        """The predicted latency of these parts on the device, with its range; nothing is run."""
        from trnrt.running.profiler import predicted_range_of

        on_device = [predicted_range_of(plan, self._cache.directory) for plan in partition.plans]
        return add_ranges(on_device, partition.crossings_us)

    def shapes_for(self, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes for ``batch`` rows; InputError where one is open and the session was not told it."""
        return default_shapes(self.model, batch, self._shapes)

    def partition_for(self, batch: int = 1) -> Partition:
        """The parts for ``batch`` rows: one, the plan, unless there is a fallback and the model needs it."""
        return self._partition(self.shapes_for(batch))

    def planned_for(self, batch: int = 1) -> Partition:
        """``partition_for``, from the cache if it is there."""
        return self._cached(self.shapes_for(batch), {})[0]

    def timed_for(self, batch: int = 1) -> tuple[Partition, Range]:
        """``planned_for``, and its predicted latency on the device; from the cache if they are there."""
        return self._timed(self.shapes_for(batch), {})

    def random_inputs(self, batch: int | None = None, seed: int = 0) -> dict[str, Array]:
        """A seeded random value for each input: floats in [0, 1), integers in [0, 10), or fewer where they are indices.

        ``batch``: how many rows; by default as many as the model fixes, else 1.
        """
        self._check_kinds()
        return draw(self.model, self.shapes_for(batch or 1), batch, seed)

    def save(self, directory: Path, batch: int = 1, partition: Partition | None = None) -> list[Path]:
        """Write the kernel module, its weights (.npz) and a summary of the plan (.json) into ``directory``.

        ``partition``: what to write, such as ``last_partition``; by default that for ``batch`` rows. Of several parts
        each is written, those for the CPU as .onnx.
        """
        partition = partition or self.partition_for(batch)
        directory.mkdir(parents=True, exist_ok=True)
        written: list[Path] = []
        for part in partition.parts:
            if isinstance(part, CpuPart):
                written.append(directory / f"{identifier(part.name)}.onnx")
                write_whole(written[-1], part.model, mode=0o644)
            else:
                written += save_plan(part.plan, directory)
        return written

    def serialized(self) -> str | bytes:
        """What onnxruntime can load: the model's path, or its bytes."""
        return self._file if isinstance(self._file, bytes) else os.fspath(self._file)

    def in_dtype(self, dtype: str) -> InferenceSession:
        """A session of its own for the same model, with the same options, in another dtype."""
        twin = self.choosing(self.choices)
        twin.dtype = dtype
        return twin

    def choosing(self, choices: Choices, effort: int | None = None) -> InferenceSession:
        """A session of its own for the same model, with the same options, that overrides the planner like this.

        ``effort``: the same where None.
        """
        twin = copy(self)
        twin.choices, twin.effort = choices, self.effort if effort is None else effort
        twin.notes, twin.cache_notes, twin._ran, twin._compiled = [], [], [], {}
        twin.kernel_path = twin.last_plan = twin.last_partition = None
        return twin

    def _wanted(self, output_names: Sequence[str] | None) -> list[str]:
        known = [info.name for info in self.model.outputs]
        if isinstance(output_names, str):
            raise InputError("the names of outputs are a list, not one text", hint=f"say [{output_names!r}]")
        for name in output_names or ():
            if name not in known:
                raise InputError(f"the model has no output {name!r}", hint=f"its outputs are {', '.join(known)}")
        return list(output_names) if output_names else known

    def _check_kinds(self) -> None:
        """Refuse inputs that are sequences, maps or optional: there are no arrays for them."""
        strange = [info for info in self.model.inputs if info.dtype.endswith(")")]
        if strange:
            blockers = [Blocker(info.name, "input", f"it is a {info.dtype}, not a tensor") for info in strange]
            raise UnsupportedModelError(self.name, blockers)

    def _check(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self._check_kinds()
        known = {info.name: info for info in self.model.inputs}
        for name in feeds:
            if name not in known:
                raise InputError(f"the model has no input {name!r}", hint=f"its inputs are {', '.join(known)}")
        missing = [info for info in self.model.inputs if info.name not in feeds]
        if missing:
            wanted = "; ".join(f"{i.name!r}, {i.dtype} {shape_text(i.shape)}" for i in missing)
            raise InputError(f"missing input: {wanted}", hint=f"given were {', '.join(feeds) or 'none'}")
        arrays = {name: as_array(array, known[name]) for name, array in feeds.items()}
        for name, info in known.items():
            is_parameter = name in self.model.parameters
            check_array(arrays[name], info, None if is_parameter else self.model.batch, may_be_empty=is_parameter)
        rows = {a.shape[0] for name, a in arrays.items() if a.ndim and name not in self.model.parameters}
        if self.model.batch is not None and len(rows) > 1:
            raise InputError(f"the inputs have different numbers of rows: {sorted(rows)}")
        return arrays

    def _rows(self, arrays: dict[str, Array]) -> int:
        return next((a.shape[0] for name, a in arrays.items() if a.ndim and name not in self.model.parameters), 1)

    def _cover(self, arrays: dict[str, Array]) -> list[Slice]:
        """The slices that the rows are run in."""
        batch, rows = self.model.batch, self._rows(arrays)
        exact = [Slice(0, rows, rows)]
        if batch is None:
            return exact
        slices = cover(rows, (batch,) if isinstance(batch, int) else shared(rows, self.buckets, self._backend.parallel))
        if slices == exact:
            return exact
        reason = self.mixing(arrays, rows)
        if reason is not None and isinstance(batch, int):
            raise InputError(
                f"{_counted(rows, 'row')} for a batch fixed at {batch}, whose rows are not independent: {reason}",
                hint=f"give the model {_counted(batch, 'row')} at a time",
            )
        if reason is not None:
            self.notes.append(f"compiled for {_counted(rows, 'row')}: the rows are not independent, {reason}")
            return exact
        fixed = f"the model's batch is fixed at {batch}" if isinstance(batch, int) else ""
        self.notes.append(": ".join(part for part in (fixed, slices_note(slices)) if part))
        return slices

    def mixing(self, arrays: Mapping[str, Array], rows: int = 1) -> str | None:
        """Why rows of a batch with inputs like these may depend on each other; None if they do not.

        ``rows``: the most that come together; where the batch is open, as many as the largest bucket at least.
        """
        from trnrt.importer.rows import batching

        batch = self.model.batch
        if batch == 1:
            return None
        values = {name: arrays[name] for name in self.model.parameters}
        rest = {name: a.shape[1:] if a.ndim and name not in values else None for name, a in arrays.items()}
        data = [name for name, sizes in rest.items() if sizes is not None]
        # In powers of two, so that not every number of rows is looked at anew.
        most = batch if isinstance(batch, int) else 1 << (max(rows, self.buckets[-1]) - 1).bit_length()
        key = (most, *(arrays[name].shape if sizes is None else sizes for name, sizes in rest.items()))

        def bind(count: int) -> Any:
            shapes = {n: arrays[n].shape if sizes is None else (count, *sizes) for n, sizes in rest.items()}
            return self.model.bind(shapes, values, of_any_size=True).model.graph

        if key not in self._mixings:
            fixed = isinstance(batch, int)
            self._mixings[key] = batching.mixing_at_any(self.model.model.graph, bind, data, most, fixed=fixed)
        return self._mixings[key]

    def _of_no_rows(self, arrays: dict[str, Array]) -> dict[str, Any]:
        outputs = outputs_of_no_rows(self.model, arrays, self.mixing(arrays))
        self.notes.append("the batch has 0 rows: nothing was run")
        return outputs

    def _run_slices(self, arrays: dict[str, Array], slices: list[Slice]) -> dict[str, Array]:
        if len(slices) == 1 and slices[0].rows == slices[0].bucket:
            return self._run_once(arrays)
        rows = (
            {
                name: array
                if name in self.model.parameters or not array.ndim
                else _pad(array[part.start : part.start + part.rows], part.bucket)
                for name, array in arrays.items()
            }
            for part in slices
        )
        made = map(self._run_once, rows) if self._backend.parallel == 1 else self._run_together(list(rows))
        parts = [
            {name: output[: part.rows] for name, output in outputs.items()}
            for part, outputs in zip(slices, made, strict=True)
        ]
        return {name: joined_rows([part[name] for part in parts]) for name in parts[0]}

    def _run_together(self, feeds: list[dict[str, Array]]) -> list[dict[str, Array]]:
        """Run all of them, as many at a time as the backend likes."""
        compiled = [self._compile(arrays) for arrays in feeds]
        with ThreadPoolExecutor(self._backend.parallel) as pool:
            outputs = list(pool.map(lambda loaded, arrays: loaded.run(arrays), compiled, feeds))
        for loaded in compiled:
            self._has_run(loaded)
        return outputs

    def _run_once(self, arrays: dict[str, Array]) -> dict[str, Array]:
        compiled = self._compile(arrays)
        outputs = compiled.run(arrays)
        self._has_run(compiled)
        return outputs

    def _has_run(self, compiled: LoadedPartition) -> None:
        self._ran.append(compiled)
        self.last_partition = compiled.partition
        only = compiled.plans[0] if len(compiled.parts) == len(compiled.plans) == 1 else None
        self.kernel_path, self.last_plan = (None, None) if only is None else (only.path, only.plan)

    def _compile(self, arrays: dict[str, Array]) -> LoadedPartition:
        # Of some inputs the values matter, too: Reshape's shape, TopK's count.
        values = {name: arrays[name] for name in self.model.parameters}
        shapes = tuple(arrays[info.name].shape for info in self.model.inputs)
        key = (shapes, tuple(array.tobytes() for array in values.values()))
        if key not in self._compiled:
            partition, note = self._cached({name: array.shape for name, array in arrays.items()}, values)
            # That a model is new, or that a run needs a second bucket, surprises nobody.
            if note and note != NEW_MODEL and not (self._compiled and note.startswith("batch ")):
                self.cache_notes.append(note)
            self._compiled[key] = LoadedPartition(partition, self._backend, self._cache)
        return self._compiled[key]

    def _cached(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]) -> tuple[Partition, str]:
        """The parts from the cache, or made now; and why they were made."""
        return self._cache.partition(self._request(shapes, values), lambda: self._partition(shapes, values))

    def _timed(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]) -> tuple[Partition, Range]:
        partition, _ = self._cached(shapes, values)
        kept = self._cache.time(self._request(shapes, values), lambda: astuple(self.predicted(partition)))
        return partition, Range(*kept)

    def _request(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]) -> dict[str, Any]:
        options: Any = {"target": self.target, "dtype": self.dtype, "choices": self.choices, "effort": self.effort}
        return request_for(self.model, shapes, values, fallback=self.fallback, **options)

    def _partition(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array] | None = None) -> Partition:
        options: Any = {"target": self.target, "dtype": self.dtype, "choices": self.choices, "effort": self.effort}
        return make_partition(self.model, shapes, values, fallback=self.fallback is not None, **options)


def as_matrix(output: Any) -> Array:
    """An output as an array: a list of dicts (ZipMap) becomes a row for each of them, its values in their order."""
    if isinstance(output, list):
        return np.array([list(row.values()) for row in output], np.float32)
    return np.asarray(output)


def joined_rows(parts: Sequence[Any]) -> Any:
    """The rows of several slices; an output that is a list has one item a row."""
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]
    return np.concatenate(parts)


def _node_arg(info: TensorInfo) -> NodeArg:
    return NodeArg(info.name, list(info.shape), f"tensor({_ONNX_TYPES.get(info.dtype, info.dtype)})")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _pad(array: Array, rows: int) -> Array:
    """``array`` with its last row repeated up to ``rows``."""
    missing = rows - array.shape[0]
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) if missing else array
