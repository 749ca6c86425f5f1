"""trnrt runs ONNX models on AWS Trainium, and on a simulator of the NeuronCore everywhere else.

    import trnrt
    session = trnrt.InferenceSession("model.onnx")
    outputs = session.run(None, {"image": images})

Names are loaded on first use, so that ``import trnrt`` (and ``trnrt --help``) costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trnrt.version import __version__

if TYPE_CHECKING:
    from trnrt.planner.choices import Choices as Choices
    from trnrt.running.feeding import NodeArg as NodeArg
    from trnrt.session import InferenceSession as InferenceSession
    from trnrt.validate import validate as validate

# onnxruntime's wheels report to Microsoft over HTTPS, unless this is set before the import (Privacy.md in them). No
# data of a user leaves the machine unasked.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOMES = {
    "Choices": "trnrt.planner.choices",
    "InferenceSession": "trnrt.session",
    "NodeArg": "trnrt.running.feeding",
    "validate": "trnrt.validate",
}

__all__ = ["Choices", "InferenceSession", "NodeArg", "__version__", "validate"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trnrt' has no attribute {name!r}")
