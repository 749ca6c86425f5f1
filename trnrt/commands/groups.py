"""The verbs that come in groups: ``trnrt cache`` and ``trnrt nki``."""

from __future__ import annotations

import typer

from trnrt.commands.options import (
    AgainstFlag,
    NkiFlag,
    NoCapacityFlag,
    Reporting,
    ScriptArguments,
    ScriptFile,
    SimulatedTargetFlag,
    TimingFlag,
    check_timing_target,
)
from trnrt.commands.records import Tracing, Verb, Views, takes_records

cache_app = typer.Typer(help="List or clear the cache of compiled models.", no_args_is_help=True)
nki_app = typer.Typer(help="Run, check or profile kernels on the simulated NeuronCore.", no_args_is_help=True)


@cache_app.callback()
def cache_verbs() -> None:
    """List or clear the cache of compiled models."""


@cache_app.command("ls", cls=Verb, short_help="List the cached plans.")
@takes_records
def cache_ls_command(reporting: Reporting) -> None:
    """List the plans in the cache, the most recently used first, with their models, targets and sizes."""
    from trnrt.commands.cache import list_entries

    list_entries(reporting)


@cache_app.command("clear", short_help="Remove everything.")
def cache_clear_command() -> None:
    """Remove all plans, weights and kernel modules from the cache."""
    from trnrt.commands.cache import clear

    clear()


@nki_app.callback()
def nki_verbs() -> None:
    """Run, check or profile kernels on the simulated NeuronCore."""


# Options unknown to trnrt belong to the script, wherever they are.
@nki_app.command("run", cls=Verb, short_help="Run a kernel script.", context_settings={"ignore_unknown_options": True})
def nki_run_command(
    script: ScriptFile,
    arguments: ScriptArguments = None,
    target: SimulatedTargetFlag = None,
    nki: NkiFlag = None,
    no_capacity: NoCapacityFlag = False,
) -> None:
    """Run an unchanged script that says `import nki` on the simulator; exits with the script's own exit code."""
    from trnrt.commands.nki import run_script

    raise typer.Exit(run_script(script, arguments or [], target, nki=nki, capacity=not no_capacity))


@nki_app.command("check", cls=Verb, short_help="Find what is wrong with kernels, without data.")
@takes_records
def nki_check_command(script: ScriptFile, tracing: Tracing, reporting: Reporting) -> None:
    """Find what the language, the API or the hardware refuses; needs no data. Exit 0 if nothing is found, else 1."""
    from trnrt.commands.nki import check_script

    if not check_script(script, tracing, reporting):
        raise typer.Exit(1)


@nki_app.command("profile", cls=Verb, short_help="Predict the latency of kernels on the device.")
@takes_records
def nki_profile_command(
    script: ScriptFile,
    tracing: Tracing,
    views: Views,
    reporting: Reporting,
    against: AgainstFlag = None,
    timing: TimingFlag = None,
) -> None:
    """Predict the latency of each kernel call on the device, and what limits it; needs no data."""
    from trnrt.commands.nki_profile import profile_script

    check_timing_target(timing, tracing.target)

    if not profile_script(script, tracing, views, reporting, against):
        raise typer.Exit(1)
