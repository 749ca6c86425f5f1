"""Choose how the physical cores of a logical one divide a plan's work, or that they don't.

Each way is planned and timed; one is taken only if the whole predicted range says that it is faster. Otherwise all
cores do the same work.
"""

from __future__ import annotations

from dataclasses import replace

from trnrt.nki.machine.timing import Range, predict_benchmark
from trnrt.planner.cores.rows import Planning, RowsDivided, divide_rows
from trnrt.planner.plan import Plan
from trnrt.planner.searching.trial import trace_cores_of
from trnrt.text import count_text


def share_work(planning: Planning, alone: Plan) -> Plan:
    """The fastest way for the cores that were asked for; ``alone``, the plan of one core, if no way is faster."""
    cores = planning.options.lnc
    if cores == 1:
        return alone
    divided = divide_rows(planning, cores)
    if not isinstance(divided, RowsDivided):
        return _with_note(alone, f"{count_text(cores, 'core')} do the same work: {divided}")
    before, after = _predict(alone), _predict(divided.plan)
    times = f"predicted {_times_text(after)} instead of {_times_text(before)}"
    if not is_faster(after, before):
        return _with_note(alone, f"{count_text(cores, 'core')} do the same work: {divided.what} is no faster, {times}")
    return _with_note(divided.plan, f"{count_text(cores, 'core')} divide the work, {divided.what}: {times}")


def is_faster(one: Range, other: Range) -> bool:
    """True if a range is below another: the gain at one end exceeds any loss at the other, and the headline falls."""
    ends = (other.least_us - one.least_us) + (other.most_us - one.most_us)
    return one.us < other.us and ends > 0


def _predict(plan: Plan) -> Range:
    return predict_benchmark(trace_cores_of(plan))


def _times_text(predicted: Range) -> str:
    return f"{predicted.us:,.1f} us ({predicted.least_us:,.1f} to {predicted.most_us:,.1f})"


def _with_note(plan: Plan, note: str) -> Plan:
    return replace(plan, notes=(*plan.notes, note))
