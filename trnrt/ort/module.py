"""The functions of onnxruntime's module that mean something here, and those that are accepted."""

from __future__ import annotations

import platform
from importlib import import_module
from typing import Any

import numpy as np

from trnrt.errors import OptionError
from trnrt.ort.ignoring import set_severity, warn_of
from trnrt.ort.providers import get_all_providers, get_available_providers, get_device
from trnrt.ort.table import MODULE

_FATAL = 4
"""onnxruntime's highest level of its log."""


def get_version_string() -> str:
    """trnrt's version."""
    version: str = import_module("trnrt").__version__  # its names are loaded from here
    return version


def get_build_info() -> str:
    """trnrt's version, and that of Python."""
    return f"trnrt {get_version_string()}, Python {platform.python_version()}"


def get_ep_devices() -> list[Any]:
    """No devices of plug-ins."""
    return []


def has_collective_ops() -> bool:
    """False: a model runs on the cores of one device."""
    return False


def print_debug_info() -> None:
    """Print the versions and what this machine can compute on."""
    print(f"{get_build_info()}, numpy {np.__version__}, {platform.platform()}")
    print(f"providers: {', '.join(get_available_providers())}")
    print("trnrt doctor prints more")


def set_default_logger_severity(severity: int) -> None:
    """With 3 (errors) or more, the warnings about ignored names stay out. OptionError unless it is 0 to 4."""
    if not isinstance(severity, int) or not 0 <= severity <= _FATAL:
        raise OptionError(
            f"the severity is {severity!r}", hint="give 0 (verbose), 1 (info), 2 (warning), 3 (error) or 4 (fatal)"
        )
    set_severity(severity)


def disable_telemetry_events() -> None:
    """Nothing to do: trnrt sends nothing."""


def enable_telemetry_events() -> None:
    """Accepted: trnrt sends nothing."""
    warn_of(MODULE, ["enable_telemetry_events"])


def set_default_logger_verbosity(level: int) -> None:
    """Accepted: trnrt has no log."""
    warn_of(MODULE, ["set_default_logger_verbosity"])


def set_default_logger_callback(callback: object = None, severity: object = None) -> None:
    """Accepted: trnrt has no log."""
    warn_of(MODULE, ["set_default_logger_callback"])


def set_global_thread_pool_sizes(intra_op: int, inter_op: int) -> None:
    """Accepted: there are no such threads."""
    warn_of(MODULE, ["set_global_thread_pool_sizes"])


def set_seed(seed: int) -> None:
    """Accepted: no operator draws random numbers."""
    warn_of(MODULE, ["set_seed"])


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: object = None) -> None:
    """Accepted: there are no libraries of CUDA to load."""
    warn_of(MODULE, ["preload_dlls"])


def create_and_register_allocator(memory_info: object, arena_configuration: object = None) -> None:
    """Accepted: the host's memory is numpy's."""
    warn_of(MODULE, ["create_and_register_allocator"])


def create_and_register_allocator_v2(
    provider_type: str, memory_info: object, options: object = None, arena_configuration: object = None
) -> None:
    """Accepted: the host's memory is numpy's."""
    warn_of(MODULE, ["create_and_register_allocator_v2"])


__all__ = [
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "print_debug_info",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
]
