"""Options of a session and of a run, with onnxruntime's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trnrt.errors import InterruptedRunError, OptionError
from trnrt.importer import GivenWeights, OpenSizes
from trnrt.ort.checking import check_lengths, check_text, fit_value
from trnrt.ort.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from trnrt.ort.ignoring import warn_ignored
from trnrt.ort.refused import refusal
from trnrt.ort.table import Status, names_of, note_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trnrt.ort.values import OrtValue

NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
"""The key with whose "1" nothing may run on the CPU."""

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The key for the folder of a model's data files, for a model that is given as bytes."""

_OBEYED = (NO_CPU_FALLBACK, DATA_FOLDER)
_WRITING = "session.optimized_model_"
"""The start of the keys that say how the optimised model is written."""

_NO_KEYS = "no such key means anything here"


class _Checked:
    """Options whose values are checked when they are set: OptionError for one of another type."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, fit_value(type(self), name, value))


@dataclass(slots=True)
class SessionOptions(_Checked):
    """Options of a session; docs/onnxruntime-api.md says which of them mean something here.

    Nothing warns before a session is made with them: then one warning names those that are ignored.
    """

    enable_cpu_mem_arena: bool = field(default=True, init=False)
    enable_mem_pattern: bool = field(default=True, init=False)
    enable_mem_reuse: bool = field(default=True, init=False)
    enable_profiling: bool = field(default=False, init=False)
    execution_mode: ExecutionMode = field(default=ExecutionMode.ORT_SEQUENTIAL, init=False)
    execution_order: ExecutionOrder = field(default=ExecutionOrder.DEFAULT, init=False)
    graph_optimization_level: GraphOptimizationLevel = field(default=GraphOptimizationLevel.ORT_ENABLE_ALL, init=False)
    inter_op_num_threads: int = field(default=0, init=False)
    intra_op_num_threads: int = field(default=0, init=False)
    log_severity_level: int = field(default=-1, init=False)
    log_verbosity_level: int = field(default=0, init=False)
    logid: str = field(default="", init=False)
    optimized_model_filepath: str = field(default="", init=False)
    profile_file_prefix: str = field(default="trnrt_profile_", init=False)
    use_deterministic_compute: bool = field(default=False, init=False)
    use_per_session_threads: bool = field(default=True, init=False)
    _cancels: bool = field(default=False, init=False, repr=False)
    _config: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _providers: list[tuple[str, dict[str, str]]] = field(default_factory=list, init=False, repr=False)
    _sizes: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _denoted_sizes: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    _arrays: dict[str, NDArray[Any]] = field(default_factory=dict, init=False, repr=False)
    _files: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a value for a key."""
        self._config[key] = check_text(f"the config entry {key!r}", value)

    def add_initializer(self, name: str, ortvalue: OrtValue, /) -> None:
        """Use this value in the place of the model's weight ``name``; a session reads it when it is made."""
        if not hasattr(ortvalue, "numpy"):
            raise OptionError(
                f"the value for the weight {name!r} is of type {type(ortvalue).__name__}",
                hint="give OrtValue.ortvalue_from_numpy(array)",
            )
        self._arrays[name] = ortvalue.numpy()

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue], /) -> None:
        """Use these values in the place of the model's weights of these names."""
        check_lengths(names=names, values=values)
        for name, value in zip(names, values, strict=True):
            self.add_initializer(name, value)

    def add_external_initializers_from_files_in_memory(
        self, file_names: Sequence[str], buffers: Sequence[bytes], lengths: Sequence[int], /
    ) -> None:
        """Use these contents for the model's data files of these names, in place of the files."""
        check_lengths(file_names=file_names, buffers=buffers, lengths=lengths)
        for name, content, length in zip(file_names, buffers, lengths, strict=True):
            self._files[name] = bytes(content)[:length]

    def get_session_config_entry(self, key: str) -> str:
        """The key's value; OptionError if it has none."""
        return _entry(self._config, key, "the session's options have")

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give the open dimension ``name`` a size, in all inputs."""
        self._sizes[name] = _size(name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Give dimensions with this denotation, such as DATA_BATCH, a size."""
        self._denoted_sizes[denotation] = _size(denotation, size)

    def add_provider(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """Add a provider, as the session's ``providers`` do."""
        self._providers.append((name, dict(options or {})))

    def has_providers(self) -> bool:
        """Return whether a provider was added."""
        return bool(self._providers)

    def set_load_cancellation_flag(self, is_cancelled: bool) -> None:
        """Accepted: a load can't be stopped."""
        self._cancels = bool(is_cancelled)

    if not TYPE_CHECKING:  # it would hide misspelt names from the checker

        def __getattr__(self, name: str) -> object:
            raise refusal("SessionOptions", name)

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """The providers that were added, each with its options."""
        return list(self._providers)

    @property
    def sizes(self) -> OpenSizes:
        """Sizes of open dimensions."""
        return OpenSizes(dict(self._sizes), dict(self._denoted_sizes))

    @property
    def weights(self) -> GivenWeights:
        """The values to use instead of the model's own weights and data files."""
        return GivenWeights(dict(self._arrays), dict(self._files), self._config.get(DATA_FOLDER))

    @property
    def entries(self) -> dict[str, str]:
        """The config entries that onnxruntime obeys when it writes the optimised model."""
        return {key: value for key, value in self._config.items() if key.startswith(_WRITING)}

    @property
    def forbids_cpu(self) -> bool:
        """True if nothing may run on the CPU."""
        return self._config.get(NO_CPU_FALLBACK) == "1"

    def check(self) -> None:
        """Warn once about what is ignored; NotSupportedError for what can't be done."""
        ignored = _changed_options(self, "SessionOptions")
        if self.optimized_model_filepath:  # onnxruntime writes it at this level
            ignored.pop("SessionOptions.graph_optimization_level", None)
        if self._cancels:
            ignored["SessionOptions.set_load_cancellation_flag"] = note_of(
                "SessionOptions", "set_load_cancellation_flag"
            )
        ignored |= {f"the config entry {key}": _NO_KEYS for key in self._config if self._is_ignored(key)}
        warn_ignored(ignored, self.log_severity_level)

    def _is_ignored(self, key: str) -> bool:
        return key not in _OBEYED and not (self.optimized_model_filepath and key.startswith(_WRITING))


@dataclass(slots=True)
class RunOptions(_Checked):
    """Options of a run; docs/onnxruntime-api.md says which of them mean something here."""

    log_severity_level: int = field(default=-1, init=False)
    log_verbosity_level: int = field(default=0, init=False)
    logid: str = field(default="", init=False)
    only_execute_path_to_fetches: bool = field(default=False, init=False)
    terminate: bool = field(default=False, init=False)
    _config: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a value for a key."""
        self._config[key] = check_text(f"the config entry {key!r}", value)

    def get_run_config_entry(self, key: str) -> str:
        """The key's value; OptionError if it has none."""
        return _entry(self._config, key, "the run's options have")

    if not TYPE_CHECKING:  # it would hide misspelt names from the checker

        def __getattr__(self, name: str) -> object:
            raise refusal("RunOptions", name)

    def check(self) -> None:
        """Warn once about what is ignored; InterruptedRunError if the run is to end."""
        if self.terminate:
            raise InterruptedRunError("the run was not begun: its RunOptions have terminate set")
        ignored = _changed_options(self, "RunOptions") | {f"the config entry {key}": _NO_KEYS for key in self._config}
        warn_ignored(ignored, self.log_severity_level)


def read_session_options(given: object) -> SessionOptions:
    """The options that a caller gave: trnrt's own, defaults for None, or a copy of onnxruntime's attributes."""
    if isinstance(given, SessionOptions):
        return given
    options = SessionOptions()
    if given is None:
        return options
    if isinstance(given, type) or not hasattr(given, "graph_optimization_level"):
        hint = "give trnrt.SessionOptions()"
        if isinstance(given, (str, list, tuple)):
            hint += "; providers have a name: providers=[...]"
        raise OptionError(f"sess_options is of type {type(given).__name__}", hint=hint)
    for name in _public(options):
        if name != "profile_file_prefix" or given.enable_profiling:  # type: ignore[attr-defined]
            setattr(options, name, getattr(given, name, getattr(options, name)))
    return options


def check_run_options(given: object) -> None:
    """Warn about a run's options, or refuse them; onnxruntime's own object is read by its attributes."""
    if isinstance(given, RunOptions):
        given.check()
        return
    if isinstance(given, type) or not hasattr(given, "terminate"):
        raise OptionError(f"run_options is of type {type(given).__name__}", hint="give trnrt.RunOptions()")
    options = RunOptions()
    for name in _public(options):
        setattr(options, name, getattr(given, name, getattr(options, name)))
    options.check()


def _public(options: SessionOptions | RunOptions) -> list[str]:
    return [each.name for each in fields(options) if not each.name.startswith("_")]


def _changed_options(options: SessionOptions | RunOptions, owner: str) -> dict[str, str]:
    """The ignored options whose values aren't the defaults, each with the reason."""
    defaults = {each.name: each.default for each in fields(options)}
    return {
        f"{owner}.{name}": note_of(owner, name)
        for name in names_of(owner, Status.ignored)
        if name in defaults and getattr(options, name) != defaults[name]
    }


def _entry(entries: Mapping[str, str], key: str, who: str) -> str:
    if key not in entries:
        raise OptionError(f"{who} no entry {key!r}")
    return entries[key]


def _size(name: str, size: int) -> int:
    if int(size) < 1:
        raise OptionError(f"the dimension {name!r} would have the size {size}", hint="sizes are 1 or more")
    return int(size)
