"""The command line: ``trnrt VERB MODEL``.

This module declares the verbs and turns errors into messages and exit codes; what the verbs do is in
``trnrt.commands``, imported when one is called. So ``trnrt --help`` waits for nothing heavy.

Results go to stdout, notes and progress to stderr. Exit codes: 0 success; 1 the answer is no; 2 the
request was wrong; 130 interrupted; 141 the reader of stdout went away.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from trnrt import __version__
from trnrt.commands.options import (
    AtolFlag,
    Backend,
    BackendFlag,
    BaselineFlag,
    CallsFlag,
    Color,
    ColorFlag,
    DType,
    DTypeFlag,
    HtmlFlag,
    InputFiles,
    JsonFlag,
    JsonOutFlag,
    KeepFlag,
    Layout,
    LayoutFlag,
    MeanFlag,
    ModelFile,
    PlanBatchFlag,
    QuickFlag,
    RegressFlag,
    Reporting,
    RtolFlag,
    SamplesFlag,
    ScaleFlag,
    ScriptArguments,
    ScriptFile,
    SeedFlag,
    SimulatedTargetFlag,
    Stage,
    StdFlag,
    TargetFlag,
    TopFlag,
    TraceFlag,
    read_numbers,
    read_percent,
)
from trnrt.errors import OptionError, TrnrtError, UnsupportedModelError
from trnrt.report.console import complain

if TYPE_CHECKING:
    from trnrt.commands.opening import SessionOptions
    from trnrt.commands.profile import ProfileRequest
    from trnrt.images import ImageOptions

INTERRUPTED = 130
PIPE_CLOSED = 141


class _Verbs(TyperGroup):
    """The verbs; an error that a user can do something about becomes a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except TrnrtError as error:
            complain(str(error), _hint(error))
            raise typer.Exit(error.exit_code) from error
        except MemoryError as error:
            complain(f"not enough memory: {error}" if str(error) else "not enough memory", "ask for fewer rows")
            raise typer.Exit(OptionError.exit_code) from error
        except BrokenPipeError as error:
            _close_stdout()
            raise typer.Exit(PIPE_CLOSED) from error
        except OSError as error:  # stdout itself, such as a full disk; files have errors of their own
            _close_stdout()
            complain(f"can't write the result: {error.strerror or error}")
            raise typer.Exit(OptionError.exit_code) from error
        except KeyboardInterrupt as error:
            complain("interrupted")
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="trnrt",
    help="Runs ONNX models on AWS Trainium, and on a simulator of it everywhere else.",
    cls=_Verbs,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it starts in half the time, and reads the same in a pipe
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def main() -> None:
    """The entry point of ``trnrt``: exits with the code that the verb's outcome has."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may hold what the terminal's encoding has no byte for
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _close_stdout()
        sys.exit(PIPE_CLOSED)


def _hint(error: TrnrtError) -> str | None:
    if isinstance(error, UnsupportedModelError):  # it has a way out for each blocker
        return "; ".join(dict.fromkeys(blocker.hint for blocker in error.blockers if blocker.hint)) or None
    return error.hint


def _close_stdout() -> None:
    # What is left in the buffer is flushed at exit, into a pipe that nobody reads.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trnrt {__version__}")
        raise typer.Exit


@app.callback()
def trnrt(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Runs ONNX models on AWS Trainium, and on a simulator of it everywhere else."""


@app.command("run")
def run_command(
    model: ModelFile,
    inputs: InputFiles = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.npz", help="Write all outputs.", show_default=False)
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, metavar="N", help="Random rows to draw: 1.", show_default=False)
    ] = None,
    top: TopFlag = None,
    logits: Annotated[
        bool, typer.Option("--logits", help="With --top: the numbers are logits; show their softmax.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="JSON: the data of large outputs, too.")] = False,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    backend: BackendFlag = Backend.AUTO,
    keep: KeepFlag = None,
    seed: SeedFlag = 0,
    layout: LayoutFlag = None,
    color: ColorFlag = None,
    scale: ScaleFlag = None,
    mean: MeanFlag = None,
    std: StdFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Run a model, and print what it predicts."""
    if logits and top is None:
        raise OptionError("--logits says how to show classes", hint="add --top K")
    if batch is not None and inputs:
        raise OptionError("--batch says how many random rows to draw, and --input gives the rows", hint="leave one out")
    from trnrt.commands.opening import Feeding
    from trnrt.commands.run import RunRequest, run

    feeding = Feeding(inputs or [], _images(layout, color, scale, mean, std), batch, seed)
    request = RunRequest(feeding, top, logits, full, output, keep, Reporting(as_json, json_out))
    run(model, _session(target, dtype, backend), request)


@app.command("validate", short_help="Compare with onnxruntime on the same inputs.")
def validate_command(
    model: ModelFile,
    inputs: InputFiles = None,
    samples: SamplesFlag = None,
    rtol: RtolFlag = None,
    atol: AtolFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    backend: BackendFlag = Backend.AUTO,
    seed: SeedFlag = 0,
    layout: LayoutFlag = None,
    color: ColorFlag = None,
    scale: ScaleFlag = None,
    mean: MeanFlag = None,
    std: StdFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare with onnxruntime on the same inputs; exit 0 if all outputs are within the tolerance, else 1."""
    from trnrt.commands.validate import ValidateRequest, validate

    images = _images(layout, color, scale, mean, std)
    request = ValidateRequest(inputs or [], images, samples, seed, rtol, atol, Reporting(as_json, json_out))
    if not validate(model, _session(target, dtype, backend), request):
        raise typer.Exit(1)


@app.command("inspect", short_help="Show what becomes of every node, and why.")
def inspect_command(
    model: ModelFile,
    stage: Annotated[Stage, typer.Option("--stage", help="The stage to look at.")] = Stage.PLANNED,
    batch: PlanBatchFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Show the step and kernel of every node, what was fused and why, and where each tensor lives."""
    from trnrt.commands.inspect import inspect

    options = _session(target, dtype, Backend.AUTO)
    if not inspect(model, options, stage, batch, Reporting(as_json, json_out)):
        raise typer.Exit(1)


@app.command("compile", short_help="Write the kernel module and its weights.")
def compile_command(
    model: ModelFile,
    directory: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write.", show_default=False)
    ],
    batch: PlanBatchFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Write the kernel module that runs a model, and its weights, into a directory."""
    from trnrt.commands.compile import compile_model

    options = _session(target, dtype, Backend.AUTO)
    compile_model(model, options, directory, batch, Reporting(as_json, json_out))


@app.command("profile", short_help="Predict the latency on the device, and what bounds it.")
def profile_command(
    model: ModelFile,
    batch: PlanBatchFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    html: HtmlFlag = None,
    trace: TraceFlag = None,
    baseline: BaselineFlag = None,
    max_regress: RegressFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict the latency of a model on the device, and what bounds each step, without running it."""
    from trnrt.commands.profile import profile

    request = _profiling(html, trace, baseline, max_regress, Reporting(as_json, json_out))
    if not profile(model, _session(target, dtype, Backend.AUTO), batch, request):
        raise typer.Exit(1)


nki_app = typer.Typer(help="Kernels on the simulated NeuronCore: run, check or profile a script.", no_args_is_help=True)
bench_app = typer.Typer(help="How fast trnrt is on this machine.", no_args_is_help=True)
app.add_typer(nki_app, name="nki")
app.add_typer(bench_app, name="bench")


@nki_app.callback()
def nki_verbs() -> None:
    """Kernels on the simulated NeuronCore: run, check or profile a script."""


@bench_app.callback()
def bench_verbs() -> None:
    """How fast trnrt is on this machine."""


# Options that trnrt does not know are the script's, wherever they stand.
@nki_app.command("run", short_help="Run a kernel script.", context_settings={"ignore_unknown_options": True})
def nki_run_command(script: ScriptFile, arguments: ScriptArguments = None, target: SimulatedTargetFlag = None) -> None:
    """Run a script that says `import nki` on the simulator, unchanged; exits as the script does."""
    from trnrt.commands.nki import run_script

    raise typer.Exit(run_script(script, arguments or [], target))


@nki_app.command("check", short_help="Find what is wrong with kernels, without data.")
def nki_check_command(
    script: ScriptFile,
    calls: CallsFlag = None,
    target: SimulatedTargetFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Find what the language, the API and the hardware refuse, without executing data; exit 0 if nothing is."""
    from trnrt.commands.nki import check_script

    if not check_script(script, calls or [], target, Reporting(as_json, json_out)):
        raise typer.Exit(1)


@nki_app.command("profile", short_help="Predict the latency of kernels on the device.")
def nki_profile_command(
    script: ScriptFile,
    calls: CallsFlag = None,
    target: SimulatedTargetFlag = None,
    html: HtmlFlag = None,
    trace: TraceFlag = None,
    baseline: BaselineFlag = None,
    max_regress: RegressFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict the latency of each kernel call on the device, and what bounds it, without executing data."""
    from trnrt.commands.nki_profile import profile_script

    request = _profiling(html, trace, baseline, max_regress, Reporting(as_json, json_out))
    if not profile_script(script, calls or [], target, request):
        raise typer.Exit(1)


@bench_app.command("simulator")
def bench_simulator_command(quick: QuickFlag = False, as_json: JsonFlag = False, json_out: JsonOutFlag = None) -> None:
    """Measure the simulator against numpy and PyTorch; exit 1 if a bar is missed."""
    from trnrt.commands.bench import bench_simulator

    if not bench_simulator(Reporting(as_json, json_out), quick=quick):
        raise typer.Exit(1)


@bench_app.command("timing", short_help="Compare predictions with published times.")
def bench_timing_command(
    fit: Annotated[bool, typer.Option("--fit", help="Fit the free parameters, and leave each time out.")] = False,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare the timing model's predictions with published times; exit 1 if it is too far off."""
    from trnrt.commands.bench import bench_timing

    if not bench_timing(Reporting(as_json, json_out), fit=fit):
        raise typer.Exit(1)


@bench_app.command("labs", short_help="Compare the kernels with two labs' published times.")
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


def _session(target: str | None, dtype: DType, backend: Backend) -> SessionOptions:
    from trnrt.commands.opening import SessionOptions

    return SessionOptions(target, dtype.value, backend.value)


def _profiling(
    html: Path | None, trace: Path | None, baseline: Path | None, max_regress: str | None, reporting: Reporting
) -> ProfileRequest:
    from trnrt.commands.profile import ProfileRequest

    percent = None if max_regress is None else read_percent(max_regress)
    return ProfileRequest(html, trace, baseline, percent, reporting)


def _images(
    layout: Layout | None, color: Color | None, scale: float | None, mean: str | None, std: str | None
) -> ImageOptions:
    from trnrt.images import ImageOptions

    return ImageOptions(
        layout and layout.value,
        color and color.value,
        scale,
        None if mean is None else read_numbers(mean),
        None if std is None else read_numbers(std),
    )
