"""The executor: a compiled program bound once to numpy arrays, then replayed for each input.

Storages whose lives do not overlap share a host array, as tiles share SBUF. A storage that is not wholly
written by its first write is filled with NaN first (integers with 4, as AWS's simulator reads them), because
memory that nothing wrote must not look like a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from trnrt.nki.machine.dtypes import Array, DType, held_array
from trnrt.nki.machine.program import Program, Storage, View


def _unwritten(storage: Storage) -> float:
    """What memory that nothing wrote reads as."""
    return np.nan if storage.dtype.is_float else 4


def view_array(view: View, held: Array) -> Array:
    """The numpy window that a view means on the flat array that holds its storage."""
    size = held.itemsize
    return as_strided(held[view.offset :], view.shape, tuple(s * size for s in view.strides))


def to_host(array: Array, dtype: DType) -> Array:
    """A held array as the numpy dtype a caller expects (bfloat16 through ml_dtypes); always a copy."""
    return array.astype(dtype.numpy if dtype.is_float else array.dtype)


class Executor:
    """A program with its arrays. ``run`` takes and returns numpy arrays, in the order of the kernel's arguments."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._held: dict[int, Array] = {}
        self._actions: list[Callable[[], None]] = []
        self._allocate_inputs()
        with np.errstate(all="ignore"):
            self._bind()
        self._outputs = [(view_array(v, self._hold(v.storage)), v.dtype) for v in program.outputs]

    def load(self, position: int, array: Array) -> None:
        """Put ``array`` into the kernel's tensor argument number ``position``; it stays until replaced."""
        storage = self.program.inputs[position]
        np.copyto(self._held[storage.index], held_array(array, storage.dtype).reshape(-1))

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Replay the program. ``None`` keeps the argument that was loaded before (weights, usually)."""
        for position, array in enumerate(inputs):
            if array is not None:
                self.load(position, array)
        with np.errstate(all="ignore"):
            for action in self._actions:
                action()
        return [to_host(array, dtype) for array, dtype in self._outputs]

    def _allocate_inputs(self) -> None:
        for storage in self.program.inputs:
            self._held[storage.index] = np.zeros(storage.size, storage.dtype.held)

    def _hold(self, storage: Storage) -> Array:
        if storage.index not in self._held:
            self._held[storage.index] = np.full(max(storage.size, 1), _unwritten(storage), storage.dtype.held)
        return self._held[storage.index]

    def _bind(self) -> None:
        """One action an instruction, plus a fill where a storage's first write leaves a part unwritten."""
        program = self.program
        spans = program.lifetimes()
        kept = {v.storage.index for v in program.outputs} | {s.index for s in program.inputs}
        ending: dict[int, list[Storage]] = defaultdict(list)
        for index, (_, last) in spans.items():
            if index not in kept:
                ending[last].append(program.storages[index])
        free: dict[tuple[int, np.dtype[np.generic]], list[Array]] = defaultdict(list)
        for position, instruction in enumerate(program.instructions):
            read = {view.storage.index for view in instruction.reads()}
            for view in instruction.writes():
                if spans[view.storage.index][0] == position:
                    self._take(view, free, overwritten=view.storage.index not in read and view.covers_storage())
            for view in instruction.reads():
                if spans[view.storage.index][0] == position:
                    self._take(view, free, overwritten=False)
            self._actions.append(instruction.operation.bind(instruction, self._array))
            for storage in ending.pop(position, ()):
                array = self._held[storage.index]
                free[array.size, array.dtype].append(array)

    def _take(
        self, view: View, free: dict[tuple[int, np.dtype[np.generic]], list[Array]], *, overwritten: bool
    ) -> None:
        """Give the view's storage an array when the first instruction that touches it is bound.

        ``overwritten``: that instruction writes every element, so that nothing can be read before.
        """
        storage = view.storage
        if storage.index not in self._held:
            pool = free[max(storage.size, 1), storage.dtype.held]
            if pool:
                self._held[storage.index] = pool.pop()
            array = self._hold(storage)
            if not overwritten:
                self._actions.append(partial(array.fill, _unwritten(storage)))

    def _array(self, view: View) -> Array:
        return view_array(view, self._held[view.storage.index])
