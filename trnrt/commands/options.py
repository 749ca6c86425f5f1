"""The flags that verbs share. Imported for ``trnrt --help``, so it imports nothing heavy."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trnrt.errors import OptionError


class DType(StrEnum):
    """What a model is computed in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Backend(StrEnum):
    """What runs a kernel module."""

    AUTO = "auto"
    SIMULATOR = "simulator"
    NEURON = "neuron"


class Fallback(StrEnum):
    """What runs the nodes that the device can't."""

    NONE = "none"
    ONNXRUNTIME = "onnxruntime"


class Engine(StrEnum):
    """What processes do the work: trnrt's own, or Ray's."""

    LOCAL = "local"
    RAY = "ray"


class Stage(StrEnum):
    """A stage of a model that can be looked at."""

    IMPORTED = "imported"
    REWRITTEN = "rewritten"
    PLANNED = "planned"


class Layout(StrEnum):
    """The order of an image's dimensions."""

    NCHW = "NCHW"
    NHWC = "NHWC"


class Color(StrEnum):
    """The channels of an image, in order."""

    L = "L"
    RGB = "RGB"
    BGR = "BGR"
    RGBA = "RGBA"
    BGRA = "BGRA"


@dataclass(frozen=True)
class Reporting:
    """Where a result goes beside the terminal."""

    as_json: bool
    json_out: Path | None


def check_target(name: str | None) -> str | None:
    """The target's name or file as given; OptionError if there is no such target."""
    if name is not None:
        from trnrt.nki.machine.targets import get_target

        get_target(name)
    return name


def check_cases(names: list[str] | None) -> list[str] | None:
    """The names as given; OptionError if the self-test has no such case."""
    if names:
        from trnrt.neuron.selftest.cases import CASES

        if unknown := [name for name in names if name not in CASES]:
            raise OptionError(f"the self-test has no case {unknown[0]!r}", hint=f"cases are {', '.join(CASES)}")
    return names


def check_finite(value: float | None) -> float | None:
    """The number as given; OptionError for NaN and infinity."""
    if value is not None and not math.isfinite(value):
        raise OptionError(f"{value} is not a number that can be used", hint="give a finite number")
    return value


def check_numbers(text: str | None) -> str | None:
    """The text as given; OptionError if it is not finite numbers with commas between."""
    if text is not None:
        read_numbers(text)
    return text


def read_numbers(text: str) -> tuple[float, ...]:
    """``"0.5"`` or ``"0.485,0.456,0.406"`` as numbers; OptionError if it isn't that."""
    from trnrt.inputs.images import parse_numbers

    try:
        return parse_numbers(text)
    except ValueError:
        raise OptionError(f"{text!r} is not numbers", hint="one number, or one a channel: 0.485,0.456,0.406") from None


def check_percent(text: str | None) -> str | None:
    """The text as given; OptionError if it is not a percentage."""
    if text is not None:
        read_percent(text)
    return text


def read_percent(text: str) -> float:
    """``"2%"``, ``"2 %"`` or ``"0.5"`` as percent, 0 or more; OptionError if it isn't that."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?\s*%?", text.strip(), re.ASCII):
        raise OptionError(
            f"{text!r} is not a percentage", hint="say 2% or 0.5%; a number alone is percent, too: 2 means 2%"
        )
    return float(text.strip().removesuffix("%"))


# From the folder, not from its package: that is heavy, and this is imported for every --help.
_NAMES = sorted(path.stem for path in (Path(__file__).parents[1] / "nki" / "machine").glob("*.toml"))
TARGETS = f"[{'|'.join(_NAMES)}|FILE.toml]"
_MODEL = "The model, an .onnx file."
_INPUT = (
    "Input file, repeatable: FILE.npz (arrays named like the model's inputs), NAME=FILE.npy, or an image "
    "(.png, .jpg; several make a batch). NAME= may be left out for a model of one input. Without: random values."
)

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)]
InputFiles = Annotated[
    list[str] | None, typer.Option("--input", "-i", metavar="[NAME=]FILE", help=_INPUT, show_default=False)
]
DTypeFlag = Annotated[DType, typer.Option("--dtype", help="What weights and activations are computed in.")]
TargetFlag = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar=TARGETS,
        help="The hardware, or a target's file: the device that is present, else trn2.",
        callback=check_target,
        show_default=False,
    ),
]
BackendFlag = Annotated[Backend, typer.Option("--backend", help="What runs the model; auto takes a device if present.")]
LncFlag = Annotated[
    int | None,
    typer.Option(
        "--lnc",
        min=1,
        max=2,
        metavar="[1|2]",
        help="Physical NeuronCores in a logical one: what NEURON_LOGICAL_NC_CONFIG says, else 1. With 2, both do the "
        "same work.",
        show_default=False,
    ),
]
CoresFlag = Annotated[
    int, typer.Option("--cores", min=1, metavar="N", help="NeuronCores to load the model on, for batches in slices.")
]
DeviceProfileFlag = Annotated[
    Path | None,
    typer.Option(
        "--device-profile",
        metavar="DIR",
        help="Show what Neuron Explorer measured on a device, step by step: the directory of Parquet tables it wrote.",
        show_default=False,
        exists=True,
    ),
]
CompiledFlag = Annotated[
    Path | None,
    typer.Option(
        "--compiled",
        metavar="DIR",
        help="NeuronCore: run what trnrt compile --backend neuron wrote here, and compile nothing.",
        show_default=False,
    ),
]
FallbackFlag = Annotated[
    Fallback,
    typer.Option("--fallback", help="What runs on the CPU the nodes that the device can't; none refuses such a model."),
]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the random values.")]
LayoutFlag = Annotated[
    Layout | None, typer.Option("--layout", help="Images: the order of the input's dimensions.", show_default=False)
]
ColorFlag = Annotated[
    Color | None, typer.Option("--color", help="Images: the input's channels, in order.", show_default=False)
]
ScaleFlag = Annotated[
    float | None,
    typer.Option(
        "--scale",
        metavar="F",
        help="Images: value = (pixel * scale - mean) / std, for pixels of 0 to 255.",
        callback=check_finite,
        show_default=False,
    ),
]
MeanFlag = Annotated[
    str | None,
    typer.Option("--mean", metavar="F[,F,F]", help="Images: see --scale.", callback=check_numbers, show_default=False),
]
StdFlag = Annotated[
    str | None,
    typer.Option("--std", metavar="F[,F,F]", help="Images: see --scale.", callback=check_numbers, show_default=False),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
JsonOutFlag = Annotated[
    Path | None,
    typer.Option("--json-out", metavar="FILE", help="Also write the JSON document to a file.", show_default=False),
]
HtmlFlag = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write a report to open in a browser; it needs no network.", show_default=False
    ),
]
TraceFlag = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write a trace to open in Perfetto.", show_default=False),
]
BaselineFlag = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="Compare with what --json-out wrote before; exit 1 if it got slower by more than --max-regress.",
        show_default=False,
    ),
]
RegressFlag = Annotated[
    str | None,
    typer.Option(
        "--max-regress",
        metavar="PERCENT",
        help="With --baseline: how much slower is accepted, in percent, as 2% or 2. Without: 2%.",
        callback=check_percent,
        show_default=False,
    ),
]
ScriptFile = Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file with kernels.", show_default=False)]
ScriptArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGS", help="The script's own arguments; after -- also such as trnrt takes.", show_default=False
    ),
]
NoCapacityFlag = Annotated[
    bool,
    typer.Option("--no-capacity", help="Let tiles take more SBUF and PSUM than there is: for the numbers alone."),
]
SimulatedTargetFlag = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar=TARGETS,
        help="The hardware to simulate, or a target's file: what NEURON_PLATFORM_TARGET_OVERRIDE names, else trn2.",
        callback=check_target,
        show_default=False,
    ),
]
CallsFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--call",
        metavar="CALL",
        help="Trace this call, repeatable: 'kernel(f32[128,512], bf16[512], 4, name=\"x\")'. "
        "Without: the calls that the script makes.",
        show_default=False,
    ),
]
QuickFlag = Annotated[bool, typer.Option("--quick", help="Measure a few times only.")]
PlanBatchFlag = Annotated[
    int | None,
    typer.Option(
        "--batch", min=1, metavar="N", help="Rows to plan for: 1, or the model's fixed batch.", show_default=False
    ),
]
ShapeFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="[NAME=]3x224x224",
        help="An input's open sizes, with the batch or without; repeatable.",
        show_default=False,
    ),
]
NoFuseFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--no-fuse",
        metavar="NODE",
        help="A node that is computed in no step with what comes before it; repeatable.",
        show_default=False,
    ),
]
PlanFlag = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Plan as this file says: a saved plan, edited.", show_default=False),
]
EFFORT = 1
_BY_EFFORT = "1: choose sizes, ways and fusions by the predicted time, where that can gain. 0: by estimates, at once."
EffortFlag = Annotated[int, typer.Option("--effort", min=0, max=1, help=_BY_EFFORT)]
RunEffortFlag = Annotated[
    int | None,
    typer.Option("--effort", min=0, max=1, help=f"{_BY_EFFORT} By default 1 on a device.", show_default=False),
]
SavePlanFlag = Annotated[
    Path | None,
    typer.Option(
        "--save-plan", metavar="FILE", help="Also write the plan as JSON, to be edited for --plan.", show_default=False
    ),
]
WhyFlag = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="STEP",
        help="Show what else could be planned for this step or node, and the model's predicted time with each.",
        show_default=False,
    ),
]
BucketsFlag = Annotated[
    str | None,
    typer.Option(
        "--buckets",
        metavar="1,8,32",
        help="Batch sizes to compile for; others are padded or cut. By default 1, 2, 4 ... 128.",
        show_default=False,
    ),
]
CacheFlag = Annotated[bool, typer.Option("--cache/--no-cache", help="Take plans from the cache, and keep new ones.")]
SamplesFlag = Annotated[
    int | None,
    typer.Option(
        "--samples",
        min=1,
        metavar="N",
        help="Random rows to draw: 64, or the model's fixed batch. With --input, the first N rows of it.",
        show_default=False,
    ),
]
RtolFlag = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        min=0.0,
        metavar="F",
        help="Relative tolerance of every element: 1e-4 for float32, 2e-2 for 16 bits. "
        "Without --rtol and --atol each has its own.",
        callback=check_finite,
        show_default=False,
    ),
]
AtolFlag = Annotated[
    float | None,
    typer.Option(
        "--atol",
        min=0.0,
        metavar="F",
        help="Absolute tolerance of every element: 1e-5 for float32, 1e-2 for 16 bits, if only --rtol is given.",
        callback=check_finite,
        show_default=False,
    ),
]
LabelledFile = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE.npz",
        help="Inputs and labels (label, labels, y, target or targets), for the accuracy of both; instead of --input.",
        show_default=False,
    ),
]
LayersFlag = Annotated[
    bool,
    typer.Option(
        "--layers",
        help="Compare every tensor with onnxruntime's, each step alone; 4 random rows unless --samples says more.",
    ),
]
BundleFlag = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="DIR",
        help="With --layers: write the first step that fails as a model, its inputs and a pytest file.",
        show_default=False,
    ),
]
BundleStepFlag = Annotated[
    str | None,
    typer.Option(
        "--bundle-step", metavar="NAME", help="With --bundle: of this step or node instead.", show_default=False
    ),
]
TopFlag = Annotated[
    int | None,
    typer.Option(
        "--top",
        min=1,
        metavar="K",
        help="Show the best K classes of the output that holds one number a class.",
        show_default=False,
    ),
]
LogitsFlag = Annotated[bool, typer.Option("--logits", help="With --top: the numbers are logits; show their softmax.")]
OutputFlag = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="OUT.npz", help="Write all outputs.", show_default=False)
]
RowsFlag = Annotated[
    int | None, typer.Option("--batch", min=1, metavar="N", help="Random rows to draw: 1.", show_default=False)
]
TilesFlag = Annotated[
    bool,
    typer.Option(
        "--tiles/--no-tiles", help="Trace the kernels, which says each step's tiles and memory; it takes longer."
    ),
]
KeepFlag = Annotated[
    Path | None,
    typer.Option("--keep", metavar="DIR", help="Keep the kernel module and its weights.", show_default=False),
]
SelfTestFlag = Annotated[
    bool,
    typer.Option(
        "--self-test", help="Run every kernel and the sample models on the device, and write a report to send back."
    ),
]
CaseFlag = Annotated[
    list[str] | None,
    typer.Option(
        "--case",
        metavar="NAME",
        help="With --self-test: this case alone, repeatable. Without: all.",
        callback=check_cases,
        show_default=False,
    ),
]
