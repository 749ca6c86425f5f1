"""Graph to plan to kernel module: lower, fuse, place, render."""

from __future__ import annotations

from trnrt.planner.making import make_plan
from trnrt.planner.options import PlanOptions
from trnrt.planner.plan import Layout, NodeReport, Plan, StepReport

__all__ = ["Layout", "NodeReport", "Plan", "PlanOptions", "StepReport", "make_plan"]
