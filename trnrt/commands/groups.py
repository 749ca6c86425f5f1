"""The verbs that come in groups: ``trnrt cache`` and ``trnrt nki``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from trnrt.commands.options import (
    CallsFlag,
    NoCapacityFlag,
    Reporting,
    ScriptArguments,
    ScriptFile,
    SimulatedTargetFlag,
    read_percent,
)
from trnrt.commands.records import Verb, Views, takes_records

if TYPE_CHECKING:
    from trnrt.commands.profile import ProfileRequest

cache_app = typer.Typer(help="What is kept of compiled models.", no_args_is_help=True)
nki_app = typer.Typer(help="Kernels on the simulated NeuronCore: run, check or profile a script.", no_args_is_help=True)


@cache_app.callback()
def cache_verbs() -> None:
    """What is kept of compiled models."""


@cache_app.command("ls", cls=Verb, short_help="List what is kept.")
@takes_records
def cache_ls_command(reporting: Reporting) -> None:
    """List the plans in the cache, the one used last first, with what they are for."""
    from trnrt.commands.cache import list_entries

    list_entries(reporting)


@cache_app.command("clear", short_help="Remove everything.")
def cache_clear_command() -> None:
    """Remove all plans, weights and kernel modules from the cache."""
    from trnrt.commands.cache import clear

    clear()


@nki_app.callback()
def nki_verbs() -> None:
    """Kernels on the simulated NeuronCore: run, check or profile a script."""


# Options that trnrt does not know are the script's, wherever they stand.
@nki_app.command("run", cls=Verb, short_help="Run a kernel script.", context_settings={"ignore_unknown_options": True})
def nki_run_command(
    script: ScriptFile,
    arguments: ScriptArguments = None,
    target: SimulatedTargetFlag = None,
    no_capacity: NoCapacityFlag = False,
) -> None:
    """Run a script that says `import nki` on the simulator, unchanged; exits as the script does."""
    from trnrt.commands.nki import run_script

    raise typer.Exit(run_script(script, arguments or [], target, capacity=not no_capacity))


@nki_app.command("check", cls=Verb, short_help="Find what is wrong with kernels, without data.")
@takes_records
def nki_check_command(
    script: ScriptFile,
    reporting: Reporting,
    calls: CallsFlag = None,
    target: SimulatedTargetFlag = None,
    no_capacity: NoCapacityFlag = False,
) -> None:
    """Find what the language, the API and the hardware refuse, without executing data; exit 0 if nothing is."""
    from trnrt.commands.nki import check_script

    if not check_script(script, calls or [], target, reporting, capacity=not no_capacity):
        raise typer.Exit(1)


@nki_app.command("profile", cls=Verb, short_help="Predict the latency of kernels on the device.")
@takes_records
def nki_profile_command(
    script: ScriptFile,
    views: Views,
    reporting: Reporting,
    calls: CallsFlag = None,
    target: SimulatedTargetFlag = None,
    no_capacity: NoCapacityFlag = False,
) -> None:
    """Predict the latency of each kernel call on the device, and what bounds it, without executing data."""
    from trnrt.commands.nki_profile import profile_script

    request = profiling(views, reporting)
    if not profile_script(script, calls or [], target, request, capacity=not no_capacity):
        raise typer.Exit(1)


def profiling(views: Views, reporting: Reporting, device_profile: Path | None = None) -> ProfileRequest:
    """What the user asks of a profile."""
    from trnrt.commands.profile import ProfileRequest

    percent = None if views.max_regress is None else read_percent(views.max_regress)
    return ProfileRequest(views.html, views.trace, views.baseline, percent, reporting, device_profile)
