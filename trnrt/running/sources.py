"""A model and a dtype as callers name them, in the one form that a session works with."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trnrt.errors import ModelFileError, OptionError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    Source = str | os.PathLike[str] | bytes | bytearray | memoryview | onnx.ModelProto | ir.Model
else:
    Source = Any

DTYPE_NAMES = {
    "fp32": "float32", "f32": "float32", "float": "float32", "single": "float32",
    "bf16": "bfloat16",
    "fp16": "float16", "f16": "float16", "half": "float16",
    "fp8": "float8_e4m3", "fp8_e4m3": "float8_e4m3", "f8e4m3": "float8_e4m3",
    "fp8_e5m2": "float8_e5m2", "f8e5m2": "float8_e5m2",
}  # fmt: skip
"""Other names of dtypes, as other libraries write them."""


def dtype_name(given: object) -> str:
    """A dtype's name, such as "bfloat16": of a name in any case ("BF16", "half"), numpy's, ml_dtypes' or torch's dtype.

    A name that is unknown stays as it is, for the planner to refuse. OptionError for what names no dtype.
    """
    name = given if isinstance(given, str) else _own_name(given)
    lower = name.strip().lower().removeprefix("torch.")
    return DTYPE_NAMES.get(lower, lower)


def read_source(model: Any, path_or_bytes: Any = None) -> str | os.PathLike[str] | bytes:
    """A model's path or its file's content. ``path_or_bytes``: onnxruntime's name for the argument.

    ModelProto and onnx_ir's Model are written into bytes; ModelFileError if they have data in other files.
    """
    if (model is None) == (path_or_bytes is None):
        raise TypeError("InferenceSession needs one model: a path, the file's content, or a ModelProto")
    given = path_or_bytes if model is None else model
    if isinstance(given, (str, bytes, os.PathLike)):
        return given
    if isinstance(given, (bytearray, memoryview)):
        return bytes(given)
    if type(given).__module__.partition(".")[0] == "onnx_ir":
        import onnx_ir as ir

        if isinstance(given, ir.Model):
            given = ir.to_proto(given)
    if hasattr(given, "SerializeToString"):
        try:
            return bytes(given.SerializeToString())
        except Exception as error:  # protobuf's own, whose class depends on the version: more than 2 GiB
            raise ModelFileError(f"the model can't be written into bytes ({error})", hint="give its path") from None
    raise OptionError(
        f"a model is of type {type(given).__name__}", hint="give a path, the file's content, or a ModelProto"
    )


def _own_name(given: object) -> str:
    """The name of a dtype that is no string: numpy's class or object, or one that prints its name."""
    import numpy as np

    if isinstance(given, (type, np.dtype)):
        with suppress(TypeError):
            if not (found := np.dtype(given)).hasobject:
                return found.name
    elif str(given).startswith("torch."):
        return str(given)
    raise OptionError(f"{given!r} is no dtype", hint='give a name, such as "bfloat16", or numpy\'s dtype')
