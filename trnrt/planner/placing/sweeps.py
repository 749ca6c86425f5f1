"""Sweeps: consecutive steps that are run on some images of the batch at a time, in a loop of the kernel module.

The tensors between layers of a large batch may be too large for SBUF together. Steps that treat each image by itself
can take some at a time: what only they touch is then as large as these, and the rest of the batch waits in what the
first of them read and the last ones write. Which steps, and how many images, the timing model says (``fitting.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trnrt.planner.steps import Step


@dataclass(frozen=True)
class Sweep:
    """Steps number ``first`` to ``end`` (exclusive), ``images`` at a time."""

    first: int
    end: int
    images: int

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.end

    def parts(self, steps: Sequence[Step]) -> list[Step]:
        """The steps, those of the sweep for its number of images."""
        found = list(steps)
        for number in range(self.first, self.end):
            part = steps[number].part(self.images)
            assert part is not None, steps[number].name
            found[number] = part
        return found

    def inner_values(self, steps: Sequence[Step], leaving: frozenset[str]) -> frozenset[str]:
        """The values that nothing but the sweep touches."""
        made = {step.output for step in steps[self.first : self.end]} - leaving
        others = [step for number, step in enumerate(steps) if number not in self]
        return frozenset(made - {source.value for step in others for source in step.sources})


def sweep_bounds(steps: Sequence[Step], spilled: Sequence[str]) -> tuple[range, range] | None:
    """Where a sweep that keeps most of the ``spilled`` values on chip may begin, and end; None where there is none.

    The steps that touch them one after the other, up to the first that is for whole batches only.
    """
    touching = [n for n, step in enumerate(steps) if spilled and _touches(step, set(spilled))]
    for start in touching:
        end = start
        while end < len(steps) and steps[end].part(1) is not None:
            end += 1
        last = max((n for n in touching if n < end), default=start)
        if last > start:
            return range(start, last), range(last + 1, end + 1)
    return None


def _touches(step: Step, values: set[str]) -> bool:
    return step.output in values or any(source.value in values for source in step.sources)


def sweep_sizes(batch: int) -> Iterator[int]:
    """Numbers of images that a batch can be taken in, the smallest first."""
    return (count for count in range(1, batch // 2 + 1) if batch % count == 0)
