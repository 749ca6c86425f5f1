"""``trnrt plan``: its flags. Its work is in ``trnrt.commands.capacity``, imported when the verb is called."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from trnrt.commands.options import EFFORT, EffortFlag, ModelFile, Reporting, check_finite, flag
from trnrt.commands.records import Planning, SessionOptions, takes_records


@dataclass(frozen=True)
class Asked:
    """The demand, and what to assume; None is a default of ``trnrt.capacity.assumptions``."""

    rps: float = flag(
        "Demand", "--rps", default=..., min=1e-3, metavar="R", help="Requests per second.", callback=check_finite
    )
    p99: str = flag(
        "Demand",
        "--p99",
        default=...,
        metavar="20ms",
        help="The latency that 99 % of the requests must meet: 20ms, 0.02s.",
    )
    rows: int = flag("Demand", "--rows", default=1, min=1, max=1024, metavar="N", help="Rows per request.")
    max_batch: int | None = flag(
        "Demand", "--max-batch", min=1, max=1024, metavar="N", help="The most rows of a batch. By default 32."
    )
    burst: float = flag(
        "Demand",
        "--burst",
        default=1.0,
        min=0,
        max=10,
        metavar="F",
        help="Standard deviation of the gaps between requests over their mean; 1 is Poisson.",
        callback=check_finite,
    )
    host_us: float | None = flag(
        "Demand",
        "--host-us",
        min=0,
        metavar="US",
        help="The host's CPU time per request, microseconds. By default as measured on another machine.",
        callback=check_finite,
    )
    utilisation: float | None = flag(
        "Demand",
        "--utilisation",
        min=0.01,
        max=0.95,
        metavar="F",
        help="The largest load of a core. By default 0.7.",
        callback=check_finite,
    )
    instance: str | None = flag(
        "Demand", "--instance", metavar="TYPE", help="Plan with this instance type only, such as trn2.48xlarge."
    )


@takes_records
def plan_command(
    model: ModelFile, asked: Asked, planning: Planning, reporting: Reporting, effort: EffortFlag = EFFORT
) -> None:
    """Plan capacity: the cores and instances that answer a rate of requests in time, and their batches, from predicted
    latencies and a model of the server's queue (docs/scale.md); runs nothing. Exit 1 if none can."""
    from trnrt.commands.capacity import plan_capacity

    if not plan_capacity(model, SessionOptions(planning, effort=effort), asked, reporting):
        raise typer.Exit(1)
