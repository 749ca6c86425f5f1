"""The runs of a case, and the parts of its time: for reports that can be read without this version of trnrt."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from trnrt.neuron.selftest.cases import Case, Direct, Small
from trnrt.nki.machine.timing import PS_PER_US
from trnrt.nki.machine.timing.path import LAUNCH, critical_path
from trnrt.nki.machine.timing.transfers import Starts

if TYPE_CHECKING:
    from trnrt.nki.machine.timing import Timeline

WAITS = ("semaphores", "function tables")


def describe_case(case: Case) -> dict[str, Any]:
    """The kernel or the model, its shapes and its dtype, as JSON can hold them.

    ``repeats``: of a probe, else null.
    """
    if isinstance(case, Direct):
        repeats = case.options[0] if case.probe else None
        shapes, options = [list(shape) for shape in case.shapes], list(case.options)
        return {"kernel": case.body, "shapes": shapes, "dtype": case.dtype, "options": options, "repeats": repeats}
    if isinstance(case, Small):
        weights = {name: list(shape) for name, shape in case.weights.items()}
        return {"nodes": case.nodes, "shapes": [list(case.x)], "weights": weights, "dtype": case.dtype}
    return {"model": case.file, "rows": case.rows, "dtype": case.dtype}


def time_by_place(timeline: Timeline) -> dict[str, float]:
    """The microseconds of the critical path by engine, by the origin of transfers' descriptors ("DMA hardware"), and by
    what is neither (``launch``, WAITS). They add up to the benchmark's figure."""
    instructions, lanes = timeline.program.instructions, timeline.lanes
    starts, transfers = Starts(timeline.program.target), {transfer.issue for transfer in timeline.transfers}
    spent = Counter({LAUNCH: round(timeline.timing.benchmark_ns * 1000)})
    for segment in critical_path(timeline):
        place = lanes[timeline.lane[segment.issue]]
        if segment.part in WAITS:
            place = segment.part
        elif segment.issue in transfers:
            place = f"DMA {starts.get(instructions[timeline.instruction[segment.issue]]).mode}"
        spent[place] += segment.end - segment.start
    return {place: round(time / PS_PER_US, 3) for place, time in spent.most_common()}
