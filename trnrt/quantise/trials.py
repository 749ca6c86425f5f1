"""Quantised versions of one model, compared with the float model: what each layer costs, and which to keep in float."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trnrt.errors import BackendError, OptionError, QuantiseError
from trnrt.quantise.comparing import Array, Difference, compare_runs
from trnrt.quantise.data import Data
from trnrt.quantise.preparing import Layer, Prepared
from trnrt.running.reference import open_model, run_session
from trnrt.running.rows import as_matrix
from trnrt.text import count_text, one_line

LAYER_ROWS = 64
"""Rows on which each layer is quantised alone. The noise of a layer is known after a few rows; decisions need more, and
are counted on all rows for the whole model."""


@dataclass(frozen=True)
class LayerCost:
    """A layer's cost: the difference that it makes to quantise this layer, and no other."""

    layer: Layer
    difference: Difference

    @property
    def snr_db(self) -> float:
        """The signal-to-noise ratio; infinite if no output of the model is a float."""
        return float("inf") if self.difference.snr_db is None else self.difference.snr_db


class Trials:
    """Quantised versions of a model on one set of rows, each with some layers in float."""

    def __init__(self, prepared: Prepared, make: Callable[[Collection[str]], bytes], data: Data) -> None:
        """``make`` gives the model with the layers of these names in float."""
        self.prepared, self.make, self.data = prepared, make, data
        self._reference = _run(prepared.content, data)

    def compare(self, kept: Collection[str]) -> Difference:
        """The difference between that model and the float model."""
        return compare_runs(self._reference, _run(self.make(kept), self.data), self.data.labels)

    def on_rows(self, most: int) -> Trials:
        """The same on about ``most`` rows."""
        return Trials(self.prepared, self.make, self.data.take(most))

    def measure_layers(self, always: Collection[str], advance: Callable[[int], None]) -> list[LayerCost]:
        """The cost of each layer that is not ``always`` kept. Calls ``advance`` with 1 after each.

        Alone, not left out: one more product in float changes little where all others round, so that leaving one out
        compares small differences of large errors.
        """
        names = {layer.name for layer in self.prepared.layers}
        found = []
        for layer in self.prepared.layers:
            if layer.name not in always:
                found.append(LayerCost(layer, self.compare(names - {layer.name})))
                advance(1)
        return found


def choose_kept(
    trials: Trials, costs: Sequence[LayerCost], always: frozenset[str], most_drop: float
) -> tuple[frozenset[str], Difference]:
    """The fewest of the costliest layers to keep in float so that the model loses at most ``most_drop`` percent.

    Bisects the number of layers: the loss is taken to fall with it. The choice itself is measured.

    Raises:
        QuantiseError: if the loss is larger with all but the cheapest layer in float.
    """
    ranked = [cost.layer.name for cost in sorted(costs, key=lambda cost: cost.snr_db)]
    met: tuple[frozenset[str], Difference] | None = None
    least, most = 1, len(ranked) - 1
    last = None
    while least <= most:
        middle = (least + most) // 2
        kept = always | frozenset(ranked[:middle])
        difference = trials.compare(kept)
        if check_drop(difference) <= most_drop:
            met, most = (kept, difference), middle - 1
        else:
            last, least = difference, middle + 1
    if met is None:
        loss = "" if last is None else f": with all but the cheapest in float it still loses {check_drop(last):.2f} %"
        raise QuantiseError(
            f"keeping layers in float does not limit the loss to {most_drop:g} %{loss}",
            hint="try another --ranges, more calibration data, or a larger --max-drop",
        )
    return met


def check_drop(difference: Difference) -> float:
    """The percent lost; OptionError if the model makes no decisions."""
    if difference.drop is None:
        raise OptionError(
            "--max-drop limits lost decisions, and the model makes none: no output has a number for each class",
            hint="name the layers to keep in float: --keep NODE",
        )
    return difference.drop


def _run(content: bytes, data: Data) -> Mapping[str, Array]:
    """The outputs of all rows, by name, on onnxruntime."""
    try:
        session = open_model(content)
        names = [output.name for output in session.get_outputs()]
        parts: dict[str, list[Array]] = {name: [] for name in names}
        for batch in data.batches:
            found = run_session(session, batch.feeds)
            for name, output in zip(names, found, strict=True):
                parts[name].append(as_matrix(output)[: batch.rows])
    except Exception as error:  # onnxruntime's errors share no class
        reason = one_line(str(error))
        raise BackendError(f"onnxruntime fails on {count_text(data.rows, 'row')}: {reason}") from error
    return {name: np.concatenate(arrays) if arrays[0].ndim else arrays[0] for name, arrays in parts.items()}
