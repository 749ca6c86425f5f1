"""onnxruntime on the CPU, for the parts that the device can't run (``--fallback onnxruntime``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnrt.backends import Array
from trnrt.errors import BackendError
from trnrt.planner.parts.partition import CpuPart
from trnrt.text import list_text, name_text, one_line, quote


class CpuKernel:
    """A loaded part. It uses one thread, so that results don't depend on the number of processors."""

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
        nodes = list_text([f"{name_text(node.op)} {quote(node.name)}" for node in self._part.nodes], 4)
        return BackendError(
            f"onnxruntime can't run {quote(self._part.name)} ({nodes}): {one_line(str(error))}",
            hint="run without --fallback: trnrt's own message says what the device needs",
        )
