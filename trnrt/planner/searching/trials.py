"""Trials: the one way in which the planner times a plan: fit its module, trace it, and ask the timing model.

A trial is judged by its whole range: the sum of what both ends gain. The budget of trials is a number of traced
instructions, never a time: a model has the same plan on every machine. A plan whose headline is slower has lost: its
ends are not predicted. A module that was timed before, by other choices, isn't traced again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Protocol

from trnrt.errors import KernelError
from trnrt.nki.machine.timing import PS_PER_US, Prediction, Range, Timeline, benchmark_us, predict_if_faster
from trnrt.planner.choices import Choices
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.fitting import SHARES, Fitted, fit, module_key, repeat_part, trace, trace_module
from trnrt.planner.steps import Step

BUDGET = 120_000
"""The most instructions in the trials of a plan's division, and again in those of the search for the rest: a limit of
planning time that is the same on every machine. When it, TRIAL or WORTH changes, search the networks again
(docs/kernels.md, Tuned numbers) and compare latencies and planning time. Half as much finds the same for ResNet-18 and
ResNet-50 at batch 1, but no sweep for VGG-16 at batch 8."""
TRIAL = 1_500
"""The fixed cost of a trial, in instructions: about the share of its time that goes to planning and rendering."""
WORTH = 0.25
"""A change is tried if the share of the model's time that its steps take is above this times the trial's share of
BUDGET: more than 0.8 % in a light network, 3.4 % in timm's Swin-T, whose only steps with options gain 0.02 %."""


class Source(Protocol):
    """Gives the materials of modules: of the whole batch, or of some of its rows."""

    @property
    def batch(self) -> int | None:
        """The rows of the whole batch; None for a model without one."""
        ...

    def material(self, choices: Choices, rows: int | None) -> Material:
        """The material for ``rows`` rows, which are the batch, or for which ``part_material`` has one."""
        ...

    def part_material(self, choices: Choices, rows: int) -> Material | None:
        """The material for a part of the batch, if passes over it do the same as the whole."""
        ...


@dataclass(frozen=True)
class Timed:
    """A plan that was timed: its ``choices``, the ``fitted`` module of one pass, and the headline's ``timeline`` of all
    passes. ``prediction``: the whole; None if it was left out because the headline is slower than another plan's."""

    choices: Choices
    fitted: Fitted
    steps: Sequence[Step]
    timeline: Timeline
    prediction: Prediction | None

    @property
    def headline_us(self) -> float:
        """The headline alone."""
        return benchmark_us(self.timeline)

    @property
    def range(self) -> Range:
        """The predicted time; not of a plan that is known to be slower than another."""
        assert self.prediction is not None, "its headline is slower"
        return self.prediction.benchmark

    @property
    def us(self) -> float:
        """The middle of the range: what plans are compared by."""
        return (self.range.least_us + self.range.most_us) / 2

    def gain_over(self, other: Timed) -> float:
        """The microseconds by which this plan is faster than another, at both ends on average; if its headline is
        slower, the headline's loss."""
        if self.headline_us > other.headline_us:
            return other.headline_us - self.headline_us
        return other.us - self.us

    @cached_property
    def added_us(self) -> Mapping[str, float]:
        """How much later it is after each step than after those before it."""
        lines, instructions = self.fitted.module.lines, self.timeline.program.instructions
        starts, added, done = [first for first, _ in lines], [0] * len(lines), 0
        for issue, index in enumerate(self.timeline.instruction):
            end, line = self.timeline.end[issue], instructions[index].line
            at = bisect_right(starts, line) - 1
            if end > done and at >= 0 and line <= lines[at][1]:
                added[at] += end - done
                done = end
        return {step.name: late / PS_PER_US for step, late in zip(self.steps, added, strict=True)}


class Trials:
    """Fits and times the plans of a ``source``; ``left`` is what remains of the budget, by default BUDGET."""

    def __init__(self, source: Source, budget: float | None = None) -> None:
        self.source = source
        self._budget = BUDGET if budget is None else budget
        self.left = self._budget
        self.cost = TRIAL  # of the last module that was timed
        self._known: dict[object, Timed | None] = {}  # by module; None if it was slower than the best of its time

    def refill(self) -> None:
        """Begin with the whole budget again."""
        self.left = self._budget

    def material(self, choices: Choices) -> Material:
        """The material of a plan's pass: of the chosen rows, if the batch can be divided into them."""
        rows, batch = choices.rows, self.source.batch
        if batch is not None and rows is not None and 0 < rows < batch and batch % rows == 0:
            part = self.source.part_material(choices, rows)
            if part is not None:
                return part
        return self.source.material(choices, batch)

    def can_go_on(self) -> bool:
        """True if the budget has room for another trial like the last one."""
        return self.left >= self.cost

    def is_worth(self, share: float) -> bool:
        """True if what takes this share of the model's time can gain enough for the cost of a trial."""
        return share * BUDGET >= WORTH * self.cost

    def fit(self, choices: Choices) -> Fitted | None:
        """The module of a plan's pass, timed or not; None if its sweeps don't fit."""
        return fit(self.material(choices), self._known)

    def time(self, choices: Choices, of: int | None = None) -> Timed | None:
        """Time a plan for ``of`` rows, by default for those of one pass; None if it can't be made."""
        return self._time(choices, lambda material: fit(material), inf, of)

    def challenge(self, best: Timed, choices: Choices) -> Timed | None:
        """Time a plan that may be faster than ``best``: only its headline, if that is slower. None if it can't be made,
        or if its module was timed before and was slower."""
        return self._time(choices, lambda material: fit(material, self._known), best.headline_us)

    def time_fitted(self, choices: Choices, fitted: Fitted) -> Timed:
        """Time a module that was fitted with these choices."""
        material = self.material(choices)
        material.tune()
        return self._pay(material, trace(material, fitted), inf)

    def _time(
        self, choices: Choices, fit_material: Callable[[Material], Fitted | None], most_us: float, of: int | None = None
    ) -> Timed | None:
        material = self.material(choices)
        try:
            fitted = fit_material(material)
            if fitted is None:  # with no share of SBUF
                self.left -= len(SHARES) * self.cost
                return None
            key = module_key(material, fitted.module)
            if most_us < inf and key in self._known:
                self.left -= fitted.tries * self.cost + TRIAL
                known = self._known[key]
                return None if known is None else replace(known, choices=choices, fitted=fitted, steps=material.steps)
            return self._pay(material, trace(material, fitted), most_us, of)
        except KernelError:
            self.left -= self.cost
            return None

    def _pay(self, material: Material, fitted: Fitted, most_us: float, of: int | None = None) -> Timed:
        """Time a traced module, and take its cost from the budget."""
        found = _predict(material, fitted, most_us, of)
        if of is None:
            self._known[module_key(material, fitted.module)] = None if found.prediction is None else found
        instructions = len(found.timeline.program.instructions)
        self.cost = max(1, found.fitted.tries) * instructions + TRIAL
        self.left -= self.cost
        return found


def _predict(material: Material, fitted: Fitted, most_us: float, of: int | None) -> Timed:
    """The times of as many passes as ``of`` rows need; only the headline if that is above ``most_us``."""
    assert fitted.program is not None
    program, rows = fitted.program, material.batch or 1
    if of is not None and of != rows:
        passes = repeat_part(material, fitted, of // rows, material.heading)
        inputs = [replace(tensor, shape=(of, *tensor.shape[1:])) for tensor in material.inputs]
        program = trace_module(replace(material, inputs=inputs), passes.module)
    found = predict_if_faster(program, most_us)
    prediction = found if isinstance(found, Prediction) else None
    timeline = found.timeline if isinstance(found, Prediction) else found
    return Timed(material.choices, fitted, material.steps, timeline, prediction)
