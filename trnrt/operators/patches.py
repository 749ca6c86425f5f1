"""Embeddings of patches: a Conv whose kernel is as large as its step, and whose results are read channels last."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from trnrt.importer.rewriting.editing import maker
from trnrt.importer.values import input_at, static_shape
from trnrt.kernels.conv.patches import patch_columns, patch_tile_bytes
from trnrt.operators.windows import Pair, Window
from trnrt.planner.lowering import weights
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, attribute, node_name, value_name
from trnrt.planner.plan import Array
from trnrt.planner.steps import Call, Operand, Step, Tensors, WeightName

# Patches in a row: those of one row must fit the partitions.
_MOST_ACROSS = 128


@dataclass(kw_only=True)
class PatchStep(Step):
    """Each patch of ``kernel`` pixels of images times the weight (O, C, rows, columns) plus the bias (O,), as rows."""

    weight: Array
    bias: Array

    @property
    def kernel(self) -> Pair:
        """(rows, columns) of a patch."""
        return self.weight.shape[2], self.weight.shape[3]

    def multiplied_sources(self) -> list[Operand]:
        return self.sources

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        taken = patch_tile_bytes(self.sources[0].shape[2:], self.kernel, self.shape[1], 4)  # type: ignore[arg-type]
        return taken if held else taken + prod(self._prepare_weight().shape[1:]) * 4

    def call(self, tensors: Tensors) -> Call:
        return Call(
            "conv.patches",
            "embed_patches",
            (WeightName("w"), WeightName("b"), self.kernel),
            weights={"w": self._prepare_weight()},
            biases={"b": weights.rows(self.bias)},
            held=("w",),
        )

    def _prepare_weight(self) -> Array:
        """The weight as the kernel reads it."""
        outputs, channels, rows, columns = self.weight.shape
        beside = patch_columns(channels, self.kernel)
        steps = -(-columns // beside)
        padded = np.zeros((outputs, channels, rows, steps * beside), np.float32)
        padded[..., :columns] = self.weight
        taps = padded.reshape(outputs, channels, rows, steps, beside)
        return taps.transpose(4, 1, 2, 3, 0).reshape(beside * channels * rows, steps, outputs)


def add_patches(lowering: Lowering, node: ir.Node, window: Window | None) -> bool:
    """Append the step of a Conv over patches, and declare its result a view of rows; False if it is another."""
    source, made = node.inputs[0], node.outputs[0]
    weight, given = lowering.constant(node.inputs[1]), input_at(node, 2)
    bias = None if given is None else lowering.constant(given)
    if window is None or weight is None or weight.ndim != 4 or (given is not None and bias is None):
        return False
    kernel = (weight.shape[2], weight.shape[3])
    alone = window.stride == kernel and window.dilation == (1, 1) and not any(window.pads)
    channels = weight.shape[1]
    if not alone or prod(kernel) == 1 or attribute(node, "group", 1) != 1 or not patch_columns(channels, kernel):
        return False
    images, outputs, down, across = lowering.shape(made)
    if across > _MOST_ACROSS or not _is_read_last(made) or source is None:
        return False
    name = lowering.spare_name(f"{value_name(made)}.rows")
    step = PatchStep(
        name=node_name(node),
        sources=[lowering.operand(source)],
        output=name,
        shape=(images * down * across, outputs),
        weight=weight.astype(np.float32),
        bias=np.zeros(outputs, np.float32) if bias is None else bias.astype(np.float32),
    )
    lowering.add(step, [node], "patches that don't overlap: products of their rows of pixels, a patch a row")
    lowering.set_view(made, View.whole(name, (images, down, across, outputs)).permute((0, 3, 1, 2)))
    return True


def _is_read_last(made: ir.Value) -> bool:
    """True if the only reader of images joins their positions, and the only one behind turns the channels last: as
    tokens. Images that stay images are better stored channels first."""
    shape, readers = static_shape(made), [node for node, _ in made.uses()]
    if shape is None or len(readers) != 1 or made.is_graph_output():
        return False
    joined = maker(readers[0].outputs[0], "Reshape", "Flatten")
    if joined is None or static_shape(joined.outputs[0]) != (shape[0], shape[1], shape[2] * shape[3]):
        return False
    behind = [node for node, _ in joined.outputs[0].uses()]
    if len(behind) != 1 or joined.outputs[0].is_graph_output():
        return False
    turning = maker(behind[0].outputs[0], "Transpose")
    return turning is not None and tuple(turning.attributes.get_ints("perm", ())) == (0, 2, 1)
