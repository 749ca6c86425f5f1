"""The vector engine's searches: the eight largest values of each partition, and where they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, Operation
from trnrt.nki.machine.rules import operands


def eight_largest(rows: Array) -> Array:
    """(P, N) -> (P, 8): the eight largest of each row in descending order."""
    top = np.partition(rows, rows.shape[1] - 8, axis=1)[:, -8:]
    return -np.sort(-top, axis=1)


def find_eight(rows: Array, values: Array, miss: int) -> Array:
    """(P, N), (P, 8) -> (P, 8): where each value stands in its row.

    A value that is asked for twice gets its first and its second place, and so on; ``miss`` where there is none.
    """
    found = np.full(values.shape, miss, np.int64)
    for row in range(rows.shape[0]):
        seen: dict[float, int] = {}
        for slot, value in enumerate(values[row]):
            places = np.flatnonzero(rows[row] == value)
            nth = seen.get(float(value), 0)
            if nth < places.size:
                found[row, slot] = places[nth]
            seen[float(value)] = nth + 1
    return found


def _max8(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    dst, src = instruction["dst"], instruction["src"]
    take = in_shape(arrays(src), (src.partitions, src.free_size))
    write = writer(dst, arrays(dst))
    return lambda: write(eight_largest(as_float32(take())))


MAX8 = Operation(
    name="max8",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src",),
    rules=operands.SEARCH,
    bind=_max8,
    cost=costs.streaming,
)


def _find_index8(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    dst, data, vals = instruction["dst"], instruction["data"], instruction["vals"]
    target = arrays(dst)
    rows = in_shape(arrays(data), (data.partitions, data.free_size))
    values = in_shape(arrays(vals), (vals.partitions, 8))
    miss = int(np.iinfo(target.dtype).max)

    def search() -> None:
        target[...] = find_eight(as_float32(rows()), as_float32(values()), miss).reshape(target.shape)

    return search


NC_FIND_INDEX8 = Operation(
    name="nc_find_index8",
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "vals"),
    rules=(*operands.SEARCH, operands.index_dtype, operands.other_start_partition),
    bind=_find_index8,
    cost=costs.streaming,
)
