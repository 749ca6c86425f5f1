"""Match our events with a trace's. The compiler removes, merges, splits, moves and reorders instructions.

Two events are of the same class if they do the same to as much data; copies must also copy results of the same kind.
The steps:

1. On each engine, if both sides have equally many events of a class, pair them in order, for the compiler keeps the
rounds of a loop in order.
2. Align the rest of an engine as two sequences of classes; either side may have events that the other lacks.
3. Of the rest, an event as large as several consecutive ones of its kind on the other side is all of them merged.
4. Remaining events of one class on different engines were moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.timing.traces.record import ENGINES, HELPERS, Event, Run

SAME, REORDERED, MOVED, MERGED, SPLIT = "same", "another order", "another engine", "merged", "split"
MEASURED, OURS = "only measured", "only ours"

Class = tuple[str, str, int]


class Pair(NamedTuple):
    """Indices of paired events of each side. Several of ours: they were merged; several of theirs: one was split."""

    measured: tuple[int, ...]
    ours: tuple[int, ...]
    how: str


def align(measured: Run, ours: Run) -> list[Pair]:
    """Every event of both runs once, in the order of the measured ones' starts; events that only we have come last."""
    sides = _sides(measured, ours)
    pairs: list[Pair] = []
    for engine in ENGINES:
        pairs += _in_order(_align_engine(sides, measured.on(engine), ours.on(engine)))
    pairs += _merge_events(sides, *sides.left(pairs))
    pairs += _by_class(sides, *sides.left(pairs), MOVED, always=True)
    theirs, mine = sides.left(pairs, helpers=True)
    pairs += [Pair((event,), (), MEASURED) for event in theirs] + [Pair((), (event,), OURS) for event in mine]
    last = max((event.start for event in measured.events), default=0) + 1
    return sorted(pairs, key=lambda pair: (sides.theirs[pair.measured[0]].start if pair.measured else last, pair.ours))


class _Sides(NamedTuple):
    theirs: Sequence[Event]
    mine: Sequence[Event]

    def left(self, pairs: list[Pair], *, helpers: bool = False) -> tuple[list[int], list[int]]:
        """The unpaired events of each side, with ``helpers`` only if requested, as those never have a partner."""
        used = {number for pair in pairs for number in pair.measured}
        mine = {number for pair in pairs for number in pair.ours}
        kept = [n for n, event in enumerate(self.theirs) if n not in used and (helpers or event.kind not in HELPERS)]
        return kept, [n for n in range(len(self.mine)) if n not in mine]


def _sides(measured: Run, ours: Run) -> _Sides:
    """Both runs' events; the sources of copies are dropped unless all are known."""
    events = measured.events, ours.events
    if any(event.kind == "copy" and not event.source for side in events for event in side):
        return _Sides(*([replace(event, source="") for event in side] for side in events))
    return _Sides(*events)


def _class(event: Event) -> Class:
    return event.kind, event.source, event.size


def _align_engine(sides: _Sides, theirs: list[int], mine: list[int]) -> list[Pair]:
    theirs = [number for number in theirs if sides.theirs[number].kind not in HELPERS]
    pairs = _by_class(sides, theirs, mine, SAME, always=False)
    used = {number for pair in pairs for number in pair.measured}, {number for pair in pairs for number in pair.ours}
    left = [number for number in theirs if number not in used[0]]
    return pairs + _sequence(sides, left, [number for number in mine if number not in used[1]])


def _by_class(sides: _Sides, theirs: list[int], mine: list[int], how: str, *, always: bool) -> list[Pair]:
    """Pairs of one class, in order; unless ``always``, only if both sides have equally many."""
    classes: dict[Class, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number in theirs:
        classes[_class(sides.theirs[number])][0].append(number)
    for number in mine:
        classes[_class(sides.mine[number])][1].append(number)
    return [
        Pair((there,), (here,), how)
        for one, other in classes.values()
        if always or len(one) == len(other)
        for there, here in zip(one, other, strict=False)
    ]


def _sequence(sides: _Sides, left: list[int], right: list[int]) -> list[Pair]:
    """The longest common subsequence of two sequences of classes."""
    one, other = [_class(sides.theirs[n]) for n in left], [_class(sides.mine[n]) for n in right]
    best = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        for j in range(len(right) - 1, -1, -1):
            best[i][j] = best[i + 1][j + 1] + 1 if one[i] == other[j] else max(best[i + 1][j], best[i][j + 1])
    pairs, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if one[i] == other[j]:
            pairs.append(Pair((left[i],), (right[j],), SAME))
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _in_order(pairs: list[Pair]) -> list[Pair]:
    """The pairs of an engine; those outside of the longest sequence in the same order on both sides are marked."""
    ordered = sorted(pairs)
    ends: list[tuple[int, ...]] = []  # by length of the sequence: the lowest last index of ours
    lengths = []
    for pair in ordered:
        length = bisect_left(ends, pair.ours)
        ends[length : length + 1] = [pair.ours]
        lengths.append(length)
    kept, wanted, limit = set(), len(ends) - 1, (*ends[-1], 0) if ends else ()
    for number in range(len(ordered) - 1, -1, -1):
        if lengths[number] == wanted and ordered[number].ours < limit:
            kept.add(number)
            wanted, limit = wanted - 1, ordered[number].ours
    return [pair if number in kept else pair._replace(how=REORDERED) for number, pair in enumerate(ordered)]


def _merge_events(sides: _Sides, theirs: list[int], mine: list[int]) -> Iterator[Pair]:
    """Match several events of one side with one of the other: same kind, adjacent in time, equally large together."""
    kinds: dict[tuple[str, str], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number in theirs:
        kinds[_class(sides.theirs[number])[:2]][0].append(number)
    for number in mine:
        kinds[_class(sides.mine[number])[:2]][1].append(number)
    for one, other in kinds.values():
        groups = _groups([sides.theirs[n].size for n in one], [sides.mine[n].size for n in other])
        yield from (Pair((one[n],), tuple(other[k] for k in parts), MERGED) for n, parts in groups)
        used, taken = {n for n, _ in groups}, {k for _, parts in groups for k in parts}
        one = [number for n, number in enumerate(one) if n not in used]
        other = [number for k, number in enumerate(other) if k not in taken]
        groups = _groups([sides.mine[n].size for n in other], [sides.theirs[n].size for n in one])
        yield from (Pair(tuple(one[k] for k in parts), (other[n],), SPLIT) for n, parts in groups)


def _groups(wholes: list[int], parts: list[int]) -> list[tuple[int, list[int]]]:
    """For each whole, two or more consecutive parts that add up to it; empty if there are none."""
    groups, first = [], 0
    for number, whole in enumerate(wholes):
        total, after = 0, first
        while after < len(parts) and total < whole:
            total, after = total + parts[after], after + 1
        if total == whole:
            if after - first > 1:
                groups.append((number, list(range(first, after))))
            first = after
    return groups
