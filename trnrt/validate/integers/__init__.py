"""The integer meaning of a quantised model, evaluated from the original file in numpy's int64."""

from trnrt.validate.integers.comparing import (
    IntegersReport,
    LayerDifference,
    compare_layers,
    compute_truth,
    describe_reference,
)
from trnrt.validate.integers.evaluating import Evaluator, has_integers

__all__ = [
    "Evaluator",
    "IntegersReport",
    "LayerDifference",
    "compare_layers",
    "compute_truth",
    "describe_reference",
    "has_integers",
]
