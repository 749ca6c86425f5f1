"""The last writer of each element of PSUM, for the accumulate rule of nc_matmul.

A matmul with ``accumulate=None`` overwrites where no matmul has written since the tile was allocated (or since
memset cleared it: overwriting zeros and adding to them are the same) and adds elsewhere.
"""

from __future__ import annotations

import numpy as np

from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.machine.program import Instruction, MemoryRegion, Storage, View
from trnrt.nki.machine.staging import element_places
from trnrt.nki.machine.targets import Target

# The last writer of an element. ZERO is a memset with 0, FOREIGN any other instruction but nc_matmul.
NOTHING, MATMUL, ZERO, FOREIGN = range(4)

_Window = tuple[int, tuple[int, ...], tuple[int, ...], DType | None]


class PsumWriters:
    """The last writers of all PSUM tiles of a program under construction."""

    def __init__(self, target: Target) -> None:
        self._added_to = {MATMUL, FOREIGN} if target.accumulates_on_foreign else {MATMUL}
        # The writer of each tile that one instruction wrote as a whole. Checking single elements would take longer than
        # all the rest of tracing a product.
        self._whole: dict[int, int] = {}
        self._elements: dict[int, Array] = {}  # of the other tiles
        # The window of the last write, and its writer: matmuls mostly write the same one again and again.
        self._latest: dict[int, tuple[_Window, int]] = {}

    def note(self, instruction: Instruction) -> None:
        """Remember what an instruction writes."""
        for arg in instruction.operation.writes:
            view = instruction.args[arg]
            if isinstance(view, View) and view.buffer is MemoryRegion.psum:
                self._write(view, _writer(instruction))

    def accumulation(self, view: View, accumulate: bool | None) -> tuple[bool | Array, str]:
        """Whether a matmul into ``view`` accumulates (True, False, or element by element), and the contents: "matmul",
        "foreign" (another instruction's result) or "uninitialised"."""
        if accumulate is False:
            return False, "matmul"
        writers = self._writers(view)
        if accumulate:
            found = "uninitialised" if NOTHING in writers else "matmul" if writers == {MATMUL} else "foreign"
            return True, found
        found = "foreign" if FOREIGN in writers else "matmul"
        if writers <= self._added_to or not writers & self._added_to:
            return writers <= self._added_to, found
        return np.isin(self._last_writers(view), list(self._added_to)), found

    def _write(self, view: View, writer: int) -> None:
        index = view.storage.index
        if self._whole.get(index) == writer:
            return
        # Only the run knows which elements a run-time index selects: all count as written.
        if view.dynamic is not None or view.covers_storage():
            self._whole[index] = writer
            self._elements.pop(index, None)
            self._latest.pop(index, None)
            return
        latest = _window(view), writer
        if self._latest.get(index) != latest:
            state = self._state(view.storage)
            if _other_size(view):
                state[_touched_elements(view)] = writer
            else:
                _view_state(state, view)[...] = writer
            self._latest[index] = latest

    def _writers(self, view: View) -> set[int]:
        """The last writers of a view's elements."""
        index = view.storage.index
        if index in self._whole:
            return {self._whole[index]}
        window, writer = self._latest.get(index, (None, NOTHING))
        return (
            {writer} if window == _window(view) else set(np.flatnonzero(np.bincount(self._last_writers(view).ravel())))
        )

    def _last_writers(self, view: View) -> Array:
        """The last writer of each element of a view. An element that spans several has the largest of their numbers."""
        state = self._state(view.storage)
        return state[_touched_elements(view)].max(axis=-1) if _other_size(view) else _view_state(state, view)

    def _state(self, storage: Storage) -> Array:
        state = self._elements.get(storage.index)
        if state is None:
            before = self._whole.pop(storage.index, NOTHING)
            state = self._elements[storage.index] = np.full(storage.size, before, np.uint8)
        return state


def _other_size(view: View) -> bool:
    """True if the view's elements are larger or smaller than its storage's."""
    return view.cast is not None and view.cast.itemsize != view.storage.dtype.itemsize


def _view_state(state: Array, view: View) -> Array:
    return np.lib.stride_tricks.as_strided(state[view.offset :], view.shape, view.strides)


def _touched_elements(view: View) -> Array:
    """The storage's elements under each element of a view of another size, along a last dimension."""
    size, unit = view.dtype.itemsize, view.storage.dtype.itemsize
    return (element_places(view) * size // unit)[..., np.newaxis] + np.arange(max(1, size // unit))


def _window(view: View) -> _Window:
    return view.offset, view.shape, view.strides, view.cast


def _writer(instruction: Instruction) -> int:
    name = instruction.operation.name
    if name == "nc_matmul":
        return MATMUL
    return ZERO if name == "memset" and instruction["value"] == 0 else FOREIGN
