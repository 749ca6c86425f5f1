"""The constants of onnxruntime's options, with onnxruntime's numbers."""

from __future__ import annotations

from enum import Enum, IntEnum


class _Constant(IntEnum):
    """A constant that prints its name, as onnxruntime's do."""

    __str__ = Enum.__str__


class GraphOptimizationLevel(_Constant):
    """The rewrites of a graph that onnxruntime may do; here the planner decides."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Constant):
    """The number of nodes that onnxruntime runs at a time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Constant):
    """The order in which onnxruntime runs nodes."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Constant):
    """A kind of onnxruntime's allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Constant):
    """A kind of memory in onnxruntime."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0
