"""Show more of a session's tensors: the same model with these as outputs, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray

from trnrt.session import InferenceSession

Array = NDArray[Any]


def load(session: InferenceSession) -> onnx.ModelProto:
    """The session's model as its file has it."""
    content = session.serialized()
    return onnx.load(content) if isinstance(content, str) else onnx.load_from_string(content)


def open_exposed(
    session: InferenceSession, model: onnx.ModelProto, tensors: Mapping[str, Array], *, cache: bool = True
) -> InferenceSession:
    """A session of the model whose outputs are these tensors, too; theirs are the examples' types and ranks."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    present = {info.name for info in wide.graph.output}
    for name in sorted(set(tensors) - present):
        array = tensors[name]
        shape: list[int | str | None] = list(array.shape)
        if isinstance(session.model.batch, str) and shape:
            shape[0] = session.model.batch
        wide.graph.output.append(
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), shape)
        )
    return InferenceSession(
        wide.SerializeToString(),
        target=session.target,
        dtype=session.dtype,
        fallback=session.options.fallback,
        cache=cache,
    )
