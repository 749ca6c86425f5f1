"""``python -m benchmarks.serve.instant MODEL ...``: ``trnrt serve`` with sessions that answer zeros at once.

It measures the server alone, with its real code, as if models cost nothing. Only for models with one float32 output, of
zeros: the server compares its answer with onnxruntime's before it reports ready.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnrt.session import InferenceSession

Array = NDArray[Any]


def run(
    self: InferenceSession, output_names: Sequence[str] | None, feeds: Mapping[str, Array] | None = None
) -> list[Array]:
    """Zeros in the shape of the model's output; ignores the rows."""
    rows = next(iter((feeds or {}).values())).shape[0]
    (output,) = self.model.outputs
    return [np.zeros((rows, *(size for size in output.shape[1:] if isinstance(size, int))), np.float32)]


def main(arguments: list[str]) -> None:
    """Like ``python -m trnrt serve`` with these arguments, but with sessions that run nothing."""
    InferenceSession.run = run  # type: ignore[method-assign, assignment]
    sys.argv = ["trnrt", "serve", *arguments]
    runpy.run_module("trnrt", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
