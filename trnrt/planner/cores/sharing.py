"""Choose how the physical cores of a logical one divide a plan's work, or that they don't.

Each way is planned and timed; one is taken only if the whole predicted range says that it is faster. Otherwise all
cores do the same work.
"""

from __future__ import annotations

from dataclasses import replace

from trnrt.nki.machine.timing import Range, predict_benchmark
from trnrt.planner.cores.outputs import divide_outputs
from trnrt.planner.cores.planning import Divided, Planning
from trnrt.planner.cores.rows import divide_rows
from trnrt.planner.plan import Plan
from trnrt.planner.searching.trial import trace_cores_of
from trnrt.text import count_text

LEAST_GAIN = 0.01
"""The share of the time that a second core must save, at both ends on average: less isn't worth its memory. Dividing
the last layer of the digits' network over both cores saves 0.1 of 16.5 us."""
ENOUGH = 0.6
"""With less than this share of the time of one core no other way is tried: none would take less than half of it."""


def share_work(planning: Planning, alone: Plan) -> Plan:
    """The fastest way for the cores that were asked for; ``alone``, the plan of one core, if no way is faster."""
    cores = planning.options.lnc
    if cores == 1:
        return alone
    first = best = _predict(alone)
    taken: Divided | None = None
    failed: list[str] = []
    for divide in (divide_rows, divide_outputs):
        if best.us < ENOUGH * first.us:
            break
        divided = divide(planning, alone, cores)
        if not isinstance(divided, Divided):
            failed.append(divided)
            continue
        after = _predict(divided.plan)
        if is_faster(after, best):
            best, taken = after, divided
        else:
            failed.append(f"{divided.what} is no faster, predicted {_times_text(after)} instead of {_times_text(best)}")
    counted = count_text(cores, "core")
    if taken is None:
        return _with_note(alone, f"{counted} do the same work: {'; '.join(failed)}")
    times = f"predicted {_times_text(best)} instead of {_times_text(first)}"
    return _with_note(taken.plan, f"{counted} divide the work, {taken.what}: {times}")


def is_faster(one: Range, other: Range) -> bool:
    """True if a range is below another: the gain at one end exceeds any loss at the other by LEAST_GAIN, and the
    headline falls."""
    ends = (other.least_us - one.least_us) + (other.most_us - one.most_us)
    return one.us < other.us and ends > LEAST_GAIN * (other.least_us + other.most_us)


def _predict(plan: Plan) -> Range:
    return predict_benchmark(trace_cores_of(plan))


def _times_text(predicted: Range) -> str:
    return f"{predicted.us:,.1f} us ({predicted.least_us:,.1f} to {predicted.most_us:,.1f})"


def _with_note(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
