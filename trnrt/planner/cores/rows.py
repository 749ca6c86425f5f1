"""Divide a batch over cores: each takes its own rows, and they never meet.

A core runs what it would run alone for so many rows, so that is what is planned and searched. Every core loads all
weights. That takes no longer: each has DMA engines of its own, and the two cores of a logical one together stay below
the bandwidth of the HBM stack that they share (``hbm_stack_gbps`` of the target).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trnrt.planner.choices import Choices
from trnrt.planner.options import PlanOptions
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.module import Material
from trnrt.planner.searching.search import Searched, search
from trnrt.planner.searching.trials import Source


class Planning(Source, Protocol):
    """A graph on its way to a plan: ``planner.making.Planning``."""

    options: PlanOptions

    def whole_plan(self, searched: Searched, cores: int = 1) -> Plan:
        """The plan around a module for the rows of each core."""
        ...


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


@dataclass(frozen=True)
class RowsDivided:
    """A plan whose batch is divided over its cores, and ``what`` each takes, in words."""

    plan: Plan
    what: str


def divide_rows(planning: Planning, cores: int) -> RowsDivided | str:
    """The plan with as many rows on each core; the reason if there is none."""
    batch, options = planning.batch, planning.options
    if batch is None:
        return "the model has no batch to divide"
    if batch % cores:
        return f"{batch} {'row' if batch == 1 else 'rows'} can't be divided evenly"
    rows = batch // cores
    if planning.part_material(options.choices, rows) is None:
        return "the rows of the batch depend on each other, or their number is fixed"
    searched = search(OneCore(planning, rows), options.choices, options.effort)
    return RowsDivided(planning.whole_plan(searched, cores), f"{rows} of {batch} rows each")
