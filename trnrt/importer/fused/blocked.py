"""onnxruntime's own layout for a CPU, "nchwc": channels in blocks, padded with zeros, and filters to suit.

A tensor in blocks is written as the plain one, channels first, with those channels that a reader needs: padding is
never computed. Filters are stored with output channels in blocks of ``b``: (O/b, I, kh, kw, b) for images that are not
in blocks and for depthwise convolutions, else (O/b, I/b, kh, kw, b, b), with the input's channels before the output's.
The file states the shape of plain filters, (O, I, kh, kw).

It doesn't say how large a block is: 8 or 16, as suits the processor that it was made on. A number of channels or the
place where images enter may decide it; else it is that of onnxruntime on this machine, which would read the file so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from trnrt.importer.fused.activations import activate
from trnrt.importer.fused.writing import Writer
from trnrt.importer.quantised.forms import Left
from trnrt.importer.rewriting.editing import Array
from trnrt.importer.values import attribute, constant_array, input_at

DOMAIN = "com.microsoft.nchwc"
_SIZES = (8, 16)
# Operators that onnxruntime leaves in the graph between blocked ones: they work on each element, whatever its place.
_ELEMENTWISE = frozenset(
    """Abs Add Clip Div Elu Erf FastGelu Gelu HardSigmoid HardSwish Identity LeakyRelu Max Min Mish Mul Neg QuickGelu
    Relu Sigmoid Softplus Softsign Sqrt Sub Sum Tanh""".split()  # noqa: SIM905
)
_ALL = 2**31


def is_blocked(node: ir.Node) -> bool:
    """True for an operator of blocked tensors."""
    return node.domain == DOMAIN


class Blocks:
    """The size of a graph's blocks, and how many channels of each blocked value are needed."""

    def __init__(self, graph: ir.Graph) -> None:
        self._nodes = list(graph)
        found = {size for node in self._nodes if node.domain == DOMAIN and (size := _decide_size(node))}
        self.is_known = len(found) == 1
        self.size = found.pop() if self.is_known else own_block_size()
        self.needed: dict[ir.Value, int] = {}
        while self._spread_needs():
            pass

    def _spread_needs(self) -> bool:
        """Pass what nodes need of their outputs on to their inputs; true if something changed."""
        before = dict(self.needed)
        for node in reversed(self._nodes):
            for value, count in self._needs(node):
                self.needed[value] = max(count, self.needed.get(value, 0))
        return self.needed != before

    def _needs(self, node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
        """How many channels a node needs of each of its inputs."""
        values = [value for value in node.inputs if value is not None and value.const_value is None]
        made = max((self.needed.get(value, 0) for value in node.outputs), default=0)
        if node.domain == DOMAIN and node.op_type == "ReorderOutput":
            yield values[0], attribute(node, "channels", _ALL)
        elif node.domain == DOMAIN and node.op_type == "Conv":
            yield values[0], self._of_filters(node, made)
            yield from ((value, made) for value in values[1:])
        elif node.domain == DOMAIN or node.op_type in _ELEMENTWISE:
            joint = max([made, *(self.needed.get(value, 0) for value in values)])
            yield from ((value, joint) for value in values)
        else:
            yield from ((value, _ALL) for value in values)

    def _of_filters(self, node: ir.Node, made: int) -> int:
        filters = self.filters(node)
        if filters is None:
            return _ALL
        if _is_depthwise(node, filters.shape):
            return made
        if attribute(node, "group", 1) != 1:
            return int(filters.shape[1]) * int(attribute(node, "group", 1))
        used = np.flatnonzero(filters.any(axis=(0, 2, 3)))
        return int(used[-1]) + 1 if used.size else 1

    def filters(self, node: ir.Node) -> Array | None:
        """The filters of a convolution as (O, I, kh, kw); None if they are not a constant that blocks could hold."""
        stored, size = constant_array(input_at(node, 1)), self.size
        if stored is None or stored.ndim != 4 or stored.shape[0] % size:
            return None
        outputs, inputs, *kernel = stored.shape
        if inputs < size or _is_depthwise(node, stored.shape):
            blocks = stored.reshape(outputs // size, inputs, *kernel, size)
            return blocks.transpose(0, 4, 1, 2, 3).reshape(stored.shape)
        if inputs % size:
            return None
        blocks = stored.reshape(outputs // size, inputs // size, *kernel, size, size)
        return blocks.transpose(0, 5, 1, 4, 2, 3).reshape(stored.shape)


def _is_depthwise(node: ir.Node, shape: tuple[int, ...]) -> bool:
    return shape[1] == 1 and attribute(node, "group", 1) == shape[0]


def _decide_size(node: ir.Node) -> int:
    """The size of blocks if a node tells it, else 0."""
    shape = constant_array(input_at(node, 1))
    if node.op_type != "Conv" or shape is None:
        return 0
    outputs, inputs = shape.shape[:2]
    if outputs % 16:
        return 8
    source = node.inputs[0]
    producer = None if source is None else source.producer()
    if attribute(node, "group", 1) != 1 or inputs < 8 or inputs % 16 == 0:
        return 0
    in_blocks = producer is not None and (producer.domain == DOMAIN or producer.op_type in _ELEMENTWISE)
    return 8 if in_blocks and inputs % 8 == 0 else 16


@cache
def own_block_size() -> int:
    """The size of onnxruntime's blocks on this machine: that of the filters in a model that it optimises; 0 if none."""
    import onnxruntime

    text = """<ir_version: 8, opset_import: ["" : 13]> g (float[1,16,4,4] x, float[8,16,1,1] w) => (float[1,8,4,4] y)
        { y = Conv(x, w) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 16, 1, 1), np.float32), "w"))
    del model.graph.input[1:]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "optimised.onnx")
        options.optimized_model_filepath = str(path)
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made = onnx.load(path).graph
    sizes = {tensor.dims[0] for tensor in made.initializer if len(tensor.dims) == 4}
    found = sizes.intersection(_SIZES) if any(node.domain == DOMAIN for node in made.node) else set()
    return int(found.pop()) if found else 0


# -- rewriting -----------------------------------------------------------------------------------------------


def write_blocked(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """The plain operator for one of blocked tensors."""
    if not blocks.size:
        raise Left("channels in blocks whose size is not known: it depends on the processor that the file was made on")
    write = _WRITES.get(node.op_type)
    if write is None:
        raise Left("an operator of blocked tensors that trnrt doesn't know")
    write(writer, node, blocks)


def _write_conv(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """Conv with filters in blocks, plus Z, then the activation."""
    filters = blocks.filters(node)
    if filters is None:
        raise Left(f"filters that are no constant in blocks of {blocks.size}")
    source, bias = node.inputs[0], input_at(node, 2)
    count = min(filters.shape[0], blocks.needed.get(node.outputs[0], filters.shape[0]))
    given = writer.size(source, 1)
    attributes = {k: v.value for k, v in node.attributes.items() if not k.startswith("activation")}
    assert source is not None
    if _is_depthwise(node, filters.shape):
        source, attributes["group"] = _first_channels(writer, source, count), count
    elif attribute(node, "group", 1) == 1:
        filters = filters[:, :given]
    inputs: list[Any] = [source, np.ascontiguousarray(filters[:count])]
    if bias is not None:
        inputs.append(writer.array(bias, "the bias")[:count])
    made = writer.apply("Conv", *inputs, name=node.name or "", **attributes)
    if (added := input_at(node, 3)) is not None:
        made = writer.apply("Add", made, _first_channels(writer, added, count))
    parameters = attribute(node, "activation_params", ())
    writer.finish(activate(writer, made, attribute(node, "activation", ""), parameters))


def _first_channels(writer: Writer, value: ir.Value, count: int) -> ir.Value:
    there = writer.size(value, 1)
    if there < count:
        raise Left(f"{count} channels are read of {there}")
    return value if there == count else writer.slice(value, count, 1)


def _write_pool(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """ONNX's operator of the same name."""
    attributes = {k: v.value for k, v in node.attributes.items()}
    writer.finish(writer.apply(node.op_type, node.inputs[0], name=node.name or "", **attributes))


def _enter(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """Channels first to blocks, or channels last to blocks."""
    source = node.inputs[0]
    assert source is not None
    last = attribute(node, "channels_last", 0)
    writer.finish(writer.transpose(source, 0, 3, 1, 2, name=node.name or "") if last else source)


def _leave(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """Blocks to channels first, or to channels last."""
    source = node.inputs[0]
    assert source is not None
    made = _first_channels(writer, source, attribute(node, "channels", 0))
    last = attribute(node, "channels_last", 0)
    writer.finish(writer.transpose(made, 0, 2, 3, 1, name=node.name or "") if last else made)


def _write_upsample(writer: Writer, node: ir.Node, blocks: Blocks) -> None:
    """Larger images, by whole factors of height and width."""
    mode, coordinates = attribute(node, "mode", "nearest"), attribute(node, "coordinate_transformation_mode", "")
    scales = np.array(attribute(node, "scales", ()), np.float32)
    if writer.opset < 11:
        raise Left(f"opset {writer.opset}; opset 11 and later are supported")
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates or "asymmetric"}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    inputs = [node.inputs[0], np.array([], np.float32), scales]  # opset 11 has no Resize without a roi
    writer.finish(writer.insert("Resize", inputs, 1, node.name or "", attributes)[0])


_WRITES = {
    "Conv": _write_conv,
    "MaxPool": _write_pool,
    "AveragePool": _write_pool,
    "GlobalAveragePool": _write_pool,
    "GlobalMaxPool": _write_pool,
    "ReorderInput": _enter,
    "ReorderOutput": _leave,
    "Upsample": _write_upsample,
}


def blocked_operators() -> dict[tuple[str, str], Callable[..., None]]:
    """(domain, name) -> the function that rewrites each operator of blocked tensors."""
    return {(DOMAIN, name): write for name, write in _WRITES.items()}
