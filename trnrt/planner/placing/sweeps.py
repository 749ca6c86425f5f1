"""Sweeps: consecutive steps that run on some images of the batch at a time, in a loop of the kernel module.

The tensors between layers of a large batch may not fit SBUF together. Steps that treat each image independently can
take some at a time: the tensors inside the sweep shrink accordingly, and the rest of the batch waits in the tensors
that enter and leave the sweep. The timing model chooses the steps and the number of images (``searching``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

    def name(self, steps: Sequence[Step]) -> tuple[str, str, int]:
        """The sweep as ``Choices`` name it."""
        return steps[self.first].name, steps[self.end - 1].name, self.images


def find_sweeps(named: Iterable[tuple[str, str, int]], steps: Sequence[Step], batch: int | None) -> tuple[Sweep, ...]:
    """The sweeps of these names, in the order of their steps, without those that steps and batch don't allow."""
    numbers = {step.name: number for number, step in enumerate(steps)}
    found: list[Sweep] = []
    for first, last, images in sorted(named, key=lambda one: (numbers.get(one[0], 0), one)):
        if first not in numbers or last not in numbers or not 0 < images < (batch or 1) or (batch or 1) % images:
            continue
        sweep = Sweep(numbers[first], numbers[last] + 1, images)
        after = found[-1].end if found else 0
        if after <= sweep.first < sweep.end and all(_takes(one, batch) for one in steps[sweep.first : sweep.end]):
            found.append(sweep)
    return tuple(found)


def sweep_at(sweeps: Iterable[Sweep], number: int) -> Sweep | None:
    """The sweep that step ``number`` is in."""
    return next((sweep for sweep in sweeps if number in sweep), None)


def reduce_steps(steps: Sequence[Step], sweeps: Iterable[Sweep]) -> list[Step]:
    """The steps, with those of each sweep reduced to its number of images."""
    reduced = list(steps)
    for sweep in sweeps:
        for number in range(sweep.first, sweep.end):
            part = steps[number].part(sweep.images)
            assert part is not None, steps[number].name
            reduced[number] = part
    return reduced


def inner_values(steps: Sequence[Step], sweeps: Iterable[Sweep], leaving: frozenset[str]) -> dict[str, Sweep]:
    """The values that only one sweep touches, each with the sweep."""
    inner: dict[str, Sweep] = {}
    for sweep in sweeps:
        made = {step.output for step in steps[sweep.first : sweep.end]} - leaving
        others = [step for number, step in enumerate(steps) if number not in sweep]
        inner |= dict.fromkeys(made - {source.value for step in others for source in step.sources}, sweep)
    return inner


def sweep_bounds(
    steps: Sequence[Step], spilled: Sequence[str], batch: int, sweeps: Sequence[Sweep] = ()
) -> Iterator[tuple[range, range]]:
    """The possible starts and ends of sweeps that keep ``spilled`` values on chip, beside the ``sweeps`` that are
    there: for each stretch of steps that touch them, up to the first that needs whole batches."""

    def is_free(number: int) -> bool:
        return sweep_at(sweeps, number) is None and _takes(steps[number], batch)

    touching = [n for n, step in enumerate(steps) if spilled and is_free(n) and _touches(step, set(spilled))]
    done = 0
    for start in touching:
        end = start
        while end < len(steps) and is_free(end):
            end += 1
        last = max(n for n in touching if n < end)
        if start >= done and last > start:
            yield range(start, last), range(last + 1, end + 1)
            done = end


def _takes(step: Step, batch: int | None) -> bool:
    """True if a step can take some images of the batch at a time."""
    return step.shape[0] == batch and step.part(1) is not None


def _touches(step: Step, values: set[str]) -> bool:
    return step.output in values or any(source.value in values for source in step.sources)


def sweep_sizes(batch: int) -> Iterator[int]:
    """The possible numbers of images per round for a batch, in ascending order."""
    return (count for count in range(1, batch // 2 + 1) if batch % count == 0)
