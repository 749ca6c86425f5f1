"""A small encoder with an open batch and an open length: embeddings, attention over the tokens, their mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

Array = NDArray[Any]
TOKENS, WIDTH = 20, 8
_HEAD = '<ir_version: 8, opset_import: ["" : 17]>\nencoder (int64[batch,sequence] ids{mask}) => ({outputs})'
_CONSTANTS = "<float one = {1}, float low = {-10000}, int64[1] first = {1}, int64[1] last = {2}>"
_START = "x = Gather(table, ids)  turned = Transpose<perm = [0, 2, 1]>(x)  scores = MatMul(x, turned)"
_MASK = "m = Cast<to = 1>(mask)"
_MASKED = (
    "hidden = Sub(one, m)  lowered = Mul(hidden, low)  bias = Unsqueeze(lowered, first)"
    "  masked = Add(scores, bias)  shares = Softmax<axis = -1>(masked)  tokens = MatMul(shares, x)"
)
_MASKED_MEAN = (
    "w = Unsqueeze(m, last)  weighed = Mul(tokens, w)  total = ReduceSum<keepdims = 0>(weighed, first)"
    "  count = ReduceSum<keepdims = 0>(w, first)  embedding = Div(total, count)"
)
_UNMASKED = "shares = Softmax<axis = -1>(scores)  tokens = MatMul(shares, x)"
_MEAN = "embedding = ReduceMean<axes = [1], keepdims = 0>(tokens)"
BOTH = "float[batch,8] embedding, float[batch,sequence,8] tokens"


def encoder(*, masked: bool = True, masked_mean: bool = True, outputs: str = BOTH) -> bytes:
    """The model; without ``masked`` the attention sees all tokens, without ``masked_mean`` the mean counts them all."""
    head = _HEAD.format(mask=", int64[batch,sequence] mask" if masked or masked_mean else "", outputs=outputs)
    attention, mean = _MASKED if masked else _UNMASKED, _MASKED_MEAN if masked_mean else _MEAN
    nodes = [_START, *([_MASK] if masked or masked_mean else []), attention, mean]
    model = parser.parse_model(f"{head}\n{_CONSTANTS}\n{{ {'  '.join(nodes)} }}")
    table = np.random.default_rng(0).standard_normal((TOKENS, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    return bytes(model.SerializeToString())


def save_encoder(path: Path, **options: Any) -> Path:
    """Write ``encoder(**options)``, and return the path."""
    path.write_bytes(encoder(**options))
    return path


def sentences(rows: int, length: int, seed: int = 0) -> dict[str, Array]:
    """Random ids; each row's mask hides a few of its last ones, as a client pads shorter rows."""
    generator = np.random.default_rng(seed)
    hidden = generator.integers(0, max(1, length // 2), (rows, 1))
    ids = generator.integers(1, TOKENS, (rows, length))
    return {"ids": ids, "mask": (np.arange(length) < length - hidden).astype(np.int64)}


def reference(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    """onnxruntime's answers."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    answers: list[Array] = session.run(None, feeds)
    return answers


def with_inputs(model: bytes, **shapes: tuple[int | str, ...]) -> bytes:
    """The model with other declared shapes of its inputs."""
    loaded = onnx.load_from_string(model)
    for info in loaded.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, shapes.get(info.name, ()), strict=False):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = size
    return bytes(loaded.SerializeToString())
