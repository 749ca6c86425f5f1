"""Models that are refused with a hint, each with the same model once the hint is followed: ``test_hints.py`` tries all.

A hint that names only ``--fallback`` or ``--dtype`` is followed by the test itself, and needs no second model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from planning import modelled

from trnrt.planner.lowering.blocked import FALLBACK

Array = NDArray[Any]
FLAG = "use --dtype float32"
FIXED = "export the model with fixed shapes"
EVAL = "export the model in inference mode (model.eval())"
STATISTICS = (
    f"{EVAL}; a layer that takes the statistics of its input there, too, must be an InstanceNormalization or "
    "LayerNormalization"
)
LARGEST = 16777217


@dataclass(frozen=True)
class Hinted:
    """``before`` is refused with ``hint``; ``after`` runs, which is the model as the hint asks for it.

    ``more`` are the inputs that aren't drawn. ``dtype`` is the session's, ``reason`` a part of the reason where several
    nodes are refused.
    """

    before: str
    hint: str = FALLBACK
    after: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    dtype: str = "float32"
    reason: str = ""
    after_opset: int = 0
    domain: str = ""

    def refused(self) -> onnx.ModelProto:
        """The model that is refused."""
        return self._model(self.before, self.opset)

    def mended(self) -> onnx.ModelProto:
        """The model as the hint asks for it."""
        return self._model(self.after, self.after_opset or self.opset)

    def _model(self, graph: str, opset: int) -> onnx.ModelProto:
        used = {name: array for name, array in self.constants.items() if f"{name}," in graph or f"{name})" in graph}
        model = modelled(graph, used, opset)
        if self.domain:
            model.opset_import.append(onnx.helper.make_opsetid(self.domain, 1))
        return model


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def one(number: float) -> Array:
    return np.array(number, np.float32)


X = "(float[2,4] x) => (float[2,4] y)"
IMAGE = "(float[1,2,3,3] x) => (float[1,2,3,3] y)"
ROWS = "(int64[4] i) => (int64[4] y)"
COUNTS = {"i": np.arange(4)}
TABLE = np.arange(18, dtype=np.float32).reshape(9, 2)
LSTM = {"w": ones(1, 12, 4) / 8, "r": ones(1, 12, 3) / 8, "w2": ones(2, 12, 4) / 8, "r2": ones(2, 12, 3) / 8}
