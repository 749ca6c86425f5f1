"""Divide a batch that doesn't fit SBUF: in passes over the whole plan, and in sweeps over some steps.

The extra loads and stores of what doesn't fit may cost more than a larger batch saves. The timing model decides: each
way is a trial. Twice as many rows in a pass must be faster than two passes, and a sweep faster than none. A sweep
starts anywhere before the first step that touches what doesn't fit, then grows while that gains; then the next one is
looked for, among the steps that are in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf

from trnrt.planner.choices import Choices
from trnrt.planner.placing import passes
from trnrt.planner.placing.sweeps import Sweep, sweep_bounds, sweep_sizes
from trnrt.planner.plan import Tried
from trnrt.planner.searching.fitting import place_tensors
from trnrt.planner.searching.trials import Timed, Trials

OVERLAPPED = 0.9
"""Passes in a row take at least this share of the sum of their times: a pass begins while the one before ends. Two
of VGG-16, of a row each, take 1.00 of it."""


def divide_batch(trials: Trials, choices: Choices, tried: list[Tried]) -> Timed | None:
    """The fastest division of the batch that the budget allows to find, with these choices; None if it fits as it is.

    Only a large batch is divided into passes. Appends what was ``tried``.
    """
    batch = trials.source.batch or 1
    if batch == 1 or not _spills(trials, choices):
        return None
    rows = list(_pass_sizes(trials, choices)) if batch > passes.AT_ONCE else []
    best: Timed | None = None
    for count in (*reversed(rows), batch):
        if best is not None and not trials.can_go_on():
            return best
        whole = trials.time(replace(choices, rows=count))
        assert whole is not None, "without a sweep tensors go to HBM until the rest finds room"
        whole = _Sweeping(trials, whole, tried).search(count)
        if best is not None:
            passes_of_half = trials.time(best.choices, of=count)
            gain = 0.0 if passes_of_half is None else whole.gain_over(passes_of_half)
            steps = tuple(step.name for step in whole.steps)
            tried.append(Tried(steps, f"{count} rows at a time, not {best.choices.rows}", gain, True, gain > 0))
            if gain <= 0:
                return best
        best = whole
    return best


def try_passes(trials: Trials, whole: Timed, tried: list[Tried]) -> Timed:
    """One of the passes that take a batch faster than ``whole``, which takes it at once; ``whole`` if none do.

    The passes become smaller while they promise to take less time together. Appends what was ``tried``.
    """
    batch, best, best_pass, least_us = trials.source.batch or 1, whole, whole, inf
    plain = replace(whole.choices, sweeps=frozenset())
    for rows in _pass_sizes(trials, plain):
        part = trials.time(replace(plain, rows=rows)) if trials.can_go_on() else None
        if part is None or part.us * batch / rows >= least_us:
            break
        least_us = part.us * batch / rows
        if least_us * OVERLAPPED > best.us or not trials.can_go_on():
            continue
        part = _Sweeping(trials, part, tried).search(rows)
        together = trials.time(part.choices, of=batch) if trials.can_go_on() else None
        if together is None:
            break
        gain = together.gain_over(best)
        steps = tuple(step.name for step in part.steps)
        tried.append(Tried(steps, f"{rows} rows at a time, not {best_pass.choices.rows}", gain, True, gain > 0))
        if gain > 0:
            best, best_pass = together, part
    return best_pass


def _spills(trials: Trials, choices: Choices) -> bool:
    """True if tensors of a pass don't fit SBUF."""
    return bool(place_tensors(trials.material(choices)).spilled)


def _pass_sizes(trials: Trials, choices: Choices) -> Iterator[int]:
    """The rows of passes to try, from half the batch down to what fits SBUF."""
    rows = trials.source.batch or 1
    while rows > 1:
        rows = passes.most_fewer(rows)
        if trials.source.part_material(choices, rows) is None:
            return
        yield rows
        if not _spills(trials, replace(choices, rows=rows)):
            return


class _Sweeping:
    """The search for sweeps: each by its start, then its end, then its number of images, each as long as it gains."""

    def __init__(self, trials: Trials, plain: Timed, tried: list[Tried]) -> None:
        self._trials, self._best, self._tried = trials, plain, tried

    def search(self, batch: int) -> Timed:
        """The plan with the sweeps that were found."""
        counts, done = list(sweep_sizes(batch)), set[int]()
        while counts:
            placed = self._best.fitted.placed
            bounds = sweep_bounds(self._best.steps, placed.spilled, batch, placed.sweeps)
            stretch = next((bound for bound in bounds if bound[0].start not in done), None)
            if stretch is None:
                break
            done.add(stretch[0].start)
            self._grow(*stretch, counts)
        return self._best

    def _grow(self, firsts: range, ends: range, counts: list[int]) -> None:
        """Add the best sweep that starts at one of ``firsts`` and ends at one of ``ends``, if it gains."""
        before, found = self._best.choices, list[Sweep]()

        def extends(sweep: Sweep) -> bool:
            """True if the sweep is better than the one before it, which it replaces."""
            if not self._try(before, sweep):
                return False
            found[:] = [sweep]
            return True

        for first in firsts:
            if not extends(Sweep(first, ends[0], counts[0])) and found:
                break
        for end in ends[1:]:
            if not found or not extends(replace(found[0], end=end)):
                break
        for images in counts[1:]:
            if not found or not extends(replace(found[0], images=images)):
                break

    def _try(self, before: Choices, sweep: Sweep) -> bool:
        """True if a sweep beside those of ``before`` is the best so far; False once the budget is used up."""
        if not self._trials.can_go_on():
            return False
        steps = self._best.steps
        name = sweep.name(steps)
        found = self._trials.challenge(self._best, replace(before, sweeps=before.sweeps | {name}))
        if found is None:
            return False
        gain = found.gain_over(self._best)
        names = tuple(step.name for step in steps[sweep.first : sweep.end])
        what = f"{sweep.images} images at a time, from {name[0]} to {name[1]}"
        self._tried.append(Tried(names, what, gain, True, gain > 0))
        if gain > 0:
            self._best = found
        return gain > 0
