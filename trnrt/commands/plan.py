"""``trnrt plan``: its flags. What it does is in ``trnrt.commands.capacity``, imported when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from trnrt.commands.options import EFFORT, EffortFlag, ModelFile, Reporting, check_finite, demand_flag
from trnrt.commands.records import Planning, takes_records

_RpsFlag = Annotated[
    float,
    demand_flag("--rps", min=1e-3, metavar="R", help="Requests a second.", callback=check_finite, show_default=False),
]
_P99Flag = Annotated[
    str,
    demand_flag(
        "--p99", metavar="20ms", help="The time within which 99 % are answered: 20ms, 0.02s.", show_default=False
    ),
]
_RowsFlag = Annotated[int, demand_flag("--rows", min=1, max=1024, metavar="N", help="Rows of a request.")]
_MostFlag = Annotated[
    int | None,
    demand_flag("--max-batch", min=1, max=1024, metavar="N", help="Rows of a batch at most: 32.", show_default=False),
]
_BurstFlag = Annotated[
    float,
    demand_flag(
        "--burst",
        min=0,
        max=10,
        metavar="F",
        help="How much the gaps between requests vary, in means; 1 is Poisson.",
        callback=check_finite,
    ),
]
_HostFlag = Annotated[
    float | None,
    demand_flag(
        "--host-us",
        min=0,
        metavar="US",
        help="All CPU time of a request on the host, microseconds; else as measured on another machine.",
        callback=check_finite,
        show_default=False,
    ),
]
_UtilisationFlag = Annotated[
    float | None,
    demand_flag(
        "--utilisation",
        min=0.01,
        max=0.95,
        metavar="F",
        help="Load of a core at most: 0.7.",
        callback=check_finite,
        show_default=False,
    ),
]
_InstanceFlag = Annotated[
    str | None,
    demand_flag("--instance", metavar="TYPE", help="Only these instances, such as trn2.48xlarge.", show_default=False),
]


@takes_records
def plan_command(
    model: ModelFile,
    rps: _RpsFlag,
    p99: _P99Flag,
    planning: Planning,
    reporting: Reporting,
    rows: _RowsFlag = 1,
    most: _MostFlag = None,
    burst: _BurstFlag = 1.0,
    host_us: _HostFlag = None,
    utilisation: _UtilisationFlag = None,
    instance: _InstanceFlag = None,
    effort: EffortFlag = EFFORT,
) -> None:
    """Plan capacity: how many cores and instances answer a rate of requests in time, and with which batches, from
    predicted latencies and a model of the server's queue (docs/scale.md); nothing is run. Exit 1 if none can."""
    from trnrt.commands.capacity import CapacityRequest, plan_capacity

    request = CapacityRequest(rps, p99, rows, most, burst, host_us, utilisation, instance, reporting)
    if not plan_capacity(model, planning.session(effort=effort), request):
        raise typer.Exit(1)
