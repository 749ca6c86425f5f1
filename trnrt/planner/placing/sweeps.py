"""Sweeps: consecutive steps that run on some images of the batch at a time, in a loop of the kernel module.

The tensors between layers of a large batch may not fit SBUF together. Steps that treat each image independently can
take some at a time: the tensors inside the sweep shrink accordingly, and the rest of the batch waits in the tensors
that enter and leave the sweep. The timing model chooses the steps and the number of images (``fitting.py``).
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
        """The steps, with those of the sweep reduced to its number of images."""
        found = list(steps)
        for number in range(self.first, self.end):
            part = steps[number].part(self.images)
            assert part is not None, steps[number].name
            found[number] = part
        return found

    def inner_values(self, steps: Sequence[Step], leaving: frozenset[str]) -> frozenset[str]:
        """The values that only the sweep touches."""
        made = {step.output for step in steps[self.first : self.end]} - leaving
        others = [step for number, step in enumerate(steps) if number not in self]
        return frozenset(made - {source.value for step in others for source in step.sources})


def sweep_bounds(steps: Sequence[Step], spilled: Sequence[str]) -> tuple[range, range] | None:
    """The possible starts and ends of a sweep that keeps most of the ``spilled`` values on chip; None if there is none.

    These are the consecutive steps that touch them, up to the first that needs whole batches.
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
    """The possible numbers of images per round for a batch, in ascending order."""
    return (count for count in range(1, batch // 2 + 1) if batch % count == 0)
