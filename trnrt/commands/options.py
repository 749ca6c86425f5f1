"""The flags that verbs share. ``trnrt --help`` imports this module: it imports nothing heavy."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click

from trnrt.commands.members import Backend
from trnrt.commands.sampling import (
    OWN_DATA,
    SAMPLE_HELP,
    add_name,
    choose_data,
    choose_model,
    choose_model_to_cut,
    keep_sample,
)
from trnrt.commands.verbs import argument, option
from trnrt.errors import OptionError
from trnrt.nki.level import Level
from trnrt.samples import SAMPLES


@dataclass(frozen=True)
class Reporting:
    """The form of the printed result, and the file that it also goes to."""

    as_json: JsonFlag = False
    json_out: JsonOutFlag = None


def check_target(name: str | None) -> str | None:
    """The target's name, in lower case, or its file as given; OptionError if there is no such target."""
    if name is None:
        return None
    from trnrt.nki.machine.targets import get_target

    lower = lower_target(name)
    get_target(lower)
    return lower


def lower_target(name: str) -> str:
    """A target's name in lower case; a file as given."""
    return name.lower() if name.lower() in TARGET_NAMES else name


def check_timing(path: Path | None) -> Path | None:
    """The overlay's file as given, in use until the verb ends, also in processes that it starts.

    OptionError if it is no overlay.
    """
    if path is not None:
        from trnrt.nki.machine.overlays import TIMING_VARIABLE
        from trnrt.nki.machine.targets import overlay_at
        from trnrt.report.console import note

        overlay, before = overlay_at(str(path.absolute())), os.environ.get(TIMING_VARIABLE)
        os.environ[TIMING_VARIABLE] = str(path.absolute())
        click.get_current_context().call_on_close(lambda: _restore(TIMING_VARIABLE, before))
        note(f"{path}: {overlay.describe()}")
    return path


def _restore(variable: str, before: str | None) -> None:
    os.environ.pop(variable, None)
    if before is not None:
        os.environ[variable] = before


def check_timing_target(timing: Path | None, target: str | None) -> None:
    """OptionError if the overlay's numbers are for another target than the one that is asked for."""
    if timing is not None and target is not None:
        from trnrt.nki.machine.targets import get_target, overlay_in_use

        overlay, name = overlay_in_use(), get_target(target).name
        if overlay is not None and overlay.like != name:
            raise OptionError(
                f"{timing} has numbers of {overlay.like}, not of {name}", hint=f"use --target {overlay.like}"
            )


def check_cases(names: list[str] | None) -> list[str] | None:
    """The names as given; OptionError if the self-test has no such case."""
    if names:
        from difflib import get_close_matches

        from trnrt.neuron.selftest.table import CASES

        if unknown := [name for name in names if name not in CASES]:
            near = [case for case in CASES if case.startswith(unknown[0])] or get_close_matches(unknown[0], CASES)
            hint = f"did you mean {' or '.join(near)}?" if near else f"cases are {', '.join(CASES)}"
            raise OptionError(f"the self-test has no case {unknown[0]!r}", hint=hint)
    return names


def check_route(name: str | None) -> str | None:
    """The name as given; OptionError if there is no such route."""
    if name is not None:
        from trnrt.neuron.routes import ROUTES

        if name not in ROUTES:
            raise OptionError(f"unknown route {name!r}", hint=f"routes are {', '.join(ROUTES)}")
    return name


def check_finite(value: float | None) -> float | None:
    """The number as given; OptionError for NaN and infinity."""
    if value is not None and not math.isfinite(value):
        raise OptionError(f"{value} is not a finite number", hint="give a finite number")
    return value


def read_numbers(text: str) -> tuple[float, ...]:
    """``"0.5"`` or ``"0.485,0.456,0.406"`` as numbers; OptionError if it isn't that."""
    from trnrt.inputs.images import parse_numbers

    try:
        return parse_numbers(text)
    except ValueError:
        raise OptionError(
            f"{text!r} is not a list of numbers", hint="give one number, or one per channel: 0.485,0.456,0.406"
        ) from None


def read_scale(text: str) -> float:
    """``"0.5"`` or ``"1/255"`` as a number; OptionError if it is neither."""
    above, _, below = text.partition("/")
    try:
        return float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"{text!r} is not a number", hint="give a number, or a fraction as 1/255") from None


def read_percent(text: str) -> float:
    """``"2%"``, ``"2 %"`` or ``"0.5"`` as percent, 0 or more; OptionError if it isn't that."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?\s*%?", text.strip(), re.ASCII):
        raise OptionError(f"{text!r} is not a percentage", hint="give 2% or 0.5%; 2 means 2%")
    return float(text.strip().removesuffix("%"))


def read_budget(text: str) -> int:
    """``20000`` as a number of instructions, ``none`` as 0; OptionError if it is neither."""
    if text.strip().lower() == "none":
        return 0
    if not re.fullmatch(r"\d{1,12}", text.strip(), re.ASCII):
        raise OptionError(f"{text!r} is not a number of instructions", hint="give a whole number, or none")
    return int(text)


def read_buckets(text: str) -> tuple[int, ...]:
    """``1,4,16`` as batch sizes; OptionError if it isn't that."""
    from trnrt.running.buckets import parse_buckets

    return parse_buckets(text)


def read_lengths(text: str) -> tuple[int, ...]:
    """``32,64,128`` as lengths; OptionError if it isn't that."""
    from trnrt.running.lengths import parse_lengths

    return parse_lengths(text)


# From the folder: the package trnrt.nki.machine is heavy, and every --help imports this module.
TARGET_NAMES = tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "nki" / "machine").glob("*.toml")))
TARGETS = f"[{'|'.join(TARGET_NAMES)}|FILE.toml]"

# ``option`` for flags that are no fields of a record.
input_flag, planning_flag, device_flag, demand_flag, output_flag, advanced_flag = (
    partial(option, panel=panel) for panel in ("Model and inputs", "Planning", "Device", "Demand", "Output", "Advanced")
)


def flag(panel: str, *names: str, default: Any = None, **details: Any) -> Any:
    """A field of a record that is a flag, in a group of ``PANELS``; a ``default`` of ... makes it required.

    ``details`` are those of ``option``.
    """
    metadata = {"option": option(*names, panel=panel, **details)}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


_INPUT = (
    "Input file, repeatable: FILE.npz (arrays named like the model's inputs), NAME=FILE.npy, or an image "
    "(.png, .jpg; several make a batch). A model with one input needs no NAME=. By default random values."
)

SampleFlag = input_flag("--sample", metavar="NAME", help=SAMPLE_HELP, callback=keep_sample, choices=tuple(SAMPLES))
_model_argument = partial(
    argument,
    metavar="MODEL",
    help="The model: an .onnx file, or a bundle that `trnrt compile -o DIR` wrote.",
    stand_in=SampleFlag,
)
ModelFile = Annotated[Path, _model_argument(callback=choose_model)]
ModelToCut = Annotated[Path, _model_argument(callback=choose_model_to_cut)]
InputFiles = Annotated[list[str] | None, input_flag("--input", "-i", metavar="[NAME=]FILE", help=_INPUT)]
TargetFlag = Annotated[
    str | None,
    planning_flag(
        "--target",
        choices=TARGET_NAMES,
        metavar=TARGETS,
        help="The hardware, or a target's file. By default this machine's device, else trn2.",
        callback=check_target,
    ),
]
TimingFlag = Annotated[
    Path | None,
    advanced_flag(
        "--timing",
        metavar="FILE",
        envvar="TRNRT_TIMING",
        help="Predict with the numbers that `trnrt calibrate` fitted to a device's reports.",
        callback=check_timing,
    ),
]


def _against_flag(other: str) -> Any:
    text = f"Compare with another run: an earlier --html report, {other}, or a --json-out file (no timeline)."
    return option("--against", metavar="FILE", panel="Comparison", help=text)


AgainstFlag = Annotated[Path | None, _against_flag("a script")]
ModelAgainstFlag = Annotated[Path | None, _against_flag("an ONNX file")]
ReportFiles = Annotated[list[Path], argument(metavar="REPORT...", help="Files of `trnrt doctor --self-test`.")]
OverlayFile = Annotated[
    Path | None,
    output_flag("-o", "--output", writes="file", metavar="FILE.toml", help="Write the fitted numbers, for --timing."),
]
BackendFlag = Annotated[
    Backend, device_flag("--backend", help="What runs the model; auto uses a device if there is one.")
]
LncFlag = Annotated[
    int | None,
    device_flag(
        "--lnc",
        min=1,
        max=2,
        metavar="[1|2]",
        help="Physical cores per logical NeuronCore; 2 divide the work where that is predicted to be faster. "
        "By default NEURON_LOGICAL_NC_CONFIG, else 1.",
    ),
]
DeviceProfileFlag = Annotated[
    Path | None,
    device_flag(
        "--device-profile",
        metavar="DIR",
        help="Show what Neuron Explorer measured on a device, step by step; DIR holds its Parquet tables.",
        exists=True,
    ),
]
CompiledFlag = Annotated[
    Path | None,
    advanced_flag(
        "--compiled",
        metavar="DIR",
        help="NeuronCore: run what `trnrt compile --backend neuron` wrote into DIR, and compile nothing.",
    ),
]
RouteFlag = Annotated[
    str | None,
    advanced_flag(
        "--route",
        metavar="ROUTE",
        help="NeuronCore: how AWS's packages compile and run kernels: neff, trace, torchneuron or jit. By default "
        "TRNRT_ROUTE, else the first whose packages are installed.",
        callback=check_route,
    ),
]
UnsupportedFlag = Annotated[
    bool,
    advanced_flag(
        "--allow-unsupported-device",
        help="NeuronCore: run on trn1 and inf2, too, though AWS doesn't state that NKI supports them.",
    ),
]
SeedFlag = Annotated[int, input_flag("--seed", min=0, metavar="N", help="Seed of the random values.")]
JsonFlag = Annotated[bool, output_flag("--json", help="Print one JSON document instead of text.")]
JsonOutFlag = Annotated[
    Path | None,
    output_flag("--json-out", writes="file", metavar="FILE", help="Also write the JSON document to a file."),
]
ScriptFile = Annotated[Path, argument(metavar="SCRIPT", help="A Python file with kernels.")]
ScriptArguments = Annotated[
    list[str] | None,
    argument(metavar="ARGS", help="The script's own arguments; put those that trnrt also has after --."),
]
NoCapacityFlag = Annotated[
    bool,
    advanced_flag(
        "--no-capacity", help="Let tiles exceed SBUF and PSUM, to get the numbers of a kernel that doesn't fit."
    ),
]
SimulatedTargetFlag = Annotated[
    str | None,
    device_flag(
        "--target",
        choices=TARGET_NAMES,
        metavar=TARGETS,
        help="The hardware to simulate, or a target's file. By default NEURON_PLATFORM_TARGET_OVERRIDE, else trn2.",
        callback=check_target,
    ),
]
NkiFlag = Annotated[
    Level | None,
    device_flag(
        "--nki",
        help="The release of NKI whose language and API to follow. By default TRNRT_NKI_VERSION, else 0.7.",
    ),
]
CallsFlag = Annotated[
    list[str] | None,
    input_flag(
        "--call",
        metavar="CALL",
        help="Trace this call, repeatable: 'kernel(f32[128,512], bf16[512], 4, name=\"x\")'. "
        "By default the calls that the script makes.",
    ),
]
BATCH = "Rows that the device computes at once."
PlanBatchFlag = Annotated[
    int | None,
    planning_flag(
        "--batch",
        min=1,
        metavar="N",
        help=f"{BATCH} By default the model's fixed batch, else 1.",
    ),
]
CALIBRATION = "Typical inputs, for --dtype float8_e4m3 and float8_e5m2: the ranges of numbers are measured on them."
NARROW = (
    "The layers in 8-bit floats. faster: those estimated to gain, except the first and the last. "
    "all: every possible layer."
)
LENGTHS = "Sequence lengths to compile for; others are padded to the next one, and the outputs cut back."
PAD = "With --lengths: the number in an input's padded places, repeatable. By default 0."
BUDGET = "The most instructions of a kernel, as compiled; none sets no limit. By default 100000, if that can be met."
EFFORT = 1
_BY_EFFORT = "1: choose sizes, kernels and fusions by predicted time where that can gain. 0: use quick estimates."
EffortFlag = Annotated[int, advanced_flag("--effort", min=0, max=1, metavar="[0|1]", help=_BY_EFFORT)]
RunEffortFlag = Annotated[
    int | None,
    advanced_flag("--effort", min=0, max=1, metavar="[0|1]", help=f"{_BY_EFFORT} By default 1 on a device, else 0."),
]
BucketsFlag = Annotated[
    Sequence[int] | None,
    planning_flag(
        "--buckets",
        metavar="1,8,32",
        help="Batch sizes to compile for; other batches are padded or split. By default 1, 2, 4 ... 128.",
        parser=read_buckets,
    ),
]
CacheFlag = Annotated[bool, advanced_flag("--cache/--no-cache", help="Take plans from the cache, and keep new ones.")]
ComparedRowsFlag = Annotated[
    int | None,
    input_flag(
        "--rows",
        min=1,
        metavar="N",
        help="Compare N rows: random ones (by default the model's fixed batch, else 64), or the first N of --input, "
        "--data or the sample (by default all, or 64 of a sample without --data).",
    ),
]
LabelledFile = Annotated[
    Path | None,
    input_flag(
        "--data",
        metavar="FILE.npz",
        help="Inputs and labels (label, labels, y, target or targets), to compare accuracies; instead of --input. "
        "With --sample, FILE may be left out.",
        callback=choose_data,
        bare=OWN_DATA,
    ),
]
LogitsFlag = Annotated[bool, output_flag("--logits", help="With --top: the numbers are logits; show their softmax.")]
RowsFlag = Annotated[
    int | None,
    input_flag(
        "--rows",
        min=1,
        metavar="N",
        help="Run N rows: random ones (by default the model's fixed batch, else 1), or the first N of --input or the "
        "sample (by default all).",
    ),
]
ShowDeviceFlag = Annotated[
    bool, device_flag("--device", help="Show the checks of the device on a machine without one, too.")
]
SelfTestFlag = Annotated[
    bool,
    device_flag(
        "--self-test", help="Run every kernel and the sample models on the device, and write a report to send back."
    ),
]
CaseFlag = Annotated[
    list[str] | None,
    device_flag(
        "--case", metavar="NAME", help="With --self-test: run this case only; repeatable.", callback=check_cases
    ),
]
CutOutputs = Annotated[
    list[str],
    output_flag("--outputs", metavar="NAME...", help="The tensors that become the outputs: one name, or several."),
]
MoreOutputs = Annotated[list[str] | None, argument(metavar="[NAME...]", hidden=True, callback=add_name)]
CutFile = Annotated[Path, output_flag("-o", "--output", writes="file", metavar="OUT.onnx", help="The file to write.")]
CompileDirectory = Annotated[
    Path, output_flag("-o", "--output", writes="directory", metavar="DIR", help="Where to write.")
]
CompileBucketsFlag = Annotated[
    Sequence[int] | None,
    planning_flag(
        "--buckets", metavar="1,8,32", help="Batch sizes to compile for, instead of --batch.", parser=read_buckets
    ),
]
BundleFlag = Annotated[
    bool,
    output_flag(
        "--bundle/--no-bundle", help="Also write the model and its plans, for `trnrt run DIR` and `trnrt serve DIR`."
    ),
]
CheckFlag = Annotated[
    bool,
    output_flag(
        "--check/--no-check", help="Compare the bundle's numbers with onnxruntime's now, not at each start of a server."
    ),
]
CompileBackendFlag = Annotated[
    Backend, device_flag("--backend", help="neuron: also compile with AWS's compiler; needs no device.")
]
ProfileBackendFlag = Annotated[
    Backend, device_flag("--backend", help="neuron: also run on the device, and show the measured times.")
]
ExpectFlag = Annotated[
    str | None, demand_flag("--expect", metavar="1:0.7,8:0.3", help="The expected batch sizes, with weights.")
]
ExpectLengthsFlag = Annotated[
    str | None,
    demand_flag(
        "--expect-lengths",
        metavar="20:0.6,100:0.4",
        help="Instead of --expect: the expected sequence lengths, with weights, to choose --lengths.",
    ),
]
ExpectedRowsFlag = Annotated[
    int | None,
    demand_flag(
        "--batch",
        min=1,
        metavar="N",
        help=f"With --expect-lengths. {BATCH} By default 1.",
    ),
]
MostFlag = Annotated[int, demand_flag("--most", min=1, metavar="N", help="Choose at most N buckets.")]
