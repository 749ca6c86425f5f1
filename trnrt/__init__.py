"""trnrt runs ONNX models on AWS Trainium, and on a simulator of the NeuronCore everywhere else.

    import trnrt
    session = trnrt.InferenceSession("model.onnx")
    outputs = session.run(None, {"image": images})

Names are loaded on first use, so that ``import trnrt`` (and ``trnrt --help``) costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trnrt.version import __version__

if TYPE_CHECKING:
    from trnrt.ort.binding import IOBinding as IOBinding
    from trnrt.ort.enums import ExecutionMode as ExecutionMode
    from trnrt.ort.enums import GraphOptimizationLevel as GraphOptimizationLevel
    from trnrt.ort.options import RunOptions as RunOptions
    from trnrt.ort.options import SessionOptions as SessionOptions
    from trnrt.ort.providers import get_available_providers as get_available_providers
    from trnrt.ort.values import OrtValue as OrtValue
    from trnrt.planner.choices import Choices as Choices
    from trnrt.running.feeding import NodeArg as NodeArg
    from trnrt.session import InferenceSession as InferenceSession
    from trnrt.validate import validate as validate

# onnxruntime's wheels report to Microsoft over HTTPS, unless this is set before the import (Privacy.md in them). No
# data of a user leaves the machine unasked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Choices": "trnrt.planner.choices",
    "InferenceSession": "trnrt.session",
    "NodeArg": "trnrt.running.feeding",
    "validate": "trnrt.validate",
    # onnxruntime's names: `import trnrt as ort` suits a script for it (docs/onnxruntime-api.md).
    "ExecutionMode": "trnrt.ort.enums",
    "ExecutionOrder": "trnrt.ort.enums",
    "GraphOptimizationLevel": "trnrt.ort.enums",
    "IOBinding": "trnrt.ort.binding",
    "ModelMetadata": "trnrt.ort.metadata",
    "OrtAllocatorType": "trnrt.ort.enums",
    "OrtArenaCfg": "trnrt.ort.values",
    "OrtDevice": "trnrt.ort.values",
    "OrtMemType": "trnrt.ort.enums",
    "OrtMemoryInfo": "trnrt.ort.values",
    "OrtValue": "trnrt.ort.values",
    "RunOptions": "trnrt.ort.options",
    "SessionIOBinding": "trnrt.ort.binding",
    "SessionOptions": "trnrt.ort.options",
    "copy_tensors": "trnrt.ort.values",
    "create_and_register_allocator": "trnrt.ort.module",
    "create_and_register_allocator_v2": "trnrt.ort.module",
    "disable_telemetry_events": "trnrt.ort.module",
    "enable_telemetry_events": "trnrt.ort.module",
    "get_all_providers": "trnrt.ort.module",
    "get_available_providers": "trnrt.ort.module",
    "get_build_info": "trnrt.ort.module",
    "get_device": "trnrt.ort.module",
    "get_ep_devices": "trnrt.ort.module",
    "get_version_string": "trnrt.ort.module",
    "has_collective_ops": "trnrt.ort.module",
    "preload_dlls": "trnrt.ort.module",
    "print_debug_info": "trnrt.ort.module",
    "set_default_logger_callback": "trnrt.ort.module",
    "set_default_logger_severity": "trnrt.ort.module",
    "set_default_logger_verbosity": "trnrt.ort.module",
    "set_global_thread_pool_sizes": "trnrt.ort.module",
    "set_seed": "trnrt.ort.module",
}

_REFUSED = (
    "AdapterFormat", "LoraAdapter", "ModelCompiler", "ModelPackage", "ModelPackageComponentContext",
    "ModelPackageContext", "ModelPackageOptions", "ModelPackageWriteMode", "OrtCompileApiFlags", "OrtDeviceMemoryType",
    "OrtDeviceVendorId", "OrtEpAssignedNode", "OrtEpAssignedSubgraph", "OrtEpContextData", "OrtEpContextDataBuffer",
    "OrtEpDevice", "OrtExecutionProviderDevicePolicy", "OrtExternalInitializerInfo", "OrtHardwareDevice",
    "OrtHardwareDeviceType", "OrtMemoryInfoDeviceType", "OrtSparseFormat", "OrtSyncStream", "SparseTensor",
    "register_execution_provider_library", "unregister_execution_provider_library",
)  # fmt: skip
"""onnxruntime's names that exist, so that they can be imported, and refuse any use with the reason."""

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _REFUSED:
        return import_module("trnrt.ort.refused").refused_name(name)
    if name in ("capi", "hf"):
        return import_module(f"trnrt.{name}")
    raise AttributeError(f"module 'trnrt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
