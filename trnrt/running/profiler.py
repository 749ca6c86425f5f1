"""Profiles of plans: predicted costs on the device, without any data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from trnrt.backends.simulator import trace_plan
from trnrt.cache import KernelCache
from trnrt.nki import Spec
from trnrt.nki.breakdown import NOTHING, Holder, PlanCost, StepCost, holders_of
from trnrt.nki.floor import floor_program
from trnrt.nki.machine.program import Program
from trnrt.nki.machine.timing import Range, add_ranges, predict_benchmark
from trnrt.nki.profiling import Profile, Step, predicted_us, profile_programs
from trnrt.nki.tiles import StepTiles, tile_plan
from trnrt.planner.plan import Plan

CROSSINGS = "between device and host"
"""The holder that is the time on the way between kernels and the host's parts."""


def profile_plan(plan: Plan, cache_dir: Path | None = None) -> Profile:
    """The predicted cost of a plan's kernel module, step by step; runs nothing and reads no weights.

    The module goes into the cache, as for a run, so that source lines have a file. ``cache_dir``: see ``KernelCache``.
    Raises KernelError if the module can't be traced or never ends, CacheError if the cache is not safe.
    """
    # Lines outside of the steps belong to the last step, which has no lines of its own.
    outside = "(loop over the batch, and weights)" if plan.size.trips > 1 else "(weights brought ahead)"
    steps = [*_steps(plan), *([Step(outside, (), (0, 0))] if plan.parts or plan.size.trips > 1 else [])]
    return profile_programs(
        _plan_programs(plan, cache_dir), steps=steps, dtype=plan.shown_dtype, batch=plan.batch, floor=_floor(plan)
    )


def predicted_range_of(plan: Plan, cache_dir: Path | None = None) -> Range:
    """``benchmark`` of a plan's profile alone. Raises what ``profile_plan`` raises."""
    return predict_benchmark(_plan_programs(plan, cache_dir))


def predicted_us_of(plan: Plan, cache_dir: Path | None = None) -> float:
    """``benchmark_us`` of a plan's profile alone. Raises what ``profile_plan`` raises."""
    programs = _plan_programs(plan, cache_dir)
    return predicted_us(programs[0]) if len(programs) == 1 else predict_benchmark(programs).us


def tiles_of_plan(plan: Plan, profile: Profile) -> tuple[StepTiles, ...]:
    """The tile plan of each step, with its SBUF and PSUM, from the plan's profile."""
    return tile_plan(profile.predictions[0].issues.program, _steps(plan))


def cost_of_plan(plan: Plan, cache_dir: Path | None = None) -> PlanCost:
    """A plan's predicted cost as a whole and by step. Raises what ``profile_plan`` raises."""
    profile = profile_plan(plan, cache_dir)
    used = {step.name: (step.time_us, step.bound) for step in profile.steps}
    steps = {
        tiles.name: StepCost(tiles, *used.get(tiles.name, (0.0, NOTHING))) for tiles in tiles_of_plan(plan, profile)
    }
    return PlanCost(profile.benchmark, holders_of([profile.timeline]), steps)


def add_costs(costs: Iterable[PlanCost], crossings_us: float = 0.0) -> PlanCost:
    """The cost of plans that follow each other, with ``crossings_us`` on the way between them."""
    found = tuple(costs)
    held = Counter({CROSSINGS: crossings_us} if crossings_us else {})
    for cost in found:
        held.update({holder.by: holder.us for holder in cost.held})
    steps = {name: step for cost in found for name, step in cost.steps.items()}
    holders = tuple(Holder(by, us) for by, us in held.most_common())
    return PlanCost(add_ranges((cost.predicted for cost in found), crossings_us), holders, steps)


def _plan_programs(plan: Plan, cache_dir: Path | None) -> list[Program]:
    path, source, _ = KernelCache(cache_dir).kernel(plan.name, plan.source)
    return trace_plan(plan, path, source)


def _floor(plan: Plan) -> Program:
    inputs, outputs = ([Spec(tensor.shape, tensor.dtype) for tensor in side] for side in (plan.inputs, plan.results))
    return floor_program(inputs, outputs, plan.target)


def _steps(plan: Plan) -> list[Step]:
    return [Step(step.name, step.nodes, step.lines) for step in plan.steps]
