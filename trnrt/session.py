"""The session: a loaded model with onnxruntime's interface."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from numpy.typing import NDArray

from trnrt.backends import Backend, DeviceOptions
from trnrt.backends.choosing import choose
from trnrt.cache.declared import open_model
from trnrt.cache.entries import Entries
from trnrt.cache.plan_files import save_partition
from trnrt.cache.plans import PlanCache
from trnrt.errors import DeviceError, OptionError
from trnrt.importer import ImportedModel, import_model
from trnrt.inputs.drawing import blank, draw
from trnrt.neuron.device import device_target, logical_config
from trnrt.nki.machine.targets import DEFAULT_TARGET, Target, get_target
from trnrt.ort.session import OrtSession
from trnrt.planner import Plan, PlanOptions, make_plan
from trnrt.planner.choices import DEFAULT, Choices
from trnrt.planner.options import EIGHT_BITS, Float8
from trnrt.planner.parts.partition import Partition, fallback_notes
from trnrt.planner.sizes import default_shapes
from trnrt.running.buckets import DEFAULT_BUCKETS, MOST_BUCKETS, check_buckets
from trnrt.running.buckets import choose as choose_buckets
from trnrt.running.bundles import Bundle, BundledPlans, read_bundle
from trnrt.running.feeding import NodeArg, check_feeds, check_kinds, check_outputs, feeds_of, node_arg, row_counts
from trnrt.running.lengths import Fitted, Lengths
from trnrt.running.no_rows import outputs_of_no_rows
from trnrt.running.padding import open_lengths
from trnrt.running.planning import Planner
from trnrt.running.programs import Programs
from trnrt.running.ranges import with_ranges
from trnrt.running.results import RunResult
from trnrt.running.routes import Routes
from trnrt.running.rows import count_rows, join_slices, take_slice
from trnrt.running.slicing import Slicer
from trnrt.running.sources import Source, dtype_name, read_source

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Range

Array = NDArray[Any]
T = TypeVar("T")

_AUTO = ("backend", "auto")


class MoreOptions(TypedDict, total=False):
    """Rarely used options of a session; see ``InferenceSession``. The first three are onnxruntime's."""

    path_or_bytes: Source
    enable_fallback: object
    disabled_optimizers: object
    choices: Choices
    effort: int | None
    max_instructions: int | None
    cache: bool
    cache_dir: Path | None
    calibration: Path | Mapping[str, Array] | None
    narrow: str
    device: DeviceOptions | None
    lengths: Sequence[int] | None
    pads: Mapping[str, float] | None


class InferenceSession(OrtSession):
    """A model, compiled for a target, that runs on the simulator or on a NeuronCore.

    - ``model``: a file's path, its content, or a ModelProto; or a bundle's directory (``trnrt compile -o DIR``), which
      decides all that a plan depends on.
    - ``target``: "trn1", "trn2", "trn3" or a target's file; by default this machine's device, else trn2.
    - ``dtype``: the dtype of weights and activations, by default float32; sums are float32. It is a name, also "bf16"
      or "fp16", or a dtype of numpy, ml_dtypes or torch. float8_e4m3 and
      float8_e5m2 are used where the tensor engine is then twice as fast, and bfloat16 elsewhere; they need
      ``calibration``.
    - ``fallback``: "onnxruntime" runs unsupported nodes on the CPU, and ``last_run.notes`` names them. By default such
      a model is refused.
    - ``shapes``: the sizes that the file leaves open, by input.
    - ``buckets``: the batch sizes to compile for.
    - ``choices``: override the planner's own.
    - ``effort``: with 1 the planner chooses by predicted time where that can gain, with 0 by estimates, which is
      quicker. By default 1 on a device, else 0: the simulator itself gains nothing.
    - ``max_instructions``: the most instructions of a kernel as compiled; a model that needs more loops over its batch,
      or becomes several kernels. By default 100,000 if that can be met; 0 sets no limit.
    - ``cache``: keep plans, in ``cache_dir`` or the default directory.
    - ``calibration``: typical inputs, or their file: the ranges of 8-bit floats are measured on them, by onnxruntime.
    - ``narrow``: the layers in 8-bit floats: those that are "faster" so, except the first and the last, or "all".
    - ``lengths``: the sequence lengths to compile for; others are padded to the next one, and outputs cut back. At
      the start, onnxruntime checks that padding changes no output; a model that fails this check is refused.
    - ``pads``: with ``lengths``, the number in an input's padded places; 0 by default.
    - ``device``: the NeuronCores to use, and the time limit of a run. With its ``lnc`` 2, the two physical cores of a
      logical one divide the work where that is predicted to be faster, on the simulator, too.

    Each shape is compiled once. ``last_run`` describes the last ``run``. Errors are TrnrtErrors. In a ``with`` block,
    compiled programs are released at its end. A script for onnxruntime changes only its import: ``sess_options``,
    ``providers`` and ``provider_options`` are as there (docs/onnxruntime-api.md).
    """

    lengths: Lengths | None

    def __init__(
        self,
        model: Source | None = None,
        sess_options: object = None,
        providers: Sequence[object] | None = None,
        provider_options: Sequence[Mapping[str, str]] | None = None,
        *,
        target: str | os.PathLike[str] | None = None,
        dtype: object = None,
        backend: str = "auto",
        fallback: str | None = None,
        buckets: Sequence[int] | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **more: Unpack[MoreOptions],
    ) -> None:
        if unknown := set(more) - set(MoreOptions.__annotations__):
            raise TypeError(f"InferenceSession has no option {min(unknown)!r}")
        begun = time.perf_counter_ns()
        self._take_options(sess_options, more)
        self._source = self._replace_weights(read_source(model, more.get("path_or_bytes")))
        asked = {"target": target, "dtype": dtype, "backend": backend, "fallback": fallback, "buckets": buckets}
        chosen = self._read_providers(providers, provider_options)
        given = {name: value for name, value in asked.items() if value is not None and (name, value) != _AUTO}
        self._asked = {"backend": "auto", "shapes": shapes, **more, **chosen, **given}
        self._open(self._asked)
        self._write_optimized(self.serialized())
        self._begin_profiling(begun)

    def _open(self, asked: dict[str, Any]) -> None:
        self._check_cpu(asked.get("fallback"))
        dtype = asked.get("dtype")
        asked = {**asked, "dtype": None if dtype is None else dtype_name(dtype)}
        self.bundle = read_bundle(self._source)
        if self.bundle is None:
            self._open_model(asked)
        else:
            self._open_bundle(self.bundle, asked)

    def _open_model(self, asked: dict[str, Any]) -> None:
        device, effort, dtype = asked.get("device"), asked.get("effort"), asked["dtype"] or "float32"
        options = PlanOptions(
            dtype="bfloat16" if dtype in EIGHT_BITS else dtype,
            choices=asked.get("choices", DEFAULT),
            effort=0 if effort is None else effort,
            fallback=asked.get("fallback"),
            shapes=dict(asked["shapes"] or {}),
            max_instructions=asked.get("max_instructions"),
        )
        cache = PlanCache(asked.get("cache_dir"), enabled=asked.get("cache", True))
        self._choose_backend(asked["backend"], asked.get("target"), device, cache)
        hardware = get_target(asked.get("target") or device_target() or DEFAULT_TARGET)
        options = replace(
            options,
            target=hardware.name,
            effort=int(self.backend == "neuron") if effort is None else effort,
            lnc=_lnc(hardware, None if device is None else device.lnc),
        )
        self._file, narrow = self._source, asked.get("narrow", "faster")
        if dtype in EIGHT_BITS:  # refuse a target before the model is read
            options = replace(options, float8=Float8(dtype, narrow=narrow))
        elif narrow != "faster":
            raise OptionError(f"narrow chooses layers for 8-bit floats, and the dtype is {dtype}")
        self._read_model(cache)
        buckets = asked.get("buckets")
        self.buckets = check_buckets(DEFAULT_BUCKETS if buckets is None else buckets)
        options = with_ranges(self.model, self._open_lengths(options, asked), asked.get("calibration"))
        self._plan_with(Planner(self.model, options, cache))

    def _open_bundle(self, bundle: Bundle, asked: Mapping[str, Any]) -> None:
        """Take everything that a plan depends on from the bundle. OptionError if the caller ``asked`` for another."""
        if self._sizes:
            raise OptionError("a bundle has its sizes", hint="leave out add_free_dimension_override_by_name")
        cache = BundledPlans(bundle, asked.get("cache_dir"), enabled=asked.get("cache", True))
        device = asked.get("device")
        if bundle.programs is not None:
            given = device or DeviceOptions()
            device = replace(given, compiled=given.compiled or bundle.programs)
        self._choose_backend(asked["backend"], bundle.options.target, device, cache)
        self._file = str(bundle.model)
        self._read_model(cache)
        bundle.check_model(self.model.digest)
        bundle.check_arguments(asked)
        self.buckets, self.lengths = bundle.buckets, bundle.lengths
        self._plan_with(Planner(self.model, bundle.options, cache))

    def _choose_backend(
        self, backend: str, target: str | os.PathLike[str] | None, device: DeviceOptions | None, cache: PlanCache
    ) -> None:
        choice = choose(backend, target, device, cache.compiled_directory)
        self.runner: Backend = choice.backend
        self.backend = choice.backend.name
        self.backend_reason = choice.reason

    def _read_model(self, cache: PlanCache) -> None:
        own, name = self._sizes, self._own_name  # the cache knows models as their files have them
        changed = own or name is not None
        self.model: ImportedModel = (
            import_model(self._file, name=name, sizes=own) if changed else open_model(self._file, cache)
        )
        self.name = self.model.name
        self.metadata = self.model.metadata
        self._slicer = Slicer(self.model)

    def _open_lengths(self, options: PlanOptions, more: Mapping[str, Any]) -> PlanOptions:
        """Check the lengths, and return the options with the largest one for the sizes that the model leaves open."""
        self.lengths = None
        sizes, pads = more.get("lengths"), more.get("pads")
        if sizes is not None:
            self.lengths = open_lengths(self.model, self.serialized(), sizes, pads)
            longest = self.lengths.shapes(self.model, self.lengths.sizes[-1])
            return replace(options, shapes=options.shapes or longest)
        if pads:
            raise OptionError("pads are for padded sequences, and there are no lengths", hint="give lengths, too")
        return options

    def _plan_with(self, planner: Planner) -> None:
        self._planner = planner
        self._apart: InferenceSession | None = None
        self._programs = Programs(planner, self.runner)
        self._routes, self._output_names = Routes(planner.model), [info.name for info in planner.model.outputs]
        self.last_run = RunResult()

    @property
    def options(self) -> PlanOptions:
        """The options of the planner."""
        return self._planner.options

    @property
    def target(self) -> str:
        """The target to plan for."""
        return self.options.target

    @property
    def dtype(self) -> str:
        """The dtype of weights and activations."""
        return self.options.shown_dtype

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs."""
        return [node_arg(info) for info in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs."""
        return [node_arg(info) for info in self.model.outputs]

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Array] | None = None,
        run_options: object = None,
        *,
        input_feed: Mapping[str, Array] | None = None,
    ) -> list[Array]:
        """Return the outputs called ``output_names`` (None: all) for these inputs, in the model's own dtypes.

        Rows run in slices of the model's fixed batch, or of the session's ``buckets`` if the batch is open; the last
        slice is padded, and ``last_run.notes`` says so. Within a bucket, a row's result does not depend on its
        neighbours, bit for bit. A model whose rows depend on each other is compiled for the exact number of rows. Lists
        of numbers become arrays of the input's dtype. Sequences are padded to the next of the session's ``lengths``.
        ``input_feed`` is onnxruntime's name for ``feeds``.
        """
        given = feeds_of(self.model, feeds, input_feed)
        if run_options is None and self._recorder is None:
            return self._answer(output_names, given)
        return self._run_watched(output_names, given, run_options)

    def _answer(self, output_names: Sequence[str] | None, given: Mapping[str, Array]) -> list[Array]:
        """The outputs for these inputs; see ``run``."""
        wanted = self._output_names if output_names is None else check_outputs(self.model, output_names)
        if (route := self._routes.find(given)) is not None:
            outputs, self.last_run = self._close_if_lost(partial(route.run, given)), route.result
            return [outputs[name] for name in wanted]
        arrays = check_feeds(self.model, given)
        if (fitting := self.fitting(arrays)) is not self:
            answers = fitting.run(wanted, arrays)
            self.last_run = fitting.last_run
            return answers
        self.last_run = RunResult()
        outputs, self.last_run = self._close_if_lost(partial(self._run, arrays))
        return [outputs[name] for name in wanted]

    def _close_if_lost(self, run: Callable[[], T]) -> T:
        """The outcome of ``run``; if the device fails, its programs are released first."""
        try:
            return run()
        except DeviceError:
            self.close()
            raise

    def close(self) -> None:
        """Release compiled programs and their device slots; a later ``run`` compiles again."""
        self._routes.clear()
        self._programs.close()
        if self._apart is not None:
            self._apart.close()

    def fitting(self, arrays: Mapping[str, Array]) -> InferenceSession:
        """The session to run these inputs: another one if the model's inputs have batches of their own, and differ."""
        apart = self.model.apart
        if apart is None or len(row_counts(self.model, arrays)) < 2:
            return self
        if self._apart is None:
            self._apart = copy(self)
            self._apart.model, self._apart._slicer = apart, Slicer(apart)
            self._apart._plan_with(replace(self._planner, model=apart))
        return self._apart

    def fit_length(self, arrays: Mapping[str, Array]) -> Fitted:
        """The inputs, padded to one of the session's ``lengths``; InputError if they are longer than all."""
        return Fitted(dict(arrays)) if self.lengths is None else self.lengths.fit(arrays)

    def plan(self, batch: int = 1) -> Plan:
        """Make the plan for ``batch`` rows, as one kernel of any size.

        UnsupportedModelError if the device can't run the whole model.
        """
        return make_plan(self.model, self.shapes_for(batch), self.options)

    def partition(self, batch: int = 1, *, cached: bool = False) -> Partition:
        """The parts for ``batch`` rows: a single plan, unless the model needs the fallback or several kernels.

        ``cached``: take them from the cache, or make and keep them; otherwise always make them.
        """
        shapes = self.shapes_for(batch)
        return self._planner.get(shapes, {})[0] if cached else self._planner.make(shapes)

    def latency(self, batch: int = 1, partition: Partition | None = None) -> Range:
        """The predicted latency of a batch on the device, from the cache if possible; runs nothing.

        ``partition``: the batch's parts, if known; otherwise they are planned.
        """
        self.blank_inputs()  # refuses inputs that set what an operator does
        return self._planner.latency(self.shapes_for(batch), {}, partition)

    def choose_buckets(self, expected: Mapping[int, float], most: int = MOST_BUCKETS) -> tuple[int, ...]:
        """Choose at most ``most`` buckets with the least predicted latency for batches of these sizes and weights.

        OptionError if the model has no open batch, or its rows depend on each other.
        """
        if not isinstance(self.model.batch, str):
            raise OptionError("the model has no open batch: it needs no buckets")
        reason = self.mixing(self.blank_inputs(2))
        if reason is not None:
            raise OptionError(
                f"the rows of the model are not independent: {reason}", hint="each batch is compiled for its own size"
            )
        return choose_buckets(expected, lambda rows: self.latency(rows).us, most=most)

    def choose_lengths(
        self, expected: Mapping[int, float], batch: int = 1, most: int = MOST_BUCKETS
    ) -> tuple[tuple[int, ...], dict[int, Range]]:
        """Choose at most ``most`` lengths with the least predicted latency for sequences of these lengths and weights.

        Returns them, and the predicted latency of ``batch`` rows of each length that was considered. OptionError if the
        model has no sequence, or padding changes its outputs.
        """
        pads = None if self.lengths is None else self.lengths.pads
        lengths = open_lengths(self.model, self.serialized(), sorted(expected), pads)
        timed: dict[int, Range] = {}

        def latency_us(length: int) -> float:
            options = replace(self.options, shapes=lengths.shapes(self.model, length))
            timed[length] = self.with_options(options).latency(batch)
            return timed[length].us

        # A model may have no positions beyond the longest sequence.
        return choose_buckets(expected, latency_us, most=most, largest_size=max(expected)), timed

    def shapes_for(self, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """The inputs' shapes for ``batch`` rows; InputError if one is open and ``shapes`` does not give it."""
        return default_shapes(self.model, batch, self.options.shapes)

    def random_inputs(self, batch: int | None = None, seed: int = 0) -> dict[str, Array]:
        """A seeded random value for each input: floats in [0, 1), integers in [0, 10), or a smaller range for indices.

        ``batch``: the number of rows; by default the model's fixed batch, else 1.
        """
        check_kinds(self.model)
        return draw(self.model, self.shapes_for(batch or 1), batch, seed)

    def blank_inputs(self, batch: int = 1) -> dict[str, Array]:
        """Zeros or empty texts for each input, where only shapes and types matter.

        InputError for an input that sets what an operator does.
        """
        check_kinds(self.model)
        return blank(self.model, self.shapes_for(batch))

    def mixing(self, arrays: Mapping[str, Array], rows: int = 1) -> str | None:
        """Why rows of a batch with inputs like these may depend on each other; None if they do not.

        ``rows``: the most rows of a batch; for an open batch at least the largest bucket.
        """
        return self._slicer.mixing(arrays, max(rows, self.buckets[-1]))

    def save(self, directory: Path, batch: int = 1, partition: Partition | None = None) -> list[Path]:
        """Write the kernel module, its weights (.npz) and a summary of the plan (.json) into ``directory``.

        ``partition``: the parts to write, such as ``last_run.partition``; by default those for ``batch`` rows. Parts
        for the CPU are written as .onnx.
        """
        return save_partition(partition or self.partition(batch), directory)

    def load(self, feeds: Mapping[str, Array]) -> Range:
        """Compile for inputs of these shapes, and run nothing; the predicted latency on the device."""
        arrays = self.fit_length(check_feeds(self.model, feeds)).arrays
        partition = self._programs.load(arrays).partition
        values = {name: arrays[name] for name in self.model.parameters}
        return self._planner.latency({name: array.shape for name, array in arrays.items()}, values, partition)

    def keep_plan(self, entries: Entries, batch: int = 1, length: int = 0) -> str:
        """Plan for ``batch`` rows, of ``length`` if the session has lengths; keep the plan and its predicted latency.

        Returns why they can't be kept, or "".
        """
        shapes = self.options.shapes if self.lengths is None else self.lengths.shapes(self.model, length)
        return self._planner.keep(entries, default_shapes(self.model, batch, shapes))

    def serialized(self) -> str | bytes:
        """The model's path or its bytes, as onnxruntime loads them."""
        return self._file if isinstance(self._file, bytes) else os.fspath(self._file)

    def with_options(self, options: PlanOptions, runner: Backend | None = None) -> InferenceSession:
        """Another session for the same model that plans with these options. ``runner``: by default the same backend."""
        twin = copy(self)
        twin.runner = runner or self.runner
        twin._plan_with(replace(self._planner, options=options))
        return twin

    def _run(self, arrays: dict[str, Array]) -> tuple[dict[str, Any], RunResult]:
        fitted = self.fit_length(arrays)
        outputs, result = self._run_rows(fitted.arrays)
        return fitted.cut(outputs), replace(result, notes=(*fitted.notes, *result.notes))

    def _run_rows(self, arrays: dict[str, Array]) -> tuple[dict[str, Any], RunResult]:
        if not count_rows(self.model, arrays):
            outputs = outputs_of_no_rows(self.model, arrays, self.mixing(arrays))
            return outputs, RunResult(("the batch has 0 rows: nothing was run",))
        slices, notes = self._slicer.cut(arrays, self.buckets, self.runner.parallel)
        whole = len(slices) == 1 and slices[0].rows == slices[0].bucket
        feeds = [arrays] if whole else [take_slice(self.model, arrays, part) for part in slices]
        made, result = self._programs.run(feeds)
        result = replace(result, notes=(*notes, *fallback_notes(result.programs[-1].partition)))
        if len(slices) == 1 and self.lengths is None:
            self._routes.add(arrays, slices[0], result)
        return made[0] if whole else join_slices(slices, made), result


def _lnc(target: Target, asked: int | None) -> int:
    """The physical cores of a logical one. The environment's number is another device's if the target has no such
    cores; the backend of a device refuses it."""
    return 1 if asked is None and target.device.most_lnc == 1 else logical_config(asked)
