"""A graph without its weights: as small as onnx's own "light" models, and made in the same way.

A large floating-point initializer becomes a ConstantOfShape node of 0.02s, whose input, called like the tensor with
__SHAPE behind it, is the shape. The file stays a valid model. tests/shared/randomizing.py puts weights in again.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx
from onnx import helper
from strip import assert_clean

SMALL = 64
FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
FILL = 0.02


def write_light(model: onnx.ModelProto, path: Path, weights: Collection[bytes] | None = None) -> None:
    """Take the weights of `model` out in place, check it, and write it to `path`.

    `weights` are the bytes of what counts as a weight; by default every large tensor does.
    """
    graph = model.graph
    graph.name = path.stem
    nodes, kept = [], []
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        known = weights is None or array.tobytes() in weights
        if array.size < SMALL or tensor.data_type not in FLOATS or not known:
            kept.append(tensor)
            continue
        shape = f"{tensor.name}__SHAPE"
        kept.append(helper.make_tensor(shape, onnx.TensorProto.INT64, [len(tensor.dims)], tensor.dims))
        value = helper.make_tensor("", tensor.data_type, [1], [FILL])
        nodes.append(helper.make_node("ConstantOfShape", [shape], [tensor.name], value=value))
    nodes += list(graph.node)
    del graph.initializer[:], graph.node[:], graph.value_info[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    assert_clean(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    print(f"{path.name}: {path.stat().st_size} bytes")
