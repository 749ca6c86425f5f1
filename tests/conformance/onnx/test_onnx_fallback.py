"""The advice to run a refused operator on the CPU holds: for each such operator, on one of ONNX's own tests."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import suite

import trnrt
from trnrt.importer.reading.functions import EXPANDED
from trnrt.operators.record import supported_operators
from trnrt.planner.lowering.blocked import FALLBACK
from trnrt.planner.lowering.refusals import refusal


def _falling_back() -> list[str]:
    """ONNX's operators that are refused with the advice to run them on the CPU."""
    supported = {*supported_operators(), *EXPANDED}
    named = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and ("", s.name) not in supported}
    return sorted(name for name in named if FALLBACK in refusal(ir.node(name, [])).hint)


# No node test has it, or onnxruntime runs none of those there are.
UNTESTED = {"MaxRoiPool", "RoiAlign", "DequantizeLinear", "QuantizeLinear"}


@pytest.mark.parametrize("operator", sorted(set(_falling_back()) - UNTESTED))
def test_the_fallback_runs_what_it_is_advised_for(operator: str) -> None:
    """On the first of ONNX's own tests of the operator that onnxruntime runs."""
    warnings.simplefilter("ignore")
    for case in (case for case in suite.node_cases() if case.operator == operator):
        try:
            expected = suite.reference(case)
        except Exception:  # onnxruntime's errors share no base class: it doesn't run this test
            continue
        model, sets = case.load()
        feeds = dict(zip([info.name for info in model.graph.input], sets[0][0], strict=True))
        session = trnrt.InferenceSession(model.SerializeToString(), fallback="onnxruntime", cache=False)
        for mine, theirs in zip(session.run(None, feeds), expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        return
    pytest.fail(f"onnxruntime runs no test of {operator}: the fallback is no advice")
