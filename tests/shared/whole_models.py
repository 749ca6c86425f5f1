"""What the tests of whole networks share: trnrt and onnxruntime on one model, and what must hold between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import trnrt
from trnrt.planner import Plan

Array = NDArray[Any]
RTOL = 1e-3
# Of the largest number of the reference: what float32 sums of thousands of products differ by in another order.
ATOL = 1e-5


@dataclass(frozen=True)
class Comparison:
    """One output of trnrt (``ours``) and of onnxruntime, and the plan it came from."""

    ours: Array
    reference: Array
    plan: Plan

    @property
    def worst(self) -> float:
        """The largest difference, as a share of the reference's largest number."""
        apart = np.abs(self.ours.astype(np.float64) - self.reference.astype(np.float64))
        return float(apart.max() / np.abs(self.reference.astype(np.float64)).max())

    def check(self, rtol: float = RTOL, atol: float = ATOL) -> None:
        """Every number within ``rtol``, or within ``atol`` times the largest; no decision changed; all on kernels."""
        largest = float(np.abs(self.reference).max())
        np.testing.assert_allclose(
            self.ours.astype(np.float64), self.reference.astype(np.float64), rtol=rtol, atol=atol * largest
        )
        np.testing.assert_array_equal(self.ours.argmax(axis=1), self.reference.argmax(axis=1))
        assert self.plan.host == ()
        assert {node.place for node in self.plan.nodes} <= {"core", "dma", "view", "folded"}


def reference(model: onnx.ModelProto | bytes, feeds: dict[str, Array]) -> Array:
    """The first output by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    stored = model if isinstance(model, bytes) else model.SerializeToString()
    session = onnxruntime.InferenceSession(stored, options, providers=["CPUExecutionProvider"])
    output: Array = session.run(None, feeds)[0]
    return output


def compared(model: onnx.ModelProto, feeds: dict[str, Array], **options: Any) -> Comparison:
    """The model on both; ``options`` are the session's."""
    stored = model.SerializeToString()
    session = trnrt.InferenceSession(stored, backend="simulator", cache=False, **options)
    ours = session.run(None, feeds)[0]
    plan = session.last_run.plan
    assert plan is not None
    return Comparison(ours, reference(stored, feeds), plan)
