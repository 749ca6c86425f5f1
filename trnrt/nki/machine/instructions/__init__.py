"""The instructions of the NeuronCore, one file a family. ``OPERATIONS`` maps a name to its declaration."""

from __future__ import annotations

from trnrt.nki.machine.instructions import activation, dma, elementwise, matmul, reduce, search
from trnrt.nki.machine.program import Operation

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for family in (dma, elementwise, activation, matmul, reduce, search)
    for operation in vars(family).values()
    if isinstance(operation, Operation)
}
