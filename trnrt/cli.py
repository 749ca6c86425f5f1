"""The command line: ``trnrt VERB MODEL``.

This module declares the verbs, and turns errors into messages and exit codes. Their work is in ``trnrt.commands``,
imported when a verb is called: ``trnrt --help`` imports nothing heavy.

Results go to stdout, notes and progress to stderr. Exit codes: 0 success; 1 the answer is no; 2 the
request was wrong; 130 interrupted; 141 the reader of stdout went away.
"""

from __future__ import annotations

from typing import Annotated, Any

import click
from click.exceptions import Exit

from trnrt import __version__
from trnrt.commands.blas import choose_blas_kernels, limit_blas_threads
from trnrt.commands.exits import call, exit_codes
from trnrt.commands.groups import cache_app, nki_app
from trnrt.commands.options import (
    EFFORT,
    Backend,
    BackendFlag,
    BucketsFlag,
    CacheFlag,
    CaseFlag,
    CompileBackendFlag,
    CompiledFlag,
    CompileDirectory,
    CutFile,
    CutOutputs,
    DeviceProfileFlag,
    EffortFlag,
    ExpectedRowsFlag,
    ExpectFlag,
    ExpectLengthsFlag,
    InputFiles,
    LabelledFile,
    LncFlag,
    ModelFile,
    MoreOutputs,
    MostFlag,
    OverlayFile,
    PlanBatchFlag,
    ProfileBackendFlag,
    ReportFiles,
    Reporting,
    RouteFlag,
    RowsFlag,
    RunEffortFlag,
    SamplesFlag,
    SeedFlag,
    SelfTestFlag,
    TargetFlag,
    UnsupportedFlag,
)
from trnrt.commands.records import (
    Comparing,
    Device,
    Drawing,
    Images,
    Overrides,
    Planning,
    Sequences,
    SessionOptions,
    Showing,
    Viewing,
    Views,
)
from trnrt.commands.verbs import Verbs, argument
from trnrt.errors import OptionError


class _AllVerbs(Verbs):
    """The verbs; trnrt's own errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        with exit_codes():
            return super().invoke(ctx)


app = _AllVerbs(
    "trnrt",
    help="Runs ONNX models on AWS Trainium, and on a simulator of it everywhere else.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
click.version_option(__version__, message="trnrt %(version)s", help="Print the version.")(app)


def main() -> None:
    """The entry point of ``trnrt``; exits with the verb's exit code."""
    choose_blas_kernels()
    limit_blas_threads()
    call(app)


@app.verb("run")
def run_command(
    *,
    model: ModelFile,
    inputs: InputFiles = None,
    batch: RowsFlag = None,
    seed: SeedFlag = 0,
    images: Images,
    planning: Planning,
    overrides: Overrides,
    effort: RunEffortFlag = None,
    buckets: BucketsFlag = None,
    sequences: Sequences,
    cache: CacheFlag = True,
    device: Device,
    showing: Showing,
    drawing: Drawing,
    reporting: Reporting,
) -> None:
    """Run a model, and print its outputs."""
    if showing.logits and showing.top is None:
        raise OptionError("--logits needs --top", hint="add --top K")
    if drawing.is_set and drawing.draw is None:
        raise OptionError("--draw-as, --min-score and --max-overlap need --draw", hint="add --draw OUT.png")
    if batch is not None and inputs:
        raise OptionError("--batch draws random rows, and --input gives rows", hint="leave one of them out")
    from trnrt.commands.opening import Feeding
    from trnrt.commands.run import run

    options = SessionOptions(planning, overrides, device.backend, effort, buckets, cache, device.options, sequences)
    run(model, options, Feeding(inputs or [], images.options, batch, seed), showing, drawing, reporting)


app.verb_at("predict", "trnrt.commands.predict:predict_command", short_help="Predict many rows into files; resumable.")


@app.verb("validate", short_help="Compare with onnxruntime on the same inputs.")
def validate_command(
    *,
    model: ModelFile,
    inputs: InputFiles = None,
    data: LabelledFile = None,
    samples: SamplesFlag = None,
    seed: SeedFlag = 0,
    images: Images,
    planning: Planning,
    overrides: Overrides,
    effort: RunEffortFlag = None,
    buckets: BucketsFlag = None,
    sequences: Sequences,
    cache: CacheFlag = True,
    device: Device,
    comparing: Comparing,
    reporting: Reporting,
) -> None:
    """Compare with onnxruntime on the same inputs; exit 0 if all outputs, and steps, are within tolerance, else 1."""
    from trnrt.commands.validate import Given, validate

    given = Given(inputs or [], data, images.options, samples, seed)
    options = SessionOptions(planning, overrides, device.backend, effort, buckets, cache, device.options, sequences)
    if not validate(model, options, given, comparing, reporting):
        raise Exit(1)


app.verb_at(
    "quantize", "trnrt.commands.quantize:quantize_command", short_help="Make an int8 model, and show what it loses."
)


@app.verb("inspect", short_help="Show the step and kernel of every node, and why.")
def inspect_command(
    model: ModelFile,
    planning: Planning,
    overrides: Overrides,
    viewing: Viewing,
    reporting: Reporting,
    lnc: LncFlag = None,
    effort: EffortFlag = EFFORT,
) -> None:
    """Show the step and kernel of every node, its tiles and memory, and where each tensor lives; runs nothing."""
    from trnrt.backends import DeviceOptions
    from trnrt.commands.inspect import inspect

    options = SessionOptions(planning, overrides, effort=effort, device=DeviceOptions(lnc))
    if not inspect(model, options, viewing, reporting):
        raise Exit(1)


@app.verb("cut", short_help="Cut a model before what can't run.")
def cut_command(
    *, model: ModelFile, more: MoreOutputs = None, outputs: CutOutputs, output: CutFile, reporting: Reporting
) -> None:
    """Write the part of a model that computes some of its tensors, as a model of its own. `trnrt inspect` of a model
    that can't run prints the command that leaves what can."""
    from trnrt.commands.cut import cut_file

    cut_file(model, [*outputs, *(more or [])], output, reporting)


@app.verb("compile", short_help="Write the kernel module and its weights.")
def compile_command(
    model: ModelFile,
    directory: CompileDirectory,
    planning: Planning,
    overrides: Overrides,
    reporting: Reporting,
    batch: PlanBatchFlag = None,
    backend: CompileBackendFlag = Backend.AUTO,
    lnc: LncFlag = None,
    route: RouteFlag = None,
    effort: EffortFlag = EFFORT,
) -> None:
    """Write a model's kernel module and its weights into a directory."""
    from trnrt.backends import DeviceOptions
    from trnrt.commands.compile import compile_model

    # Nothing runs, so no device is needed.
    used = Backend.NEURON if backend is Backend.NEURON else Backend.SIMULATOR
    options = SessionOptions(
        planning, overrides, used, effort, device=DeviceOptions(lnc, compile_only=True, route=route)
    )
    compile_model(model, options, directory, batch, reporting)


@app.verb("profile", short_help="Predict the latency on the device, and what limits it.")
def profile_command(
    model: ModelFile,
    planning: Planning,
    overrides: Overrides,
    views: Views,
    reporting: Reporting,
    batch: PlanBatchFlag = None,
    backend: ProfileBackendFlag = Backend.SIMULATOR,
    lnc: LncFlag = None,
    compiled: CompiledFlag = None,
    route: RouteFlag = None,
    allow_unsupported_device: UnsupportedFlag = False,
    device_profile: DeviceProfileFlag = None,
    effort: EffortFlag = EFFORT,
) -> None:
    """Predict a model's latency on the device, and what limits each step; runs nothing."""
    from trnrt.backends import DeviceOptions
    from trnrt.commands.profile import profile

    device = DeviceOptions(
        lnc, compiled=compiled, debug_info=True, route=route, allow_unsupported=allow_unsupported_device
    )
    options = SessionOptions(planning, overrides, backend, effort, device=device)
    if not profile(model, options, batch, views, reporting, device_profile):
        raise Exit(1)


@app.verb("buckets", short_help="Choose the batch sizes, or lengths, to compile for.")
def buckets_command(
    model: ModelFile,
    planning: Planning,
    reporting: Reporting,
    expected: ExpectFlag = None,
    lengths: ExpectLengthsFlag = None,
    batch: ExpectedRowsFlag = None,
    most: MostFlag = 8,
) -> None:
    """Choose the batch sizes that make the expected batches fastest, by the timing model; runs nothing. With
    --expect-lengths choose sequence lengths; onnxruntime checks that padding changes no output."""
    from trnrt.commands.buckets import choose, choose_lengths

    if (expected is None) == (lengths is None):
        raise OptionError("give --expect or --expect-lengths, one of them", hint="write --expect 1:0.7,8:0.3")
    if lengths is not None:
        choose_lengths(model, SessionOptions(planning), lengths, batch or 1, most, reporting)
    elif expected is not None:
        if batch is not None:
            raise OptionError("--batch needs --expect-lengths", hint="leave it out: --expect has the batches")
        choose(model, SessionOptions(planning), expected, most, reporting)


app.verb_at(
    "plan", "trnrt.commands.plan:plan_command", short_help="Estimate the cores and instances for a request rate."
)
app.verb_at("serve", "trnrt.commands.serve:serve_command", short_help="Serve predictions over HTTP.")


@app.verb("doctor", short_help="Check this machine, and show how to fix what's missing.")
def doctor_command(
    reporting: Reporting,
    backend: BackendFlag = Backend.AUTO,
    self_test: SelfTestFlag = False,
    target: TargetFlag = None,
    case: CaseFlag = None,
    route: RouteFlag = None,
    allow_unsupported_device: UnsupportedFlag = False,
) -> None:
    """Check AWS's packages, the driver, the device and the settings. Show which backend would be used, why, and how to
    fix each finding; exit 0 if the backend can be used (auto: any), else 1. With --self-test: run every kernel and
    the sample models on the device, and write a report (trnrt-self-test.json, or --json-out)."""
    from trnrt.commands.doctor import examine, set_for_children
    from trnrt.commands.doctor import self_test as run_self_test

    set_for_children(route, allow_unsupported=allow_unsupported_device)
    test = run_self_test if self_test else examine
    if not test(backend.value, target, reporting, case):
        raise Exit(1)


@app.verb("calibrate", short_help="Fit the timing model to a device's self-test reports.")
def calibrate_command(reports: ReportFiles, reporting: Reporting, output: OverlayFile = None) -> None:
    """Compare the times in reports of `trnrt doctor --self-test` with predictions, and fit the timing model's numbers
    that the reports decide; exit 1 if they decide none. Name the numbers that they leave open. TRNRT_TIMING is the
    point to start from."""
    from trnrt.commands.calibrate import calibrate

    if not calibrate(reports, output, reporting):
        raise Exit(1)


@app.verb("bench", hidden=True, context_settings={"ignore_unknown_options": True, "help_option_names": []})
def bench_command(arguments: Annotated[list[str] | None, argument(hidden=True)] = None) -> None:
    """Refuse ``trnrt bench``: its successors run in a checkout."""
    name = next((argument for argument in arguments or () if argument.isidentifier()), "<name>")
    raise OptionError("trnrt has no benchmarks any more", hint=f"run `python -m benchmarks.{name}` in a checkout")


app.add_group(cache_app)
app.add_group(nki_app)
