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
from trnrt.commands.groups import bench_app, cache_app, nki_app, profiling
from trnrt.commands.options import (
    EFFORT,
    AtolFlag,
    Backend,
    BackendFlag,
    BaselineFlag,
    BucketsFlag,
    BundleFlag,
    BundleStepFlag,
    CacheFlag,
    CaseFlag,
    ColorFlag,
    CompiledFlag,
    CoresFlag,
    DeviceProfileFlag,
    DType,
    DTypeFlag,
    EffortFlag,
    Fallback,
    FallbackFlag,
    HtmlFlag,
    InputFiles,
    JsonFlag,
    JsonOutFlag,
    KeepFlag,
    LabelledFile,
    LayersFlag,
    LayoutFlag,
    LncFlag,
    LogitsFlag,
    MeanFlag,
    ModelFile,
    NoFuseFlag,
    OutputFlag,
    PlanBatchFlag,
    PlanFlag,
    RegressFlag,
    Reporting,
    RowsFlag,
    RtolFlag,
    RunEffortFlag,
    SamplesFlag,
    SavePlanFlag,
    ScaleFlag,
    SeedFlag,
    SelfTestFlag,
    ShapeFlag,
    Stage,
    StdFlag,
    TargetFlag,
    TilesFlag,
    TopFlag,
    TraceFlag,
    WhyFlag,
)
from trnrt.commands.plan import plan_command
from trnrt.commands.predict import predict_command
from trnrt.commands.serve import serve_command
from trnrt.errors import OptionError, TrnrtError, UnsupportedModelError
from trnrt.report.console import complain

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.commands.opening import SessionOptions

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
    output: OutputFlag = None,
    batch: RowsFlag = None,
    top: TopFlag = None,
    logits: LogitsFlag = False,
    full: Annotated[bool, typer.Option("--full", help="JSON: the data of large outputs, too.")] = False,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    backend: BackendFlag = Backend.AUTO,
    lnc: LncFlag = None,
    cores: CoresFlag = 1,
    compiled: CompiledFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    no_fuse: NoFuseFlag = None,
    plan: PlanFlag = None,
    effort: RunEffortFlag = None,
    buckets: BucketsFlag = None,
    cache: CacheFlag = True,
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
    from trnrt.commands.opening import Feeding, image_options
    from trnrt.commands.run import RunRequest, run

    feeding = Feeding(inputs or [], image_options(layout, color, scale, mean, std), batch, seed)
    request = RunRequest(feeding, top, logits, full, output, keep, Reporting(as_json, json_out))
    device = _device(lnc, cores, compiled)
    options = _session(
        target, dtype, backend, fallback, shape, buckets, cache, no_fuse, plan, effort=effort, device=device
    )
    run(model, options, request)


app.command("predict", short_help="Predict any number of rows into files, in parts; resumable.")(predict_command)


@app.command("validate", short_help="Compare with onnxruntime on the same inputs.")
def validate_command(
    model: ModelFile,
    inputs: InputFiles = None,
    data: LabelledFile = None,
    samples: SamplesFlag = None,
    rtol: RtolFlag = None,
    atol: AtolFlag = None,
    layers: LayersFlag = False,
    bundle: BundleFlag = None,
    bundle_step: BundleStepFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    backend: BackendFlag = Backend.AUTO,
    lnc: LncFlag = None,
    cores: CoresFlag = 1,
    compiled: CompiledFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    no_fuse: NoFuseFlag = None,
    plan: PlanFlag = None,
    effort: RunEffortFlag = None,
    buckets: BucketsFlag = None,
    cache: CacheFlag = True,
    seed: SeedFlag = 0,
    layout: LayoutFlag = None,
    color: ColorFlag = None,
    scale: ScaleFlag = None,
    mean: MeanFlag = None,
    std: StdFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Compare with onnxruntime on the same inputs; exit 0 if all outputs, and steps, are within tolerance, else 1."""
    from trnrt.commands.opening import image_options
    from trnrt.commands.validate import Given, ValidateRequest, validate

    images = image_options(layout, color, scale, mean, std)
    given = Given(inputs or [], data, images, samples, seed)
    request = ValidateRequest(given, rtol, atol, layers, bundle, bundle_step, Reporting(as_json, json_out))
    device = _device(lnc, cores, compiled)
    options = _session(
        target, dtype, backend, fallback, shape, buckets, cache, no_fuse, plan, effort=effort, device=device
    )
    if not validate(model, options, request):
        raise typer.Exit(1)


@app.command("inspect", short_help="Show what becomes of every node, and why.")
def inspect_command(
    model: ModelFile,
    stage: Annotated[Stage, typer.Option("--stage", help="The stage to look at.")] = Stage.PLANNED,
    batch: PlanBatchFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    no_fuse: NoFuseFlag = None,
    plan: PlanFlag = None,
    effort: EffortFlag = EFFORT,
    why: WhyFlag = None,
    save_plan: SavePlanFlag = None,
    tiles: TilesFlag = True,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Show the step and kernel of every node, its tiles and memory, and where each tensor lives; nothing is run."""
    from trnrt.commands.inspect import InspectRequest, inspect

    options = _session(target, dtype, Backend.AUTO, fallback, shape, no_fuse=no_fuse, plan=plan, effort=effort)
    request = InspectRequest(stage, batch, why, save_plan, tiles, Reporting(as_json, json_out))
    if not inspect(model, options, request):
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
    backend: Annotated[
        Backend, typer.Option("--backend", help="neuron: also compile for it with AWS's compiler; needs no device.")
    ] = Backend.AUTO,
    lnc: LncFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    no_fuse: NoFuseFlag = None,
    plan: PlanFlag = None,
    effort: EffortFlag = EFFORT,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Write the kernel module that runs a model, and its weights, into a directory."""
    from trnrt.commands.compile import compile_model

    # Nothing is run, so the device is never looked for.
    used = Backend.NEURON if backend is Backend.NEURON else Backend.SIMULATOR
    device = _device(lnc, compile_only=True)
    options = _session(target, dtype, used, fallback, shape, no_fuse=no_fuse, plan=plan, effort=effort, device=device)
    compile_model(model, options, directory, batch, Reporting(as_json, json_out))


@app.command("profile", short_help="Predict the latency on the device, and what bounds it.")
def profile_command(
    model: ModelFile,
    batch: PlanBatchFlag = None,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    backend: Annotated[
        Backend, typer.Option("--backend", help="neuron: also run it on the device, and show what was measured.")
    ] = Backend.SIMULATOR,
    lnc: LncFlag = None,
    compiled: CompiledFlag = None,
    device_profile: DeviceProfileFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    no_fuse: NoFuseFlag = None,
    plan: PlanFlag = None,
    effort: EffortFlag = EFFORT,
    html: HtmlFlag = None,
    trace: TraceFlag = None,
    baseline: BaselineFlag = None,
    max_regress: RegressFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Predict the latency of a model on the device, and what bounds each step, without running it."""
    from trnrt.commands.profile import profile

    request = profiling(html, trace, baseline, max_regress, Reporting(as_json, json_out), device_profile)
    device = _device(lnc, compiled=compiled, debug_info=True)
    options = _session(
        target, dtype, backend, fallback, shape, no_fuse=no_fuse, plan=plan, effort=effort, device=device
    )
    if not profile(model, options, batch, request):
        raise typer.Exit(1)


@app.command("buckets", short_help="Choose the batch sizes to compile for.")
def buckets_command(
    model: ModelFile,
    expected: Annotated[
        str,
        typer.Option(
            "--expect", metavar="1:0.7,8:0.3", help="The batches that will come, with weights.", show_default=False
        ),
    ],
    most: Annotated[int, typer.Option("--most", min=1, metavar="N", help="Buckets at most.")] = 8,
    dtype: DTypeFlag = DType.FLOAT32,
    target: TargetFlag = None,
    fallback: FallbackFlag = Fallback.NONE,
    shape: ShapeFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Choose the batch sizes that make the expected batches fastest, by the timing model; nothing is run."""
    from trnrt.commands.buckets import choose

    options = _session(target, dtype, Backend.AUTO, fallback, shape)
    choose(model, options, expected, most, Reporting(as_json, json_out))


app.command("plan", short_help="Say how many cores and instances a rate of requests needs.")(plan_command)
app.command("serve", short_help="Serve predictions over HTTP.")(serve_command)


@app.command("doctor", short_help="Say what this machine can run on, and what mends what is missing.")
def doctor_command(
    backend: BackendFlag = Backend.AUTO,
    self_test: SelfTestFlag = False,
    target: TargetFlag = None,
    case: CaseFlag = None,
    as_json: JsonFlag = False,
    json_out: JsonOutFlag = None,
) -> None:
    """Look at AWS's packages, the driver, the device and the settings, and say what would be used, why, and what mends
    each finding; exit 0 if the backend can be used (auto: any), else 1. With --self-test: run every kernel and the
    sample models on the device, and write a report (trnrt-self-test.json, or --json-out)."""
    from trnrt.commands.doctor import examine
    from trnrt.commands.doctor import self_test as run_self_test

    reporting = Reporting(as_json, json_out)
    test = run_self_test if self_test else examine
    if not test(backend.value, target, reporting, case):
        raise typer.Exit(1)


app.add_typer(cache_app, name="cache")
app.add_typer(nki_app, name="nki")
app.add_typer(bench_app, name="bench")


def _session(
    target: str | None,
    dtype: DType,
    backend: Backend,
    fallback: Fallback,
    shapes: list[str] | None = None,
    buckets: str | None = None,
    cache: bool = True,
    no_fuse: list[str] | None = None,
    plan: Path | None = None,
    effort: int | None = EFFORT,
    device: DeviceOptions | None = None,
) -> SessionOptions:
    from trnrt.commands.opening import SessionOptions
    from trnrt.planner.sizes import parse_shape
    from trnrt.running.buckets import parse_buckets

    return SessionOptions(
        target,
        dtype.value,
        backend.value,
        None if fallback is Fallback.NONE else fallback.value,
        dict(parse_shape(text) for text in shapes or []),
        None if buckets is None else parse_buckets(buckets),
        cache,
        no_fuse or (),
        plan,
        effort,
        device,
    )


def _device(
    lnc: int | None,
    cores: int = 1,
    compiled: Path | None = None,
    *,
    compile_only: bool = False,
    debug_info: bool = False,
) -> DeviceOptions:
    from trnrt.backends import DeviceOptions

    return DeviceOptions(lnc, cores, compiled, compile_only=compile_only, debug_info=debug_info)
