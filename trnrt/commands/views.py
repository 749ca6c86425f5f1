"""The records of flags that the verbs for kernels take; those for models are in ``trnrt.commands.records``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trnrt.commands.options import CallsFlag, NkiFlag, NoCapacityFlag, SimulatedTargetFlag, flag, read_percent


@dataclass(frozen=True)
class Tracing:
    """The kernel calls of a script to trace, the simulated hardware, and the release of NKI."""

    calls: CallsFlag = None
    target: SimulatedTargetFlag = None
    nki: NkiFlag = None
    no_capacity: NoCapacityFlag = False


@dataclass(frozen=True)
class Views:
    """The files that a profile is written to, and the one it is compared with."""

    html: Path | None = flag(
        "Output", "--html", writes="file", metavar="FILE", help="Write a report for a browser; it needs no network."
    )
    trace: Path | None = flag("Output", "--trace", writes="file", metavar="FILE", help="Write a trace for Perfetto.")
    baseline: Path | None = flag(
        "Comparison",
        "--baseline",
        metavar="FILE",
        help="Compare with an earlier --json-out file; exit 1 if slower by more than --max-regress.",
    )
    max_regress: float | None = flag(
        "Comparison",
        "--max-regress",
        metavar="PERCENT",
        help="With --baseline: the slowdown to accept, as 2% or 2. By default 2%.",
        parser=read_percent,
    )


@dataclass(frozen=True)
class Checking:
    """The place for a check's findings, and whether the check is repeated."""

    sarif: Path | None = flag(
        "Output", "--sarif", writes="file", metavar="FILE", help="Also write the findings as SARIF 2.1.0."
    )
    watch: bool = flag(
        "Output",
        "--watch",
        default=False,
        help="Check again whenever the script, or a file beside it that it imports, changes. Ctrl-C ends it, with the "
        "exit code of the last check.",
    )
