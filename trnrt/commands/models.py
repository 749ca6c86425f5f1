"""The verbs for models, with their flags. Their work is in the other files here, imported when a verb runs."""

from __future__ import annotations

from typing import Annotated

from click.exceptions import Exit

from trnrt.commands.members import Backend
from trnrt.commands.options import (
    EFFORT,
    BackendFlag,
    BucketsFlag,
    BundleFlag,
    CacheFlag,
    CaseFlag,
    CheckFlag,
    ComparedRowsFlag,
    CompileBackendFlag,
    CompileBucketsFlag,
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
    ModelAgainstFlag,
    ModelFile,
    ModelToCut,
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
    SeedFlag,
    SelfTestFlag,
    ShowDeviceFlag,
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
)
from trnrt.commands.verbs import argument
from trnrt.commands.views import Views
from trnrt.errors import OptionError


def run_command(
    *,
    model: ModelFile,
    inputs: InputFiles = None,
    rows: RowsFlag = None,
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
    from trnrt.commands.opening import Feeding
    from trnrt.commands.run import run

    options = SessionOptions(planning, overrides, device.backend, effort, buckets, cache, device.options, sequences)
    run(model, options, Feeding(inputs or [], images.options, rows, seed), showing, drawing, reporting)


def validate_command(
    *,
    model: ModelFile,
    inputs: InputFiles = None,
    data: LabelledFile = None,
    rows: ComparedRowsFlag = None,
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

    given = Given(inputs or [], data, images.options, rows, seed)
    options = SessionOptions(planning, overrides, device.backend, effort, buckets, cache, device.options, sequences)
    if not validate(model, options, given, comparing, reporting):
        raise Exit(1)


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


def cut_command(
    *, model: ModelToCut, more: MoreOutputs = None, outputs: CutOutputs, output: CutFile, reporting: Reporting
) -> None:
    """Write the part of a model that computes these tensors, as a model of its own. For a model that can't run,
    `trnrt inspect` prints the command that keeps the part that can."""
    from trnrt.commands.cut import cut_file

    cut_file(model, [*outputs, *(more or [])], output, reporting)


def compile_command(
    *,
    model: ModelFile,
    directory: CompileDirectory,
    planning: Planning,
    overrides: Overrides,
    reporting: Reporting,
    batch: PlanBatchFlag = None,
    buckets: CompileBucketsFlag = None,
    sequences: Sequences,
    backend: CompileBackendFlag = Backend.AUTO,
    lnc: LncFlag = None,
    route: RouteFlag = None,
    effort: EffortFlag = EFFORT,
    bundle: BundleFlag = True,
    check: CheckFlag = True,
) -> None:
    """Write a model's kernel module, its weights, and a bundle that `run` and `serve` start from."""
    from trnrt.backends import DeviceOptions
    from trnrt.commands.compile import Bundling, compile_model

    # Nothing runs, so no device is needed.
    used = Backend.NEURON if backend is Backend.NEURON else Backend.SIMULATOR
    options = SessionOptions(
        planning,
        overrides,
        used,
        effort,
        device=DeviceOptions(lnc, compile_only=True, route=route),
        sequences=sequences,
    )
    compile_model(model, options, directory, batch, Bundling(buckets, bundle, check), reporting)


def profile_command(
    model: ModelFile,
    planning: Planning,
    overrides: Overrides,
    views: Views,
    reporting: Reporting,
    against: ModelAgainstFlag = None,
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
    if not profile(model, options, batch, views, reporting, device_profile, against):
        raise Exit(1)


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


def doctor_command(
    reporting: Reporting,
    backend: BackendFlag = Backend.AUTO,
    show_device: ShowDeviceFlag = False,
    self_test: SelfTestFlag = False,
    target: TargetFlag = None,
    case: CaseFlag = None,
    route: RouteFlag = None,
    allow_unsupported_device: UnsupportedFlag = False,
) -> None:
    """Check the simulator's numbers, the cache, AWS's packages, the driver, the device and the settings. Show which
    backend would be used, why, and how to fix each finding; exit 0 if the backend can be used (auto: any), else 1.
    With --self-test: run every kernel and the sample models on the device, and write a report (trnrt-self-test.json,
    or --json-out)."""
    from trnrt.commands.doctor import examine, set_for_children
    from trnrt.commands.doctor import self_test as run_self_test

    set_for_children(route, allow_unsupported=allow_unsupported_device)
    if self_test:
        passed = run_self_test(backend.value, target, reporting, case)
    else:
        passed = examine(backend.value, target, reporting, case, device=show_device)
    if not passed:
        raise Exit(1)


def calibrate_command(reports: ReportFiles, reporting: Reporting, output: OverlayFile = None) -> None:
    """Compare the times in reports of `trnrt doctor --self-test` with predictions, fit the timing model's numbers that
    the reports decide, and list those that they leave open. The fit starts from the target's own numbers and ignores
    TRNRT_TIMING. Exit 1 if the reports decide none."""
    from trnrt.commands.calibrate import calibrate

    if not calibrate(reports, output, reporting):
        raise Exit(1)


def bench_command(arguments: Annotated[list[str] | None, argument(hidden=True)] = None) -> None:
    """Refuse ``trnrt bench``: its successors run in a checkout."""
    name = next((argument for argument in arguments or () if argument.isidentifier()), "<name>")
    raise OptionError("trnrt has no benchmarks any more", hint=f"run `python -m benchmarks.{name}` in a checkout")
