"""Rotary positions as one step: x * cosines + (x with its elements exchanged) * sines, for constant tables.

The step reads the rows of the linear layer before it, heads side by side, and writes such rows for attention behind
it, all with features on the partitions. Tokens that the graph splits off, and joins again, have cosine 1 and sine 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from trnrt.kernels.attention_operands import READABLE_HEADS
from trnrt.kernels.rotate import rotate_tile_bytes
from trnrt.operators.record import Group, finds_groups
from trnrt.operators.rotation_graph import Rotation, find_rotations
from trnrt.planner.lowering.views import View
from trnrt.planner.lowering.walk import Lowering, node_name, value_name
from trnrt.planner.lowering.weights import PARTITIONS
from trnrt.planner.plan import Array, Layout
from trnrt.planner.steps import Call, Operand, Step, Tensors, WeightName

Shape = tuple[int, ...]


@dataclass(kw_only=True)
class RotationStep(Step):
    """Rows (items * tokens, columns) of heads side by side, rotated: those from column ``first`` on of the source's.

    ``order``: the element that each one of a head is exchanged for. ``cosines``, ``sines``: (tokens, elements)."""

    source_rows: Shape
    first: int
    order: Array
    cosines: Array
    sines: Array

    def reads(self, position: int, shapes: Tensors) -> tuple[Layout, ...]:
        fits = shapes.shape(self.sources[0].value) == self.source_rows and self.first % PARTITIONS == 0
        return (Layout.FEATURES, Layout.HBM) if fits else (Layout.HBM,)

    def writes(self) -> tuple[Layout, ...]:
        return (Layout.FEATURES, Layout.HBM)

    def hbm_view(self, position: int | None) -> Shape:
        return self.shape if position is None else self.source_rows

    def multiplied_sources(self) -> list[Operand]:
        return self.sources

    def working_bytes(self, tensors: Tensors, *, held: bool) -> int:
        brought = sum(tensors.layout(value) is Layout.HBM for value in (self.sources[0].value, self.output))
        return rotate_tile_bytes(self.shape[1], self.cosines.shape[0], 4, brought)

    def call(self, tensors: Tensors) -> Call:
        keys = ("swap", "cosines", "sines")
        args = (*map(WeightName, keys), self.shape[1], *((self.first,) if self.first else ()))
        arrays = dict(zip(keys, self._lay_out(), strict=True))
        return Call("rotate", "rotate_features", args, weights=arrays, held=keys)

    def _lay_out(self) -> tuple[Array, Array, Array]:
        """The permutation (P, P), and the tables (P, tokens), the sines where the elements come from."""
        parts, width = min(self.shape[1], PARTITIONS), len(self.order)
        place = np.arange(parts) // width * width + self.order[np.arange(parts) % width]
        swap = np.zeros((parts, parts), np.float32)
        swap[place, np.arange(parts)] = 1
        cosines, sines = (np.tile(table.T, (parts // width, 1)) for table in (self.cosines, self.sines))
        laid = np.empty_like(sines)
        laid[place] = sines
        return swap, cosines, laid


@finds_groups
def group_rotations(lowering: Lowering) -> list[Group]:
    """The rotations of a graph, each of nodes that nothing else reads."""
    return [Group(found.nodes, partial(_add_rotation, found=found)) for found in find_rotations(lowering)]


def _add_rotation(lowering: Lowering, found: Rotation) -> bool:
    """Append the step of one rotation; False if its heads aren't side by side in rows, or of another width."""
    made, last = found.nodes[-1].outputs[0], found.nodes[-1]
    turn = (0, found.axis, 3 - found.axis, 3)
    view = lowering.view_of(found.source).permute(turn)
    items, tokens, heads, width = view.shape
    row = view.size // (items * tokens)
    expected = (tokens * row, row, width, 1)
    follows = all(n == 1 or s == wanted for n, s, wanted in zip(view.shape, view.strides, expected, strict=True))
    fits = row * items * tokens == view.size and view.offset + heads * width <= row
    if not (follows and fits and width in READABLE_HEADS):
        return False
    step = RotationStep(
        name=node_name(last),
        sources=[Operand(view.root, (items * tokens, row))],
        output=lowering.spare_name(f"{value_name(made)}.rows"),
        shape=(items * tokens, heads * width),
        source_rows=(items * tokens, row),
        first=view.offset,
        order=found.order,
        cosines=found.cosines,
        sines=found.sines,
    )
    lowering.add(step, list(found.nodes), "rotary positions: both products and their sum in one step", together=True)
    lowering.set_view(made, View.whole(step.output, (items, tokens, heads, width)).permute(turn))
    return True
