"""The cost of fixed overheads: a program that loads a model's inputs and stores its outputs, and computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from trnrt.nki.machine.program import Instruction, Program
from trnrt.nki.sim import isa as nisa
from trnrt.nki.sim import language as nl
from trnrt.nki.sim.kernel import Spec, trace

_PIECE_BYTES = 16 * 1024  # of a partition, in one transfer
_ROW_BYTES = 512  # a smaller tensor is one piece on one partition: DMA is slow with smaller pieces


def floor_program(inputs: Sequence[Spec], outputs: Sequence[Spec], target: str) -> Program:
    """The program that loads ``inputs`` to SBUF and, when all are there, stores as many bytes as ``outputs`` have.

    It stores unwritten SBUF. Rows have at least 512 bytes, on up to 128 partitions, so that a small tensor is one
    packet. Two engines in turn trigger the loads, and the stores (on trn1 one engine).
    """

    def floor(*sources: Any) -> Any:
        loads = [load for number, source in enumerate(sources) for load in _transfer(source, number, loads=True)]
        results = [nl.ndarray(spec.shape, dtype=spec.dtype, buffer=nl.shared_hbm) for spec in outputs]
        for number, result in enumerate(results):
            for store in _transfer(result, number, loads=False):
                store.depends_on(*loads)
        return tuple(results)

    return trace(floor, *inputs, target=target)


def _transfer(tensor: Any, number: int, *, loads: bool) -> list[Instruction]:
    """The transfers of a tensor in HBM: its rows in pieces, and the elements that fill no row."""
    size, itemsize = prod(tensor.shape), tensor.dtype.itemsize
    flat = tensor.reshape((size,))
    rows = max(1, min(nl.tile_size.pmax, size * itemsize // _ROW_BYTES))
    columns, most = size // rows, _PIECE_BYTES // itemsize
    whole = flat[0 : rows * columns].reshape((rows, columns))
    pieces = [whole[:, first : min(first + most, columns)] for first in range(0, columns, most)]
    if rows * columns < size:
        pieces.append(flat[rows * columns : size].reshape((1, size - rows * columns)))
    options: dict[str, Any] = {}  # trn1 has no hardware descriptors: its default decides
    if nisa.get_nc_version() >= nisa.nc_version.gen3:
        options = {"dge_mode": nisa.dge_mode.hwdge, "engine": (nisa.engine.sync, nisa.engine.scalar)[number % 2]}
    issued = []
    for piece in pieces:
        tile_sb = nl.ndarray(piece.shape, dtype=piece.dtype, buffer=nl.sbuf)
        dst, src = (tile_sb, piece) if loads else (piece, tile_sb)
        issued.append(nisa.dma_copy(dst=dst, src=src, **options))
    return issued
