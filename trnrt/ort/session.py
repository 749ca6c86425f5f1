"""The methods of onnxruntime's session beyond ``run`` and its inputs and outputs.

Modules are imported by the methods that need them: a script that only runs a model should not wait for them.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trnrt.errors import OptionError, TrnrtError
from trnrt.importer import ImportedModel, OpenSizes, replace_weights
from trnrt.ort.ignoring import warn_ignored, warn_of
from trnrt.ort.providers import providers_of, read_providers
from trnrt.planner import PlanOptions
from trnrt.running.feeding import NodeArg
from trnrt.running.results import RunResult
from trnrt.text import quote, shape_text

if TYPE_CHECKING:
    from trnrt.ort.binding import IOBinding
    from trnrt.ort.metadata import ModelMetadata
    from trnrt.ort.options import SessionOptions
    from trnrt.ort.profile import Recorder
    from trnrt.ort.values import OrtMemoryInfo, OrtValue
    from trnrt.planner.parts.partition import Partition

Callback = Callable[[list[Any], Any, str], None]

_ARGUMENTS = {
    "enable_fallback": 'trnrt never falls back unasked: give fallback="onnxruntime"',
    "disabled_optimizers": "the planner rewrites graphs itself",
}
"""Arguments of onnxruntime's session that are ignored, with the reason."""

_SMALL_GRAPH = 60
"""The most nodes of a model that is planned in order to be shown. `digits_cnn`, with 7, takes 0.4 s of CPU time with
its profile and the imports."""


class OrtSession(ABC):
    """The methods of onnxruntime's session besides ``run``; ``docs/onnxruntime-api.md`` has the table.

    A subclass calls ``_take_options`` first, keeps its arguments in ``_asked``, and opens itself in ``_open``.
    """

    model: ImportedModel
    backend: str
    backend_reason: str
    last_run: RunResult
    _asked: dict[str, Any]
    _given_options: SessionOptions | None = None
    _own_name: str | None = None
    _recorder: Recorder | None = None

    @property
    @abstractmethod
    def options(self) -> PlanOptions:
        """The options of the planner."""

    @abstractmethod
    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any] | None = None,
        run_options: object = None,
        *,
        input_feed: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The outputs for these inputs."""

    @abstractmethod
    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs."""

    @abstractmethod
    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs."""

    @abstractmethod
    def partition(self, batch: int = 1, *, cached: bool = False) -> Partition:
        """The parts for ``batch`` rows."""

    @abstractmethod
    def close(self) -> None:
        """Release compiled programs."""

    @abstractmethod
    def _answer(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """``run`` without options."""

    @abstractmethod
    def _open(self, asked: dict[str, Any]) -> None:
        """Read the model, and plan as asked."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """One line: the model, its inputs and outputs, and what computes it."""
        sides = [", ".join(map(_signature, side)) for side in (self.get_inputs(), self.get_outputs())]
        how = f"target={self.options.target!r}, dtype={self.options.shown_dtype!r}, backend={self.backend!r}"
        return f"<InferenceSession {quote(self.model.name)}: {' -> '.join(sides)}; {how}>"

    def _repr_html_(self) -> str:
        """The session in a notebook: the plan of the last run, or of one row if that is quick to make."""
        from trnrt.ort.notebook import session_html

        names = ("inputs", "outputs")
        sides = [", ".join(map(_signature, side)) for side in (self.get_inputs(), self.get_outputs())]
        facts = {
            **dict(zip(names, sides, strict=True)),
            "target": f"{self.options.target}, {self.options.shown_dtype}",
            "backend": f"{self.backend} ({self.backend_reason})",
        }
        partition, note = self._shown_partition()
        return session_html(f"InferenceSession {self.model.name}", facts, partition, note)

    def _shown_partition(self) -> tuple[Partition | None, str]:
        """The parts of the last run, or of one row for a small model; and a note if there are none."""
        if (last := self.last_run.partition) is not None:
            return last, ""
        if sum(1 for _ in self.model.model.graph) > _SMALL_GRAPH:
            return None, "Run the session once to see its plan and profile here."
        try:
            return self.partition(cached=True), "The plan is that of one row: no run has been made."
        except TrnrtError as error:
            return None, f"The model can't be planned without its inputs: {error}"

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: object = None,
    ) -> list[OrtValue]:
        """As ``run``, for values in place of arrays."""
        from trnrt.ort.values import OrtValue

        given = input_dict_ort_values.items()
        feeds = {name: value.numpy() if isinstance(value, OrtValue) else value for name, value in given}
        return [OrtValue(made) for made in self.run(output_names, feeds, run_options)]

    def io_binding(self) -> IOBinding:
        """A binding for ``run_with_iobinding``."""
        from trnrt.ort.binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: object = None) -> None:
        """Run with bound inputs; the outputs are then in the binding."""
        iobinding.take(self.run(iobinding.output_names, iobinding.inputs, run_options))

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback,
        user_data: Any,
        run_options: object = None,
    ) -> None:
        """Run on a thread, then call ``callback(outputs, user_data, error)``; ``error`` is "" or the error's text.

        Python waits for the thread before it ends. Runs that go on at the same time share the session safely.
        """
        if not callable(callback):
            raise OptionError(
                f"the callback is of type {type(callback).__name__}", hint="give a function of (outputs, data, error)"
            )

        def compute() -> None:
            try:
                outputs, problem = self.run(output_names, input_feed, run_options), ""
            except TrnrtError as error:
                outputs, problem = [], str(error)
            except Exception as error:  # the callback is the only one who can hear of it
                outputs, problem = [], f"{type(error).__name__}: {error}"
            callback(outputs, user_data, problem)

        threading.Thread(target=compute, name="trnrt-run-async").start()

    def get_overridable_initializers(self) -> list[NodeArg]:
        """No weight can be overridden: a plan has them as constants."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """The model file's metadata."""
        from trnrt.ort.metadata import metadata_of

        return metadata_of(self.model)

    def get_session_options(self) -> SessionOptions:
        """The options that the session was made with."""
        from trnrt.ort.options import SessionOptions

        if self._given_options is None:
            self._given_options = SessionOptions()
        return self._given_options

    def get_providers(self) -> list[str]:
        """The backend's name, and CPUExecutionProvider if onnxruntime runs what the device can't."""
        return providers_of(self.backend, self.options.fallback)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of each provider: the target, the dtype and the fallback."""
        first, *others = self.get_providers()
        own = {"target": self.options.target, "dtype": self.options.shown_dtype}
        own |= {"fallback": self.options.fallback} if self.options.fallback else {}
        return {first: own} | {name: {} for name in others}

    def set_providers(
        self, providers: Sequence[object] | None = None, provider_options: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        """Open the session again with these providers; compiled programs are released."""
        asked = {**self._asked, **self._read_providers(providers, provider_options)}
        self.close()
        self._open(asked)
        self._asked = asked

    def end_profiling(self) -> str:
        """Write the profile if ``SessionOptions.enable_profiling`` asked for one; the file's name, or ""."""
        recorder, self._recorder = self._recorder, None
        return "" if recorder is None else recorder.write()

    def get_profiling_start_time_ns(self) -> int:
        """The time at which profiling began, in nanoseconds of ``time.time_ns``; 0 without it."""
        return self._profiling_start_ns

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        """Zeros in the host's memory."""
        from trnrt.ort.values import OrtValue

        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """The host's memory, for each input."""
        from trnrt.ort.values import OrtMemoryInfo

        return [OrtMemoryInfo() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        """The host's memory, for each output."""
        from trnrt.ort.values import OrtMemoryInfo

        return [OrtMemoryInfo() for _ in self.get_outputs()]

    def disable_fallback(self) -> None:
        """Nothing to do: trnrt never falls back unasked."""
        return

    def enable_fallback(self) -> None:
        """Accepted: a fallback has to be asked for with ``fallback="onnxruntime"``."""
        warn_of("InferenceSession", ["enable_fallback"], self._severity)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Accepted: there are no captured graphs."""
        warn_of("InferenceSession", ["release_captured_graph"], self._severity)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Accepted: no backend has such options."""
        warn_of("InferenceSession", ["set_ep_dynamic_options"], self._severity)

    if not TYPE_CHECKING:  # it would hide misspelt names from the checker

        def __getattr__(self, name: str) -> Any:
            from trnrt.ort.refused import refusal

            raise refusal("InferenceSession", name)

    @property
    def _severity(self) -> int:
        return -1 if self._given_options is None else self._given_options.log_severity_level

    @property
    def _sizes(self) -> OpenSizes:
        """The sizes of open dimensions that the session's options give."""
        return OpenSizes() if self._given_options is None else self._given_options.sizes

    def _take_options(self, given: object, more: Mapping[str, object]) -> None:
        """Read the session's options, and warn about those, and arguments of onnxruntime, that are ignored."""
        if given is not None:
            from trnrt.ort.options import read_session_options

            self._given_options = read_session_options(given)
            self._given_options.check()
        warn_ignored({name: reason for name, reason in _ARGUMENTS.items() if more.get(name)}, self._severity)
        self._profiling_start_ns = 0

    def _replace_weights(self, source: str | os.PathLike[str] | bytes) -> str | os.PathLike[str] | bytes:
        """The model, or its content with the weights that the session's options give."""
        if self._given_options is None or not (weights := self._given_options.weights):
            return source
        self._own_name = None if isinstance(source, bytes) else Path(source).stem
        return replace_weights(source, weights)

    def _write_optimized(self, model: str | bytes) -> None:
        """Write onnxruntime's optimised model, if the session's options ask for it."""
        options = self._given_options
        if options is not None and options.optimized_model_filepath:
            from trnrt.ort.optimized import write_optimized

            path, level = options.optimized_model_filepath, int(options.graph_optimization_level)
            write_optimized(model, path, level, options.sizes, options.entries)

    def _read_providers(
        self, providers: Sequence[object] | None, options: Sequence[Mapping[str, str]] | None
    ) -> dict[str, Any]:
        """The arguments that the providers ask for, by default those of the session's options."""
        if not providers and self._given_options is not None:
            providers = self._given_options.providers
        return read_providers(providers, options, self._severity)

    def _begin_profiling(self, begun_ns: int) -> None:
        """Record runs from now on, if the options ask for it; the session began to open at ``begun_ns``."""
        options = self._given_options
        if options is not None and options.enable_profiling:
            from trnrt.ort.profile import Recorder

            self._recorder = Recorder(options.profile_file_prefix, self.get_providers()[0], begun_ns)
            self._profiling_start_ns = self._recorder.start_ns

    def _check_cpu(self, fallback: str | None) -> None:
        if fallback and self._given_options is not None and self._given_options.forbids_cpu:
            raise OptionError(
                f"fallback={fallback!r} in a session whose options forbid the CPU", hint="leave out one of the two"
            )

    def _run_watched(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: object
    ) -> list[Any]:
        """``run`` with options, and noted in the profile if there is one."""
        if run_options is not None:
            from trnrt.ort.options import check_run_options

            check_run_options(run_options)
        recorder, begun = self._recorder, time.perf_counter_ns()
        outputs = self._answer(output_names, feeds)
        if recorder is not None:
            recorder.note_run(begun, self.last_run)
        return outputs


def _signature(info: NodeArg) -> str:
    """An input or output in words: ``'image' float [batch, 1, 8, 8]``."""
    return f"{quote(info.name)} {info.type.removeprefix('tensor(').removesuffix(')')} {shape_text(info.shape)}"
