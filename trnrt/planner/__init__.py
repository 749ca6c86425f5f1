"""Graph to plan to kernel module: lower, fuse, place, render."""

from __future__ import annotations

from trnrt.planner.making import explain, make_plan
from trnrt.planner.plan import Layout, NodeReport, Plan, StepReport

__all__ = ["Layout", "NodeReport", "Plan", "StepReport", "explain", "make_plan"]
