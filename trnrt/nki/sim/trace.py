"""Tracing: a kernel runs as Python, its `nisa` calls append checked instructions to a program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

from trnrt.errors import KernelError
from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.machine.program import Engine, Instruction, MemoryRegion, Operation, Program, Source, Storage, View
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.tensor import NkiTensor, contiguous_strides

_HERE = str(Path(__file__).resolve().parents[1])
# What a PSUM element was last written by, for the accumulate rule of nc_matmul.
_BY_NOTHING, _BY_MATMUL, _BY_OTHER = 0, 1, 2


class Tracer:
    """The program under construction."""

    def __init__(self, kernel: str, target: Target, entry: CodeType | None = None) -> None:
        self.program = Program(kernel, target, file=entry.co_filename if entry else "")
        self.target = target
        self._entry = entry
        self._psum_writers: dict[int, Array] = {}

    def argument(self, shape: tuple[int, ...], dtype: DType, name: str) -> NkiTensor:
        """A tensor argument of the kernel, in HBM."""
        source = Source(self.program.file, 0, self.program.kernel)
        tensor = self._tensor(shape, dtype, MemoryRegion.shared_hbm, name, source)
        self.program.inputs.append(tensor.storage)
        return tensor

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        buffer: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
    ) -> NkiTensor:
        """What ``nl.ndarray`` gives: storage that nothing has written."""
        source, _ = self._where(sys._getframe(2))
        tensor = self._tensor(shape, dtype, buffer, name, source)
        self._check_allocation(tensor.storage)
        if address is not None:
            tensor.storage.address = (int(address[0]), int(address[1]))
            tensor.storage.pinned = True
        return tensor

    def emit(self, operation: Operation, args: dict[str, Any], engine: Engine, name: str | None) -> Instruction:
        """Append an instruction after checking every rule that binds it. Called by a `nisa` function only."""
        source, line = self._where(sys._getframe(2))
        chosen = self._engine(operation, engine, source)
        instruction = Instruction(operation, chosen, args, source, line, name)
        self._check_operands(instruction)
        for rule in operation.rules:
            complaint = rule.check(instruction, self.target)
            if complaint is not None:
                raise KernelError(
                    f"{operation.name}: {complaint}\n  rule {rule.name}: {rule.says} ({rule.source})\n  at {source}"
                )
        self._note_psum_writes(instruction)
        self.program.instructions.append(instruction)
        return instruction

    def psum_state(self, view: View) -> tuple[bool | Array, str]:
        """For a matmul into ``view`` with ``accumulate=None``: whether it accumulates (True, False, or per element)
        and what it would accumulate on ("matmul", "foreign", "uninitialised")."""
        written = self._psum_window(view)
        if not written.any():
            return False, "uninitialised"
        found = "foreign" if (written == _BY_OTHER).any() else "matmul"
        if written.all():
            return True, found
        return written != _BY_NOTHING, found

    def _tensor(
        self, shape: tuple[int, ...], dtype: DType, buffer: MemoryRegion, name: str, source: Source
    ) -> NkiTensor:
        storage = Storage(len(self.program.storages), shape, dtype, buffer, name, source)
        self.program.storages.append(storage)
        return NkiTensor(storage, shape, contiguous_strides(shape), 0)

    def _check_allocation(self, storage: Storage) -> None:
        if not storage.on_chip:
            return
        if len(storage.shape) < 2:
            raise KernelError(f"{storage}: on-chip tensors have a partition and a free dimension, at least 2-D")
        if storage.shape[0] > self.target.partitions:
            raise KernelError(f"{storage}: {storage.shape[0]} partitions; the limit is {self.target.partitions}")
        usable = self.target.psum_bytes if storage.buffer is MemoryRegion.psum else self.target.sbuf_usable_bytes
        if storage.partition_bytes > usable:
            raise KernelError(
                f"{storage}: {storage.partition_bytes} bytes a partition; "
                f"{storage.buffer.value.upper()} of {self.target.name} has {usable}"
            )

    def _engine(self, operation: Operation, engine: Engine, source: Source) -> Engine:
        if engine is Engine.unknown:
            return operation.engines[0]
        if engine not in operation.engines:
            choices = ", ".join(e.name for e in operation.engines)
            raise KernelError(f"{operation.name} can't run on the {engine.name} engine, only {choices}\n  at {source}")
        return engine

    def _check_operands(self, instruction: Instruction) -> None:
        operation = instruction.operation
        for arg in operation.writes[:1]:
            if not isinstance(instruction.args[arg], View):
                raise KernelError(
                    f"{operation.name}: {arg}={instruction.args[arg]!r} is not a tensor\n  at {instruction.source}"
                )
        for arg, view in instruction.views():
            if view.size == 0:
                raise KernelError(f"{operation.name}: {arg} is empty, shape {view.shape}\n  at {instruction.source}")

    def _psum_window(self, view: View) -> Array:
        state = self._psum_writers.get(view.storage.index)
        if state is None:
            state = self._psum_writers[view.storage.index] = np.zeros(view.storage.size, np.uint8)
        window: Array = np.lib.stride_tricks.as_strided(state[view.offset :], view.shape, view.strides)
        return window

    def _note_psum_writes(self, instruction: Instruction) -> None:
        writer = _BY_MATMUL if instruction.operation.name == "nc_matmul" else _BY_OTHER
        for view in instruction.writes():
            if view.buffer is MemoryRegion.psum:
                self._psum_window(view)[...] = writer

    def _where(self, frame: FrameType | None) -> tuple[Source, int]:
        """The innermost source line outside the simulator, and the line of the kernel's own function above it."""
        while frame is not None and frame.f_code.co_filename.startswith(_HERE):
            frame = frame.f_back
        if frame is None:
            return Source("?", 0, "?"), 0
        code = frame.f_code
        source = Source(code.co_filename, frame.f_lineno, code.co_name)
        outer: FrameType | None = frame
        while outer is not None and outer.f_code is not self._entry:
            outer = outer.f_back
        return source, outer.f_lineno if outer is not None else 0


_ACTIVE: ContextVar[Tracer | None] = ContextVar("active_tracer", default=None)


@contextmanager
def activated(tracer: Tracer) -> Iterator[Tracer]:
    """Make ``tracer`` the one that `nl` and `nisa` calls append to."""
    token = _ACTIVE.set(tracer)
    try:
        yield tracer
    finally:
        _ACTIVE.reset(token)


def is_tracing() -> bool:
    """Whether a kernel is being traced in this context."""
    return _ACTIVE.get() is not None


def active_tracer(what: str) -> Tracer:
    """The tracer of the running kernel; KernelError where ``what`` was called outside of one."""
    tracer = _ACTIVE.get()
    if tracer is None:
        raise KernelError(f"{what} was called outside a kernel; decorate the function with @nki.jit and call that")
    return tracer
