"""Operands that are not plain windows on a held array: run-time addresses, and bits that are read as another dtype.

Such an operand is *staged*: before the instruction runs, its elements are copied to an array of its own, in the form
that every instruction computes with; afterwards, written elements are copied back. The instruction itself is bound to
the staged array, and needs no code for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from trnrt.nki.errors import KernelError
from trnrt.nki.machine.binding import Arrays, view_array
from trnrt.nki.machine.dtypes import Array, DType
from trnrt.nki.machine.modes import oob_mode
from trnrt.nki.machine.program import Instruction, MemoryRegion, Program, Register, Source, Storage, View

Action = Callable[[], None]


def byte_storages(program: Program) -> set[int]:
    """Storages that are read as more than one dtype: they are held as the device's bytes."""
    views = [view for instruction in program.instructions for view in instruction.touches()] + program.outputs
    return {view.storage.index for view in views if view.cast is not None and view.cast != view.storage.dtype}


def view_typed(held: Array, dtype: DType) -> Array:
    """The flat elements of a storage as ``dtype``: the held array itself, or its bytes read as that."""
    return held.view(dtype.numpy) if held.dtype == np.uint8 and dtype.numpy != np.uint8 else held


@dataclass(frozen=True, slots=True, eq=False)
class StagedOperand:
    """One operand, and the array that replaces it while its instruction runs.

    ``flat`` has all elements of its storage. ``index`` reads the run-time index; None for a fixed address. ``skips``:
    skip rows whose index is out of bounds.
    """

    view: View
    flat: Array
    staged: Array
    index: Callable[[], Array] | None
    skips: bool

    def load(self) -> Array | None:
        """Copy the elements in; return which rows are out of bounds, or None."""
        places, outside = self._places()
        np.copyto(self.staged, self.flat[places], casting="unsafe")
        return outside

    def store(self) -> None:
        """Copy written elements back, except for rows that are out of bounds."""
        places, outside = self._places()
        values = self.staged.astype(self.flat.dtype, copy=False)
        if outside is None:
            self.flat[places] = values
        else:
            self.flat[places[~outside]] = values[~outside]

    def require_unique(self) -> None:
        """KernelError if a row is selected twice: DMA reads all rows, and then writes each of them once."""
        dynamic = self.view.dynamic
        if self.index is None or dynamic is None or dynamic.vector is None:
            return
        index = self.index()
        rows, counts = np.unique(index[(index >= 0) & (index < dynamic.limit)], return_counts=True)
        if (counts > 1).any():
            row, count = int(rows[counts > 1][0]), int(counts[counts > 1][0])
            raise KernelError(
                f"row {row} of {self.view.storage} is selected {count} times by one instruction that adds to it; "
                "a DMA adds to each row once (unique_indices=True)",
                hint="add the values of equal rows first, or add to them in instructions of their own",
            )

    def _places(self) -> tuple[Array, Array | None]:
        """The storage's element for each element of the view, and the rows that are out of bounds."""
        places = element_places(self.view)
        if self.index is None:
            return places, None
        dynamic = self.view.dynamic
        assert dynamic is not None
        index = self.index()
        rows = index.reshape(-1, *(1,) * (places.ndim - 1)) if dynamic.vector is not None else index.reshape(())
        outside = (index < 0) | (index >= dynamic.limit)
        places = places + rows * dynamic.stride
        if dynamic.vector is None:
            outside = np.broadcast_to(outside.reshape(()) | (places < 0).any() | (places >= self.flat.size).any(), 1)
        if not outside.any():
            return places, None
        if not self.skips:
            wrong = index.reshape(-1)[outside.reshape(-1)] if index.size == outside.size else index.reshape(-1)
            raise KernelError(
                f"run-time index {int(wrong[0])} is out of bounds: {self.view.storage} has {dynamic.limit} there; "
                "oob_mode=nisa.oob_mode.skip leaves such elements alone"
            )
        spread = np.broadcast_to(outside.reshape(-1), (places.shape[0],))
        return np.where(spread.reshape(-1, *(1,) * (places.ndim - 1)), 0, places), spread


def element_places(view: View) -> Array:
    """The storage's element for each element of a view, without the run-time part."""
    places = np.full((1,) * len(view.shape), view.offset, np.int64)
    for axis, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if axis == 0 and view.dynamic is not None and view.dynamic.vector is not None:
            stride = 0  # each row's start is its index
        steps = np.arange(size, dtype=np.int64) * stride
        places = places + steps.reshape((-1,) + (1,) * (len(view.shape) - axis - 1))
    return places


class Stager:
    """Makes the staged form of a program's instructions."""

    def __init__(
        self, held: Callable[[Storage], Array], registers: Callable[[Register], list[int]], as_bytes: set[int]
    ) -> None:
        self._held = held
        self._registers = registers
        self._as_bytes = as_bytes
        self._count = -1

    def wants(self, instruction: Instruction) -> bool:
        """True if an operand of the instruction has to be staged."""
        return any(self._is_staged(view) for _, view in instruction.operands)

    def bind(self, instruction: Instruction, arrays: Arrays) -> Action:
        """The instruction on staged operands: load, run, store."""
        operands: list[StagedOperand] = []
        stores: list[StagedOperand] = []  # by argument: a view may be source and destination
        args = dict(instruction.args)
        for arg, view in instruction.operands:
            if self._is_staged(view):
                args[arg], operand = self._stage(view, instruction)
                operands.append(operand)
                if arg in instruction.operation.writes:
                    stores.append(operand)
        substituted = replace(instruction, args=args)
        run = instruction.operation.meaning(substituted, arrays)
        kept = self._destination(instruction, operands, arrays, substituted)
        sums = stores if instruction.args.get("unique_indices") is True else []

        def action() -> None:
            outside = [operand.load() for operand in operands]
            before = None if kept is None or all(rows is None for rows in outside) else kept.copy()
            run()
            if before is not None and kept is not None:
                for rows in outside:
                    if rows is not None:
                        kept[rows] = before[rows]
            for operand in sums:
                operand.require_unique()
            for operand in stores:
                operand.store()

        return action

    def _destination(
        self, instruction: Instruction, operands: list[StagedOperand], arrays: Arrays, substituted: Instruction
    ) -> Array | None:
        """The destination of a gather that may skip rows: it keeps its values there."""
        if not instruction.operation.writes:
            return None
        dst = instruction.operation.writes[0]
        gathers = any(operand.skips and operand.view is not instruction.args[dst] for operand in operands)
        return arrays(substituted.args[dst]) if gathers else None

    def _is_staged(self, view: View) -> bool:
        return view.dynamic is not None or view.storage.index in self._as_bytes

    def _stage(self, view: View, instruction: Instruction) -> tuple[View, StagedOperand]:
        """A storage of its own for the operand's elements, the view of it, and the operand."""
        self._count -= 1
        storage = Storage(self._count, view.shape, view.dtype, MemoryRegion.registers, "staged", Source("", 0, ""))
        array = self._held(storage).reshape(view.shape)
        strides = tuple(step // array.itemsize for step in array.strides)
        skips = instruction.args.get("oob_mode") is oob_mode.skip
        flat = view_typed(self._held(view.storage), view.dtype)
        operand = StagedOperand(view, flat, array, self._index(view), skips)
        return type(view)(storage, view.shape, strides, 0), operand

    def _index(self, view: View) -> Callable[[], Array] | None:
        """The function that reads the run-time index of a view."""
        dynamic = view.dynamic
        if dynamic is None:
            return None
        if isinstance(dynamic.scalar, Register):
            cell = self._registers(dynamic.scalar)
            return lambda: np.asarray(cell[0], np.int64)
        tile = dynamic.index_tile
        assert tile is not None
        window = view_array(tile, view_typed(self._held(tile.storage), tile.dtype))
        return lambda: window.astype(np.int64)
