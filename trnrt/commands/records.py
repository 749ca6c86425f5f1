"""Flags that belong together, as records: a verb takes a record, whose fields become its flags.

``trnrt --help`` imports this module: it imports nothing heavy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from typer.core import TyperCommand

from trnrt.commands.options import (
    EFFORT,
    PANELS,
    Backend,
    BackendFlag,
    Color,
    CompiledFlag,
    DType,
    Fallback,
    Layout,
    LncFlag,
    LogitsFlag,
    PlanBatchFlag,
    Stage,
    TargetFlag,
    check_finite,
    comparison_flag,
    device_flag,
    input_flag,
    output_flag,
    planning_flag,
    read_numbers,
    read_percent,
)

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.commands.opening import SessionOptions
    from trnrt.inputs.images import ImageOptions


@dataclass(frozen=True)
class Images:
    """How images become inputs."""

    layout: Annotated[Layout | None, input_flag("--layout", help="Images: the order of the input's dimensions.")] = None
    color: Annotated[Color | None, input_flag("--color", help="Images: the input's channels, in order.")] = None
    scale: Annotated[
        float | None,
        input_flag(
            "--scale",
            metavar="F",
            help="Images: value = (pixel * scale - mean) / std, for pixels of 0 to 255.",
            callback=check_finite,
        ),
    ] = None
    mean: Annotated[
        Sequence[float] | None,
        input_flag("--mean", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers),
    ] = None
    std: Annotated[
        Sequence[float] | None, input_flag("--std", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers)
    ] = None

    @property
    def options(self) -> ImageOptions:
        """The same, as the readers of images take it."""
        from trnrt.inputs.images import ImageOptions

        return ImageOptions(
            self.layout and self.layout.value,
            self.color and self.color.value,
            self.scale,
            self.mean and tuple(self.mean),
            self.std and tuple(self.std),
        )


@dataclass(frozen=True)
class Device:
    """What runs a model."""

    backend: BackendFlag = Backend.AUTO
    lnc: LncFlag = None
    cores: Annotated[
        int,
        device_flag("--cores", min=1, metavar="N", help="NeuronCores to load the model on: they share a batch."),
    ] = 1
    compiled: CompiledFlag = None

    @property
    def options(self) -> DeviceOptions:
        """The NeuronCores to use."""
        from trnrt.backends import DeviceOptions

        return DeviceOptions(self.lnc, self.cores, self.compiled)


@dataclass(frozen=True)
class Showing:
    """How ``run`` shows outputs, and where it writes them."""

    output: Annotated[Path | None, output_flag("--output", "-o", metavar="OUT.npz", help="Write all outputs.")] = None
    top: Annotated[
        int | None,
        output_flag(
            "--top", min=1, metavar="K", help="Show the best K classes of the output that has one number per class."
        ),
    ] = None
    logits: LogitsFlag = False
    full: Annotated[bool, output_flag("--full", help="JSON: include the data of large outputs.")] = False
    keep: Annotated[
        Path | None, output_flag("--keep", metavar="DIR", help="Keep the kernel module and its weights in DIR.")
    ] = None


@dataclass(frozen=True)
class Comparing:
    """How outputs are compared, and whether steps are; a tolerance of None is the default of the dtype."""

    rtol: Annotated[
        float | None,
        comparison_flag(
            "--rtol",
            min=0.0,
            metavar="F",
            help="Relative tolerance: by default 1e-4 for float32, 2e-2 for 16 bits. "
            "Without --rtol and --atol, each element has its own tolerance.",
            callback=check_finite,
        ),
    ] = None
    atol: Annotated[
        float | None,
        comparison_flag(
            "--atol",
            min=0.0,
            metavar="F",
            help="Absolute tolerance: with --rtol alone 1e-5 for float32, 1e-2 for 16 bits.",
            callback=check_finite,
        ),
    ] = None
    layers: Annotated[
        bool,
        comparison_flag(
            "--layers",
            help="Also compare each step alone with onnxruntime; on 4 random rows, or --samples.",
        ),
    ] = False
    bundle: Annotated[
        Path | None,
        comparison_flag(
            "--bundle",
            metavar="DIR",
            help="With --layers: write the first failing step as a model, its inputs and a pytest file.",
        ),
    ] = None
    bundle_step: Annotated[
        str | None,
        comparison_flag("--bundle-step", metavar="NAME", help="With --bundle: write this step or node instead."),
    ] = None


@dataclass(frozen=True)
class Viewing:
    """What ``inspect`` shows."""

    stage: Annotated[Stage, output_flag("--stage", help="The stage to show.")] = Stage.PLANNED
    batch: PlanBatchFlag = None
    why: Annotated[
        str | None,
        output_flag(
            "--why",
            metavar="STEP",
            help="Show the alternatives for this step or node, each with the model's predicted time.",
        ),
    ] = None
    save_plan: Annotated[
        Path | None,
        output_flag("--save-plan", metavar="FILE", help="Also write the plan as JSON, to edit and use with --plan."),
    ] = None
    tiles: Annotated[
        bool, output_flag("--tiles/--no-tiles", help="Trace the kernels to show each step's tiles and memory; slower.")
    ] = True


@dataclass(frozen=True)
class Views:
    """The files that a profile is written to, and the one it is compared with."""

    html: Annotated[
        Path | None,
        output_flag("--html", metavar="FILE", help="Write a report for a browser; it needs no network."),
    ] = None
    trace: Annotated[Path | None, output_flag("--trace", metavar="FILE", help="Write a trace for Perfetto.")] = None
    baseline: Annotated[
        Path | None,
        comparison_flag(
            "--baseline",
            metavar="FILE",
            help="Compare with an earlier --json-out file; exit 1 if slower by more than --max-regress.",
        ),
    ] = None
    max_regress: Annotated[
        float | None,
        comparison_flag(
            "--max-regress",
            metavar="PERCENT",
            help="With --baseline: the slowdown to accept, as 2% or 2. By default 2%.",
            parser=read_percent,
        ),
    ] = None


@dataclass(frozen=True)
class Overrides:
    """Choices that override the planner's."""

    no_fuse: Annotated[
        list[str] | None,
        planning_flag("--no-fuse", metavar="NODE", help="Don't fuse this node into the step before it; repeatable."),
    ] = None
    plan: Annotated[
        Path | None,
        planning_flag("--plan", metavar="FILE", help="Use this plan (see `trnrt inspect --save-plan`)."),
    ] = None


@dataclass(frozen=True)
class Planning:
    """What a model is planned for."""

    dtype: Annotated[DType, planning_flag("--dtype", help="The dtype of weights and activations.")] = DType.FLOAT32
    target: TargetFlag = None
    fallback: Annotated[
        Fallback,
        planning_flag("--fallback", help="What runs unsupported nodes, on the CPU; none refuses such a model."),
    ] = Fallback.NONE
    shape: Annotated[
        list[str] | None,
        input_flag(
            "--shape",
            metavar="[NAME=]3x224x224",
            help="The sizes that an input leaves open, with or without the batch; repeatable.",
        ),
    ] = None

    @property
    def fallback_name(self) -> str | None:
        """The runtime for unsupported nodes; None refuses them."""
        return None if self.fallback is Fallback.NONE else self.fallback.value

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The given sizes, by input."""
        from trnrt.planner.sizes import parse_shape

        return dict(parse_shape(text) for text in self.shape or [])

    def session(
        self,
        backend: Backend = Backend.AUTO,
        overrides: Overrides | None = None,
        *,
        effort: int | None = EFFORT,
        buckets: Sequence[int] | None = None,
        cache: bool = True,
        device: DeviceOptions | None = None,
    ) -> SessionOptions:
        """The options to open the model with."""
        from trnrt.commands.opening import SessionOptions

        overrides = overrides or Overrides()
        return SessionOptions(
            self.target,
            self.dtype.value,
            backend.value,
            self.fallback_name,
            self.shapes,
            buckets,
            cache,
            overrides.no_fuse or (),
            overrides.plan,
            effort,
            device,
        )


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
            given[name] = record(**{field.name: given.pop(field.name) for field in fields(record)})
        verb(**given)

    call.__name__, call.__doc__, call.__module__ = verb.__name__, verb.__doc__, verb.__module__
    call.__annotations__ = {}
    vars(call)["__signature__"] = Signature(parameters)
    return call


def _parameters(record: type[Any]) -> list[Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(record)
    ]


_ORDER = ("Arguments", *PANELS, "Options")


class Verb(TyperCommand):
    """A verb whose ``--help`` groups its flags; typer itself groups them in rich help only."""

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
