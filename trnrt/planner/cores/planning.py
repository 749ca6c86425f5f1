"""The input and the result that all ways to divide a plan over cores share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from trnrt.planner.options import PlanOptions
from trnrt.planner.plan import Plan
from trnrt.planner.searching.search import Searched
from trnrt.planner.searching.trials import Source


class Planning(Source, Protocol):
    """A graph on its way to a plan: ``planner.making.Planning``."""

    options: PlanOptions

    def whole_plan(self, searched: Searched, cores: int = 1) -> Plan:
        """The plan around a module for the rows of each core."""
        ...


@dataclass(frozen=True)
class Divided:
    """A plan whose work is divided over its cores, and ``what`` each takes, in words."""

    plan: Plan
    what: str
