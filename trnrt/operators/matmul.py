"""Products of two tensors with any batch dimensions, transposed or broadcast, unless the right one is constant."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import prod

import numpy as np

from trnrt.kernels.batched_matmul import Place
from trnrt.planner.lowering.views import View, merge_dims
from trnrt.planner.lowering.walk import Lowering
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors


@dataclass(kw_only=True)
class ProductStep(Step):
    """``act(left @ right)`` for each index of ``batches``; both factors are access patterns on the sources."""

    depth: int
    batches: tuple[int, ...]
    matrix: tuple[int, int]
    left_at: Place
    right_at: Place
    act: str

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        if position is None:
            return prod(self.batches), *self.matrix
        return (prod(self.sources[position].shape),)

    def multiplied_sources(self) -> list[Operand]:
        return self.sources

    def call(self, tensors: Tensors) -> Call:
        args = (SourceName(0), SourceName(len(self.sources) - 1), self.act, self.depth, self.batches)
        return Call("batched_matmul", "batched_matmul", (*args, astuple(self.left_at), astuple(self.right_at)))


def product_step(
    lowering: Lowering, name: str, left: View, right: View, output: str, shape: tuple[int, ...], act: str = "none"
) -> ProductStep:
    """The step that makes the tensor ``output``: numpy's left @ right, both of two dimensions or more."""
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left = _readable_view(lowering, left).broadcast((*batch, rows, depth))
    right = _readable_view(lowering, right).broadcast((*batch, depth, columns))
    shared = not any(right.strides[:-2])
    whole = View.whole(output, (*batch, rows, columns)).strides
    if shared and len(merge_dims(left.shape[:-1], (left.strides[:-1], whole[:-1]))[0]) == 1:
        # The left side's matrices, one below the other, make one matrix.
        stride = merge_dims(left.shape[:-1], (left.strides[:-1],))[1][0][-1]
        batch, rows = (), prod(left.shape[:-1])
        left = View(left.root, (rows, depth), (stride, left.strides[-1]), left.offset, left.size)
        right = View(right.root, (depth, columns), right.strides[-2:], right.offset, right.size)
    sizes, (ours, theirs) = merge_dims(tuple(batch), (left.strides[:-2], right.strides[:-2]))
    return ProductStep(
        name=name,
        sources=[Operand(view.root, (view.size,)) for view in ((left,) if left.root == right.root else (left, right))],
        output=output,
        shape=shape,
        depth=depth,
        batches=sizes,
        matrix=(rows, columns),
        left_at=Place(left.offset, ours, left.strides[-2], left.strides[-1]),
        right_at=Place(right.offset, theirs, right.strides[-2], right.strides[-1]),
        act=act,
    )


def _readable_view(lowering: Lowering, view: View) -> View:
    """The view itself if rows or columns of its matrices are contiguous, else a view of a dense copy."""
    steps = [stride for size, stride in zip(view.shape[-2:], view.strides[-2:], strict=True) if size > 1]
    if (not steps or 1 in steps) and min(view.strides) >= 0:
        return view
    copy = lowering.operand_of(view)
    return View.whole(copy.value, copy.shape)
