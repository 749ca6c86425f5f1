"""What fixed overheads alone cost: the program that loads a model's inputs and stores its outputs, nothing between."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trnrt.nki.machine.program import Instruction, Program
from trnrt.nki.sim import isa as nisa
from trnrt.nki.sim import language as nl
from trnrt.nki.sim.kernel import Spec, trace

_PIECE_BYTES = 16 * 1024  # of a partition, in one transfer
_ROW_BYTES = 512  # what is smaller is one piece on one partition: DMA is slow with less


def floor_program(inputs: Sequence[Spec], outputs: Sequence[Spec], target: str) -> Program:
    """The program that brings ``inputs`` to SBUF and, when all are there, stores as much as ``outputs`` are.

    What it stores is in SBUF and was never computed. Rows are of 512 bytes at least, on up to 128 partitions, so that a
    small tensor is one packet; loads, and stores, are triggered by two engines in turn (on
    trn1 by one).
    """

    def floor(*sources: Any) -> Any:
        loads = [load for number, source in enumerate(sources) for load in _moves(source, number, loads=True)]
        results = [nl.ndarray(spec.shape, dtype=spec.dtype, buffer=nl.shared_hbm) for spec in outputs]
        for number, result in enumerate(results):
            for store in _moves(result, number, loads=False):
                store.depends_on(*loads)
        return tuple(results)

    return trace(floor, *inputs, target=target)


def _moves(tensor: Any, number: int, *, loads: bool) -> list[Instruction]:
    """The transfers of a tensor in HBM: its rows, and what is left of it, in pieces."""
    size, itemsize = prod(tensor.shape), tensor.dtype.itemsize
    flat = tensor.reshape((size,))
    rows = max(1, min(nl.tile_size.pmax, size * itemsize // _ROW_BYTES))
    columns = size // rows
    whole = flat[0 : rows * columns].reshape((rows, columns))
    pieces = [whole[:, first : first + piece_end] for first, piece_end in _pieces(columns, itemsize)]
    if rows * columns < size:
        pieces.append(flat[rows * columns : size].reshape((1, size - rows * columns)))
    return [_move(piece, _trigger_options(number), loads=loads) for piece in pieces]


def _pieces(columns: int, itemsize: int) -> list[tuple[int, int]]:
    """First column and columns of each transfer."""
    most = _PIECE_BYTES // itemsize
    return [(first, min(most, columns - first)) for first in range(0, columns, most)]


def _trigger_options(number: int) -> dict[str, Any]:
    """Who triggers the transfers of a tensor; trn1 has no hardware descriptors, and with its own nobody is asked."""
    if nisa.get_nc_version() < nisa.nc_version.gen3:
        return {}
    return {"dge_mode": nisa.dge_mode.hwdge, "engine": (nisa.engine.sync, nisa.engine.scalar)[number % 2]}


def _move(piece: Any, asked: dict[str, Any], *, loads: bool) -> Instruction:
    tile_sb = nl.ndarray(piece.shape, dtype=piece.dtype, buffer=nl.sbuf)
    if loads:
        return nisa.dma_copy(dst=tile_sb, src=piece, **asked)
    return nisa.dma_copy(dst=piece, src=tile_sb, **asked)
