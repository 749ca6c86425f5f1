"""Compare trnrt with onnxruntime: outputs, how much of their errors rounding explains, and every tensor between."""

import sys
from types import ModuleType
from typing import Any

from trnrt.validate.layers import BundleRequest, LayerComparison, LayersReport, validate_layers
from trnrt.validate.outputs import (
    Accuracy,
    OutputComparison,
    Split,
    ValidationReport,
    accuracy,
    changed_decisions,
    compare,
    split,
    validate,
)
from trnrt.validate.running import open_onnxruntime, run_onnxruntime
from trnrt.validate.tolerances import Noise, Tolerance, default_tolerance

__all__ = [
    "Accuracy",
    "BundleRequest",
    "LayerComparison",
    "LayersReport",
    "Noise",
    "OutputComparison",
    "Split",
    "Tolerance",
    "ValidationReport",
    "accuracy",
    "changed_decisions",
    "compare",
    "default_tolerance",
    "open_onnxruntime",
    "run_onnxruntime",
    "split",
    "validate",
    "validate_layers",
]


class _CallableModule(ModuleType):
    """``trnrt.validate`` is this package as well as its function: whichever a caller gets, it can be called."""

    def __call__(self, *arguments: Any, **named: Any) -> ValidationReport:
        return validate(*arguments, **named)


sys.modules[__name__].__class__ = _CallableModule
