"""The vector engine's searches: the eight largest values of each partition, where they are, and their replacement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trnrt.nki.machine import costs, spreading
from trnrt.nki.machine.binding import Arrays, as_float32, in_shape, writer
from trnrt.nki.machine.dtypes import Array
from trnrt.nki.machine.program import Engine, Instruction, View
from trnrt.nki.machine.rules import access, operands
from trnrt.nki.machine.rules.checks import check_dimensions, check_size, check_size_limit, dtype_rule
from trnrt.nki.machine.rules.table import rule
from trnrt.nki.machine.targets import Target
from trnrt.nki.sim.declaring import Args, declare
from trnrt.nki.sim.tensor import NkiTensor

__all__ = ["max8", "nc_find_index8", "nc_match_replace8"]

_SEARCHED_MIN, _SEARCHED_MAX, _SEARCHED_DIMENSIONS, _EIGHT = 8, 16384, 3, 8


def _search_operand(instruction: Instruction) -> tuple[str, View]:
    arg = "src" if "src" in instruction.args else "data"
    return arg, instruction[arg]


@rule("search-size", "a search reads 8 to 16,384 elements a partition", "nki.isa max8, nc_find_index8")
def search_size(instruction: Instruction, target: Target) -> str | None:
    arg, view = _search_operand(instruction)
    if _SEARCHED_MIN <= view.free_size <= _SEARCHED_MAX:
        return None
    return f"{arg} holds {view.free_size} elements a partition; it must hold {_SEARCHED_MIN} to {_SEARCHED_MAX}"


@rule("search-eight", "a search writes, and looks for, 8 elements a partition", "nki.isa max8, nc_find_index8")
def search_eight(instruction: Instruction, target: Target) -> str | None:
    searched, _ = _search_operand(instruction)
    return check_size(instruction, _EIGHT, *(arg for arg, _ in instruction.operands if arg != searched))


@rule("search-dimensions", "a search reads at most 3 dimensions", "nki.isa max8, nc_find_index8")
def search_dimensions(instruction: Instruction, target: Target) -> str | None:
    return check_dimensions(instruction, _SEARCHED_DIMENSIONS, *instruction.operation.reads)


index_dtype = dtype_rule(
    "index-dtype", "indices are uint16 or uint32", "nki.isa nc_find_index8", dst=("uint16", "uint32")
)


SEARCH = (*access.ENGINE_ACCESS, operands.same_partitions, search_eight, search_size, search_dimensions)


@rule(
    "match-size",
    "nc_match_replace8 looks for 8 values in up to 16,384 elements",
    "nki.isa nc_match_replace8; SDK 2.26's text of it",
)
def match_size(instruction: Instruction, target: Target) -> str | None:
    return (
        check_size(instruction, _EIGHT, "vals", "dst_idx")
        or check_dimensions(instruction, _SEARCHED_DIMENSIONS, "vals")
        or check_size_limit(instruction, _SEARCHED_MAX, "data")
        or check_size(instruction, instruction["data"].free_size, "dst")
    )


match_dtype = dtype_rule(
    "match-dtype",
    "the indices of matches are uint16 or uint32",
    "nki.isa nc_find_index8, its sibling",
    dst_idx=("uint16", "uint32"),
)


def eight_largest(rows: Array) -> Array:
    """(P, N) -> (P, 8): the eight largest of each row in descending order."""
    top = np.partition(rows, rows.shape[1] - 8, axis=1)[:, -8:]
    return -np.sort(-top, axis=1)


def find_eight(rows: Array, values: Array, miss: int) -> Array:
    """(P, N), (P, 8) -> (P, 8): the place of each value in its row.

    If a value is searched twice, it gets its first and its second place, and so on; ``miss`` if there is none.
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


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("src",),
    rules=SEARCH,
    meaning=_max8,
    cycles=costs.streaming,
    spreads=spreading.rows,
)
def max8(dst: NkiTensor, src: NkiTensor, name: str | None = None) -> Args:
    """The 8 largest values of each partition, descending."""
    return locals()


def _find_index8(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    dst, data, vals = instruction["dst"], instruction["data"], instruction["vals"]
    target = arrays(dst)
    rows = in_shape(arrays(data), (data.partitions, data.free_size))
    values = in_shape(arrays(vals), (vals.partitions, 8))
    miss = int(np.iinfo(target.dtype).max)

    def search() -> None:
        target[...] = find_eight(as_float32(rows()), as_float32(values()), miss).reshape(target.shape)

    return search


@declare(
    engines=(Engine.vector,),
    writes=("dst",),
    reads=("data", "vals"),
    rules=(*SEARCH, index_dtype),
    meaning=_find_index8,
    cycles=costs.streaming,
    spreads=None,
)
def nc_find_index8(dst: NkiTensor, data: NkiTensor, vals: NkiTensor, name: str | None = None) -> Args:
    """The place of each of 8 values in its partition: first places first, all ones if a value is not found."""
    return locals()


def match_eight(rows: Array, values: Array) -> tuple[Array, Array]:
    """(P, N), (P, 8) -> the matched elements, (P, N), and the place of each value, (P, 8), -1 if not found.

    The last value goes first; each takes the first equal element that is still free, so of equal values the last one
    gets the first place.
    """
    taken = np.zeros(rows.shape, bool)
    places = np.full(values.shape, -1, np.int64)
    partitions = np.arange(rows.shape[0])
    for slot in reversed(range(values.shape[1])):
        hits = (rows == values[:, slot, None]) & ~taken
        at = hits.argmax(axis=1)
        found = hits[partitions, at]
        taken[partitions[found], at[found]] = True
        places[found, slot] = at[found]
    return taken, places


def _match_replace8(instruction: Instruction, arrays: Arrays) -> Callable[[], None]:
    """``dst = data`` with the first element equal to each of ``vals`` replaced; ``dst_idx`` gets their places."""
    dst, data, vals, indices = (instruction[arg] for arg in ("dst", "data", "vals", "dst_idx"))
    rows = in_shape(arrays(data), (data.partitions, data.free_size))
    values = in_shape(arrays(vals), (vals.partitions, vals.free_size))
    replacement = np.float32(instruction["imm"])
    write = writer(dst, arrays(dst))
    target = None if indices is None else arrays(indices)

    def replace() -> None:
        given = as_float32(rows())
        taken, places = match_eight(given, as_float32(values()))
        write(np.where(taken, replacement, given))
        if target is not None:
            target[...] = places.astype(target.dtype).reshape(target.shape)  # -1 is all ones

    return replace


@declare(
    engines=(Engine.vector,),
    writes=("dst", "dst_idx"),
    reads=("data", "vals"),
    numbers=frozenset({"imm"}),
    optional=frozenset({"dst_idx"}),
    rules=(
        *access.ENGINE_ACCESS,
        operands.same_partitions,
        match_size,
        match_dtype,
    ),
    meaning=_match_replace8,
    cycles=costs.streaming,
    spreads=None,
)
def nc_match_replace8(
    dst: NkiTensor,
    data: NkiTensor,
    vals: NkiTensor,
    imm: float,
    dst_idx: NkiTensor | None = None,
    name: str | None = None,
) -> Args:
    """``dst = data`` with the first element equal to each of 8 ``vals`` replaced by ``imm``; ``dst_idx``: their places.

    Equal values get successive elements, the last of them the first element; a value that is not found all ones.
    """
    return locals()
