"""The verbs that come in groups: ``trnrt cache`` and ``trnrt nki``."""

from __future__ import annotations

from click.exceptions import Exit

from trnrt.commands.kernel_records import Numbers, SecondCalls, SecondScript, Tuning
from trnrt.commands.nki_port import Porting
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
from trnrt.commands.verbs import Verbs
from trnrt.commands.views import Checking, Tracing, Views

cache_app = Verbs("cache", help="List or clear the cache of compiled models.")
nki_app = Verbs("nki", help="Run, check or profile kernels on the simulated NeuronCore.")


@cache_app.verb("ls", "List the cached plans.")
def cache_ls_command(reporting: Reporting) -> None:
    """List the plans in the cache, the most recently used first, with their models, targets and sizes."""
    from trnrt.commands.cache import list_entries

    list_entries(reporting)


@cache_app.verb("clear", "Remove everything.")
def cache_clear_command() -> None:
    """Remove all plans, weights and kernel modules from the cache."""
    from trnrt.commands.cache import clear

    clear()


# Options unknown to trnrt belong to the script, wherever they are.
@nki_app.verb("run", "Run a kernel script.", context_settings={"ignore_unknown_options": True})
def nki_run_command(
    script: ScriptFile,
    arguments: ScriptArguments = None,
    target: SimulatedTargetFlag = None,
    nki: NkiFlag = None,
    no_capacity: NoCapacityFlag = False,
) -> None:
    """Run an unchanged script that says `import nki` on the simulator; exits with the script's own exit code."""
    from trnrt.commands.nki import run_script

    raise Exit(run_script(script, arguments or [], target, nki=nki, capacity=not no_capacity))


@nki_app.verb("check", "Find what is wrong with kernels, without data.")
def nki_check_command(script: ScriptFile, tracing: Tracing, checking: Checking, reporting: Reporting) -> None:
    """Find what the language, the API or the hardware refuses; needs no data. Exit 0 if nothing is found, else 1."""
    if checking.watch:
        from trnrt.commands.watching import watch_script

        raise Exit(watch_script(script, tracing, checking, reporting))
    from trnrt.commands.nki import check_script

    if not check_script(script, tracing, checking, reporting):
        raise Exit(1)


@nki_app.verb("profile", "Predict the latency of kernels on the device.")
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
        raise Exit(1)


@nki_app.verb("compare", "Compare two kernels: predicted times, and numbers.")
def nki_compare_command(
    script: ScriptFile,
    tracing: Tracing,
    second: SecondCalls,
    numbers: Numbers,
    reporting: Reporting,
    other: SecondScript = None,
    timing: TimingFlag = None,
) -> None:
    """Compare two kernels, of two files or of one: predicted time and how sure the model is of the order, time by
    engine and source line, instructions, HBM bytes and memory, and whether the numbers are equal on the same inputs.
    Exit 1 if the numbers differ beyond the tolerance, or with --max-slower if the second kernel is too slow."""
    from trnrt.commands.nki_compare import compare_scripts

    check_timing_target(timing, tracing.target)
    if not compare_scripts((script, other), tracing, second, numbers, reporting):
        raise Exit(1)


@nki_app.verb("tune", "Find a kernel's best arguments by predicted time.")
def nki_tune_command(
    script: ScriptFile,
    tuning: Tuning,
    numbers: Numbers,
    reporting: Reporting,
    target: SimulatedTargetFlag = None,
    nki: NkiFlag = None,
    timing: TimingFlag = None,
) -> None:
    """Try values of a kernel's keyword arguments, on all CPU cores, and show the fastest by predicted time, how sure
    the model is of the order, and whether its numbers are right. Candidates that break a rule or don't fit are listed.
    Exit 1 if no candidate runs with the right numbers."""
    from trnrt.commands.nki_tune import tune_script

    check_timing_target(timing, target)
    if not tune_script(script, tuning, numbers, reporting, target, nki):
        raise Exit(1)


@nki_app.verb("port", "Port kernels of neuronxcc.nki to today's NKI.")
def nki_port_command(script: ScriptFile, tracing: Tracing, porting: Porting, reporting: Reporting) -> None:
    """Rewrite kernels of the old namespace, `neuronxcc.nki`, for today's NKI; comments and layout stay. Run both in the
    simulator, and compare their numbers. Exit 0 if all is translated and the numbers agree, else 1."""
    from trnrt.commands.nki_port import port_script

    if not port_script(script, tracing, porting, reporting):
        raise Exit(1)
