"""Steps that only move elements: DMA puts a tensor together from access patterns on others, or transposes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trnrt.planner.blocked import Blocked
from trnrt.planner.steps import Call, Operand, SourceName, Step, Tensors
from trnrt.planner.views import View, merge_dims

# DMA transfers of one step beyond which it is refused: each takes about 2 us.
MOST_PARTS = 16384


@dataclass(frozen=True)
class Part:
    """Elements of source number ``source`` that go to a region of the result: both are access patterns."""

    source: int
    taken: View
    put: View


@dataclass(kw_only=True)
class MoveStep(Step):
    """A tensor in HBM that DMA puts together from ``parts`` of others, over ``fill`` where that is a number."""

    parts: list[Part]
    fill: float | None = None

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        return self.shape if position is None else self.sources[position].shape or (1,)

    def call(self, tensors: Tensors) -> Call:
        parts = tuple(_rendered(part) for part in self.parts)
        names = tuple(SourceName(k) for k in range(len(self.sources)))
        options = {} if self.fill is None else {"fill": self.fill}
        return Call("movement", "move", (names, parts), options)


def _rendered(part: Part) -> tuple[Any, ...]:
    """(source, its offset and strides, the result's offset and strides, shape) over as few dimensions as possible."""
    shape, (taken, put) = merge_dims(part.taken.shape, (part.taken.strides, part.put.strides))
    if not shape:
        shape, taken, put = (1,), (1,), (1,)
    return part.source, part.taken.offset, taken, part.put.offset, put, shape


@dataclass(kw_only=True)
class TransposeStep(Step):
    """``source.transpose(order)`` over the collapsed dimensions ``collapsed``."""

    order: tuple[int, ...]
    collapsed: tuple[int, ...]

    def hbm_view(self, position: int | None) -> tuple[int, ...]:
        shape = self.collapsed if position == 0 else tuple(self.collapsed[d] for d in self.order)
        return (1, *shape) if self.order == (1, 0) else shape

    def call(self, tensors: Tensors) -> Call:
        if self.order in ((1, 0), (0, 2, 1)):
            return Call("transpose", "transpose_matrices", ())
        return Call("transpose", "permute_dims", (self.order,))


def copy_step(name: str, view: View) -> tuple[Step, str]:
    """The step that makes the tensor ``name`` of the elements of ``view``, and why: a transpose, or any movement."""
    order = view.order
    if order is not None:
        collapsed, small = _collapse(view)
        if len(collapsed) <= 5:
            source = Operand(view.root, (view.size,))
            step = TransposeStep(
                name=name, nodes=[], sources=[source], output=name, shape=view.shape, order=small, collapsed=collapsed
            )
            return step, "another order of elements, by the tensor engine (matrices) or DMA"
    moved = move_step(name, name, view.shape, [(view, View.whole(name, view.shape))])
    return moved, "elements moved by DMA: the next kernel reads them dense"


def _collapse(view: View) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A permutation as (sizes of the stored dimensions, order), over as few of them as possible."""
    sizes, (strides,) = merge_dims(view.shape, (view.strides,))
    by_source = sorted(range(len(sizes)), key=lambda d: -strides[d])
    return tuple(sizes[d] for d in by_source), tuple(by_source.index(d) for d in range(len(sizes)))


def move_step(
    name: str, output: str, shape: tuple[int, ...], parts: list[tuple[View, View]], fill: float | None = None
) -> MoveStep:
    """The step of ``parts`` (what is taken, where it is put), each stored tensor being one source."""
    roots = list(dict.fromkeys(taken.root for taken, _ in parts))
    if len(parts) > MOST_PARTS:
        raise Blocked(f"{len(parts)} separate transfers; a step makes {MOST_PARTS} at most")
    sizes = {taken.root: taken.size for taken, _ in parts}
    return MoveStep(
        name=name,
        nodes=[],
        sources=[Operand(root, (sizes[root],)) for root in roots],
        output=output,
        shape=shape,
        parts=[Part(roots.index(taken.root), taken, put) for taken, put in parts],
        fill=fill,
    )
