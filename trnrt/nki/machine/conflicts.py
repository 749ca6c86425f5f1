"""Tiles whose addresses the kernel gave, and which share bytes while both hold numbers."""

from __future__ import annotations

from collections.abc import Sequence

from trnrt.nki.machine.program import Storage

_LISTED = 20
_COUNTS = {2: "two", 3: "three", 4: "four", 5: "five"}

Span = tuple[int, int]


def describe_conflict(
    tile: Storage, other: Storage, shared: Span, pinned: Sequence[Storage], spans: dict[int, Span]
) -> str:
    """Two live tiles that share bytes, and the others that share bytes with one of them while it lives; the way out."""
    found = [other, tile]
    found += [
        one for one in pinned if one not in found and any(_conflict(one, known, spans) for known in (tile, other))
    ]
    lines = [
        f"{_COUNTS.get(len(found), len(found))} live tiles share {tile.buffer.value.upper()} bytes "
        f"{shared[0]} to {shared[1]} of a partition:"
    ]
    lines += [f"  {one} at address {one.address}" for one in found[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"  and {len(found) - _LISTED} more")
    return "\n".join([*lines, _way_out(found)])


def _conflict(one: Storage, other: Storage, spans: dict[int, Span]) -> bool:
    """True if two tiles share bytes, and an instruction that needs one comes within the life of the other."""
    (first, last), (start, end) = spans[one.index], spans[other.index]
    return first <= end and start <= last and one.overlap(other) is not None


def _way_out(found: Sequence[Storage]) -> str:
    text = (
        "writing one destroys the other; give them addresses that do not overlap, "
        "or use one only after the other's last use"
    )
    if all((one.source, one.shape) == (found[0].source, found[0].shape) for one in found):
        return (
            "writing one destroys the other: they are blocks of one tensor, and more of them are in use at once than "
            "it has places; give it more (num_free_tiles, num_par_tiles or num_bank_tiles of mod_alloc), "
            "or use each block for the last time before the next one in its place is written"
        )
    return text
