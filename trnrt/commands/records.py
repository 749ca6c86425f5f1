"""Flags that belong together, as records: a verb takes a record, whose fields become its flags.

``trnrt --help`` imports this module: it imports nothing heavy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from typer.core import TyperCommand

from trnrt.commands.options import (
    BUDGET,
    CALIBRATION,
    EFFORT,
    LENGTHS,
    NARROW,
    PAD,
    PANELS,
    Backend,
    BackendFlag,
    CallsFlag,
    Color,
    CompiledFlag,
    DrawAs,
    DType,
    Fallback,
    Fit,
    Layout,
    LncFlag,
    LogitsFlag,
    Narrow,
    NkiFlag,
    NoCapacityFlag,
    PlanBatchFlag,
    RouteFlag,
    SimulatedTargetFlag,
    Stage,
    TargetFlag,
    TimingFlag,
    UnsupportedFlag,
    check_finite,
    check_timing_target,
    flag,
    read_budget,
    read_lengths,
    read_numbers,
    read_percent,
)

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.inputs.images import ImageOptions


@dataclass(frozen=True)
class Images:
    """The conversion of images to inputs."""

    layout: Layout | None = flag("Model and inputs", "--layout", help="Images: the order of the input's dimensions.")
    color: Color | None = flag("Model and inputs", "--color", help="Images: the input's channels, in order.")
    scale: float | None = flag(
        "Model and inputs",
        "--scale",
        metavar="F",
        help="Images: value = (pixel * scale - mean) / std, for pixels of 0 to 255.",
        callback=check_finite,
    )
    mean: Sequence[float] | None = flag(
        "Model and inputs", "--mean", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers
    )
    std: Sequence[float] | None = flag(
        "Model and inputs", "--std", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers
    )
    fit: Fit | None = flag(
        "Model and inputs",
        "--fit",
        help="Images of another size: stretch each side (the default), pad with grey (letterbox), or crop.",
    )

    @property
    def options(self) -> ImageOptions:
        """The same, as the readers of images take it."""
        from trnrt.inputs.images import ImageOptions

        return ImageOptions(
            self.layout and self.layout.value,
            self.color and self.color.value,
            self.scale,
            None if self.mean is None else tuple(self.mean),
            None if self.std is None else tuple(self.std),
            self.fit and self.fit.value,
        )


@dataclass(frozen=True)
class Device:
    """The backend and its options."""

    backend: BackendFlag = Backend.AUTO
    lnc: LncFlag = None
    cores: int = flag(
        "Device", "--cores", default=1, min=1, metavar="N", help="NeuronCores to load the model on: they share a batch."
    )
    compiled: CompiledFlag = None
    route: RouteFlag = None
    allow_unsupported_device: UnsupportedFlag = False

    @property
    def options(self) -> DeviceOptions:
        """The NeuronCores to use."""
        from trnrt.backends import DeviceOptions

        return DeviceOptions(
            self.lnc, self.cores, self.compiled, route=self.route, allow_unsupported=self.allow_unsupported_device
        )


@dataclass(frozen=True)
class Showing:
    """The form of ``run``'s printed outputs, and the files to write them to."""

    output: Path | None = flag("Output", "--output", "-o", metavar="OUT.npz", help="Write all outputs.")
    top: int | None = flag(
        "Output",
        "--top",
        min=1,
        metavar="K",
        help="Show the best K classes of the output that has one number per class.",
    )
    logits: LogitsFlag = False
    full: bool = flag("Output", "--full", default=False, help="JSON: include the data of large outputs.")
    keep: Path | None = flag("Output", "--keep", metavar="DIR", help="Keep the kernel module and its weights in DIR.")


@dataclass(frozen=True)
class Drawing:
    """The picture of a detector's boxes or a segmenter's masks. None is the default of ``trnrt.vision``."""

    draw: Path | None = flag(
        "Output",
        "--draw",
        metavar="OUT.png",
        help="Draw the boxes of a detector, or the mask of a segmenter, into the --input image (also .jpg).",
    )
    draw_as: DrawAs = flag("Output", "--draw-as", default=DrawAs.AUTO, help="With --draw: how to read the outputs.")
    min_score: float | None = flag(
        "Output",
        "--min-score",
        min=0.0,
        max=1.0,
        metavar="F",
        help="With --draw: the least score of a box. By default 0.25.",
    )
    max_overlap: float | None = flag(
        "Output",
        "--max-overlap",
        min=0.0,
        max=1.0,
        metavar="F",
        help="With --draw: the share of their union that two boxes of a class may have in common, if the model leaves "
        "that to its caller. By default 0.7.",
    )

    @property
    def is_set(self) -> bool:
        """True if a flag that needs --draw is set."""
        return self.draw_as is not DrawAs.AUTO or self.min_score is not None or self.max_overlap is not None


@dataclass(frozen=True)
class Comparing:
    """The comparison of outputs, and of steps if requested; a tolerance of None is the default of the dtype."""

    rtol: float | None = flag(
        "Comparison",
        "--rtol",
        min=0.0,
        metavar="F",
        help="Relative tolerance: by default 1e-4 for float32, 2e-2 for 16 bits. "
        "Without --rtol and --atol, each element has its own tolerance.",
        callback=check_finite,
    )
    atol: float | None = flag(
        "Comparison",
        "--atol",
        min=0.0,
        metavar="F",
        help="Absolute tolerance: with --rtol alone 1e-5 for float32, 1e-2 for 16 bits.",
        callback=check_finite,
    )
    layers: bool = flag(
        "Comparison",
        "--layers",
        default=False,
        help="Also compare each step alone with onnxruntime; on 4 random rows, or --samples.",
    )
    float_model: Path | None = flag(
        "Comparison",
        "--float",
        metavar="MODEL",
        help="With --data: the float model of a quantised one, to show its accuracy, too.",
    )
    bundle: Path | None = flag(
        "Comparison",
        "--bundle",
        metavar="DIR",
        help="With --layers: write the first failing step as a model, its inputs and a pytest file.",
    )
    bundle_step: str | None = flag(
        "Comparison", "--bundle-step", metavar="NAME", help="With --bundle: write this step or node instead."
    )


@dataclass(frozen=True)
class Viewing:
    """The views of ``inspect``."""

    stage: Stage = flag("Output", "--stage", default=Stage.PLANNED, help="The stage to show.")
    batch: PlanBatchFlag = None
    why: str | None = flag(
        "Output",
        "--why",
        metavar="STEP",
        help="Show the alternatives for this step or node, each with the model's predicted time.",
    )
    save_plan: Path | None = flag(
        "Output", "--save-plan", metavar="FILE", help="Also write the plan as JSON, to edit and use with --plan."
    )
    tiles: bool = flag(
        "Output",
        "--tiles/--no-tiles",
        default=True,
        help="Trace the kernels to show each step's tiles, memory and time, and what holds it; slower.",
    )


@dataclass(frozen=True)
class Tracing:
    """The kernel calls of a script to trace, the simulated hardware, and the release of NKI."""

    calls: CallsFlag = None
    target: SimulatedTargetFlag = None
    nki: NkiFlag = None
    no_capacity: NoCapacityFlag = False


@dataclass(frozen=True)
class Checking:
    """Where the findings of a check go, and whether it is repeated."""

    sarif: Path | None = flag("Output", "--sarif", metavar="FILE", help="Also write the findings as SARIF 2.1.0.")
    watch: bool = flag(
        "Output",
        "--watch",
        default=False,
        help="Check again whenever the script, or a file beside it that it imports, changes. Ctrl-C ends it, with the "
        "exit code of the last check.",
    )


@dataclass(frozen=True)
class Views:
    """The files that a profile is written to, and the one it is compared with."""

    html: Path | None = flag(
        "Output", "--html", metavar="FILE", help="Write a report for a browser; it needs no network."
    )
    trace: Path | None = flag("Output", "--trace", metavar="FILE", help="Write a trace for Perfetto.")
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
class CapacityDemand:
    """The demand, and what to assume; None is a default of ``trnrt.capacity.assumptions``."""

    rps: float = flag(
        "Demand", "--rps", default=..., min=1e-3, metavar="R", help="Requests per second.", callback=check_finite
    )
    p99: str = flag(
        "Demand",
        "--p99",
        default=...,
        metavar="20ms",
        help="The latency that 99 % of the requests must meet: 20ms, 0.02s.",
    )
    rows: int = flag("Demand", "--rows", default=1, min=1, max=1024, metavar="N", help="Rows per request.")
    max_batch: int | None = flag(
        "Demand", "--max-batch", min=1, max=1024, metavar="N", help="The most rows of a batch. By default 32."
    )
    burst: float = flag(
        "Demand",
        "--burst",
        default=1.0,
        min=0,
        max=10,
        metavar="F",
        help="Standard deviation of the gaps between requests over their mean; 1 is Poisson.",
        callback=check_finite,
    )
    host_us: float | None = flag(
        "Demand",
        "--host-us",
        min=0,
        metavar="US",
        help="The host's CPU time per request, microseconds. By default as measured on another machine.",
        callback=check_finite,
    )
    utilisation: float | None = flag(
        "Demand",
        "--utilisation",
        min=0.01,
        max=0.95,
        metavar="F",
        help="The largest load of a core. By default 0.7.",
        callback=check_finite,
    )
    instance: str | None = flag(
        "Demand", "--instance", metavar="TYPE", help="Plan with this instance type only, such as trn2.48xlarge."
    )
    prices: Path | None = flag(
        "Demand",
        "--prices",
        metavar="FILE",
        help="Prices of instances (docs/scale.md): choose the cheapest plan, and show its cost.",
    )


@dataclass(frozen=True)
class Sequences:
    """The lengths to compile for, and what fills sequences up."""

    lengths: Sequence[int] | None = flag(
        "Planning", "--lengths", metavar="32,64,128", help=LENGTHS, parser=read_lengths
    )
    pad: list[str] | None = flag("Planning", "--pad", metavar="INPUT=N", help=PAD)

    @property
    def pads(self) -> dict[str, float]:
        """The numbers in padded places, by input."""
        from trnrt.running.lengths import parse_pad

        return dict(parse_pad(text) for text in self.pad or [])


@dataclass(frozen=True)
class Overrides:
    """Choices that override the planner's."""

    no_fuse: list[str] | None = flag(
        "Planning", "--no-fuse", metavar="NODE", help="Don't fuse this node into the step before it; repeatable."
    )
    plan: Path | None = flag(
        "Planning", "--plan", metavar="FILE", help="Use this plan (see `trnrt inspect --save-plan`)."
    )


@dataclass(frozen=True)
class Planning:
    """The target, the dtype and the sizes to plan for."""

    dtype: DType = flag("Planning", "--dtype", default=DType.FLOAT32, help="The dtype of weights and activations.")
    calibration: Path | None = flag("Planning", "--calibration", metavar="DATA.npz", help=CALIBRATION)
    narrow: Narrow = flag("Planning", "--narrow", default=Narrow.FASTER, help=NARROW)
    target: TargetFlag = None
    timing: TimingFlag = None
    fallback: Fallback = flag(
        "Planning",
        "--fallback",
        default=Fallback.NONE,
        help="What runs unsupported nodes, on the CPU; none refuses such a model.",
    )
    shape: list[str] | None = flag(
        "Model and inputs",
        "--shape",
        metavar="[NAME=]3x224x224",
        help="The sizes that an input leaves open, with or without the batch; repeatable.",
    )
    max_instructions: int | None = flag(
        "Planning", "--max-instructions", metavar="[N|none]", parser=read_budget, help=BUDGET
    )

    def __post_init__(self) -> None:
        """Refuse numbers of another target."""
        check_timing_target(self.timing, self.target)

    @property
    def fallback_name(self) -> str | None:
        """The runtime for unsupported nodes; None refuses them."""
        return None if self.fallback is Fallback.NONE else self.fallback.value

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The given sizes, by input."""
        from trnrt.planner.sizes import parse_shape

        return dict(parse_shape(text) for text in self.shape or [])


@dataclass(frozen=True)
class SessionOptions:
    """The options of a verb's session; the planner's ``effort`` is 0 or 1, and None leaves it to the session."""

    planning: Planning
    overrides: Overrides = field(default_factory=Overrides)
    backend: Backend = Backend.AUTO
    effort: int | None = EFFORT
    buckets: Sequence[int] | None = None
    cache: bool = True
    device: DeviceOptions | None = None
    sequences: Sequences = field(default_factory=Sequences)


def takes_records(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with its records' fields as parameters: typer turns these into flags."""
    records: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            record = records[parameter.name] = cast("type[Any]", parameter.annotation)
            parameters += _parameters(record)
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

    def call(**given: Any) -> None:
        for name, record in records.items():
            given[name] = record(**{one.name: given.pop(one.name) for one in fields(record)})
        verb(**given)

    call.__name__, call.__doc__, call.__module__ = verb.__name__, verb.__doc__, verb.__module__
    call.__annotations__ = {}
    vars(call)["__signature__"] = Signature(parameters)
    return call


def _parameters(record: type[Any]) -> list[Parameter]:
    hints = get_type_hints(record, include_extras=True)
    found = []
    for one in fields(record):
        hint, option = hints[one.name], one.metadata.get("option")
        default = Parameter.empty if one.default is MISSING else one.default
        annotation = hint if option is None else cast("Any", Annotated)[hint, option]
        found.append(Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    return found


_ORDER = ("Arguments", *PANELS, "Options")


class Verb(TyperCommand):
    """A verb whose ``--help`` groups its flags; typer itself groups them in rich help only."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line: arguments, and the flags that must be given."""
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if getattr(parameter, "hidden", False):
                continue
            metavar = parameter.metavar or parameter.name.upper()
            if parameter.param_type_name == "argument":
                pieces.append(metavar if parameter.required else f"[{metavar}]")
            elif parameter.required:
                pieces.append(f"{parameter.opts[0]} {metavar}")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the groups in the order of ``PANELS``."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None:
                is_argument = parameter.param_type_name == "argument"
                heading = getattr(parameter, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
                groups.setdefault(heading, []).append(shown)
        for heading in sorted(groups, key=_ORDER.index):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])
