"""What ``trnrt quantize`` made and what it costs, as tables and as a JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text

from trnrt.report.documents import SCHEMA_VERSION, Document
from trnrt.report.layout import Grid
from trnrt.report.tables import plain_table
from trnrt.text import count_text, list_text, name_text, quote, range_text, size_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trnrt.nki.machine.timing import Range
    from trnrt.quantise.comparing import Difference
    from trnrt.quantise.data import Data
    from trnrt.quantise.preparing import Layer, Prepared
    from trnrt.quantise.trials import LayerCost

_LATENCIES = {"float": "float model", "bfloat16": "float model in bfloat16", "int8": "quantised model"}


@dataclass(frozen=True)
class Result:
    """A quantised model. ``method``: of the calibration, None if dynamic; ``data``: None without any.

    ``before``: the loss without the search of ``--max-drop``; ``difference``: the loss of the written model, with the
    layers ``kept`` in float. ``latencies``: predicted, by a key of ``_LATENCIES``.
    """

    model: str
    output: str
    form: str
    method: str | None
    prepared: Prepared
    data: Data | None
    kept: frozenset[str]
    size: int = 0
    costs: tuple[LayerCost, ...] = ()
    difference: Difference | None = None
    before: Difference | None = None
    latencies: Mapping[str, Range] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def result_parts(result: Result) -> list[RenderableType]:
    """The report: what was made, what it loses, what each layer costs, sizes and latencies."""
    layers = result.prepared.layers
    made = f"{count_text(len(layers) - len(result.kept), 'layer')} of {len(layers)} quantised"
    kept = [layer.name for layer in layers if layer.name in result.kept]
    aside = f", in float: {list_text(map(quote, kept))}" if kept else ""
    parts: list[RenderableType] = [Text(f"{quote(result.output)}: {result.form}, {made}{aside}")]
    if result.difference is not None and result.before is not None:
        if result.before != result.difference:
            parts.append(Text(f"with no further layer in float: {_difference_text(result.before)}"))
        parts.append(Text(_difference_text(result.difference)))
    if result.costs:
        parts += ["", costs_table(result.costs)]
    if result.data is not None:
        parts += ["", Text(_data_text(result))]
    before, size = result.prepared.original_bytes, result.size
    parts += ["", Text(f"size: {size_text(before)} -> {size_text(size)} ({100 * size / max(before, 1):.0f} %)")]
    if result.latencies:
        found = "; ".join(f"{_LATENCIES[name]} {range_text(one)}" for name, one in result.latencies.items())
        parts.append(Text(f"predicted for the device: {found}"))
    return parts


@dataclass(frozen=True)
class Float8Result:
    """What 8-bit floats cost and gain. ``products``: convolutions and matrix products, of which ``layers`` are in
    ``dtype``; ``latencies``: predicted, by dtype, None if that failed."""

    model: str
    dtype: str
    narrow: str
    layers: tuple[Layer, ...]
    products: int
    data: Data
    difference: Difference
    costs: tuple[LayerCost, ...] = ()
    latencies: Mapping[str, Range] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def gain(self) -> float | None:
        """The predicted time in bfloat16 over that in ``dtype``."""
        found = [self.latencies.get(dtype) for dtype in ("bfloat16", self.dtype)]
        return found[0].us / found[1].us if found[0] and found[1] else None


def float8_parts(result: Float8Result) -> list[RenderableType]:
    """The report: how many layers are in 8 bits, what they lose, what each costs, and the predicted gain."""
    count = f"{count_text(len(result.layers), 'layer')} of {result.products} in {result.dtype}"
    parts: list[RenderableType] = [Text(f"{name_text(result.model)}: {count}, the others in bfloat16")]
    why = "no layer is estimated to be faster in 8 bits; --narrow all takes all that can be"
    parts.append(Text(_difference_text(result.difference) if result.layers else why))
    if result.costs:
        parts += ["", costs_table(result.costs)]
    rows = count_text(result.data.rows, "row")
    parts += ["", Text(f"measured with onnxruntime on the CPU with rounded factors, on {rows} of calibration data")]
    if result.latencies:
        found = "; ".join(f"{name} {range_text(one)}" for name, one in result.latencies.items())
        gain = "" if result.gain is None else f"; bfloat16 takes {result.gain:.2f} times as long as {result.dtype}"
        parts.append(Text(f"predicted for the device: {found}{gain}"))
    return parts


def float8_document(result: Float8Result) -> Document:
    """The report of 8-bit floats: ``loss`` of the model, and ``cost`` of each layer that is in 8 bits alone, null if
    not measured; ``predicted`` in microseconds by dtype, and ``gain``, the time in bfloat16 over that in 8 bits."""
    costs = {cost.layer.name: cost.difference for cost in result.costs}
    return {
        "schema_version": SCHEMA_VERSION,
        "model": result.model,
        "format": result.dtype,
        "narrow": result.narrow,
        "rows": result.data.rows,
        "products": result.products,
        "loss": _difference_document(result.difference),
        "layers": [
            {
                "name": layer.name,
                "operator": layer.op,
                "nodes": list(layer.nodes),
                "cost": _difference_document(costs.get(layer.name)),
            }
            for layer in result.layers
        ],
        "predicted": {name: _range_document(found) for name, found in result.latencies.items()},
        "gain": result.gain,
        "notes": list(result.notes),
    }


def costs_table(costs: tuple[LayerCost, ...]) -> Grid:
    """A line for each layer quantised alone, the costliest first."""
    ranked = sorted(costs, key=lambda cost: cost.snr_db)
    labelled = any(cost.difference.accuracy is not None for cost in ranked)
    rows = [
        (
            name_text(cost.layer.name),
            cost.layer.op,
            _decibels(cost.difference.snr_db),
            "-" if cost.difference.changed is None else f"{cost.difference.changed:,} of {cost.difference.rows:,}",
            *((_share(cost.difference.accuracy),) if labelled else ()),
        )
        for cost in ranked
    ]
    columns = (
        "layer, quantised alone",
        "operator",
        "SNR, dB",
        "decisions changed",
        *(("accuracy",) if labelled else ()),
    )
    return plain_table(columns, rows, right=(2, 3, 4))


def quantize_document(result: Result) -> Document:
    """``quantize``: the written file, its loss and its layers in the model's order.

    ``snr_db``: of the outputs, null if they are equal or no floats; ``drop``: percent of the accuracy, without labels
    of the decisions. A layer's ``cost`` is what it loses if no other one is quantised, null if not measured.
    ``without_search`` is the loss before ``--max-drop`` left layers in float. ``predicted`` has the latencies in
    microseconds, null for a model that can't be predicted.
    """
    costs = {cost.layer.name: cost.difference for cost in result.costs}
    data = result.data
    return {
        "schema_version": SCHEMA_VERSION,
        "model": result.model,
        "output": result.output,
        "format": result.form,
        "calibration": result.method,
        "rows": 0 if data is None else data.rows,
        "bytes": {"float": result.prepared.original_bytes, "quantised": result.size},
        "loss": _difference_document(result.difference),
        "without_search": _difference_document(result.before),
        "layers": [
            {
                "name": layer.name,
                "operator": layer.op,
                "nodes": list(layer.nodes),
                "quantised": layer.name not in result.kept,
                "cost": _difference_document(costs.get(layer.name)),
            }
            for layer in result.prepared.layers
        ],
        "predicted": {name: _range_document(result.latencies.get(name)) for name in _LATENCIES},
        "notes": list(result.notes),
    }


def _difference_document(difference: Difference | None) -> Document | None:
    if difference is None:
        return None
    return {
        "rows": difference.rows,
        "snr_db": difference.snr_db,
        "changed_decisions": difference.changed,
        "accuracy": difference.accuracy,
        "float_accuracy": difference.reference_accuracy,
        "drop": difference.drop,
    }


def _range_document(found: Range | None) -> Document | None:
    return None if found is None else {"low_us": found.least_us, "us": found.us, "high_us": found.most_us}


def _difference_text(difference: Difference) -> str:
    texts = []
    if difference.changed is not None:
        texts.append(f"{difference.changed:,} of {count_text(difference.rows, 'decision')} changed")
    if difference.accuracy is not None:
        texts.append(
            f"accuracy {_share(difference.accuracy)}, the float model's {_share(difference.reference_accuracy)}"
        )
    if difference.snr_db is not None:
        texts.append(f"signal-to-noise ratio of the outputs {_decibels(difference.snr_db)} dB")
    return ", ".join(texts) or f"{count_text(difference.rows, 'row')} compared"


def _data_text(result: Result) -> str:
    data = result.data
    assert data is not None
    method = "" if result.method is None else f"; ranges by {result.method}"
    of = f" of {data.available:,}" if data.available != data.rows else ""
    return f"measured with onnxruntime on the CPU, on {data.rows:,}{of} rows of calibration data{method}"


def _decibels(value: float | None) -> str:
    return "-" if value is None else "exact" if value == float("inf") else f"{value:.1f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f} %"
