"""Trials: the one way in which the planner times a plan: fit its module, trace it, and ask the timing model.

A trial is judged by its whole range: the sum of what both ends gain. The budget of all trials is a number of traced
instructions, never a time: a model has the same plan on every machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from trnrt.errors import KernelError
from trnrt.nki.machine.timing import PS_PER_US, Range, Timeline, predict
from trnrt.planner.choices import Choices
from trnrt.planner.rendering.module import Material
from trnrt.planner.searching.fitting import SHARES, Fitted, fit, repeat_part, trace, trace_module
from trnrt.planner.steps import Step

BUDGET = 120_000
"""The most instructions in all trials of one plan: a limit of planning time that is the same on every machine. When it
or TRIAL changes, search the networks again (docs/kernels.md, Tuned numbers) and compare latencies and planning time.
Half as much finds the same for ResNet-18 and ResNet-50 at batch 1, but no sweep for VGG-16 at batch 8, which then takes
37 % longer (trn2, bfloat16)."""
TRIAL = 1_500
"""The fixed cost of a trial, in instructions: about the share of its time that goes to planning and rendering."""


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
    """A plan that was timed: its ``choices``, the ``fitted`` module of one pass, and the times of all passes."""

    choices: Choices
    fitted: Fitted
    range: Range
    steps: Sequence[Step]
    timeline: Timeline

    @property
    def us(self) -> float:
        """The middle of the range: what plans are compared by."""
        return (self.range.least_us + self.range.most_us) / 2

    def gain_over(self, other: Timed) -> float:
        """The microseconds by which this plan is faster than another, at both ends on average; never more than 0 if its
        headline is slower."""
        gain = other.us - self.us
        return gain if self.range.us <= other.range.us else min(gain, 0.0)

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
        self.left = BUDGET if budget is None else budget
        self.cost = TRIAL  # of the last module that was timed

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

    def fit(self, choices: Choices) -> Fitted | None:
        """The module of a plan's pass, timed or not; None if its sweeps don't fit."""
        return fit(self.material(choices))

    def time(self, choices: Choices, of: int | None = None) -> Timed | None:
        """Time a plan for ``of`` rows, by default for those of one pass; None if it can't be made."""
        material = self.material(choices)
        try:
            fitted = fit(material)
            if fitted is None:  # with no share of SBUF
                self.left -= len(SHARES) * self.cost
                return None
            found = _time(material, trace(material, fitted), of)
        except KernelError:
            self.left -= self.cost
            return None
        instructions = len(found.timeline.program.instructions)
        self.cost = max(1, found.fitted.tries) * instructions + TRIAL
        self.left -= self.cost
        return found

    def time_fitted(self, choices: Choices, fitted: Fitted) -> Timed:
        """Time a module that was fitted with these choices."""
        material = self.material(choices)
        material.tune()
        found = _time(material, trace(material, fitted), None)
        self.cost = max(1, found.fitted.tries) * len(found.timeline.program.instructions) + TRIAL
        self.left -= self.cost
        return found


def _time(material: Material, fitted: Fitted, of: int | None) -> Timed:
    """The times of as many passes as ``of`` rows need."""
    assert fitted.program is not None
    program, rows = fitted.program, material.batch or 1
    if of is not None and of != rows:
        passes = repeat_part(material, fitted, of // rows, material.heading)
        inputs = [replace(tensor, shape=(of, *tensor.shape[1:])) for tensor in material.inputs]
        program = trace_module(replace(material, inputs=inputs), passes.module)
    prediction = predict(program)
    return Timed(material.choices, fitted, prediction.benchmark, material.steps, prediction.timeline)
