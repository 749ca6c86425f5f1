"""The choice of candidates: all of a small space; of a large one random ones, then neighbours of the best so far.

The order depends on the space, the seed and the results alone, so a run that resumes from kept results goes the same
way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from trnrt.nki.tuning.space import Point, Space

Times = Mapping[Point, float | None]  # microseconds; None if a candidate has no time
Evaluate = Callable[[Sequence[Point]], Times]

RANDOM_SHARE = 0.5
"""The share of the trials that are random, before the search follows the best ones."""


def search(space: Space, start: Point, evaluate: Evaluate, trials: int, seed: int) -> dict[Point, float | None]:
    """Try up to ``trials`` candidates, ``start`` first. ``evaluate`` returns the times of those that it got to: fewer
    than it was given end the search."""
    known: dict[Point, float | None] = {}
    generator = random.Random(seed)
    batches = _all_at_once(space, start) if space.size <= trials else _proposals(space, start, known, trials, generator)
    for batch in batches:
        new = list(dict.fromkeys(point for point in batch if point not in known))[: trials - len(known)]
        found = evaluate(new)
        known.update(found)
        if len(found) < len(new) or len(known) >= trials:
            break
    return known


def _all_at_once(space: Space, start: Point) -> Iterator[list[Point]]:
    yield [start, *(point for point in space.points() if point != start)]


def _proposals(
    space: Space, start: Point, known: Times, trials: int, generator: random.Random
) -> Iterator[list[Point]]:
    """Batches: random ones first; then the neighbours of the best candidate that still has some, or another random one.

    ``known`` grows between batches.
    """
    first = {start: None} | dict.fromkeys(_draw(space, generator) for _ in range(round(trials * RANDOM_SHARE)))
    yield list(first)
    finished: set[Point] = set()
    while True:
        best = min(
            (point for point, time in known.items() if time is not None and point not in finished),
            key=lambda point: (known[point] or 0.0, point),
            default=None,
        )
        if best is None:
            yield [_draw_new(space, known, generator)]
            continue
        near = [point for point in space.neighbours(best) if point not in known]
        finished.add(best)
        if near:
            yield near


def _draw(space: Space, generator: random.Random) -> Point:
    return tuple(generator.randrange(len(values)) for values in space.values.values())


def _draw_new(space: Space, known: Times, generator: random.Random) -> Point:
    """A candidate that is not known: the space has more candidates than trials."""
    while (point := _draw(space, generator)) in known:
        pass
    return point
