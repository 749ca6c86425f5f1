"""Flags that belong together, as records: a verb takes a record, whose fields become its flags.

``trnrt --help`` imports this module: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnrt.commands.members import Backend, Color, DrawAs, DType, Fallback, Fit, Layout, Narrow, Preprocess, Stage
from trnrt.commands.options import (
    BUDGET,
    CALIBRATION,
    EFFORT,
    LENGTHS,
    NARROW,
    PAD,
    BackendFlag,
    CompiledFlag,
    LncFlag,
    LogitsFlag,
    PlanBatchFlag,
    RouteFlag,
    TargetFlag,
    TimingFlag,
    UnsupportedFlag,
    check_finite,
    check_timing_target,
    flag,
    read_budget,
    read_lengths,
    read_numbers,
    read_scale,
)

if TYPE_CHECKING:
    from trnrt.backends import DeviceOptions
    from trnrt.inputs.images import ImageOptions


IMAGE_FLAGS = "--preprocess, --layout, --color, --scale, --mean, --std and --fit"


@dataclass(frozen=True)
class Images:
    """The conversion of images to inputs."""

    layout: Layout | None = flag("Images", "--layout", help="Images: the order of the input's dimensions.")
    color: Color | None = flag("Images", "--color", help="Images: the input's channels, in order.")
    scale: float | None = flag(
        "Images",
        "--scale",
        metavar="F",
        help="Images: value = (pixel * scale - mean) / std, for pixels of 0 to 255; also as 1/255.",
        parser=read_scale,
        callback=check_finite,
    )
    mean: Sequence[float] | None = flag(
        "Images", "--mean", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers
    )
    std: Sequence[float] | None = flag(
        "Images", "--std", metavar="F[,F,F]", help="Images: see --scale.", parser=read_numbers
    )
    fit: Fit | None = flag(
        "Images",
        "--fit",
        help="Images of another size: stretch (the default), letterbox (pad with grey), crop (the longer side), or "
        "center (the middle 224 of 256 pixels).",
    )
    preprocess: Preprocess | None = flag(
        "Images",
        "--preprocess",
        help="Images: imagenet is RGB, --fit center, --scale 1/255, --mean 0.485,0.456,0.406, --std 0.229,0.224,0.225. "
        "Other flags replace its settings.",
    )

    @property
    def options(self) -> ImageOptions:
        """The same, as the readers of images take it."""
        from trnrt.inputs.images import PRESETS, ImageOptions

        given: dict[str, Any] = {
            "layout": self.layout and self.layout.value,
            "color": self.color and self.color.value,
            "scale": self.scale,
            "mean": None if self.mean is None else tuple(self.mean),
            "std": None if self.std is None else tuple(self.std),
            "fit": self.fit and self.fit.value,
        }
        preset = ImageOptions() if self.preprocess is None else PRESETS[self.preprocess.value]
        return replace(preset, **{name: value for name, value in given.items() if value is not None})


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

    output: Path | None = flag("Output", "--output", "-o", writes="file", metavar="OUT.npz", help="Write all outputs.")
    top: int | None = flag(
        "Output",
        "--top",
        min=1,
        metavar="K",
        help="Show the best K classes of the output that has one number per class.",
    )
    logits: LogitsFlag = False
    full: bool = flag("Output", "--full", default=False, help="JSON: include the data of large outputs.")
    keep: Path | None = flag(
        "Output", "--keep", writes="directory", metavar="DIR", help="Keep the kernel module and its weights in DIR."
    )


@dataclass(frozen=True)
class Drawing:
    """The picture of a detector's boxes or a segmenter's masks. None is the default of ``trnrt.vision``."""

    draw: Path | None = flag(
        "Output",
        "--draw",
        writes="file",
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
        help="With --draw: the lowest score of a box. By default 0.25.",
    )
    max_overlap: float | None = flag(
        "Output",
        "--max-overlap",
        min=0.0,
        max=1.0,
        metavar="F",
        help="With --draw: the largest intersection over union of two boxes of a class, if the model leaves that to "
        "its caller. By default 0.7.",
    )

    @property
    def is_set(self) -> bool:
        """True if a flag that needs --draw is set."""
        return self.draw_as is not DrawAs.AUTO or self.min_score is not None or self.max_overlap is not None


@dataclass(frozen=True)
class Comparing:
    """The comparison of outputs, and of steps if requested; a tolerance of None is the default of the dtype."""

    rtol: float | None = flag(
        "Numbers",
        "--rtol",
        min=0.0,
        metavar="F",
        help="Relative tolerance: by default 1e-4 for float32, 2e-2 for 16 bits. "
        "Without --rtol and --atol, each element has its own tolerance.",
        callback=check_finite,
    )
    atol: float | None = flag(
        "Numbers",
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
        help="Also compare each step alone with onnxruntime; on 4 rows by default.",
    )
    float_model: Path | None = flag(
        "Comparison",
        "--float",
        metavar="MODEL",
        help="With --data and a quantised MODEL: its float original, to show that one's accuracy, too.",
    )
    bundle: Path | None = flag(
        "Comparison",
        "--bundle",
        writes="directory",
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
        "Output",
        "--save-plan",
        writes="file",
        metavar="FILE",
        help="Also write the plan as JSON, to edit and use with --plan.",
    )
    tiles: bool = flag(
        "Output",
        "--tiles/--no-tiles",
        default=True,
        help="Trace the kernels to show each step's tiles, memory and time, and what limits it; slower.",
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
        "Advanced", "--no-fuse", metavar="NODE", help="Don't fuse this node into the step before it; repeatable."
    )
    plan: Path | None = flag(
        "Advanced", "--plan", metavar="FILE", help="Use this plan (see `trnrt inspect --save-plan`)."
    )


@dataclass(frozen=True)
class Planning:
    """The target, the dtype and the sizes to plan for."""

    dtype: DType = flag("Numbers", "--dtype", default=DType.FLOAT32, help="The dtype of weights and activations.")
    calibration: Path | None = flag("Numbers", "--calibration", metavar="DATA.npz", help=CALIBRATION)
    narrow: Narrow = flag("Numbers", "--narrow", default=Narrow.FASTER, help=NARROW)
    target: TargetFlag = None
    timing: TimingFlag = None
    fallback: Fallback = flag(
        "Numbers",
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
        "Advanced", "--max-instructions", metavar="[N|none]", parser=read_budget, help=BUDGET
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
