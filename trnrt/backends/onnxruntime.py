"""onnxruntime on the CPU, for the parts of a model that the device does not run (``--fallback onnxruntime``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnrt.backends import Array
from trnrt.errors import BackendError
from trnrt.planner.parts.partition import CpuPart


class CpuKernel:
    """A loaded part. One thread: the numbers then don't depend on how many processors there are."""

    def __init__(self, part: CpuPart) -> None:
        import onnxruntime

        self._part = part
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(part.model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors share no base class
            raise self._run_error(error) from None

    def run(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """The part's outputs for its inputs."""
        try:
            made = self._session.run(list(self._part.outputs), {name: values[name] for name in self._part.inputs})
        except Exception as error:
            raise self._run_error(error) from None
        return dict(zip(self._part.outputs, made, strict=True))

    def _run_error(self, error: Exception) -> BackendError:
        nodes = ", ".join(f"{node.op} {node.name!r}" for node in self._part.nodes[:4])
        more = f" and {len(self._part.nodes) - 4} more" if len(self._part.nodes) > 4 else ""
        return BackendError(
            f"onnxruntime can't run {self._part.name!r} ({nodes}{more}): {' '.join(str(error).split())}",
            hint="trnrt's own message without --fallback says what the device needs",
        )
