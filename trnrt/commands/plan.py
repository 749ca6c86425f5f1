"""``trnrt plan``: its flags. Its work is in ``trnrt.commands.capacity``, imported when the verb is called."""

from __future__ import annotations

from click.exceptions import Exit

from trnrt.commands.options import EFFORT, EffortFlag, ModelFile, Reporting
from trnrt.commands.records import CapacityDemand, Planning, SessionOptions


def plan_command(
    model: ModelFile, asked: CapacityDemand, planning: Planning, reporting: Reporting, effort: EffortFlag = EFFORT
) -> None:
    """Plan capacity: the cores, instances and batch size that meet a request rate and a p99, from predicted latencies
    and a model of the server's queue (docs/scale.md); runs nothing. Exit 1 if none can."""
    from trnrt.commands.capacity import plan_capacity

    if not plan_capacity(model, SessionOptions(planning, effort=effort), asked, reporting):
        raise Exit(1)
