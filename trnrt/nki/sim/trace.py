"""Tracing: a kernel runs as Python, its `nisa` calls append checked instructions to a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.level import Level, default_level
from trnrt.nki.machine.dtypes import Array, DType, float32
from trnrt.nki.machine.program import (
    Doubt,
    Engine,
    Instruction,
    Loop,
    MemoryRegion,
    Operation,
    Program,
    Source,
    Storage,
    View,
)
from trnrt.nki.machine.rules.allocation import ALLOCATION, OF_CAPACITY
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.compiler import CompileConfig, SpecializationConfig
from trnrt.nki.sim.psum import PsumWriters
from trnrt.nki.sim.tensor import NkiTensor
from trnrt.nki.sim.values import describe_kind

# The simulator's own files: a source line is the innermost one outside of them.
_HERE = str(Path(__file__).parents[1]) + os.sep
_PYTHON, _NUMPY = (str(Path(module.__file__ or "").parent) + os.sep for module in (os, np))
_NUMBER = (int, float, np.number, np.bool_)


@dataclass(frozen=True)
class JitOptions:
    """The arguments of ``nki.jit`` beside the function, from NKI 0.7 on."""

    compile_config: CompileConfig | None = None
    specialization_config: SpecializationConfig | None = None


class Tracer:
    """The program under construction."""

    def __init__(
        self,
        kernel: str,
        target: Target,
        entry: CodeType | None = None,
        *,
        strict: bool = False,
        core: int = 0,
        cores: int = 1,
        capacity: bool = True,
        level: Level | None = None,
        options: JitOptions | None = None,
    ) -> None:
        self.program = Program(kernel, target, file=entry.co_filename if entry else "")
        self.target = target
        self.strict = strict  # refuse what works on simulators only
        self.capacity = capacity  # refuse tiles that do not fit SBUF or PSUM
        self.level = level or default_level()  # the release of NKI whose language the kernel is traced by
        self.options = options or JitOptions()
        self.psum = PsumWriters(target)
        self.core, self.cores = core, cores
        self.open_loops: list[Loop] = []
        self.place: tuple[Source, int] | None = None  # of an instruction that is issued later than it is written
        self._registers = 0
        self._doubted: set[tuple[Source, str]] = set()
        self._entry = entry
        self._own = _own_code(entry)
        self._accumulators: dict[Engine, NkiTensor] = {}
        self._initialised: dict[tuple[str, DType], NkiTensor] = {}

    def argument(self, shape: tuple[int, ...], dtype: DType, name: str) -> NkiTensor:
        """A tensor argument of the kernel, in HBM."""
        source = Source(self.program.file, self._entry.co_firstlineno if self._entry else 0, self.program.kernel)
        tensor = self._new_tensor(shape, dtype, MemoryRegion.shared_hbm, name, source)
        self.program.inputs.append(tensor.storage)
        return tensor

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        buffer: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
        what: str = "nl.ndarray",
    ) -> NkiTensor:
        """New, unwritten storage for ``nl.ndarray`` or the function ``what``."""
        source, line = self._where(sys._getframe(2))
        number, pinned = len(self.program.storages), address is not None
        storage = Storage(number, shape, dtype, buffer, name, source, address, pinned, line)
        for rule in ALLOCATION:
            complaint = None if rule in OF_CAPACITY and not self.capacity else rule.check(storage, self.target)
            if complaint is not None:
                raise KernelError(f"{what}: {complaint}\n  rule {rule.name}: {rule.says} ({rule.source})")
        return self._add_tensor(storage)

    def new_register(self) -> int:
        """The number of a free scalar register."""
        self._registers += 1
        return self._registers

    def accumulators(self, engine: Engine, data: Any) -> NkiTensor | None:
        """The accumulator registers of an engine that work on ``data``: one a partition that it spans."""
        if engine not in self._accumulators:
            shape, name = (self.target.partitions, 1), f"accumulators of the {engine.name} engine"
            source = Source(self.program.file, 0, self.program.kernel)
            self._accumulators[engine] = self._new_tensor(shape, float32, MemoryRegion.registers, name, source)
        return self.lanes(self._accumulators[engine], data) if isinstance(data, View) else None

    def initial_tensor(self, name: str, dtype: DType, buffer: MemoryRegion, array: Array) -> NkiTensor:
        """A tensor that holds ``array`` when the program starts. Tensors of one name and dtype are the same."""
        known = self._initialised.get((name, dtype)) if name else None
        if known is None:
            source, _ = self._where(sys._getframe(2))
            known = self._new_tensor(array.shape, dtype, buffer, name, source)
            self.program.initial[known.storage.index] = array
            self._initialised[name, dtype] = known
        return known

    def lanes(self, state: NkiTensor, data: View) -> NkiTensor:
        """The rows of an engine's state for the partitions of ``data``."""
        start = data.start_partition + (data.storage.address[0] if data.storage.address else 0)
        return state[start : start + data.partitions]

    def emit(self, operation: Operation, args: dict[str, Any], engine: Engine, name: str | None) -> Instruction:
        """Append an instruction after checking every rule that binds it. Called by a `nisa` function only."""
        self._check_arguments(operation, args)
        source, line = self._where(sys._getframe(2))
        instruction = Instruction(operation, self._engine(operation, engine, args), args, source, line, name)
        for rule in operation.rules:
            complaint = rule.check(instruction, self.target)
            if complaint is not None:
                doubt = Doubt(source, rule, f"{operation.name}: {complaint}")
                if rule.refuses:
                    raise KernelError(str(doubt))
                if (source, rule.name) not in self._doubted:
                    self._doubted.add((source, rule.name))
                    self.program.doubts.append(doubt)
        self.psum.note(instruction)
        self.program.instructions.append(instruction)
        return instruction

    def loop_place(self) -> Source:
        """The line that began the innermost open device loop."""
        loop = self.open_loops[-1]
        return next(i.source for i in reversed(self.program.instructions) if i.args.get("loop") is loop)

    def _new_tensor(
        self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str, source: Source
    ) -> NkiTensor:
        return self._add_tensor(Storage(len(self.program.storages), shape, dtype, buffer, name, source))

    def _add_tensor(self, storage: Storage) -> NkiTensor:
        self.program.storages.append(storage)
        return NkiTensor(storage, storage.shape, storage.strides, 0)

    def _engine(self, operation: Operation, engine: Engine, args: dict[str, Any]) -> Engine:
        """The engine that runs an instruction; by default, the first one that reaches the destination."""
        if engine is Engine.unknown:
            if operation.engines[0] is not Engine.gpsimd:
                return operation.engines[0]
            far = any(
                isinstance(args.get(arg), View) and args[arg].buffer is MemoryRegion.psum for arg in operation.writes
            )
            return next((e for e in operation.engines if not (far and e is Engine.gpsimd)), operation.engines[0])
        if engine not in operation.engines:
            choices = ", ".join(e.name for e in operation.engines)
            shown = engine.name if isinstance(engine, Engine) else repr(engine)
            raise KernelError(f"{operation.name} can't run on the {shown} engine, only on {choices}")
        return engine

    def _check_arguments(self, operation: Operation, args: dict[str, Any]) -> None:
        """KernelError unless tensor arguments are non-empty tensors of this kernel, and numbers are numbers."""
        for arg in operation.tensors:
            value = args[arg]
            if isinstance(value, View):
                self._check_tensor(operation, arg, value)
            elif not (value is None and arg in operation.optional) and arg not in operation.numbers:
                raise KernelError(f"{operation.name}: {arg} is {describe_kind(value)}; it must be a tensor")
        for arg in operation.numbers:
            value = args[arg]
            if isinstance(value, View) and arg in operation.tensors:
                continue
            if not isinstance(value, _NUMBER) and not (value is None and arg in operation.optional):
                raise KernelError(f"{operation.name}: {arg} is {describe_kind(value)}; it must be a number")

    def _check_tensor(self, operation: Operation, arg: str, view: View) -> None:
        storages, index = self.program.storages, view.storage.index
        if index >= len(storages) or storages[index] is not view.storage:
            raise KernelError(f"{operation.name}: {arg} belongs to another kernel call: {view.storage}")
        if isinstance(view, NkiTensor):
            view.check_bounds(operation.name, arg)
        if 0 in view.shape:
            raise KernelError(f"{operation.name}: {arg} is empty, shape {view.shape}")

    def here(self) -> tuple[Source, int]:
        """The line of the kernel that is running, and that of the kernel's own code above it."""
        return self._where(sys._getframe(1))

    def _where(self, frame: FrameType | None) -> tuple[Source, int]:
        """The innermost source line outside the simulator, and the line of the kernel's own code above it."""
        if self.place is not None:
            return self.place
        while frame is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        if frame is None:
            return Source("?", 0, "?"), 0
        code = frame.f_code
        source = Source(code.co_filename, frame.f_lineno, code.co_name)
        outer: FrameType | None = frame
        while outer is not None and id(outer.f_code) not in self._own:
            outer = outer.f_back
        return source, outer.f_lineno if outer is not None else 0


def _own_code(entry: CodeType | None) -> frozenset[int]:
    """The ids of the code of a kernel's function and of the functions inside it: the bodies of its device loops."""
    if entry is None:
        return frozenset()
    inner = [_own_code(code) for code in entry.co_consts if isinstance(code, CodeType)]
    return frozenset({id(entry)}).union(*inner)


def is_simulators(code: CodeType) -> bool:
    """True if a function is one of the simulator's own."""
    return code.co_filename.startswith(_HERE)


def source_of(traceback: TracebackType | None) -> Source | None:
    """The innermost line of the user's code that a traceback passes through: outside the simulator, numpy and Python.

    If there is none, the innermost outside the simulator.
    """
    found = own = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(_HERE):
            found = Source(code.co_filename, traceback.tb_lineno, code.co_name)
            own = own if _is_library(code.co_filename) else found
        traceback = traceback.tb_next
    return own or found


def without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the simulator's frames: it ends at the kernel's line."""
    kept = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_HERE):
            kept.append(traceback)
        traceback = traceback.tb_next
    found = None
    for one in reversed(kept):
        found = TracebackType(found, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return found


def _is_library(file: str) -> bool:
    """True for a file of numpy or of Python's own library. Other packages may hold kernels."""
    of_python = file.startswith(_PYTHON) and "-packages" not in file.removeprefix(_PYTHON).partition(os.sep)[0]
    return of_python or file.startswith((_NUMPY, "<frozen "))


_ACTIVE: ContextVar[Tracer | None] = ContextVar("active_tracer", default=None)


@contextmanager
def activate(tracer: Tracer) -> Iterator[Tracer]:
    """Make ``tracer`` the one that `nl` and `nisa` calls append to."""
    token = _ACTIVE.set(tracer)
    try:
        yield tracer
    finally:
        _ACTIVE.reset(token)


def is_tracing() -> bool:
    """True if a kernel is being traced in this context."""
    return _ACTIVE.get() is not None


def active_tracer(what: str) -> Tracer:
    """The tracer of the running kernel; KernelError if ``what`` was called outside of one."""
    tracer = _ACTIVE.get()
    if tracer is None:
        raise KernelError(f"{what} was called outside a kernel; decorate the function with @nki.jit and call that")
    return tracer
