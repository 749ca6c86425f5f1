"""The executor: a compiled program bound once to numpy arrays, then replayed for each input.

Storages whose lives do not overlap share a host array, as tiles share SBUF. A storage that is not wholly
written by its first write is filled with NaN first (integers with 4, as AWS's simulator reads them), because
memory that nothing wrote must not look like a number, and what another tile or an earlier run left must not show.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided

from trnrt.errors import KernelError
from trnrt.nki.machine.dtypes import Array, DType, as_dtype, rounder, tfloat32
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


def from_host(array: Array, storage: Storage) -> Array:
    """A caller's array as the storage holds it, flat. Floats of another width are rounded, a single number fits
    where there is one element; KernelError if the shape or the kind of number is another."""
    try:
        given, dtype = as_dtype(array.dtype), storage.dtype
    except TypeError as error:
        raise KernelError(f"argument {storage.name!r}: {error}") from None
    fits = array.shape == storage.shape or (array.ndim == 0 and storage.size == 1)
    if not fits or (given != dtype and not (given.is_float and dtype.is_float)):
        takes, got = f"{dtype} of shape {storage.shape}", f"{given} of shape {array.shape}"
        raise KernelError(f"argument {storage.name!r} takes {takes}; it was given {got}")
    held = np.ascontiguousarray(array, dtype=dtype.held).reshape(-1)
    rounded = rounder(dtype) if given != dtype or dtype is tfloat32 else None
    return held if rounded is None else rounded(held)


class _Memory:
    """The host arrays of a program's storages, and the scratch that its instructions share."""

    def __init__(self) -> None:
        self.held: dict[int, Array] = {}
        self._scratch: dict[tuple[str, tuple[int, ...]], Array] = {}

    def __call__(self, view: View) -> Array:
        return view_array(view, self.held[view.storage.index])

    def scratch(self, use: str, shape: tuple[int, ...]) -> Array:
        known = self._scratch.get((use, shape))
        if known is None:
            known = self._scratch[use, shape] = np.empty(shape, np.float32)
        return known


class Executor:
    """A program with its arrays. ``run`` takes and returns numpy arrays, in the order of the kernel's arguments.

    An argument that was never given reads as memory that nothing wrote.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._memory = _Memory()
        self._actions: list[Callable[[], None]] = []
        for storage in program.inputs:
            self._hold(storage)
        with np.errstate(all="ignore"):
            self._bind()
        self._outputs = [(view_array(v, self._hold(v.storage)), v.dtype) for v in program.outputs]

    def load(self, position: int, array: Array) -> None:
        """Put ``array`` into the kernel's tensor argument number ``position``; it stays until replaced."""
        storage = self.program.inputs[position]
        np.copyto(self._memory.held[storage.index], from_host(array, storage))

    def run(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Replay the program. ``None`` keeps the argument that was loaded before (weights, usually)."""
        for position, array in enumerate(inputs):
            if array is not None:
                self.load(position, array)
        with np.errstate(all="ignore"):
            for action in self._actions:
                action()
        return [to_host(array, dtype) for array, dtype in self._outputs]

    def _hold(self, storage: Storage) -> Array:
        held = self._memory.held
        if storage.index not in held:
            held[storage.index] = np.full(storage.size, _unwritten(storage), storage.dtype.held)
        return held[storage.index]

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
            new = [view for view in instruction.touches() if spans[view.storage.index][0] == position]
            if new:
                read = {view.storage.index for view in instruction.reads()}
                for view in new:
                    overwritten = view.storage.index not in read and view.covers_storage()
                    self._take(view.storage, free, overwritten=overwritten)
            self._actions.append(instruction.operation.bind(instruction, self._memory))
            for storage in ending.pop(position, ()):
                array = self._memory.held[storage.index]
                free[array.size, array.dtype].append(array)

    def _take(
        self, storage: Storage, free: dict[tuple[int, np.dtype[np.generic]], list[Array]], *, overwritten: bool
    ) -> None:
        """Give a storage an array when the first instruction that touches it is bound.

        ``overwritten``: that instruction writes every element, so that nothing can be read before.
        """
        held = self._memory.held
        if storage.index not in held:
            pool = free[storage.size, storage.dtype.held]
            if pool:
                held[storage.index] = pool.pop()
            array = self._hold(storage)
            if not overwritten:
                self._actions.append(partial(array.fill, _unwritten(storage)))
