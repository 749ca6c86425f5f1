"""How far one run of a model is from another on the same rows: any two runs, such as quantised and float ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.validate.outputs import accuracy, changed_decisions

Array = NDArray[Any]


@dataclass(frozen=True)
class Difference:
    """A run against its reference, on ``rows`` rows.

    ``snr_db``: the signal-to-noise ratio in decibels, the lowest of any output of floats (infinite if all are equal,
    None without such an output). ``changed``: rows with another decision, None if the model makes none. ``accuracy``
    and ``reference_accuracy``: shares of rows with the right label, None without labels.
    """

    rows: int
    snr_db: float | None
    changed: int | None
    accuracy: float | None = None
    reference_accuracy: float | None = None

    @property
    def drop(self) -> float | None:
        """Percent lost: of the accuracy where there are labels, else of the decisions; None if there are none."""
        if self.accuracy is not None and self.reference_accuracy is not None:
            return 100 * (self.reference_accuracy - self.accuracy)
        return None if self.changed is None else 100 * self.changed / max(self.rows, 1)


def signal_to_noise(reference: Array, other: Array) -> float:
    """The energy of ``reference`` over that of its difference from ``other``, in decibels; infinite if equal."""
    signal = np.asarray(reference, np.float64)
    noise = float(np.sum(np.square(signal - np.asarray(other, np.float64))))
    energy = float(np.sum(np.square(signal)))
    if noise == 0:
        return math.inf
    return 10 * math.log10(energy / noise) if energy and math.isfinite(noise) else -math.inf


def compare_tensors(reference: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, float]:
    """The signal-to-noise ratio of each tensor of floats that both runs have, in decibels."""
    return {
        name: signal_to_noise(array, other[name])
        for name, array in reference.items()
        if array.dtype.kind in "fV" and name in other and other[name].shape == array.shape
    }


def compare_runs(reference: Mapping[str, Array], other: Mapping[str, Array], labels: Array | None = None) -> Difference:
    """Compare the outputs of two runs, and their accuracy if there are ``labels`` of the rows."""
    rows = max((len(array) for array in reference.values() if array.ndim), default=1)
    ratios = compare_tensors(reference, other).values()
    changed = changed_decisions(other, reference)
    found = None if labels is None else accuracy(other, reference, labels)
    return Difference(
        rows,
        min(ratios, default=None),
        changed,
        None if found is None else found.ours,
        None if found is None else found.reference,
    )
