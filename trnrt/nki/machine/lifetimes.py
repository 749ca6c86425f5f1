"""Lifetimes: from which to which instruction each storage of a program is in use.

A storage used in a device loop lives through the whole loop, because its body runs again. But a tile that only the body
touches, and writes before it reads it, has no value to keep between iterations: it lives as in a body without a loop.
AWS's page says that live tensors stay in SBUF and PSUM for a loop's entire duration (nki/deep-dives/nki-dynamic-loops,
2.32). nki-library's blockwise MoE kernel shows that this leaves such tiles out: the body of its device loop allocates
more PSUM tiles than there are banks (core/moe/moe_cte/bwmm_shard_on_I.py, compute_one_block; release 2.29).
"""

from __future__ import annotations

from collections.abc import Mapping

from trnrt.nki.machine.program import Program


def find_lifetimes(program: Program) -> dict[int, tuple[int, int]]:
    """Storage index -> (first, last) index of the instructions that touch it; untouched ones are left out."""
    first_use: dict[int, int] = {}
    last_use: dict[int, int] = {}
    for position, instruction in enumerate(program.instructions):
        for view in instruction.touches():
            first_use.setdefault(view.storage.index, position)
            last_use[view.storage.index] = position
    spans = {index: (first, last_use[index]) for index, first in first_use.items()}
    loops = program.loops()
    anew = _find_written_first(program, first_use) if loops else set[int]()
    for begin, end in loops:
        for index, (first, last) in spans.items():
            if first <= end and last >= begin and not (begin < first and last < end and index in anew):
                spans[index] = (min(first, begin), max(last, end))
    return spans


def _find_written_first(program: Program, first_use: Mapping[int, int]) -> set[int]:
    """The tiles whose first instruction writes them, at a place known when compiling, and doesn't read them."""
    found = set()
    for index, position in first_use.items():
        instruction = program.instructions[position]
        written = [view for view in instruction.writes() if view.storage.index == index]
        read = any(view.storage.index == index for view in instruction.reads())
        if program.storages[index].on_chip and written and not read and all(view.dynamic is None for view in written):
            found.add(index)
    return found
