"""Divide the outputs of steps over cores: each makes a share of a step's channels or features, with its own share of
the weights, and they exchange the shares.

Weights that DMA streams are what holds a single image: each core loads half of them, with its own DMA engines. An
exchange costs microseconds, so only those steps are divided that gain more. The timing model says which: all are
divided first; each step that takes longer than undivided then becomes whole again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from trnrt.errors import KernelError
from trnrt.nki.machine.timing import predict_cores
from trnrt.planner.cores.planning import Divided, Planning
from trnrt.planner.plan import Plan
from trnrt.planner.rendering.draft import Material
from trnrt.planner.searching.fitting import Fitted, fit, trace_each_core
from trnrt.planner.searching.search import Searched
from trnrt.planner.searching.trials import Timed
from trnrt.text import count_text

MOST_INSTRUCTIONS = 12_000
"""Plans of more instructions aren't divided so: each trial traces and times both cores. VGG-16 at batch 1 has 8,600."""
_ROUNDS = 4
"""How often steps that lose become whole again; the networks of ``benchmarks.networks`` settle after two or three."""


@dataclass(frozen=True)
class _Tried:
    """A module that was timed, with the names of the steps that its cores divide."""

    names: frozenset[str]
    fitted: Fitted
    timed: Timed


def divide_outputs(planning: Planning, alone: Plan, cores: int) -> Divided | str:
    """The plan whose cores divide the outputs of those steps that gain by it; the reason if there is none."""
    if alone.size.unrolled > MOST_INSTRUCTIONS:
        return f"its {alone.size.unrolled:,} instructions are too many to try dividing channels or features"
    material = planning.material(alone.choices, planning.batch)
    whole = _try(material, 1, ())
    tried = _try(material, cores, {step.name for step in material.steps})
    if whole is None or tried is None or not tried.names:
        return "no step has channels or features that can be divided"
    best = tried
    for _ in range(_ROUNDS):
        before, after = whole.timed.added_us, tried.timed.added_us
        tried_names = frozenset(name for name in tried.names if after[name] < before[name])
        if tried_names == tried.names or not tried_names:
            break
        found = _try(material, cores, tried_names)
        if found is None:
            break
        tried = found
        best = tried if tried.timed.gain_over(best.timed) > 0 else best
    searched = Searched(alone.choices, best.fitted, alone.weighed)
    what = f"{count_text(len(best.names), 'step')} of {len(material.steps)} by channels or features"
    return Divided(planning.whole_plan(searched, cores), what)


def _try(material: Material, cores: int, names: Collection[str]) -> _Tried | None:
    """The module with the outputs of these steps divided, where that is possible, and timed; None if it can't be
    made."""
    material = replace(material, cores=cores, shared=frozenset(names))
    try:
        fitted = fit(material)
        if fitted is None:
            return None
        predictions = predict_cores(trace_each_core(material, fitted.module))
    except KernelError:
        return None
    divided = {step.name for step in material.steps if fitted.module.shares[step.output]}
    slowest = max(predictions, key=lambda one: one.benchmark.us)
    fitted = replace(fitted, program=slowest.issues.program)
    timed = Timed(material.choices, fitted, material.steps, slowest.timeline, slowest)
    return _Tried(frozenset(divided), fitted, timed)
