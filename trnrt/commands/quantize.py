"""``trnrt quantize``: an int8 model from a float model, and what it loses.

The flags are declared here; the work is in ``trnrt.quantise``, imported when the verb is called, so that
``trnrt --help`` imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trnrt.commands.members import Backend, DType, Narrow
from trnrt.commands.options import ModelFile, PlanBatchFlag, Reporting, RunEffortFlag, flag, read_percent
from trnrt.commands.records import Images, Planning, SessionOptions
from trnrt.commands.results import deliver
from trnrt.commands.sampling import OWN_DATA, choose_files
from trnrt.errors import OptionError, TrnrtError
from trnrt.report.console import note, render
from trnrt.report.progress import counting, working
from trnrt.text import one_line, quote

if TYPE_CHECKING:
    from trnrt.importer import ImportedModel
    from trnrt.nki.machine.timing import Range
    from trnrt.quantise.data import Data
    from trnrt.quantise.preparing import Prepared
    from trnrt.quantise.trials import LayerCost, Trials
    from trnrt.report.quantising import Result


EIGHT_BITS = (DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)


class Form(StrEnum):
    """The form of the quantised file."""

    QDQ = "qdq"
    QOPERATOR = "qoperator"


class Method(StrEnum):
    """The way from the values of a tensor to its range."""

    MINMAX = "minmax"
    ENTROPY = "entropy"
    PERCENTILE = "percentile"


@dataclass(frozen=True)
class Calibration:
    """The calibration data."""

    files: list[str] | None = flag(
        "Model and inputs",
        "--data",
        metavar="[NAME=]PATH",
        help="Typical rows, repeatable: Parquet files or a folder of them, FILE.npz, NAME=FILE.npy, an image folder. "
        "A model with one input needs no NAME=. With --sample, PATH may be left out.",
        callback=choose_files,
        bare=str(OWN_DATA),
    )
    label: str | None = flag(
        "Model and inputs",
        "--label",
        metavar="COLUMN",
        help="The Parquet column, or .npz array, with the labels, to compare accuracies. By default label, labels, y, "
        "target or targets of an .npz.",
    )
    columns: list[str] | None = flag(
        "Model and inputs",
        "--columns",
        metavar="[INPUT=]COLUMN,...",
        help="Parquet: an input's column, or its columns of one number each; repeatable. By default by name.",
    )
    rows: int = flag(
        "Model and inputs",
        "--rows",
        default=512,
        min=1,
        metavar="N",
        help="Use N rows, spread over all of the data.",
    )
    method: Method = flag(
        "Quantisation",
        "--ranges",
        default=Method.MINMAX,
        help="A tensor's range holds all its values, those that lose the least information, or 99.999 % of them.",
    )


@dataclass(frozen=True)
class Quantising:
    """The quantised model."""

    output: Path | None = flag(
        "Output",
        "--output",
        "-o",
        writes="file",
        metavar="OUT.onnx",
        help="The file to write; none with --dtype float8_e4m3 or e5m2.",
    )
    form: Form = flag(
        "Quantisation",
        "--format",
        default=Form.QDQ,
        help="qdq: float operators between QuantizeLinear and DequantizeLinear. qoperator: QLinearConv and its like.",
    )
    dynamic: bool = flag(
        "Quantisation",
        "--dynamic",
        default=False,
        help="Quantise Gemm and MatMul only, with scales of activations computed at run time; needs no --data.",
    )
    keep: list[str] | None = flag(
        "Quantisation", "--keep", metavar="NODE", help="Leave this layer in float; repeatable."
    )
    max_drop: float | None = flag(
        "Quantisation",
        "--max-drop",
        metavar="PERCENT",
        help="Leave the costliest layers in float until the model loses at most this much accuracy, or without "
        "labels, changes at most this share of decisions: 0.5% or 0.5. Exit 1 if that can't be met.",
        parser=read_percent,
    )
    layers: bool = flag(
        "Quantisation",
        "--layers/--no-layers",
        default=True,
        help="Also quantise one layer at a time, and show what each costs; slower.",
    )
    latency: bool = flag(
        "Quantisation",
        "--latency/--no-latency",
        default=True,
        help="Also predict both models' latency on the device; slower.",
    )


def quantize_command(
    model: ModelFile,
    calibrating: Calibration,
    quantising: Quantising,
    images: Images,
    planning: Planning,
    reporting: Reporting,
    batch: PlanBatchFlag = None,
    effort: RunEffortFlag = None,
) -> None:
    """Quantise a float model to int8 with onnxruntime's quantiser, and show what each layer costs in accuracy.

    With --dtype float8_e4m3 or float8_e5m2: show what 8-bit floats would cost and gain; no file is written.
    """
    if planning.dtype in EIGHT_BITS:
        options = SessionOptions(planning, backend=Backend.SIMULATOR, effort=effort)
        _weigh_float8(model, calibrating, quantising, images, options, batch, reporting)
        return
    output = _check(model, calibrating, quantising)
    from trnrt.report.documents import Document
    from trnrt.report.files import check_writable

    for path in (output, reporting.json_out):
        if path is not None:
            check_writable(path)
    with working("loading the runtime"):
        from trnrt.report.quantising import quantize_document, result_parts

    found = _quantise(model, output, calibrating, quantising, images, planning)
    if quantising.latency:
        options = SessionOptions(planning, backend=Backend.SIMULATOR, effort=effort)
        latencies, notes = _predict(_asked_forms(model, output, planning), options, batch)
        found = replace(found, latencies=latencies, notes=(*found.notes, *notes))
        note(*notes)
    document: Document = quantize_document(found)
    deliver(reporting, document, render(result_parts(found)))


def _check(model: Path, calibration: Calibration, quantising: Quantising) -> Path:
    """The file to write. OptionError for flags that contradict each other."""
    if quantising.output is None:
        raise OptionError("--output is missing: the file to write", hint="give -o OUT.onnx")
    if not calibration.files:
        if not quantising.dynamic:
            raise OptionError(
                "no calibration data: the ranges of activations come from typical rows",
                hint="give a few hundred with --data, or use --dynamic",
            )
        if quantising.max_drop is not None:
            raise OptionError("--max-drop compares decisions on rows, and there are none", hint="give rows with --data")
        if calibration.label is not None:
            raise OptionError("--label needs --data", hint="give rows with --data")
    if quantising.dynamic and quantising.form is not Form.QDQ:
        raise OptionError("--format is for static quantisation", hint="leave out --format or --dynamic")
    if quantising.dynamic and calibration.method is not Method.MINMAX:
        raise OptionError("--ranges is for static quantisation", hint="leave out --ranges or --dynamic")
    if model.exists() and quantising.output.exists() and quantising.output.samefile(model):
        raise OptionError(f"--output {quote(str(model))} is the float model itself", hint="name another file")
    return quantising.output


def _quantise(
    model: Path, output: Path, calibration: Calibration, quantising: Quantising, images: Images, planning: Planning
) -> Result:
    """Make the model, write it, and return what is known about it."""
    from trnrt.importer import import_model
    from trnrt.quantise.making import quantise
    from trnrt.quantise.preparing import prepare
    from trnrt.report.files import write_whole
    from trnrt.report.quantising import Result

    form = "dynamic" if quantising.dynamic else quantising.form.value
    with working(f"reading {model}"):
        imported = import_model(model)
        prepared = prepare(imported, form)
        kept = prepared.find_layers(quantising.keep or ())
        data = _read(imported, calibration, images, planning) if calibration.files else None
    note(*(data.notes if data is not None else ()))
    method = None if quantising.dynamic else calibration.method.value
    result = Result(imported.name, str(output), form, method, prepared, data, kept)
    if data is None:
        content = quantise(prepared, form, None, kept)
    else:
        trials = _open_trials(prepared, form, method, data)
        result = _measure(trials, result, quantising)
        content = trials.make(result.kept)
    write_whole(output, lambda file: file.write(content))
    return replace(result, size=len(content), notes=() if data is None else data.notes)


def _read(imported: ImportedModel, calibration: Calibration, images: Images, planning: Planning) -> Data:
    from trnrt.predict.source import Asked
    from trnrt.quantise.data import read_data

    asked = Asked(
        tuple(calibration.files or ()),
        calibration.label,
        tuple(calibration.columns or ()),
        images.options,
        flag="--data",
        id_flag="--label",
    )
    return read_data(imported, asked, planning.shapes, calibration.rows)


def _open_trials(prepared: Prepared, form: str, method: str | None, data: Data) -> Trials:
    from trnrt.quantise.calibrating import find_ranges
    from trnrt.quantise.making import quantise
    from trnrt.quantise.trials import Trials

    ranges = None
    if method is not None:
        with counting("calibrating", data.rows) as advance:
            ranges = find_ranges(prepared, data, method, advance)
    with working("running the float model"):
        return Trials(prepared, partial(quantise, prepared, form, ranges), data)


def _measure(trials: Trials, result: Result, quantising: Quantising) -> Result:
    """Compare the quantised model with the float model, by layer if asked, and choose layers to keep if needed."""
    from trnrt.quantise.trials import check_drop, choose_kept

    with working("running the quantised model"):
        difference = trials.compare(result.kept)
    limit = quantising.max_drop
    is_beyond = limit is not None and check_drop(difference) > limit
    costs = _measure_layers(trials, result.kept) if quantising.layers or is_beyond else []
    result = replace(result, costs=tuple(costs), difference=difference, before=difference)
    if not is_beyond or limit is None:
        return result
    with working("choosing layers to keep in float"):
        kept, difference = choose_kept(trials, costs, result.kept, limit)
    return replace(result, kept=kept, difference=difference)


def _measure_layers(trials: Trials, kept: frozenset[str]) -> list[LayerCost]:
    from trnrt.quantise.trials import LAYER_ROWS

    count = len(trials.prepared.layers) - len(kept)
    with counting("quantising one layer at a time", count, unit="layers") as advance:
        return trials.on_rows(LAYER_ROWS).measure_layers(kept, advance)


def _asked_forms(model: Path, output: Path, planning: Planning) -> list[tuple[str, Path, Planning]]:
    """The predictions to make: of the float and the quantised model; of the float model in bfloat16, too, as the int8
    model's products take as long."""
    asked = [("float", model, planning), ("int8", output, planning)]
    if planning.dtype is DType.FLOAT32:
        asked.insert(1, ("bfloat16", model, replace(planning, dtype=DType.BFLOAT16)))
    return asked


def _predict(
    asked: Sequence[tuple[str, Path, Planning]], options: SessionOptions, batch: int | None
) -> tuple[dict[str, Range], list[str]]:
    """The latencies of models by name, and why one is missing."""
    from trnrt.commands.opening import fixed_batch, open_session

    found, notes = {}, []
    for name, path, own in asked:
        try:
            session = open_session(path, replace(options, planning=own))
            with working(f"planning and timing {path}"):
                found[name] = session.latency(batch or fixed_batch(session) or 1)
        except TrnrtError as error:
            notes.append(f"no predicted latency for {quote(str(path))}: {one_line(str(error))}")
    return found, list(dict.fromkeys(notes))


def _weigh_float8(
    model: Path,
    calibration: Calibration,
    quantising: Quantising,
    images: Images,
    options: SessionOptions,
    batch: int | None,
    reporting: Reporting,
) -> None:
    """Report what 8-bit floats cost and gain."""
    planning = options.planning
    _check_float8(calibration, quantising, planning)
    from trnrt.commands.opening import fixed_batch, open_session
    from trnrt.planner.options import Float8
    from trnrt.quantise.float8 import find_layers, join_batches
    from trnrt.quantise.trials import Trials
    from trnrt.report.quantising import Float8Result, float8_document, float8_parts
    from trnrt.running.ranges import with_ranges

    as_16 = replace(planning, dtype=DType.BFLOAT16, narrow=Narrow.FASTER)
    in_16 = open_session(model, replace(options, planning=as_16))
    float8 = Float8(planning.dtype.value, narrow=planning.narrow.value)
    asked = replace(in_16.options, float8=float8)
    data = _read(in_16.model, calibration, images, planning)
    note(*data.notes)
    with working("measuring ranges"):
        session = in_16.with_options(with_ranges(in_16.model, asked, join_batches(data)))
    rows = batch or fixed_batch(session)
    with working("planning"):
        layers = find_layers(session, rows)
    with working("running the model"):
        trials = Trials(layers.prepared, layers.make, layers.pad(data))
        difference = trials.compare(())
    costs = tuple(_measure_layers(trials, frozenset())) if quantising.layers else ()
    made = layers.prepared.layers
    result = Float8Result(session.name, session.dtype, float8.narrow, made, layers.products, data, difference, costs)
    if quantising.latency:
        with working("timing"):
            latencies = {one.dtype: one.latency(rows or 1) for one in (in_16, session)}
        result = replace(result, latencies=latencies)
    deliver(reporting, float8_document(replace(result, notes=data.notes)), render(float8_parts(result)))


def _check_float8(calibration: Calibration, quantising: Quantising, planning: Planning) -> None:
    """OptionError for flags that say nothing of 8-bit floats, and for missing data."""
    dtype = planning.dtype.value
    asked = {
        "--output": quantising.output is not None,
        "--format": quantising.form is not Form.QDQ,
        "--dynamic": quantising.dynamic,
        "--keep": bool(quantising.keep),
        "--max-drop": quantising.max_drop is not None,
        "--ranges": calibration.method is not Method.MINMAX,
        "--calibration": planning.calibration is not None,
    }
    for flag_name, is_given in asked.items():
        if is_given:
            raise OptionError(
                f"{flag_name} is not for --dtype {dtype}, which writes no model: a session narrows the float model",
                hint=f"leave {flag_name} out; run the float model with --dtype {dtype} --calibration DATA.npz",
            )
    if not calibration.files:
        raise OptionError(
            f"--dtype {dtype} needs typical inputs: they give the ranges of the numbers",
            hint="give some hundred rows with --data",
        )
