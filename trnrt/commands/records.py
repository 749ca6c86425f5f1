"""Flags that belong together, as records: a verb takes a record, and its fields become flags of the verb.

Imported for ``trnrt --help``, so it imports nothing heavy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from typer.core import TyperCommand

from trnrt.commands.options import (
    EFFORT,
    PANELS,
    AtolFlag,
    Backend,
    BackendFlag,
    BaselineFlag,
    BundleFlag,
    BundleStepFlag,
    ColorFlag,
    CompiledFlag,
    CoresFlag,
    DType,
    DTypeFlag,
    Fallback,
    FallbackFlag,
    HtmlFlag,
    LayersFlag,
    LayoutFlag,
    LncFlag,
    MeanFlag,
    NoFuseFlag,
    PlanFlag,
    RegressFlag,
    RtolFlag,
    ScaleFlag,
    ShapeFlag,
    StdFlag,
    TargetFlag,
    TraceFlag,
    read_numbers,
)

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.commands.opening import SessionOptions
    from trnrt.inputs.images import ImageOptions


@dataclass(frozen=True)
class Images:
    """How pictures become inputs."""

    layout: LayoutFlag = None
    color: ColorFlag = None
    scale: ScaleFlag = None
    mean: MeanFlag = None
    std: StdFlag = None

    @property
    def options(self) -> ImageOptions:
        """The flags, read."""
        from trnrt.inputs.images import ImageOptions

        return ImageOptions(
            self.layout and self.layout.value,
            self.color and self.color.value,
            self.scale,
            None if self.mean is None else read_numbers(self.mean),
            None if self.std is None else read_numbers(self.std),
        )


@dataclass(frozen=True)
class Device:
    """What runs a model."""

    backend: BackendFlag = Backend.AUTO
    lnc: LncFlag = None
    cores: CoresFlag = 1
    compiled: CompiledFlag = None

    @property
    def options(self) -> DeviceOptions:
        """The NeuronCores that are asked for."""
        from trnrt.backends import DeviceOptions

        return DeviceOptions(self.lnc, self.cores, self.compiled)


@dataclass(frozen=True)
class Comparing:
    """How outputs are compared, and whether steps are; a tolerance of None is the default of the dtype."""

    rtol: RtolFlag = None
    atol: AtolFlag = None
    layers: LayersFlag = False
    bundle: BundleFlag = None
    bundle_step: BundleStepFlag = None


@dataclass(frozen=True)
class Views:
    """What a profile is written to, and compared with."""

    html: HtmlFlag = None
    trace: TraceFlag = None
    baseline: BaselineFlag = None
    max_regress: RegressFlag = None


@dataclass(frozen=True)
class Overrides:
    """What a user asks of the planner."""

    no_fuse: NoFuseFlag = None
    plan: PlanFlag = None


@dataclass(frozen=True)
class Planning:
    """What a model is planned for."""

    dtype: DTypeFlag = DType.FLOAT32
    target: TargetFlag = None
    fallback: FallbackFlag = Fallback.NONE
    shape: ShapeFlag = None

    @property
    def fallback_name(self) -> str | None:
        """What runs on the CPU; None where nothing may."""
        return None if self.fallback is Fallback.NONE else self.fallback.value

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that are given, by input."""
        from trnrt.planner.sizes import parse_shape

        return dict(parse_shape(text) for text in self.shape or [])

    def session(
        self,
        backend: Backend = Backend.AUTO,
        overrides: Overrides | None = None,
        *,
        effort: int | None = EFFORT,
        buckets: str | None = None,
        cached: bool = True,
        device: DeviceOptions | None = None,
    ) -> SessionOptions:
        """How the model is opened."""
        from trnrt.commands.opening import SessionOptions
        from trnrt.running.buckets import parse_buckets

        overrides = overrides or Overrides()
        return SessionOptions(
            self.target,
            self.dtype.value,
            backend.value,
            self.fallback_name,
            self.shapes,
            None if buckets is None else parse_buckets(buckets),
            cached,
            overrides.no_fuse or (),
            overrides.plan,
            effort,
            device,
        )


def takes_records(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the fields of its records as parameters, which is what typer makes flags of."""
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
    """A verb whose ``--help`` shows its flags in groups: typer does that for its rich help only."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments first, then each group in the order in which its first flag was declared."""
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
