"""The executor: a compiled program bound once to numpy arrays, then replayed for each input.

Storages whose lives do not overlap share a host array, as tiles share SBUF. A storage that its first write does not
fill is filled with NaN first (integers with 4, as in AWS's simulator): unwritten memory must not look like a number,
and must not show values of another tile or an earlier run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from trnrt.nki.blas import one_blas_thread
from trnrt.nki.errors import KernelError
from trnrt.nki.machine.binding import view_array
from trnrt.nki.machine.collecting import without_collection
from trnrt.nki.machine.dtypes import Array, DType, as_dtype, float32, rounder, rounding, tfloat32
from trnrt.nki.machine.elision import elided_loads, source_view, unread_tiles
from trnrt.nki.machine.lifetimes import find_lifetimes
from trnrt.nki.machine.program import Instruction, Loop, MemoryRegion, Program, Register, Source, Storage, View
from trnrt.nki.machine.staging import Stager, byte_storages, view_typed
from trnrt.nki.machine.warning import warn_at

Action = Callable[[], None]
_SHARED = MemoryRegion.shared_hbm


def unwritten_value(storage: Storage) -> float:
    """The value of memory that was never written."""
    return np.nan if storage.dtype.is_float else 4


def to_host(array: Array, dtype: DType) -> Array:
    """A held array in the numpy dtype that a caller expects (bfloat16 through ml_dtypes); always a copy."""
    return array.astype(dtype.numpy if dtype.is_float and array.dtype.kind not in "iub" else array.dtype)


def from_host(array: Array, storage: Storage) -> Array:
    """A caller's array as the storage holds it, flat.

    Floats of another width are rounded; a scalar fits a storage of one element. KernelError for another shape or kind
    of number.
    """
    try:
        given, dtype = as_dtype(array.dtype), storage.dtype
    except TypeError as error:
        raise KernelError(f"argument {storage.name!r}: {error}") from None
    fits = array.shape == storage.shape or (array.ndim == 0 and storage.size == 1)
    if not fits or (given != dtype and not (given.is_float and dtype.is_float)):
        takes, got = f"{dtype} of shape {storage.shape}", f"{given} of shape {array.shape}"
        raise KernelError(f"argument {storage.name!r} takes {takes}; it was given {got}")
    held = np.ascontiguousarray(array, dtype=dtype.array_dtype).reshape(-1)
    rounded = rounder(dtype) if given != dtype or dtype is tfloat32 else None
    return held if rounded is None else rounded(held)


class _Memory:
    """The host arrays of a program's storages, its registers, and its instructions' shared scratch.

    ``as_bytes``: storages held as the device's bytes (see ``staging``); ``sources``: tiles that are read straight from
    the argument that they were loaded from (see ``elision``).
    """

    def __init__(self, as_bytes: set[int], sources: dict[int, View]) -> None:
        self.held: dict[int, Array] = {}
        self.as_bytes = as_bytes
        self.sources = sources
        self._registers: dict[int, list[int]] = {}
        self._scratch: dict[tuple[str, tuple[int, ...]], Array] = {}
        self.warned: set[tuple[str, Any, Source]] = set()

    def __call__(self, view: View) -> Array:
        if view.storage.index in self.sources:
            through = source_view(view, self.sources[view.storage.index])
            assert through is not None
            view = through
        held = self.held[view.storage.index]
        return view_array(view, view_typed(held, view.dtype) if self.as_bytes else held)

    def hold(self, storage: Storage) -> Array:
        """The flat array that holds a storage, made on first use."""
        if storage.index not in self.held:
            dtype = storage.dtype.numpy if storage.index in self.as_bytes else storage.dtype.array_dtype
            array = np.full(storage.size, unwritten_value(storage), dtype)
            self.held[storage.index] = array.view(np.uint8) if storage.index in self.as_bytes else array
        return self.held[storage.index]

    def convert_input(self, storage: Storage, array: Array) -> Array:
        """A caller's array in the form that holds the storage."""
        held = from_host(array, storage)
        return held.astype(storage.dtype.numpy).view(np.uint8) if storage.index in self.as_bytes else held

    def register(self, register: Register) -> list[int]:
        """The one integer of a register, in a list."""
        return self._registers.setdefault(register.index, [0])

    def warn(self, instruction: Instruction, message: str) -> None:
        """Warn about an instruction; once per run for each operation on a line of the kernel."""
        operation, source = instruction.operation.name, instruction.source
        known = operation, instruction.args.get("op"), source
        if known not in self.warned:
            self.warned.add(known)
            warn_at(source, f"{operation}: {message}")

    def scratch(self, use: str, shape: tuple[int, ...]) -> Array:
        known = self._scratch.get((use, shape))
        if known is None:
            known = self._scratch[use, shape] = np.empty(shape, np.float32)
        return known


class Executor:
    """A program with its arrays. ``run`` takes and returns numpy arrays, in the order of the kernel's arguments.

    ``precise=False`` rounds nothing: tiles of any float format hold float32 numbers, and so do results. An argument
    that was never given reads as unwritten memory. ``shared``: the arrays of storages that another core holds.
    ``segments`` run between ``meetings``, where cores wait for each other. ``given``: constant arguments by position
    (weights). They are read in place if possible, and must not change.
    """

    def __init__(
        self,
        program: Program,
        shared: dict[int, Array] | None = None,
        *,
        precise: bool = True,
        given: Mapping[int, Array] | None = None,
    ) -> None:
        self.program = program
        self.precise = precise
        self.segments: list[list[Action]] = []
        self.meetings: list[Instruction] = []
        as_bytes = byte_storages(program)
        # Another core may write to its source: copy it when the kernel does.
        self._memory = _Memory(as_bytes, elided_loads(program, as_bytes) if shared is None else {})
        self._memory.held.update(shared or {})
        self._stager = Stager(self._memory.hold, self._memory.register, self._memory.as_bytes)
        self._actions: list[Action] = []
        copied = self._hold_given(given or {})
        self._as_it_is = [self._given_array(storage) for storage in program.inputs]
        for position, array in copied.items():
            self.load(position, array)
        self._restored: list[tuple[Array, Array]] = []
        self._initialise()
        with np.errstate(all="ignore"), rounding(precise), without_collection():
            self._bind()
        for view in program.outputs:
            self._memory.hold(view.storage)
        self._outputs = [(self._memory(view), view.dtype) for view in program.outputs]

    def _hold_given(self, given: Mapping[int, Array]) -> dict[int, Array]:
        """Hold arguments in place; return those that must be copied, because they are held as bytes or may be written
        to."""
        program, copied, changed = self.program, dict[int, Array](), self.program.writers()
        for position, array in given.items():
            storage = program.inputs[position]
            if storage.index in changed or storage.index in self._memory.as_bytes or storage.index in program.initial:
                copied[position] = array
            else:
                self._memory.held[storage.index] = from_host(array, storage)
        return copied

    def load(self, position: int, array: Array) -> None:
        """Set the kernel's tensor argument number ``position``; it stays until replaced."""
        as_it_is = self._as_it_is[position]
        if as_it_is is not None and array.dtype == as_it_is.dtype and array.shape == as_it_is.shape:
            np.copyto(as_it_is, array)
            return
        storage = self.program.inputs[position]
        np.copyto(self._memory.held[storage.index], self._memory.convert_input(storage, array))

    def _given_array(self, storage: Storage) -> Array | None:
        """An argument's array in its shape, if a caller's numbers need no conversion to be held there."""
        held, dtype = self._memory.hold(storage), storage.dtype
        converted = storage.index in self._memory.as_bytes or dtype.numpy != dtype.array_dtype or dtype is tfloat32
        return None if converted else held.reshape(storage.shape)

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Replay the program. ``None`` keeps the previous argument (usually weights)."""
        for position, array in enumerate(inputs):
            if array is not None:
                self.load(position, array)
        self.restore()
        with np.errstate(all="ignore"), one_blas_thread():
            for segment in range(len(self.segments)):
                self.run_segment(segment)
        return self.results()

    def restore(self) -> None:
        """Begin a run, with all warnings again: restore initial values that the last run has overwritten."""
        self._memory.warned.clear()
        for held, given in self._restored:
            np.copyto(held, given)

    def run_segment(self, segment: int) -> None:
        """Run the instructions between two meetings."""
        for action in self.segments[segment]:
            action()

    def results(self) -> list[Array]:
        """The kernel's results, as they are in memory now."""
        return [to_host(array, dtype if self.precise else float32) for array, dtype in self._outputs]

    @property
    def programs(self) -> list[Program]:
        """The program of each core: the one."""
        return [self.program]

    @cached_property
    def changes(self) -> list[int]:
        """The arguments that the program writes to, by their position."""
        return self.program.changes()

    def argument(self, position: int) -> Array:
        """The value of a tensor argument after a run."""
        storage = self.program.inputs[position]
        array = view_typed(self._memory.hold(storage), storage.dtype).reshape(storage.shape)
        return to_host(array, storage.dtype if self.precise else float32)

    def window(self, view: View) -> Array:
        """The window of a view on its storage's array."""
        return self._memory(view)

    def _initialise(self) -> None:
        """Set the initial values of storages; those that the program overwrites are restored at each start."""
        program = self.program
        written = program.writers() if program.initial else {}
        for index, array in program.initial.items():
            storage = program.storages[index]
            held, given = self._memory.hold(storage), self._memory.convert_input(storage, array)
            np.copyto(held, given)
            if index in written:
                self._restored.append((held, given))

    def _bind(self) -> None:
        """Make one action an instruction, plus a fill if a storage's first write leaves a part unwritten.

        A device loop becomes one action of the code around it.
        """
        program, unread = self.program, unread_tiles(self.program)
        spans = {index: span for index, span in find_lifetimes(program).items() if index not in unread}
        beginning, ending = self._begin_and_end(spans)
        free: dict[tuple[int, np.dtype[np.generic]], list[Array]] = defaultdict(list)
        around: list[list[Action]] = []
        skipped = unread.union(self._memory.sources)
        for position, instruction in enumerate(program.instructions):
            for storage in beginning.pop(position, ()):
                self._take(storage, free, overwritten=_overwrites(instruction, storage))
            if instruction.operation.name == "loop_begin":
                around.append(self._actions)
                self._actions = []
            elif instruction.operation.name == "loop_end":
                body, self._actions = self._actions, around.pop()
                self._actions.append(_loop(instruction["loop"], body, self._memory.register))
            elif instruction.operation.meets and not around:
                self.meetings.append(instruction)
                self.segments.append(self._actions)
                self._actions = []
            elif any(view.storage.index in skipped for view in instruction.writes()):
                pass  # an elided load, or of a tile that nothing reads
            elif self._stager.wants(instruction):
                self._actions.append(self._stager.bind(instruction, self._memory))
            else:
                self._actions.append(instruction.operation.meaning(instruction, self._memory))
            for storage in ending.pop(position, ()):
                array = self._memory.held[storage.index]
                free[array.size, array.dtype].append(array)
        self.segments.append(self._actions)

    def _begin_and_end(
        self, spans: dict[int, tuple[int, int]]
    ) -> tuple[dict[int, list[Storage]], dict[int, list[Storage]]]:
        """The storages whose lives begin and end at each instruction; shared HBM and results never end."""
        storages, program = self.program.storages, self.program
        kept = {v.storage.index for v in program.outputs} | {s.index for s in storages if s.buffer is _SHARED}
        kept |= set(program.initial)
        beginning: dict[int, list[Storage]] = defaultdict(list)
        ending: dict[int, list[Storage]] = defaultdict(list)
        for index, (first, last) in spans.items():
            if index in self._memory.sources:
                continue
            beginning[first].append(storages[index])
            if index not in kept:
                ending[last].append(storages[index])
        return beginning, ending

    def _take(
        self, storage: Storage, free: dict[tuple[int, np.dtype[np.generic]], list[Array]], *, overwritten: bool
    ) -> None:
        """Give a storage an array when its life begins.

        ``overwritten``: its first instruction writes every element, so nothing can be read earlier.
        """
        memory = self._memory
        if storage.index not in memory.held:
            pool = free[storage.size, storage.dtype.array_dtype]
            if pool and storage.index not in memory.as_bytes:
                memory.held[storage.index] = pool.pop()
            array = view_typed(memory.hold(storage), storage.dtype)
            if not overwritten:
                self._actions.append(partial(array.fill, unwritten_value(storage)))


def _overwrites(instruction: Instruction, storage: Storage) -> bool:
    """True if an instruction writes every element of a storage and reads none."""
    if any(view.storage is storage for view in instruction.reads()):
        return False
    return any(view.storage is storage and view.covers_storage() for view in instruction.writes())


def _loop(loop: Loop, body: list[Action], register: Callable[[Register], list[int]]) -> Action:
    """A device loop as one action. Bounds are read once, when it begins; a while loop's condition before each round."""
    if loop.condition is not None:
        condition = register(loop.condition)

        def run_while() -> None:
            while condition[0]:
                for action in body:
                    action()

        return run_while
    assert loop.counter is not None
    counter = register(loop.counter)
    start, stop = (register(b) if isinstance(b, Register) else [b] for b in (loop.start, loop.stop))

    def run() -> None:
        for value in range(start[0], stop[0], loop.step):
            counter[0] = value
            for action in body:
                action()

    return run
