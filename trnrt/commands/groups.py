"""The verbs that come in groups: ``trnrt cache``, ``trnrt nki`` and ``trnrt bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trnrt.commands.options import (
    CallsFlag,
    JsonFlag,
    JsonOutFlag,
    NoCapacityFlag,
    QuickFlag,
    Reporting,
    ScriptArguments,
    ScriptFile,
    SimulatedTargetFlag,
    read_percent,
)
from trnrt.commands.records import Verb, Views, takes_records
from trnrt.errors import OptionError

if TYPE_CHECKING:
    from trnrt.commands.profile import ProfileRequest

cache_app = typer.Typer(help="What is kept of compiled models.", no_args_is_help=True)
nki_app = typer.Typer(help="Kernels on the simulated NeuronCore: run, check or profile a script.", no_args_is_help=True)
bench_app = typer.Typer(help="How fast trnrt is on this machine.", no_args_is_help=True)


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


@bench_app.callback()
def bench_verbs() -> None:
    """How fast trnrt is on this machine."""


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


@bench_app.command("simulator")
def bench_simulator_command(quick: QuickFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None) -> None:
    """Measure the simulator against numpy and PyTorch; exit 1 if a bar is missed."""
    from trnrt.commands.bench import bench_simulator

    if not bench_simulator(Reporting(as_json, json_out), quick=quick):
        raise typer.Exit(1)


@bench_app.command("serve")
def bench_serve_command(quick: QuickFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None) -> None:
    """Measure the server under load, stopped under load and without one of its workers; exit 1 if a bar is missed."""
    from trnrt.commands.bench import bench_serve

    if not bench_serve(Reporting(as_json, json_out), quick=quick):
        raise typer.Exit(1)


@bench_app.command("timing", short_help="Compare predictions with published times.")
def bench_timing_command(
    fit: Annotated[bool, typer.Option("--fit", help="Fit the free parameters, and leave each time out.")] = False,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Compare a device's profile (the profiler's JSON) with our timeline, event by event; repeatable.",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="The traces' kernel; guessed from their work if left out.",
            show_default=False,
        ),
    ] = None,
    trace_out: Annotated[
        Path | None,
        typer.Option(
            "--trace-out",
            metavar="FILE",
            help="Write each profile and our timeline as two processes to open in Perfetto.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare the timing model's predictions with published times; exit 1 if it is too far off."""
    from trnrt.commands.bench import bench_timing, bench_traces

    if trace:
        if fit:
            raise OptionError("--fit and --trace are different comparisons: give one of them")
        bench_traces(Reporting(as_json, json_out), trace, kernel=kernel, picture=trace_out)
        return
    if kernel is not None or trace_out is not None:
        raise OptionError("--kernel and --trace-out need a profile: name it with --trace")
    if not bench_timing(Reporting(as_json, json_out), fit=fit):
        raise typer.Exit(1)


@bench_app.command("labs", short_help="Compare the kernels with times that others measured.")
def bench_labs_command(
    check: Annotated[bool, typer.Option("--check", help="Run every case, too, and check its numbers (slow).")] = False,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict the time of the hand-written kernels on the labs' cases; exit 1 if a bar is missed."""
    from trnrt.commands.bench import bench_labs

    if not bench_labs(Reporting(as_json, json_out), check=check):
        raise typer.Exit(1)


@bench_app.command("kernels", short_help="Show how near the kernels are to the hardware's limit.")
def bench_kernels_command(
    target: SimulatedTargetFlag = None,
    trials: Annotated[int, typer.Option("--trials", min=1, metavar="N", help="Random shapes a family.")] = 50,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict each family of kernels on seeded random shapes: how much of the time the hardware needs at least."""
    from trnrt.commands.bench import bench_kernels
    from trnrt.nki.sim.kernel import default_target

    bench_kernels(Reporting(as_json, json_out), target=target or default_target(), trials=trials)


@bench_app.command("models", short_help="Compare whole networks with what the hardware needs.")
def bench_models_command(
    target: SimulatedTargetFlag = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this network; repeatable.", show_default=False),
    ] = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict whole networks against the physical bound, AWS's times beside it; exit 1 if a bar is missed."""
    from trnrt.commands.bench import bench_models
    from trnrt.nki.sim.kernel import default_target

    if not bench_models(Reporting(as_json, json_out), target=target or default_target(), only=only or []):
        raise typer.Exit(1)


def profiling(views: Views, reporting: Reporting, device_profile: Path | None = None) -> ProfileRequest:
    """What the user asks of a profile."""
    from trnrt.commands.profile import ProfileRequest

    percent = None if views.max_regress is None else read_percent(views.max_regress)
    return ProfileRequest(views.html, views.trace, views.baseline, percent, reporting, device_profile)
