"""Other plans of a small model, for the advice of ``trnrt profile``: they cost little, and show a real gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.members import Backend, DType
from trnrt.commands.opening import fixed_batch, open_session
from trnrt.errors import TrnrtError

if TYPE_CHECKING:
    from trnrt.commands.records import SessionOptions
    from trnrt.planner.parts.partition import Partition
    from trnrt.report.verdict import Tried
    from trnrt.session import InferenceSession

CHEAP = 500
"""Instructions: planning and timing a larger kernel takes longer than a user expects of advice. The digits CNN has 33
and takes 0.4 s; ResNet-50 has 2,657 and takes 3 s."""
LARGER = 8


def try_others(
    session: InferenceSession, partition: Partition, model: Path, options: SessionOptions, rows: int
) -> list[Tried]:
    """The predictions in bfloat16 and with more rows; none for a large model, one in parts, or a device."""
    plans = partition.plans
    if len(partition.parts) != 1 or not plans or plans[0].size.unrolled > CHEAP or options.backend is Backend.NEURON:
        return []
    if not model.is_file() or any(vars(options.overrides).values()):
        return []
    found: list[Tried] = []
    if session.dtype == "float32":
        other = replace(options, planning=replace(options.planning, dtype=DType.BFLOAT16))
        found += _predict(lambda: open_session(model, other).partition(rows), "--dtype bfloat16", rows)
    if session.model.batch is not None and fixed_batch(session) is None:
        more = rows * LARGER
        found += _predict(lambda: session.partition(more), f"--batch {more}", more)
    return found


def _predict(plan: Callable[[], Partition], flags: str, rows: int) -> list[Tried]:
    """The prediction of another plan; none if the model can't be planned so, or only in parts."""
    from trnrt.report.verdict import Tried
    from trnrt.running.profiler import predicted_us_of

    try:
        plans = plan().plans
        return [Tried(flags, predicted_us_of(plans[0]) / rows)] if len(plans) == 1 else []
    except TrnrtError:
        return []
