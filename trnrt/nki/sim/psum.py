"""What wrote each element of PSUM last, for the accumulate rule of nc_matmul.

A matmul with ``accumulate=None`` overwrites where no matmul has written since the tile was allocated (or since
memset cleared it: overwriting zeros and adding to them are the same) and adds elsewhere.
"""

from __future__ import annotations

import numpy as np

from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Instruction, MemoryRegion, View
from trnrt.nki.machine.targets import Target

# What wrote an element last; ZERO is a memset with 0, FOREIGN any other instruction but nc_matmul.
NOTHING, MATMUL, ZERO, FOREIGN = range(4)

_Window = tuple[int, tuple[int, ...], tuple[int, ...]]


class PsumWriters:
    """The last writers of all PSUM tiles of a program under construction."""

    def __init__(self, target: Target) -> None:
        self._added_to = {MATMUL, FOREIGN} if target.accumulates_on_foreign else {MATMUL}
        self._elements: dict[int, Array] = {}
        # The window that was written last, and by what: matmuls mostly write the same one again and again.
        self._latest: dict[int, tuple[_Window, int]] = {}

    def note(self, instruction: Instruction) -> None:
        """Remember what an instruction writes."""
        for arg in instruction.operation.writes:
            view = instruction.args[arg]
            if isinstance(view, View) and view.buffer is MemoryRegion.psum:
                if view.cast is not None or view.dynamic is not None:
                    view = View(view.storage, (view.storage.size,), (1,), 0)  # which elements, only the run knows
                latest = _window(view), _writer(instruction)
                if self._latest.get(view.storage.index) != latest:
                    self._of(view)[...] = latest[1]
                    self._latest[view.storage.index] = latest

    def accumulation(self, view: View, accumulate: bool | None) -> tuple[bool | Array, str]:
        """What a matmul into ``view`` does: whether it accumulates (True, False, or element by element), and on what:
        "matmul", "foreign" (another instruction's result) or "uninitialised"."""
        if accumulate is False:
            return False, "matmul"
        window, writer = self._latest.get(view.storage.index, (None, NOTHING))
        writers = {writer} if window == _window(view) else set(np.flatnonzero(np.bincount(self._of(view).ravel())))
        if accumulate:
            found = "uninitialised" if NOTHING in writers else "matmul" if writers == {MATMUL} else "foreign"
            return True, found
        found = "foreign" if FOREIGN in writers else "matmul"
        if writers <= self._added_to or not writers & self._added_to:
            return writers <= self._added_to, found
        return np.isin(self._of(view), list(self._added_to)), found

    def _of(self, view: View) -> Array:
        state = self._elements.get(view.storage.index)
        if state is None:
            state = self._elements[view.storage.index] = np.zeros(view.storage.size, np.uint8)
        return np.lib.stride_tricks.as_strided(state[view.offset :], view.shape, view.strides)


def _window(view: View) -> _Window:
    return view.offset, view.shape, view.strides


def _writer(instruction: Instruction) -> int:
    name = instruction.operation.name
    if name == "nc_matmul":
        return MATMUL
    return ZERO if name == "memset" and instruction["value"] == 0 else FOREIGN
