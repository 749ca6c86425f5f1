"""Divide a batch over cores: each takes its own rows, and they never meet.

A core runs what it would run alone for so many rows, so that is what is planned and searched. Every core loads all
weights. That takes no longer: each has DMA engines of its own, and the two cores of a logical one together stay below
the bandwidth of the HBM stack that they share (``hbm_stack_gbps`` of the target).
"""

from __future__ import annotations

from dataclasses import dataclass

from trnrt.planner.choices import Choices
from trnrt.planner.cores.planning import Divided, Planning
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.search import search
from trnrt.planner.searching.trials import Source


@dataclass(frozen=True)
class OneCore:
    """The rows of one core as the ``Source`` of a search: its ``batch`` is a part of ``whole``'s."""

    whole: Source
    batch: int

    def material(self, choices: Choices, rows: int | None) -> Material:
        """The material for ``rows`` rows."""
        return self.whole.material(choices, rows)

    def part_material(self, choices: Choices, rows: int) -> Material | None:
        """The material for a part of the core's rows."""
        return self.whole.part_material(choices, rows)


def divide_rows(planning: Planning, alone: Plan, cores: int) -> Divided | str:
    """The plan with as many rows on each core; the reason if there is none. ``alone``, that of one core, isn't read."""
    batch, options = planning.batch, planning.options
    if batch is None:
        return "the model has no batch to divide"
    if batch % cores:
        return f"{batch} {'row' if batch == 1 else 'rows'} can't be divided evenly"
    rows = batch // cores
    if planning.part_material(options.choices, rows) is None:
        return "the rows of the batch depend on each other, or their number is fixed"
    searched = search(OneCore(planning, rows), options.choices, options.effort)
    return Divided(planning.whole_plan(searched, cores), f"{rows} of {batch} rows each")
