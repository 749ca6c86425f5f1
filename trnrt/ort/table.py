"""Each public name of onnxruntime's Python interface, and its meaning in trnrt.

``docs/onnxruntime-api.md`` is made from this table, warnings and refusals quote it, and a test compares it with the
installed onnxruntime: a name that is missing here fails it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

VERSION = "1.32"
"""The onnxruntime whose names these are."""

MODULE = "onnxruntime"
"""The owner of the module's own names."""


class Status(Enum):
    """The meaning of one of onnxruntime's names here."""

    works = "works"
    ignored = "ignored"
    refused = "refused"
    internal = "internal"


@dataclass(frozen=True)
class Entry:
    """One name. ``note``: its meaning here, or why it has none; for a refusal with the way out, if there is one."""

    status: Status
    note: str = ""


def _works(names: str, note: str = "") -> dict[str, Entry]:
    return {name: Entry(Status.works, note) for name in names.split()}


def _ignored_names(names: str, note: str) -> dict[str, Entry]:
    return {name: Entry(Status.ignored, note) for name in names.split()}


def _refused_names(names: str, note: str) -> dict[str, Entry]:
    return {name: Entry(Status.refused, note) for name in names.split()}


def _internal(names: str, note: str = "not meant for users") -> dict[str, Entry]:
    return {name: Entry(Status.internal, note) for name in names.split()}


_NO_SPARSE = "trnrt has no sparse tensors: give a dense array"
_NO_ADAPTER = "trnrt loads no adapters: merge the adapter into the weights before the export"
_NO_PLUGIN = "trnrt loads no plug-ins: it computes on its own simulator or on a NeuronCore"
_NO_CONTEXT = "trnrt reads no compiled models of other runtimes: trnrt compile writes its own"
_NO_PACKAGE = "trnrt reads no model packages: give the .onnx file in it"
_NO_TUNING = "trnrt has no tuning results: effort=1 chooses by predicted time"
_NO_STREAMING = "a writer of weights for ModelCompiler, which trnrt has not"
_ONE_THREAD = "the simulator and the device have no such threads"
_HOST_MEMORY = "plans place tensors; the host's memory is numpy's"
_NO_LOG = "trnrt has no log: notes on a run are in session.last_run.notes"
_OWN_ORDER = "the planner orders and fuses nodes itself; choices= and effort= are its settings"

_MODULE = {
    **_works("InferenceSession", "see below; its first argument may also be a ModelProto, or a model of onnx_ir"),
    **_works("SessionOptions RunOptions OrtValue IOBinding ModelMetadata", "see below"),
    **_works("SessionIOBinding", "the same class as IOBinding"),
    **_works("NodeArg", "name, shape and type of an input or output"),
    **_works("OrtDevice OrtMemoryInfo", "records; memory is always the host's"),
    **_works("GraphOptimizationLevel ExecutionMode ExecutionOrder OrtAllocatorType OrtMemType", "the same members"),
    **_works("get_available_providers", "trnrt's own on this machine, then CPUExecutionProvider, for the fallback"),
    **_works("get_all_providers", "the same names on every machine"),
    **_works("get_device", '"NEURON" with a NeuronCore, else "CPU", on which the simulator runs'),
    **_works("get_version_string get_build_info", "trnrt's version, as in trnrt.__version__; onnxruntime's is not"),
    **_works("set_default_logger_severity", "with 3 or more, the warnings about ignored names stay out"),
    **_works("disable_telemetry_events", "trnrt sends nothing"),
    **_works("copy_tensors", "copies the numbers of values into others"),
    **_works("get_ep_devices", "the empty list: there are no plug-ins"),
    **_works("has_collective_ops", "False"),
    **_works("print_debug_info", "prints the versions and the backend; trnrt doctor prints more"),
    **_ignored_names("enable_telemetry_events", "trnrt sends nothing"),
    **_ignored_names("set_default_logger_verbosity set_default_logger_callback", _NO_LOG),
    **_ignored_names("set_global_thread_pool_sizes", _ONE_THREAD),
    **_ignored_names("set_seed", "no supported operator draws random numbers"),
    **_ignored_names("preload_dlls", "there are no libraries of CUDA to load"),
    **_ignored_names("OrtArenaCfg create_and_register_allocator create_and_register_allocator_v2", _HOST_MEMORY),
    **_refused_names("SparseTensor OrtSparseFormat", _NO_SPARSE),
    **_refused_names("LoraAdapter AdapterFormat", _NO_ADAPTER),
    **_refused_names("ModelCompiler OrtCompileApiFlags OrtEpContextData OrtEpContextDataBuffer", _NO_CONTEXT),
    **_refused_names("ModelPackage ModelPackageComponentContext ModelPackageContext", _NO_PACKAGE),
    **_refused_names("ModelPackageOptions ModelPackageWriteMode", _NO_PACKAGE),
    **_refused_names("OrtEpDevice OrtHardwareDevice OrtHardwareDeviceType OrtSyncStream", _NO_PLUGIN),
    **_refused_names("OrtExecutionProviderDevicePolicy OrtDeviceMemoryType OrtDeviceVendorId", _NO_PLUGIN),
    **_refused_names("OrtMemoryInfoDeviceType OrtEpAssignedNode OrtEpAssignedSubgraph", _NO_PLUGIN),
    **_refused_names("register_execution_provider_library unregister_execution_provider_library", _NO_PLUGIN),
    **_refused_names("OrtExternalInitializerInfo", _NO_STREAMING),
    **_internal(
        "capi",
        "trnrt.capi has onnxruntime_pybind11_state, with the names of errors (see above) and of the module; "
        "_pybind_state and onnxruntime_inference_collection are the same",
    ),
    **_internal("contextlib import_capi_exception onnxruntime_validation package_name version"),
    **_internal("cuda_version", "there is no CUDA here"),
}

_SESSION = {
    **_works("run", "each shape is compiled once; the outputs' order and dtypes are the model's"),
    **_works("run_with_ort_values run_with_iobinding io_binding", "as run; values stay in the host's memory"),
    **_works("run_async", "computes on a thread, and gives the callback the outputs, or the error's text"),
    **_works("get_inputs get_outputs", "names, shapes and types as in the file"),
    **_works("get_overridable_initializers", "the empty list: weights are constants of a plan"),
    **_works("get_modelmeta", "producer, graph, domain, description, version and metadata of the file"),
    **_works("get_providers", "the backend's name, then CPUExecutionProvider if the session has the fallback"),
    **_works("get_provider_options", "the target, the dtype and the fallback"),
    **_works("set_providers", "opens the session again on another backend, or with other provider options"),
    **_works("get_session_options", "the options that the session was made with"),
    **_works("end_profiling", "writes the profile (see below), and returns the file's name"),
    **_works("get_profiling_start_time_ns", "the clock of time.time_ns"),
    **_works("create_ortvalue_from_shape_and_type", "zeros in the host's memory"),
    **_works("get_input_memory_infos get_output_memory_infos", "the host's memory for each"),
    **_works("disable_fallback", "trnrt never falls back unasked"),
    **_ignored_names("enable_fallback", 'trnrt never falls back unasked: give fallback="onnxruntime"'),
    **_ignored_names("release_captured_graph", "there are no captured graphs; close() releases compiled programs"),
    **_ignored_names("set_ep_dynamic_options", "no backend has options that change after the start"),
    **_refused_names("get_input_epdevices", _NO_PLUGIN),
    **_refused_names("get_provider_graph_assignment_info", "session.partition() has the parts, and the nodes of each"),
    **_refused_names("get_tuning_results set_tuning_results", _NO_TUNING),
    **_refused_names("run_with_ortvaluevector", "use run_with_iobinding or run_with_ort_values"),
}

_OPTIONS = {
    **_works("enable_profiling profile_file_prefix", "end_profiling writes the profile (see below)"),
    **_works("add_free_dimension_override_by_name", "gives an open dimension its size, in all inputs"),
    **_works("add_free_dimension_override_by_denotation", "the same, by the dimension's denotation"),
    **_works("log_severity_level", "with 3 or more, the warnings about the session's ignored options stay out"),
    **_works("add_provider has_providers", "as the session's providers and provider_options"),
    **_works("add_session_config_entry get_session_config_entry", "kept; most keys mean nothing here (see above)"),
    **_works(
        "add_initializer add_external_initializers", "replaces weights, when a session is made; dtype and shape stay"
    ),
    **_works("add_external_initializers_from_files_in_memory", "contents for the model's data files, by their names"),
    **_works(
        "optimized_model_filepath",
        "onnxruntime writes its own, at graph_optimization_level; trnrt inspect --stage rewritten shows trnrt's",
    ),
    **_works("use_deterministic_compute", "the same inputs always give the same bits"),
    **_ignored_names("enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse", _HOST_MEMORY),
    **_ignored_names("execution_mode execution_order graph_optimization_level", _OWN_ORDER),
    **_ignored_names("inter_op_num_threads intra_op_num_threads use_per_session_threads", _ONE_THREAD),
    **_ignored_names("log_verbosity_level logid", _NO_LOG),
    **_ignored_names("set_load_cancellation_flag", "a load can't be stopped"),
    **_refused_names("register_custom_ops_library", "trnrt has no kernels for custom operators: export without them"),
    **_refused_names("add_provider_for_devices set_provider_selection_policy", _NO_PLUGIN),
    **_refused_names("set_provider_selection_policy_delegate", _NO_PLUGIN),
    **_refused_names("set_ep_context_data_read_func clear_ep_context_data_read_func", _NO_CONTEXT),
}

_RUN_OPTIONS = {
    **_works("terminate", "a run with it set is refused; one that has begun ends"),
    **_works("log_severity_level", "with 3 or more, the warnings about the run's ignored options stay out"),
    **_works("add_run_config_entry get_run_config_entry", "kept; keys mean nothing here, as one warning says"),
    **_ignored_names("log_verbosity_level logid", _NO_LOG),
    **_ignored_names("only_execute_path_to_fetches", "a plan computes all outputs"),
    **_refused_names("add_active_adapter", _NO_ADAPTER),
}

_VALUE = {
    **_works("ortvalue_from_numpy", "shares the array's memory, whatever device_type says"),
    **_works("ortvalue_from_numpy_with_onnx_type", "the same memory, read as another type of the same size"),
    **_works("ortvalue_from_shape_and_type", "zeros"),
    **_works("from_dlpack", "shares the memory of a tensor on the host"),
    **_works("numpy", "the array itself, without a copy"),
    **_works("update_inplace", "copies numbers into the value's memory"),
    **_works("data_ptr data_type device_name element_type has_value shape tensor_size_in_bytes"),
    **_works("is_tensor is_tensor_sequence is_sparse_tensor"),
    **_refused_names("as_sparse_tensor ort_value_from_sparse_tensor", _NO_SPARSE),
}

_BINDING = {
    **_works("bind_cpu_input bind_ortvalue_input", "by reference: a run reads the numbers that are there then"),
    **_works("bind_input", "numbers at an address in the host's memory; an address on another device is refused"),
    **_works("bind_output", "made by the run, or written to an address in the host's memory"),
    **_works("bind_ortvalue_output", "a run writes into the value's memory"),
    **_works("clear_binding_inputs clear_binding_outputs get_outputs copy_outputs_to_cpu"),
    **_works("synchronize_inputs synchronize_outputs", "nothing is left to wait for"),
    **_refused_names("get_outputs_as_ortvaluevector", "use get_outputs"),
}

TABLE: Mapping[str, Mapping[str, Entry]] = {
    MODULE: _MODULE,
    "InferenceSession": _SESSION,
    "SessionOptions": _OPTIONS,
    "RunOptions": _RUN_OPTIONS,
    "OrtValue": _VALUE,
    "IOBinding": _BINDING,
    "ModelMetadata": {
        **_works("producer_name graph_name domain description graph_description custom_metadata_map"),
        **_works("version", "the largest int64 if the file has none, as in onnxruntime"),
    },
    "NodeArg": _works("name shape type"),
    "OrtDevice": {
        **_works("make device_id device_type"),
        **_refused_names("device_mem_type device_vendor_id", _NO_PLUGIN),
    },
    "OrtMemoryInfo": {
        **_works("name device_id mem_type allocator_type"),
        **_refused_names("create_v2 device_mem_type device_vendor_id", _NO_PLUGIN),
    },
    "GraphOptimizationLevel": _works(
        "ORT_DISABLE_ALL ORT_ENABLE_BASIC ORT_ENABLE_EXTENDED ORT_ENABLE_LAYOUT ORT_ENABLE_ALL name value"
    ),
    "ExecutionMode": _works("ORT_SEQUENTIAL ORT_PARALLEL name value"),
    "ExecutionOrder": _works("DEFAULT PRIORITY_BASED MEMORY_EFFICIENT name value"),
    "OrtAllocatorType": _works("INVALID ORT_DEVICE_ALLOCATOR ORT_ARENA_ALLOCATOR name value"),
    "OrtMemType": _works("CPU_INPUT CPU_OUTPUT CPU DEFAULT name value"),
    "SparseTensor": _refused_names(
        "as_blocksparse_view as_coo_view as_csrc_view data_type dense_shape device_name format sparse_coo_from_numpy "
        "sparse_csr_from_numpy to_cuda values",
        _NO_SPARSE,
    ),
}

ERRORS: Mapping[str, str] = {
    "Fail": "TrnrtError",
    "RuntimeException": "TrnrtError",
    "InvalidArgument": "ArgumentError",
    "NoSuchFile": "NoSuchModelError",
    "NoModel": "ModelFileError",
    "InvalidProtobuf": "ModelFileError",
    "InvalidGraph": "ModelFileError",
    "NotImplemented": "UnsupportedModelError",
    "EPFail": "BackendError",
    "EngineError": "DeviceError",
    "DeviceReset": "DeviceError",
}
"""onnxruntime's errors -> the classes of ``trnrt.errors`` that ``trnrt.capi.onnxruntime_pybind11_state`` gives for
them. One name may stand for more here than there: TrnrtError is every error of trnrt."""

ABSENT_ERRORS = ("ModelLoaded", "ModelLoadCanceled", "ModelRequiresCompilation", "NotFound")
"""onnxruntime's errors for which trnrt has no occasion: nothing raises them."""


def note_of(owner: str, name: str) -> str:
    """The meaning of an owner's name here."""
    return TABLE[owner][name].note


def names_of(owner: str, status: Status) -> list[str]:
    """The owner's names of this status."""
    return [name for name, entry in TABLE[owner].items() if entry.status is status]
