"""Options of a session and of a run, with onnxruntime's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from trnrt.errors import InterruptedRunError, OptionError
from trnrt.importer import OpenSizes
from trnrt.ort.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel
from trnrt.ort.ignoring import warn_ignored
from trnrt.ort.refused import refusal
from trnrt.ort.table import Status, names_of, note_of

NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
"""The one key of onnxruntime that trnrt obeys: with "1", nothing may run on the CPU."""

_NO_KEYS = "no such key means anything here"


@dataclass(slots=True)
class SessionOptions:
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

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep a value for a key."""
        self._config[key] = value

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
    def forbids_cpu(self) -> bool:
        """True if nothing may run on the CPU."""
        return self._config.get(NO_CPU_FALLBACK) == "1"

    def check(self) -> None:
        """Warn once about what is ignored; NotSupportedError for what can't be done."""
        if self.optimized_model_filepath:
            raise refusal("SessionOptions", "optimized_model_filepath")
        ignored = _changed_options(self, "SessionOptions")
        if self._cancels:
            ignored["SessionOptions.set_load_cancellation_flag"] = note_of(
                "SessionOptions", "set_load_cancellation_flag"
            )
        ignored |= {f"the config entry {key}": _NO_KEYS for key in self._config if key != NO_CPU_FALLBACK}
        warn_ignored(ignored, self.log_severity_level)


@dataclass(slots=True)
class RunOptions:
    """Options of a run; docs/onnxruntime-api.md says which of them mean something here."""

    log_severity_level: int = field(default=-1, init=False)
    log_verbosity_level: int = field(default=0, init=False)
    logid: str = field(default="", init=False)
    only_execute_path_to_fetches: bool = field(default=False, init=False)
    terminate: bool = field(default=False, init=False)
    _config: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep a value for a key."""
        self._config[key] = value

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
    if not hasattr(given, "graph_optimization_level"):
        raise OptionError(f"sess_options is of type {type(given).__name__}", hint="give a trnrt.SessionOptions")
    for name in _public(options):
        if name != "profile_file_prefix" or given.enable_profiling:  # type: ignore[attr-defined]
            setattr(options, name, getattr(given, name, getattr(options, name)))
    return options


def check_run_options(given: object) -> None:
    """Warn about a run's options, or refuse them; onnxruntime's own object is read by its attributes."""
    if isinstance(given, RunOptions):
        given.check()
        return
    if not hasattr(given, "terminate"):
        raise OptionError(f"run_options is of type {type(given).__name__}", hint="give a trnrt.RunOptions")
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
        if name in defaults and _number(getattr(options, name)) != _number(defaults[name])
    }


def _number(value: object) -> object:
    """An enum's number: onnxruntime's own enums equal no others."""
    return int(value) if hasattr(value, "__int__") else value


def _entry(entries: Mapping[str, str], key: str, who: str) -> str:
    if key not in entries:
        raise OptionError(f"{who} no entry {key!r}")
    return entries[key]


def _size(name: str, size: int) -> int:
    if int(size) < 1:
        raise OptionError(f"the dimension {name!r} would have the size {size}", hint="sizes are 1 or more")
    return int(size)
